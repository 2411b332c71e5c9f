"""Opens a compactor from settings, and runs its passes: one, or one after another.

`open_compactor` alone distinguishes folders from other stores. Repeated passes keep Spark warm.

The next pass begins when its time has come or when enough segments wait, whichever is first.
Between passes Spark is kept for `idle_seconds` without work and then stopped, so that a quiet store
costs no memory.

Ingesting and each part of the maintenance run separately: if one breaks off, the others continue,
and its error is raised at the end. Otherwise segments that cannot be ingested would prevent the
removal of expired, deleted and consumed data. Each part reads its own input. Only a format of a
newer version (`UnsupportedVersion`) ends the pass at once: nothing is removed on a guess.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace

from compactor.assignment import Alone, Assigner, open_assigner
from compactor.cleanup import clean_up, expire
from compactor.context import Compactor
from compactor.ingest import ingest_all
from compactor.placement import STAGING, FolderPlacement, ObjectPlacement, Placement
from compactor.plan import SegmentBacklog
from compactor.purge import purge
from compactor.report import PassReport
from compactor.rewrite import rewrite_hours
from compactor.settings import CompactorSettings
from compactor.skip_index import index_files
from compactor.spark.engine import SparkWishes
from compactor.spark.s3 import S3A
from compactor.spark.session import Session
from compactor.verify import find_left_out
from tailrace.logstore.clock import Clock, Entropy, SystemClock, system_entropy
from tailrace.logstore.errors import (
    Damaged,
    OutcomeUnknown,
    TailraceError,
    Unavailable,
    UnsupportedVersion,
)
from tailrace.logstore.filesystem import Disk, FileSystem
from tailrace.logstore.objects.config import open_store
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.table.table import open_table

log = logging.getLogger("tailrace.compactor")


def make_session(settings: CompactorSettings) -> Session:
    """The Spark session of these settings, not started."""
    compaction = settings.compaction
    wishes = SparkWishes(
        compaction.driver_memory,
        compaction.master,
        compaction.spark,
        json_log=compaction.log_format == "json",
        frozen_seconds=compaction.frozen_seconds,
    )
    if settings.bucket:
        return Session(wishes, S3A(settings.s3, compaction.jars))
    return Session(wishes, folder=os.path.join(open_table(settings).uri, STAGING))


@asynccontextmanager
async def open_compactor(
    settings: CompactorSettings,
    session: Session,
    reached: Callable[[str], None],
    *,
    alone: bool = False,
) -> AsyncIterator[Compactor]:
    """Opens a compactor of the settings' store for the time of the block.

    With `alone` it takes no leases, as if no other existed: for one that only reads. Raises
    `InvalidInput`, `StoreUnavailable`.
    """
    clock, entropy, disk = SystemClock(), system_entropy(), Disk()
    table = open_table(settings)
    async with (
        open_store(settings, clock, entropy, disk) as store,
        _assigner(settings, store, clock, entropy, disk, alone=alone) as assigner,
    ):
        placement: Placement = (
            FolderPlacement(disk, table.uri) if settings.bucket is None else ObjectPlacement(store)
        )
        yield Compactor(
            store,
            table,
            placement,
            clock,
            entropy,
            settings.compaction,
            session,
            reached,
            settings.queue.evict_after_hours,
            assigner,
            settings.runs,
            settings.segments.max_bytes,
        )


@asynccontextmanager
async def _assigner(
    settings: CompactorSettings,
    store: ObjectStore,
    clock: Clock,
    entropy: Entropy,
    disk: FileSystem,
    *,
    alone: bool,
) -> AsyncIterator[Assigner]:
    if alone:
        yield Alone()
        return
    async with open_assigner(settings, store, clock, entropy, disk) as assigner:
        yield assigner


async def once(
    compactor: Compactor,
    report: PassReport | None = None,
    backlog: SegmentBacklog | None = None,
    *,
    erase: bool = False,
) -> PassReport:
    """Ingests the present segments, cleans up, and reports.

    Segments that arrive after its begin are left to the next pass. If passes are repeated,
    `backlog` has seen the earlier state: a few segments then wait for more, and hours wait for
    segments.
    With `erase`, the removal of deleted lines and of older versions waits for no time.

    Raises `Unavailable`, `OutcomeUnknown`, `Damaged` at the end, when everything else is done.
    """
    report = report or PassReport()
    if erase:
        limits = compactor.limits.model_copy(update={"purge_seconds": 0.0, "grace_seconds": 0.0})
        compactor = replace(compactor, limits=limits)
    for alarm in await compactor.placement.quarantine_torn(compactor.clock.now_ms()):
        report.alarm(alarm)
    turns = _Turns()
    with turns.turn("ingesting"):
        gather = backlog is not None and backlog.gathers
        left = await ingest_all(compactor, report, gather=gather)
        if backlog is not None:
            backlog.note(left=left)
    with turns.turn("looking for segments to skip"):
        found = await find_left_out(compactor.store)
        report.left_out = found.segments
        for alarm in found.alarms:
            report.alarm(alarm)
    with turns.turn("expiry"):
        await expire(compactor, report)
    with turns.turn("the purge"):
        await purge(compactor, report)
    with turns.turn("rewriting hours"):
        await rewrite_hours(compactor, report, *([backlog.due] if backlog else []))
    with turns.turn("indexing"):
        await index_files(compactor, report, *([backlog.due] if backlog else []))
    with turns.turn("clean-up"):
        await clean_up(compactor, report, erase=erase)
    turns.end(report)
    return report


@dataclass(slots=True)
class _Turns:
    """The parts of a pass, and the errors that they raised."""

    _failures: list[tuple[str, TailraceError]] = field(default_factory=list)

    @contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """Keeps an error of the block until `end`; raises `UnsupportedVersion` at once."""
        try:
            yield
        except UnsupportedVersion:
            raise
        except TailraceError as error:
            log.warning("%s failed: %s", name, error)
            self._failures.append((name, error))

    def end(self, report: PassReport) -> None:
        """Raises the first error, one that needs a person before others; the rest become alarms."""
        if not self._failures:
            return
        worst = min(self._failures, key=lambda one: not isinstance(one[1], Damaged))
        for name, error in self._failures:
            if str(error) != str(worst[1]):
                report.alarm(f"{name} failed as well: {error}")
        raise worst[1]


async def repeat(
    compactor: Compactor,
    every: float,
    next_pass: Callable[[], AbstractAsyncContextManager[PassReport]],
) -> None:
    """Runs passes for ever, at most `every` seconds from the end of one to the start of the next.

    A pass begins early if the limits of waiting segments are reached (`compactor/plan.py`). Each
    runs inside its own `next_pass`, which makes the report and passes it to the listeners. If the
    store does not answer, or the outcome of a write is unknown, the next pass tries again; other
    errors end it.
    """
    backlog, worked = SegmentBacklog(compactor), compactor.clock.monotonic()
    while True:
        try:
            async with next_pass() as report:
                await backlog.seen()
                await once(compactor, report, backlog)
        except (Unavailable, OutcomeUnknown) as error:
            log.warning("this pass failed, and the next one tries again: %s", error)
        else:
            busy = report.commits or report.hours_rewritten
            worked = compactor.clock.monotonic() if busy else worked
        await _rest(compactor, backlog, every, worked)


async def _rest(
    compactor: Compactor, backlog: SegmentBacklog, seconds: float, worked: float
) -> None:
    """Waits until the next pass is due. Stops Spark, idle since `worked`, after its idle time."""
    clock, limits = compactor.clock, compactor.limits
    end = clock.monotonic() + seconds
    while True:
        if clock.monotonic() - worked >= limits.idle_seconds:
            compactor.engine.stop()
        left = end - clock.monotonic()
        if left <= 0:
            return
        await clock.sleep(min(left, limits.poll_seconds))
        with suppress(Unavailable):  # the next regular pass reports it
            if clock.monotonic() < end and await backlog.due():
                return
