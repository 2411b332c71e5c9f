"""From settings to the parts of a service: the one place that knows both.

The parts know their own limits and nothing of settings, so that tests make them as they
need them.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coordination.storetime import StoreTime
from logstore.clock import Clock, SystemClock
from logstore.descriptors import ReservedDisk
from logstore.disk import Disk
from logstore.entropy import Entropy, system_entropy
from logstore.filesystem import FileSystem
from logstore.objects.remote import newest_date_of, requests_of
from logstore.objects.store import ObjectStore
from logstore.segments.columns import record_batches
from logstore.settings import items
from logstore.syncer import QuickSyncer, Syncer, syncer_for
from logstore.table.options import open_table
from service.compaction import CompactionChild
from service.http.app import Application, Door, build_app
from service.http.browsers import BrowserGuard
from service.http.limits import HttpLimits
from service.ingest.appender import AppendLimits
from service.journal.limits import JournalLimits
from service.metrics.compaction import CompactorFile
from service.metrics.declared import Sources
from service.metrics.scrape import scraper
from service.node import Node
from service.query.engine import QueryEngine
from service.query.limits import QueryLimits
from service.query.records import run_records
from service.query.segments import SegmentCatalog
from service.query.view import Deletion
from service.query.view import Sources as QuerySources
from service.queue.contents import Contents
from service.queue.limits import QueueLimits
from service.queue.queue import SegmentQueue
from service.runs.close import CloseLimits
from service.runs.flusher import FlushLimits
from service.runs.run_logs import TextLimits
from service.runs.sweep import SweepLimits
from service.runtime.counters import HttpCounters, StoreCounters, SyncCounters
from service.runtime.lease_admin import LeasesOfStore
from service.runtime.metered import MeteredStore, MeteredSyncer
from service.runtime.parts import NodeLimits, Seams
from service.runtime.process import for_connections, open_files
from service.runtime.store_check import StoreCheck
from service.runtime.verification import Verification, verify_command, verify_environment
from service.settings import Settings, is_loopback
from service.shipping.shipper import SegmentLimits
from service.status.endings import EndingLimits
from service.status.status import KeepFree, StatusLimits
from service.tail import TailLimits

if TYPE_CHECKING:
    from service.query.bucket import Bucket


@dataclass(frozen=True, slots=True)
class Machine:
    """The outside world, and what is counted at its borders.

    `journal_fs` is the disk of the node's own folder: it gets descriptors when none are left, and
    what it makes is the owner's only.
    """

    fs: FileSystem = field(default_factory=Disk)
    journal_fs: FileSystem = field(default_factory=lambda: ReservedDisk(private=True))
    clock: Clock = field(default_factory=SystemClock)
    entropy: Entropy = field(default_factory=system_entropy)
    http: HttpCounters = field(default_factory=HttpCounters)
    store: StoreCounters = field(default_factory=StoreCounters)
    fsync: SyncCounters = field(default_factory=SyncCounters)


def make_node(settings: Settings, machine: Machine, store: ObjectStore, check: StoreCheck) -> Node:
    """The node over the settings' store, not started. Call it inside the running loop."""
    table = open_table(settings)
    machine.store.s3_requests = requests_of(store)

    def syncer() -> Syncer:
        inner = QuickSyncer(syncer_for(asyncio.get_running_loop()), machine.clock)
        return MeteredSyncer(inner, machine.clock, machine.fsync)

    return Node(
        Seams(
            store=MeteredStore(store, machine.clock, machine.store),
            fs=machine.journal_fs,
            clock=machine.clock,
            entropy=machine.entropy,
            syncer=syncer,
            newest_date=newest_date_of(store),
            worries=check.problems,
        ),
        data=os.path.abspath(settings.data),
        name=settings.node_id,
        default_name=settings.node_name,
        limits=node_limits(settings),
        table_mark=table.mark,
    )


def make_store_check(settings: Settings, machine: Machine, store: ObjectStore) -> StoreCheck:
    """What finds out whether the store can keep what is entrusted to it."""
    runs = settings.runs
    days = runs.longest_days
    return StoreCheck(store, machine.clock, texts=runs.prefix, expiration_days=days)


def make_engine(settings: Settings, machine: Machine, node: Node) -> QueryEngine:
    """Searches of a started node: its folder must be locked, for the scratch is emptied."""

    sources = QuerySources(
        store=node.store,
        table=open_table(settings),
        pin=node.pin,
        encode=lambda batches: record_batches(batches, node.shipper.carry),
        deletions=deletions_of(node),
        catalog=SegmentCatalog(),
    )
    scratch = os.path.join(os.path.abspath(settings.data), "scratch")
    limits = query_limits(settings)
    engine = QueryEngine(
        sources,
        clock=machine.clock,
        scratch=scratch,
        limits=limits,
        bucket=query_bucket(settings),
    )
    node.records = run_records(engine)
    return engine


def deletions_of(node: Node) -> Callable[[], Awaitable[Sequence[Deletion]]]:
    """What is deleted, as the node knows it at each call."""

    async def deletions() -> Sequence[Deletion]:
        return node.text.deletions.all()

    return deletions


def make_queue(settings: Settings, node: Node) -> SegmentQueue:
    """The segment queue of a started node; it is woken by the node's own segments."""
    seams = node.seams
    return SegmentQueue(
        node.store,
        seams.clock,
        seams.entropy,
        StoreTime(seams.clock, seams.newest_date),
        queue_limits(settings),
        # Asked each time: a node that finds its folder copied has a new shipper.
        woken=lambda: node.shipper.next_confirmed(),
    )


def make_app(
    settings: Settings,
    machine: Machine,
    node: Node,
    engine: Callable[[], QueryEngine],
    queue: SegmentQueue,
    leases: LeasesOfStore,
    compaction: CompactionChild | None = None,
) -> Application:
    """The HTTP door of the node."""
    sources = Sources(
        node,
        engine(),
        machine.http,
        machine.store,
        machine.fsync,
        queue.counters,
        compaction=compaction,
        compactor_file=compactor_file(settings, machine),
    )
    limits = queue.limits
    contents = Contents(node.store, deletions_of(node), limits.readers, limits.decoded_bytes)
    verification = Verification(verify_command(settings), verify_environment(settings))
    return build_app(
        node,
        Door(
            limits=http_limits(settings),
            counters=machine.http,
            clock=machine.clock,
            entropy=machine.entropy,
            scrape=scraper(sources),
            query=engine,
            queue=lambda: queue,
            contents=lambda: contents,
            leases=leases,
            verification=lambda: verification,
            reported_version=settings.openmetadata.version,
            guard=browser_guard(settings),
        ),
    )


def browser_guard(settings: Settings) -> BrowserGuard:
    """Which names the service answers to, and which origins may change things."""
    server = settings.server
    return BrowserGuard(
        names=[server.host, socket.gethostname()],
        hosts=items(server.allowed_hosts),
        origins=items(server.allowed_origins),
        private=not is_loopback(server.host),
    )


def compactor_file(settings: Settings, machine: Machine) -> CompactorFile | None:
    """Where a compactor on the same data folder tells of itself."""
    name = settings.compaction.metrics_file
    if not name:
        return None
    return CompactorFile(machine.fs, os.path.join(os.path.abspath(settings.data), name))


def node_limits(settings: Settings) -> NodeLimits:
    """What the settings say of the node's parts."""
    journal, flush, ingest, sse = settings.journal, settings.flush, settings.ingest, settings.sse
    return NodeLimits(
        journal=JournalLimits(
            file_bytes=journal.file_bytes,
            max_bytes=journal.max_bytes,
            min_free_bytes=journal.min_free_bytes,
            fast_sync_seconds=journal.fast_sync_seconds,
        ),
        segments=SegmentLimits(
            seconds=flush.segment_seconds,
            bytes=flush.segment_bytes,
            wanted_seconds=flush.bulk_milliseconds / 1000,
        ),
        append=AppendLimits(
            max_age_days=ingest.max_age_days,
            max_future_seconds=ingest.max_future_seconds,
            active_runs=settings.runs.max_concurrent_streams,
        ),
        text=text_limits(settings),
        tail=TailLimits(
            ring_bytes=sse.ring_bytes,
            gather_seconds=sse.coalesce_milliseconds / 1000,
            heartbeat_seconds=sse.heartbeat_seconds,
        ),
        status=status_limits(settings),
        stop_seconds=settings.server.stop_seconds,
    )


def status_limits(settings: Settings) -> StatusLimits:
    """What the settings say of what clients report."""
    return StatusLimits(
        endings=EndingLimits(grace_seconds=settings.openmetadata.finish_grace_seconds),
        sweep_seconds=settings.runs.cleanup_interval_minutes * 60,
        retention=settings.runs,
        cache_bytes=settings.openmetadata.report_cache_bytes,
        reply_bytes=settings.openmetadata.report_reply_bytes,
        # On S3 reports take no disk of ours.
        keep_free=None
        if settings.bucket is not None
        else KeepFree(settings.store_folder, settings.journal.min_free_bytes),
    )


def http_limits(settings: Settings) -> HttpLimits:
    """What the settings say of requests, and the process's open files of connections."""
    ingest, pages, server = settings.ingest, settings.pages, settings.server
    connections = min(server.max_connections, for_connections(open_files()))
    most = max(1, connections * 3 // 4)  # one client, or all readers, leave room for others
    return HttpLimits(
        max_connections=connections,
        max_connections_per_peer=min(server.max_connections_per_peer, most),
        max_header_bytes=server.max_header_bytes,
        max_url_bytes=server.max_url_bytes,
        header_timeout_seconds=server.header_timeout_seconds,
        idle_timeout_seconds=server.idle_timeout_seconds,
        write_timeout_seconds=server.write_timeout_seconds,
        reply_bytes=server.reply_bytes,
        max_body_bytes=ingest.max_body_bytes,
        max_text_bytes=ingest.max_text_bytes,
        max_meta_bytes=ingest.max_meta_bytes,
        in_flight_bytes=ingest.in_flight_bytes,
        body_timeout_seconds=ingest.body_timeout_seconds,
        offload_bytes=ingest.offload_bytes,
        decode_threads=ingest.decode_threads,
        prefix_connector=ingest.prefix_connector,
        page_lines=pages.default_lines,
        max_page_lines=pages.max_lines,
        max_stream_readers=min(settings.sse.max_readers, most),
        run_list=pages.run_list,
    )


def query_bucket(settings: Settings) -> Bucket | None:
    """How searches read the store if it is on S3."""
    if settings.bucket is None:
        return None
    # DuckDB and the vendor's modules are loaded where they are needed: 70 MB.
    from logstore.objects.s3.credentials import Credentials
    from service.query.bucket import Bucket

    return Bucket(settings.bucket.uri, settings.s3, Credentials(settings.s3))


def query_limits(settings: Settings) -> QueryLimits:
    """What the settings say of searches."""
    query = settings.query
    return QueryLimits(
        threads=query.threads,
        memory_bytes=query.memory_bytes,
        spill_bytes=query.spill_bytes,
        max_seconds=query.time_limit_seconds,
        stall_seconds=query.stall_seconds,
        concurrent=query.max_concurrent,
        waiting=query.max_waiting,
    )


def queue_limits(settings: Settings) -> QueueLimits:
    """What the settings say of the segment queue."""
    queue = settings.queue
    return QueueLimits(
        lease_seconds=min(queue.lease_seconds, queue.max_lease_seconds),
        max_lease_seconds=queue.max_lease_seconds,
        max_attempts=queue.max_attempts,
        outstanding=queue.outstanding,
        retry_seconds=queue.retry_seconds,
        longest_retry_seconds=queue.longest_retry_seconds,
        max_wait_seconds=queue.max_wait_seconds,
        max_waiting=queue.max_waiting,
        poll_seconds=queue.poll_seconds,
        report_seconds=queue.report_seconds,
        max_groups=queue.max_groups,
        new_groups_per_hour=queue.new_groups_per_hour,
        unused_group_seconds=queue.unused_group_seconds,
        decoded_bytes=queue.decoded_bytes,
    )


def text_limits(settings: Settings) -> TextLimits:
    """What the settings say of the runs' texts."""
    runs = settings.runs
    seconds = runs.partial_flush_interval_minutes * 60
    return TextLimits(
        prefix=runs.prefix,
        flush=FlushLimits(
            early_bytes=runs.early_flush_watermark_bytes,
            seconds=seconds,
            parallel=settings.flush.parallel,
        ),
        close=CloseLimits(
            wait_seconds=runs.close_wait_seconds, reopened_seconds=runs.reopen_idle_seconds
        ),
        sweep=SweepLimits(
            interval_seconds=runs.cleanup_interval_minutes * 60,
            stream_timeout_seconds=runs.stream_timeout_minutes * 60,
            reopened_seconds=runs.reopen_idle_seconds,
            retention=runs,
        ),
        partial_seconds=seconds,
        lease_seconds=settings.coordination.lease_seconds,
        alert_after_failures=runs.pending_flush_alert_after_failures,
    )
