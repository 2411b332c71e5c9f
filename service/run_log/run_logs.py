"""Composes the run logs of a node: flushing, closing, deleting, reading, as one object.

`open_run_logs` builds `RunLogs` from the node's interfaces, settings and journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from service.run_log.backlog import (
    ActiveMarkers,
    Backlog,
    Deletions,
    HeldLines,
    NoOtherNodes,
    RunLogPeers,
    TakenBack,
)
from service.run_log.chunks import Chunks, ChunkWriter, Moved
from service.run_log.close import Closer
from service.run_log.contracts import (
    FlushProgress,
    FlushRules,
    PendingRuns,
    Recorded,
    RunEvents,
    RunJournal,
    RunLocks,
)
from service.run_log.delete import Deleter, Wanted, always
from service.run_log.flush import Flusher, RunFlush, Trimmer
from service.run_log.listing import Listing
from service.run_log.merge import ChunkMerger, ChunkSorter, PartialPublisher
from service.run_log.openmetadata import WRITER, Importer, ImportingManifests, Upstream
from service.run_log.read_records import Details, RecordReader
from service.run_log.read_text import RunLogReader
from service.run_log.repair import ChunkRepairer, OrphanEvidence, Records, RunRebuilder
from service.run_log.snapshot import Snapshots
from service.run_log.sweep import RemoteState, Sweeper, Takeover, gone
from service.runtime.health import ClockSkew, HealthProblem
from service.runtime.process import Offload
from service.runtime.store_deadline import StoreAnswers, always_answering
from service.settings import RunSettings, Settings, Tuning
from service.status.reports import RunOutcomes
from tailrace.coordination.lease import StoreTime
from tailrace.coordination.named_leases import NamedLeases
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import NotFound, StoreUnavailable
from tailrace.logstore.objects.store import DateSample, ObjectStore
from tailrace.logstore.runs.manifest import Manifest, Manifests
from tailrace.logstore.runs.report import RunReport, Watermark

_LET_GO_SECONDS = 2.0
_TRIES = 8


@dataclass(frozen=True)
class RunLogs:
    """The run logs of one node and its `parents`. Call `start` first; `run` works until `stop`.

    `recorded` are closes and deletions that an earlier process left unfinished.
    """

    node: str
    parents: list[str]
    recorded: Recorded
    alert_after_failures: int
    events: RunEvents
    progress: FlushProgress
    locks: RunLocks
    manifests: Manifests
    chunks: Chunks
    deletions: Deletions
    taken_back: TakenBack
    backlog: Backlog
    held: HeldLines
    leases: NamedLeases
    reader: RunLogReader
    records: RecordReader
    listing: Listing
    run_flush: RunFlush
    flusher: Flusher
    merger: ChunkMerger
    partials: PartialPublisher
    active: ActiveMarkers
    takeover: Takeover
    closer: Closer
    deleter: Deleter
    sweeper: Sweeper
    importer: Importer
    chunk_repairer: ChunkRepairer
    rebuilder: RunRebuilder

    def __post_init__(self) -> None:
        self.events.on_flushed(self._after_flush)

    async def start(self) -> None:
        """Finds the lines that wait. Raises `StoreUnavailable`: try again later."""
        await self.deletions.load()
        await self.flusher.start()
        await self.active.find([self.node, *self.parents])
        for key, end in self.flusher.lacking():
            self.active.appended(key, end)
        for key, pos in self.recorded.closes.items():
            self.closer.resume_everywhere(key, pos)
        for (fqn, run), t in self.recorded.tombstones.items():
            self.deleter.resume(fqn, run, t)

    async def start_reading(self) -> None:
        """Reads the deletions; a node without lines needs no more. Raises `StoreUnavailable`."""
        await self.deletions.load()
        self.progress.started()

    async def run(self) -> None:
        """Flushes, closes, merges, publishes and sweeps until stopped."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.flusher.run())
            group.create_task(self.closer.run())
            group.create_task(self.deleter.run())
            group.create_task(self.sweeper.run())
            group.create_task(self.leases.run())
            group.create_task(self.takeover.run())
            group.create_task(self.active.run())

    async def drain(self) -> None:
        """Flushes all confirmed lines into their runs. Raises `TailraceError`."""
        await self.flusher.drain()
        await self.active.clear()

    async def stop(self) -> None:
        """Ends running work; the next start repeats it."""
        self.held.stop()
        self.importer.stop()
        self.rebuilder.stop()
        self.chunk_repairer.stop()
        self.closer.stop()
        self.deleter.stop()
        self.sweeper.stop()
        self.takeover.stop()
        self.active.stop()
        await self.flusher.stop()
        with suppress(TimeoutError):  # leases that are not released expire
            async with asyncio.timeout(_LET_GO_SECONDS):
                await self.leases.stop()

    # --- calls of the node ---------------------------------------------------------

    def confirmed(self, seq: int, first: int, end: int) -> None:
        """Records that a segment of this node is in the store."""
        self.flusher.confirmed(seq, first, end)
        self.closer.noticed()

    @property
    def flushed_pos(self) -> int:
        """Returns the position below which all lines of this node are in chunks or left out."""
        return self.progress.flushed_pos

    async def find_batch(self, key: RunKey, ulid: int) -> tuple[int, int] | None:
        """Returns digest and records of a batch in the run's chunks.

        Raises `StoreUnavailable`, `ChunkLost`.
        """
        tries = 0
        while True:
            manifest = (await self.manifests.get(key)).manifest
            try:
                return await self.chunks.find(manifest, ulid)
            except Moved:
                tries += 1
            if tries > 1 and not await self.chunk_repairer.repair(key) and tries > _TRIES:
                raise StoreUnavailable(f"the chunks of {key.fqn}/{key.run} change all the time")

    async def last_ulid(self, key: RunKey) -> int:
        """Returns the highest batch ULID in the run's chunks, 0 if they have none."""
        return (await self.manifests.get(key)).manifest.last

    async def close_run(self, key: RunKey) -> str:
        """Closes a run on all nodes: `closed`, or `closing` if it takes longer.

        Raises the errors of recording the close.
        """
        return await self.closer.close(key)

    async def delete_run(self, key: RunKey, wanted: Wanted = always) -> None:
        """Deletes a run. Raises `StoreUnavailable`, `OutcomeUnknown`, `Conflict`."""
        await self.deleter.delete_run(key, wanted)

    async def delete_pipeline(self, fqn: str, wanted: Wanted = always) -> list[str]:
        """Deletes all runs of a pipeline; returns their ids."""
        return await self.deleter.delete_pipeline(fqn, wanted)

    def problems(self) -> list[str]:
        """Returns present problems, as sentences."""
        found = self.flusher.ongoing.problems()
        worst = self.flusher.pending.worst
        if worst >= self.alert_after_failures:
            what = (
                f"{self.flusher.pending.failing} runs cannot be flushed, one for {worst} times: "
                f"{self.flusher.last_error}"
            )
            found.append(HealthProblem("runs cannot be flushed", what))
        if self.backlog.unreadable:
            count = self.backlog.unreadable
            what = f"{count} segments cannot be read; see `tailrace verify`"
            found.append(HealthProblem("segments cannot be read", what))
        found += self.chunk_repairer.problems()
        found += [
            f"segment {seq} of {node} is missing, and later segments wait"
            for node, seq in self.backlog.gaps.items()
        ]
        return found

    def appended(self, key: RunKey, end: int) -> None:
        """Records that lines of the run below position `end` are synced."""
        self.active.appended(key, end)
        self.held.arrived(key)

    async def _after_flush(self, manifest: Manifest) -> None:
        self.closer.flushed(manifest)
        try:
            manifest = await self.merger.merge(manifest)
        except NotFound:  # a chunk is gone or cut; the next flush merges
            await self.chunk_repairer.repair(manifest.key)
        if not self.closer.is_closing(manifest.key) and self.partials.due(manifest):
            await self.partials.publish(manifest.key, due=True)


# --- Composition --------------------------------------------------------------------------------


async def no_reports(_key: RunKey) -> None:
    """Stands in for run logs without reports.

    A close of a run without lines leaves no trace, and only lines say that a run goes on.
    """


async def _no_reports_of_runs(_fqn: str, _run: str | None) -> None:
    """Stands in for the removal of a deleted run's reports."""


async def _room_enough() -> None:
    """Stands in if another program looks after the disk's free space."""


@dataclass(frozen=True, slots=True)
class RunLogDependencies:
    """The dependencies of run logs on the rest of their node.

    `confirmed_through` waits until all lines below a position are in segments. `last_ulid` returns
    the highest ULID of a run here. `watermark` reads a node's watermark and replaces a damaged one.
    `records` searches all stored lines; it is None as long as that is impossible. `ended` is called
    when a run ends. `others` returns the other nodes. `answers` tells whether the store answers.
    `remove_reports` removes those of a deleted run, or pipeline. `close_report` notes that a run
    without lines was closed. `reported` returns a run's status. `make_room` returns when a deletion
    has some room on a disk that is full.
    """

    journal: RunJournal
    offload: Offload
    confirmed_through: Callable[[int], Awaitable[None]]
    last_ulid: Callable[[RunKey], int]
    watermark: Callable[[str], Awaitable[Watermark]]
    ended: Callable[[RunKey], None]
    newest_date: Callable[[], DateSample | None] | None = None
    records: Callable[[], Records | None] = lambda: None
    details: Callable[[], Details | None] = lambda: None
    others: Callable[[Deletions], RunLogPeers] = lambda _: NoOtherNodes()
    answers: StoreAnswers = field(default_factory=always_answering)
    close_report: Callable[[RunKey], Awaitable[None]] = no_reports
    reported: Callable[[RunKey], Awaitable[RunReport | None]] = no_reports
    remove_reports: Callable[[str, str | None], Awaitable[None]] = _no_reports_of_runs
    make_room: Callable[[], Awaitable[None]] = _room_enough


def open_run_logs(
    node: str,
    parents: Sequence[str],
    store: ObjectStore,
    clock: Clock,
    entropy: Entropy,
    settings: Settings,
    tuning: Tuning,
    rest: RunLogDependencies,
) -> RunLogs:
    """Composes the run logs of `node`, which took over its `parents`. They are not started."""
    runs, prefix, journal = settings.runs, settings.runs.prefix, rest.journal
    events, locks, progress = RunEvents(), RunLocks(), FlushProgress(PendingRuns(_rules(runs)))
    manifests, chunks = Manifests(store, clock, entropy), Chunks(store, prefix)
    skew = ClockSkew(rest.newest_date)
    deletions = Deletions(store, skew)
    backlog, others = Backlog(store, node, rest.offload), rest.others(deletions)
    writer, trimmer = ChunkWriter(store, chunks, rest.offload), Trimmer(store, manifests, chunks)
    upstream = Upstream(store, prefix)
    leases = NamedLeases(
        store,
        clock,
        entropy,
        StoreTime(clock, rest.newest_date),
        node=node,
        timeout_seconds=settings.coordination.lease_seconds,
    )
    is_gone = partial(gone, leases)
    remote_state = RemoteState(
        node, store, manifests, prefix=prefix, gone=is_gone, lacks=backlog.lacks
    )
    merger = ChunkMerger(store, manifests, chunks, locks, tuning)
    sorter = ChunkSorter(manifests, chunks, writer, chunk_bytes=tuning.chunk_bytes, foreign=WRITER)
    chunk_repairer = ChunkRepairer(store, manifests, chunks, writer, clock, records=rest.records)
    evidence = OrphanEvidence(store, node, prefix=prefix, progress=progress, foreign=WRITER)
    rebuilder = RunRebuilder(
        manifests,
        writer,
        deletions,
        merger,
        clock,
        held=remote_state.held,
        records=rest.records,
        had_manifest=evidence.found,
        chunk_bytes=tuning.chunk_bytes,
    )
    importer = Importer(
        store,
        upstream,
        manifests,
        chunks,
        deletions,
        clock,
        prefix=prefix,
        rebuild=rebuilder.without_manifest,
        waits=evidence.waits,
    )
    importing = ImportingManifests(store, clock, entropy, importer)
    run_flush = RunFlush(
        importing,
        chunks,
        writer,
        backlog,
        deletions,
        trimmer,
        clock,
        owner=node,
        alone=not others,
        chunk_bytes=tuning.chunk_bytes,
        inline_bytes=tuning.inline_bytes,
        repair=chunk_repairer.repair,
    )
    partials = PartialPublisher(
        store,
        importing,
        chunks,
        locks,
        prefix,
        clock,
        seconds=_partial_seconds(runs, tuning),
        alone=not others,
    )
    flusher = Flusher(
        node,
        list(parents),
        store,
        clock,
        progress,
        parallel=settings.flush.parallel,
        watermark_seconds=tuning.watermark_seconds,
        pin=journal.pin,
        backlog=backlog,
        run_flush=run_flush,
        locks=locks,
        fresh_id=manifests.fresh_id,
        events=events,
    )

    takeover = Takeover(
        node,
        store,
        clock,
        leases,
        backlog,
        flusher,
        watermark=rest.watermark,
        load_deletions=deletions.load,
        taken=events.inherited,
        lags=remote_state.lags,
        interval_seconds=tuning.takeover_seconds,
    )
    active = ActiveMarkers(
        node,
        store,
        clock,
        prefix=prefix,
        linger_seconds=2 * runs.partial_flush_interval_seconds,
        held=flusher.lacks,
    )
    closer = Closer(
        node,
        parents,
        store,
        importing,
        chunks,
        merger,
        sorter,
        flusher,
        locks,
        clock,
        runs,
        prefix=prefix,
        record_close=journal.record_close,
        flushed_through=rest.confirmed_through,
        close_done=journal.finish_close,
        gone=is_gone,
        is_over=takeover.is_over,
        repair=chunk_repairer.repair,
        on_ended=events.ended,
        others=others,
        has_partial=partials.has_published,
        close_report=rest.close_report,
    )

    async def record_tombstone(fqn: str, run: str | None, t: int) -> None:
        """Records a deletion, and drops earlier closes of its runs."""
        await journal.record_tombstone(fqn, run, t)
        closer.abandon(fqn, run)

    deleter = Deleter(
        store,
        manifests,
        deletions,
        locks,
        clock,
        upstream,
        trimmer,
        node=node,
        prefix=prefix,
        gone=is_gone,
        pin=journal.pin,
        last_ulid=rest.last_ulid,
        record_tombstone=record_tombstone,
        tombstone_done=journal.finish_deletion,
        progress=progress,
        forget=events.deleted,
        others=others,
        make_room=rest.make_room,
        remove_reports=rest.remove_reports,
        answers=rest.answers,
        deleted_ahead_ms=settings.ingest.deleted_ahead_ms,
    )
    sweeper = Sweeper(
        store,
        manifests,
        deletions,
        clock,
        runs,
        locks,
        doors=settings.doors,
        orphan_seconds=tuning.orphan_seconds,
        prefix=prefix,
        pin=journal.pin,
        leases=leases,
        remote_state=remote_state,
        import_left=importer.import_left,
        finalise=closer.finalise,
        publish=partials.publish,
        repair=chunk_repairer.repair,
        ended=events.ended,
        remove_objects=deleter.remove_objects,
        reported=rest.reported,
        skew=skew,
    )
    snapshots = Snapshots(
        journal.pin,
        backlog,
        importing,
        chunks,
        deletions,
        trimmer,
        progress,
        rebuilder,
        chunk_repairer.repair,
        others,
        remote_state.held,
        lambda: rest.answers.silent,
    )
    held = HeldLines(node, journal.pin, backlog, progress)
    events.on_inherited(held.inherited)
    events.on_ended(active.closed, rest.ended)
    events.on_deleted(active.closed, closer.forget, partials.forget)
    recorded = _Recorded(dict(journal.state.closes), dict(journal.state.tombstones))
    for (fqn, run), t in recorded.tombstones.items():
        deletions.note(fqn, run, t, own=True)
    taken_back = TakenBack(journal.pin)
    deletions.on_heard = taken_back.heard
    return RunLogs(
        node=node,
        parents=list(parents),
        recorded=recorded,
        alert_after_failures=runs.pending_flush_alert_after_failures,
        events=events,
        progress=progress,
        locks=locks,
        manifests=manifests,
        chunks=chunks,
        deletions=deletions,
        taken_back=taken_back,
        backlog=backlog,
        held=held,
        leases=leases,
        reader=RunLogReader(snapshots),
        records=RecordReader(snapshots, rest.details),
        listing=Listing(
            store,
            progress,
            journal.pin,
            backlog,
            deletions,
            snapshots,
            upstream,
            others,
            RunOutcomes(runs.lost_seconds, runs.stream_timeout_seconds),
            remote_state.held_in,
        ),
        run_flush=run_flush,
        flusher=flusher,
        merger=merger,
        partials=partials,
        active=active,
        takeover=takeover,
        closer=closer,
        deleter=deleter,
        sweeper=sweeper,
        importer=importer,
        chunk_repairer=chunk_repairer,
        rebuilder=rebuilder,
    )


@dataclass(frozen=True, slots=True)
class _Recorded:
    """Closes and deletions as they were recorded at the start."""

    closes: dict[RunKey, int]
    tombstones: dict[tuple[str, str | None], int]


def _rules(runs: RunSettings) -> FlushRules:
    return FlushRules(runs.early_flush_watermark_bytes, runs.partial_flush_interval_seconds)


def _partial_seconds(runs: RunSettings, tuning: Tuning) -> float:
    given = tuning.partial_seconds
    return runs.partial_flush_interval_seconds if given is None else given
