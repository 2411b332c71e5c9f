"""`tailrace forward --config`: the engine with all its parts, from start to stop.

A stop (SIGTERM, SIGINT) reads no more, waits `shutdown_timeout` for batches on their way, and saves
the checkpoints. The next start sends unacknowledged batches again, under the same ids.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType

from tailrace.forwarder.checkpoints import Checkpoints, StorageFailed
from tailrace.forwarder.config.source import FileSource, Forwarder
from tailrace.forwarder.delivery.delivery import open_delivery, open_service
from tailrace.forwarder.delivery.targets import Token, Verdict
from tailrace.forwarder.engine.engine import STORAGE_RETRY_SECONDS, ForwarderEngine
from tailrace.forwarder.engine.state import (
    EngineParts,
    FileRegistry,
    RunReports,
    SourceParts,
    SourceTally,
)
from tailrace.forwarder.engine.watch import is_remote
from tailrace.forwarder.entries.packer import EntryPacker
from tailrace.forwarder.files.content import Handles
from tailrace.forwarder.files.finder import Confines, Finder, Glob, Ordering, facts_of
from tailrace.forwarder.followed_runs import FollowedRuns
from tailrace.forwarder.metrics import ForwarderMetricSources, SyncCounts, behind, serve
from tailrace.forwarder.model import FileState
from tailrace.forwarder.naming import Namer, RunName
from tailrace.forwarder.pods import PodNames, api_server
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.progress import Line, Pace, ProgressLine, log_to, size
from tailrace_client.records import BatchIds
from tailrace_client.unfinished import UnfinishedSender, unfinished_path

log = logging.getLogger(__name__)
_WITHDRAW_SECONDS = 5.0

Say = Callable[[str], None]


def forward(config: Forwarder) -> int:
    """Forwards until a signal; the exit status. Raises what makes a start impossible."""
    refuse_windows(sys.platform)
    line = Line(sys.stderr)
    log_to(line, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    syncs = SyncCounts()
    checkpoints = _open_checkpoints(config.folder, syncs)
    try:
        return _forward(config, checkpoints, syncs, line)
    finally:
        checkpoints.close()


def _open_checkpoints(folder: str, syncs: SyncCounts) -> Checkpoints:
    """Opens them, and waits for a disk that refuses, as a forwarder that runs does.

    There is no deadline: nothing is lost meanwhile, and a signal ends the process.
    """
    said = ""
    while True:
        try:
            return Checkpoints(folder, say=log.warning, on_sync=syncs.add)
        except StorageFailed as error:
            if str(error) != said:
                said = str(error)
                log.warning("reading stops until the checkpoints can be saved: %s", error)
        time.sleep(STORAGE_RETRY_SECONDS)


def refuse_windows(platform: str) -> None:
    """Raises `InvalidInput` on Windows, where a file that is open cannot be renamed."""
    if platform == "win32":
        raise InvalidInput(
            "the forwarder does not run on Windows",
            hint="It follows files by inodes and open handles. Run it on Linux or macOS, or send"
            " lines with tailrace-client.",
        )


def _forward(config: Forwarder, checkpoints: Checkpoints, syncs: SyncCounts, line: Line) -> int:
    box: list[ForwarderEngine] = []

    def token() -> Token:
        return Token(config.token, file=config.token_file)

    # Apart from the delivery, which waits for none of it.
    beside = open_service(config.targets, token(), say=_unsaid, ca_file=config.ca_file)
    unfinished = UnfinishedSender(beside)

    def show(fqn: str, run: str, file: str, line: bytes) -> None:
        unfinished.show(unfinished_path(fqn, run), file, line)

    runs = FollowedRuns(beside, SystemClock())
    shared = make_shared(config, checkpoints, log.warning, show, runs)

    def on_verdict(file: str, verdict: Verdict) -> None:
        box[0].on_verdict(file, verdict)

    delivery = open_delivery(
        config.targets,
        token(),
        on_verdict=on_verdict,
        say=log.warning,
        senders=config.senders,
        durability=config.durability,
        body_encoding=config.body_encoding,
        first_pause_seconds=config.retry_on_failure.initial_interval,
        longest_pause_seconds=config.retry_on_failure.max_interval,
        ca_file=config.ca_file,
    )
    stop_metrics: Callable[[], None] | None = None
    sources, clock = ForwarderMetricSources(shared, delivery, syncs), shared.clock
    try:
        if config.metrics.listen:
            stop_metrics = serve(config.metrics.listen, sources)
        engine = ForwarderEngine(
            shared,
            delivery,
            batch_bytes=config.batch_bytes,
            memory_bytes=config.memory_bytes,
            hinted=hinted(config),
        )
        box.append(engine)
        _stop_on_signals(engine)
        log.info("forwards to %s", ", ".join(config.targets))
        with ProgressLine(line, partial(delivered, sources, Pace(clock)), clock, log.info):
            engine.run()
            if not engine.drain(config.shutdown_timeout):
                log.warning(
                    "batches were not acknowledged in time; the next start sends them under their"
                    " ids"
                )
    finally:
        if stop_metrics is not None:
            stop_metrics()
        unfinished.stop()
        runs.stop(_WITHDRAW_SECONDS)
        beside.close()
        delivery.stop(0)
    return 0


def _unsaid(_: str) -> None:
    """The delivery says which targets fail."""


def delivered(sources: ForwarderMetricSources, pace: Pace) -> str:
    """How much is acknowledged, how fast, and how much is known to be left to read."""
    done = sum(sources.by_source(lambda tally: tally.acknowledged_bytes).values())
    records = sum(sources.by_source(lambda tally: tally.acknowledged_records).values())
    left = sum(behind(file) for file in sources.files)
    return (
        f"{records:,.0f} records of {len(sources.files):,} files delivered, {size(done)},"
        f" {size(pace.of(done))}/s, {size(left)} to go"
    )


def make_shared(
    config: Forwarder,
    checkpoints: Checkpoints,
    say: Say,
    show: Callable[[str, str, str, bytes], None] = lambda *_: None,
    reports: RunReports | None = None,
) -> EngineParts:
    """Makes the parts that all modules of the engine use, for these sources."""
    ids = BatchIds()
    for state in checkpoints.files.values():
        for prepared in state.prepared:
            ids.go_above(prepared.batch)
    return EngineParts(
        sources={
            source.name: make_source(source, say, checkpoints.files.values())
            for source in config.sources
        },
        registry=FileRegistry(),
        handles=Handles(sum(source.max_concurrent_files for source in config.sources)),
        checkpoints=checkpoints,
        clock=SystemClock(),
        mint=ids.mint,
        correct=ids.correct,
        say=say,
        show=show,
        reports=reports,
        tallies={source.name: SourceTally() for source in config.sources},
    )


def make_source(source: FileSource, say: Say, known: Iterable[FileState] = ()) -> SourceParts:
    """A source with what finds, names and packs its files; those that are `known` keep names."""
    pods = (
        PodNames(api_server(), SystemClock().monotonic) if source.template == "kubernetes" else None
    )
    namer = Namer(source, host=socket.gethostname(), pods=pods)
    for state in known:
        if state.source == source.name and state.fqn:
            namer.remember(state.path, RunName(state.fqn, state.run))
    tally_of_errors: set[str] = set()

    def unreadable(path: str, error: OSError) -> None:
        if path not in tally_of_errors:
            tally_of_errors.add(path)
            say(f"{path} cannot be read: {error.strerror}; it is tried again")

    order = source.ordering_criteria
    confines = Confines(source.within)
    return SourceParts(
        config=source,
        confines=confines,
        finder=Finder(
            source.include,
            source.exclude,
            confines=confines,
            older_than_ns=int(source.exclude_older_than * 1e9),
            order=Ordering(order, say) if order is not None else None,
            now_ns=lambda: SystemClock().now_ms() * 1_000_000,
            unreadable=unreadable,
        ),
        archives=tuple(Glob(each) for each in source.archive_include),
        packer=EntryPacker(source),
        name=namer.name,
        facts=facts_of(source),
    )


def hinted(config: Forwarder) -> list[str]:
    """The sources of which the kernel knows all changes: those without network file systems."""
    try:
        with open("/proc/mounts", encoding="utf-8", errors="surrogateescape") as file:
            mounts = file.read()
    except OSError:
        mounts = ""
    return [
        source.name
        for source in config.sources
        if source.hints
        and not any(is_remote(os.path.abspath(each), mounts) for each in source.include)
    ]


def _stop_on_signals(engine: ForwarderEngine) -> None:
    def stop(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
        engine.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
