"""Composes the run logs of a node from its seams, settings and journal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from coordination.named.leases import NamedLeases
from coordination.storetime import StoreTime
from logstore.batch import RunKey
from logstore.clock import Clock, Entropy
from logstore.objects.remote import DateSample
from logstore.objects.store import ObjectStore
from logstore.runs.manifests import Manifests
from logstore.runs.report import Report
from logstore.runs.watermark import Watermark
from service.runs.backlog import Backlog
from service.runs.chunks import Chunks, ChunkWriter
from service.runs.close import Closer
from service.runs.delete import Deleter
from service.runs.deletions import Deletions, TakenBack
from service.runs.elsewhere import NoOtherNodes, OtherNodes
from service.runs.events import RunEvents
from service.runs.flush import RunFlush
from service.runs.flusher import Flusher
from service.runs.held import HeldLines
from service.runs.listing import Listing
from service.runs.locks import RunLocks
from service.runs.merge import ChunkMerger
from service.runs.openmetadata.importer import WRITER, Importer, ImportingManifests
from service.runs.openmetadata.layout import Upstream
from service.runs.outcomes import RunOutcomes
from service.runs.partial import PartialPublisher
from service.runs.pending import FlushProgress, FlushRules, Pending
from service.runs.pin import RunJournal
from service.runs.read import RunLogReader
from service.runs.records import Details, RecordReader
from service.runs.remote_state import RemoteState
from service.runs.repair.chunks import ChunkRepairer
from service.runs.repair.rebuild import OrphanEvidence, Records, RunRebuilder
from service.runs.run_logs import RunLogs
from service.runs.settings import RunSettings, Tuning
from service.runs.snapshot import Snapshots
from service.runs.sort import ChunkSorter
from service.runs.sweep import Sweeper
from service.runs.takeover import Takeover, gone
from service.runs.trim import Trimmer
from service.runs.unflushed import ActiveMarkers
from service.runtime.clock_skew import ClockSkew
from service.runtime.threads import Offload
from service.settings import Settings


async def no_reports(_key: RunKey) -> None:
    """For run logs without reports: a close of a run without lines leaves no trace, and only lines
    say that a run goes on."""


async def _room_enough() -> None:
    """For disks that somebody else looks after."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What run logs ask of the rest of their node.

    `confirmed_through` waits until all lines below a position are in segments; `last_ulid` gives
    the highest ULID of a run here; `watermark` reads a node's and replaces a damaged one; `records`
    searches all stored lines, None as long as that is impossible; `ended` is called when a run
    ends; `others` gives the other nodes; `silent`: whether the store is known not to answer;
    `close_report` notes that a run without lines was closed; `reported` gives a run's status;
    `make_room` returns when a deletion has some room on a disk that is full.
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
    others: Callable[[Deletions], OtherNodes] = lambda _: NoOtherNodes()
    silent: Callable[[], bool] = lambda: False
    close_report: Callable[[RunKey], Awaitable[None]] = no_reports
    reported: Callable[[RunKey], Awaitable[Report | None]] = no_reports
    make_room: Callable[[], Awaitable[None]] = _room_enough


def open_run_logs(
    node: str,
    parents: Sequence[str],
    store: ObjectStore,
    clock: Clock,
    entropy: Entropy,
    settings: Settings,
    tuning: Tuning,
    around: Surroundings,
) -> RunLogs:
    """The run logs of `node`, which took over what its `parents` left. Not started."""
    runs, prefix, journal = settings.runs, settings.runs.prefix, around.journal
    events, locks, progress = RunEvents(), RunLocks(), FlushProgress(Pending(_rules(runs)))
    manifests, chunks = Manifests(store, clock, entropy), Chunks(store, prefix)
    skew = ClockSkew(around.newest_date)
    deletions = Deletions(store, skew)
    backlog, others = Backlog(store, node, around.offload), around.others(deletions)
    writer, trimmer = ChunkWriter(store, chunks, around.offload), Trimmer(store, manifests, chunks)
    upstream = Upstream(store, prefix)
    leases = NamedLeases(
        store,
        clock,
        entropy,
        StoreTime(clock, around.newest_date),
        node=node,
        timeout_seconds=settings.coordination.lease_seconds,
    )
    is_gone = partial(gone, leases)
    remote_state = RemoteState(
        node, store, manifests, prefix=prefix, gone=is_gone, lacks=backlog.lacks
    )
    merger = ChunkMerger(store, manifests, chunks, locks, tuning)
    sorter = ChunkSorter(
        manifests,
        chunks,
        writer,
        chunk_bytes=tuning.chunk_bytes,
        foreign=WRITER,
    )
    chunk_repairer = ChunkRepairer(store, manifests, chunks, writer, clock, records=around.records)
    evidence = OrphanEvidence(store, node, prefix=prefix, progress=progress, foreign=WRITER)
    rebuilder = RunRebuilder(
        manifests,
        writer,
        deletions,
        merger,
        clock,
        held=remote_state.held,
        records=around.records,
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
        watermark=around.watermark,
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
        flushed_through=around.confirmed_through,
        close_done=journal.finish_close,
        gone=is_gone,
        is_over=takeover.is_over,
        repair=chunk_repairer.repair,
        on_ended=events.ended,
        others=others,
        has_partial=partials.has_published,
        close_report=around.close_report,
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
        last_ulid=around.last_ulid,
        record_tombstone=record_tombstone,
        tombstone_done=journal.finish_deletion,
        progress=progress,
        forget=events.deleted,
        others=others,
        make_room=around.make_room,
        deleted_ahead_ms=settings.ingest.deleted_ahead_ms,
    )
    sweeper = Sweeper(
        store,
        manifests,
        deletions,
        clock,
        runs,
        locks,
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
        reported=around.reported,
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
        around.silent,
    )
    held = HeldLines(node, journal.pin, backlog, progress)
    events.on_inherited(held.inherited)
    events.on_ended(active.closed, around.ended)
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
        records=RecordReader(snapshots, around.details),
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
