"""Makes the parts of a service from its settings: the one place that knows both.

A part gets its section of the settings as it is. Values that follow from several sections, or from
the machine, are computed in this module.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from fastapi import APIRouter

from service.access.access import Access
from service.access.audit import AuditLog
from service.compaction import CompactionChild
from service.erasure import Erasure
from service.http.admin import LeasesOfStore
from service.http.app import Application, HttpApi, build_app
from service.http.authorization import AccessControl
from service.http.browsers import BrowserGuard
from service.http.internal import client_context, internal_routes
from service.http.system import VerificationCommand, verify_command, verify_environment
from service.metrics.declared import CompactorFile, MetricSources
from service.metrics.scrape import scraper
from service.metrics.workers import WorkerPlace, of_all
from service.node import Node
from service.peers.handlers import Answers
from service.peers.remote_feeds import RecordFeeds
from service.peers.remote_lines import RecordsOfOthers
from service.peers.rpc import HttpTransport, Network
from service.query.context import run_details, run_records
from service.query.engine import QueryEngine
from service.query.live_search import LiveMatches
from service.query.live_sources import LiveLimits, stored_ends
from service.query.sources import Deletion, FooterCatalog
from service.query.sources import SearchSources as QuerySources
from service.query.unflushed import EncodedLines
from service.queue.contents import Contents
from service.queue.queue import SegmentQueue
from service.runtime.counters import (
    HttpCounters,
    MeteredStore,
    MeteredSyncer,
    StoreCounters,
    SyncCounters,
)
from service.runtime.environment import Environment
from service.runtime.free_disk import DiskReserve
from service.runtime.health import StateWatch, StoreCheck
from service.runtime.process import for_connections, in_thread
from service.runtime.store_deadline import DeadlineStore, StoreAnswers
from service.settings import HttpSettings, Settings, is_loopback
from service.shipping.encoding import EncoderProcess
from service.tail import ALL_RUNS
from tailrace.coordination.lease import StoreTime
from tailrace.logstore import ulid as ulids
from tailrace.logstore.clock import Clock, Entropy, SystemClock, system_entropy
from tailrace.logstore.filesystem import (
    Disk,
    FileSystem,
    QuickSyncer,
    ReservedDisk,
    Syncer,
    open_files,
    syncer_for,
)
from tailrace.logstore.objects.local_files import RESERVE
from tailrace.logstore.objects.store import ObjectStore, newest_date_of, requests_of
from tailrace.logstore.segments.writer import EncodedSegment
from tailrace.logstore.settings import items
from tailrace.logstore.table.followed import FollowedTable
from tailrace.logstore.table.table import open_table

if TYPE_CHECKING:
    from service.query.duckdb import SearchedBucket

# A thread that waits for a hanging store is free again after as many deadlines.
_TRIES_OF_A_SEARCH: Final = 2


@dataclass(frozen=True, slots=True)
class Machine:
    """The dependencies of a service, and the counters at its borders.

    `journal_fs` is the disk of the node's own folder: it gets descriptors if none are left, and
    only the owner can read its files.
    """

    fs: FileSystem = field(default_factory=Disk)
    journal_fs: FileSystem = field(default_factory=lambda: ReservedDisk(private=True))
    clock: Clock = field(default_factory=SystemClock)
    entropy: Entropy = field(default_factory=system_entropy)
    http: HttpCounters = field(default_factory=HttpCounters)
    store: StoreCounters = field(default_factory=StoreCounters)
    fsync: SyncCounters = field(default_factory=SyncCounters)
    state: StateWatch = field(default_factory=StateWatch)
    problems: list[Callable[[], Sequence[str]]] = field(default_factory=list)
    """Those of parts that are made behind the node."""


def make_node(
    settings: Settings, machine: Machine, store: ObjectStore, check: StoreCheck, url: str = ""
) -> Node:
    """The node over the settings' store, not started. Call it inside the running loop.

    `url` is its address, which others get unless the settings have another one.
    """
    table = open_table(settings)
    machine.store.s3_requests = requests_of(store)
    compactor = compactor_file(settings, machine)
    metered = MeteredStore(store, machine.clock, machine.store, machine.state)
    deadline = DeadlineStore(metered, settings.server.store_seconds)
    answers = deadline.answers

    def problems() -> list[str]:
        of_store = [*check.problems(), *answers.problems()]
        of_compactor = compactor.problems() if compactor else []
        of_others = [problem for of_part in machine.problems for problem in of_part()]
        return [*of_store, *of_compactor, *machine.state.problems(), *of_others]

    def syncer() -> Syncer:
        inner = QuickSyncer(syncer_for(asyncio.get_running_loop()), machine.clock)
        return MeteredSyncer(inner, machine.clock, machine.fsync)

    return Node(
        Environment(
            store=deadline,
            fs=machine.journal_fs,
            clock=machine.clock,
            entropy=machine.entropy,
            syncer=syncer,
            encode=EncoderProcess(in_thread, machine.clock) if settings.flush.process else None,
            newest_date=newest_date_of(store),
            problems=problems,
            answers=answers,
            reserve=make_reserve(settings, machine),
            network=make_network(settings, url),
        ),
        settings,
        default_name=socket.gethostname(),
        table_mark=table.mark,
    )


def make_reserve(settings: Settings, machine: Machine) -> DiskReserve:
    """The reserve on the disk of the data folder, and on that of a store in another folder."""
    data = os.path.abspath(settings.data)
    folders = [os.path.join(data, "reserve")]
    if settings.bucket is None and not settings.store_folder.startswith(f"{data}{os.sep}"):
        folders.append(os.path.join(settings.store_folder, RESERVE))
    return DiskReserve(machine.journal_fs, folders, settings.journal.reserve_bytes)


def make_network(settings: Settings, url: str) -> Network | None:
    """The network of nodes; None without a shared secret or certificates."""
    nodes = settings.nodes
    if not nodes.ask:
        return None
    tls = client_context(nodes) if nodes.listen else None
    transport = HttpTransport(
        nodes.secret.get_secret_value(),
        tls,
        previous_secret=nodes.previous_secret.get_secret_value(),
        own_url=nodes.url or url,
    )
    return Network(nodes.url or url, transport)


def make_store_check(settings: Settings, machine: Machine, store: ObjectStore) -> StoreCheck:
    """The check whether the store can keep the data as required."""
    runs = settings.runs
    days = math.ceil(runs.longest_days)  # a bucket counts whole days; the service is earlier
    return StoreCheck(store, machine.clock, texts=runs.prefix, expiration_days=days)


def make_sources(settings: Settings, node: Node) -> QuerySources:
    """The sources of searches of a started node."""
    catalog, encode = FooterCatalog(), EncodedLines(lambda: node.carry)

    def note_stored(key: str, segment: EncodedSegment) -> None:
        catalog.note(node.store, key, segment)
        encode.drop()

    node.stored = note_stored
    return QuerySources(
        store=node.store,
        table=FollowedTable(open_table(settings)),
        pin=node.pin,
        encode=encode,
        deletions=deletions_of(node, hiding=True),
        catalog=catalog,
        others=None if node.members.peers is None else RecordsOfOthers(node.members.peers),
        answers=node.environment.answers,
        known_deletions=lambda: node.run_logs.deletions.hiding(),
        unreadable_deletions=lambda: node.run_logs.deletions.unreadable(),
    )


def make_live(engine: QueryEngine, sources: QuerySources, node: Node) -> LiveMatches:
    """Live searches, on the same node and sources as those of the engine."""
    return LiveMatches(
        engine,
        sources,
        pin=node.pin,
        carry=lambda: node.carry.copy(),
        # Read each time: a node that finds that its folder is a copy gets a new tail.
        wake=lambda: node.tail.nudge(ALL_RUNS),
        limits=LiveLimits(most_searches=engine.settings.max_streams),
        others=make_feeds(sources, node),
    )


def make_feeds(sources: QuerySources, node: Node) -> RecordFeeds | None:
    """The new records of other nodes for live searches; None without a network."""
    peers = node.members.peers
    if peers is None:
        return None
    return RecordFeeds(
        peers, node.environment.clock, lambda: stored_ends(sources), lambda: sources.answers.silent
    )


def make_engine(
    settings: Settings, machine: Machine, node: Node, sources: QuerySources
) -> QueryEngine:
    """Searches of a started node. Its folder must be locked, as the scratch space is emptied."""
    data = os.path.abspath(settings.data)
    engine = QueryEngine(
        sources,
        clock=machine.clock,
        scratch=os.path.join(data, "scratch"),
        cache=os.path.join(data, "cache"),
        settings=settings.query,
        bucket=query_bucket(settings, node.environment.answers),
    )
    machine.problems.append(engine.ongoing.problems)
    node.records = run_records(engine)
    node.details = run_details(engine)
    node.copied = engine.copied
    return engine


def deletions_of(
    node: Node, *, hiding: bool = False
) -> Callable[[], Awaitable[Sequence[Deletion]]]:
    """Makes a function that returns the deletions that the node knows at each call.

    With `hiding`, it also hides all lines of owners with an unreadable record.
    """

    async def deletions() -> Sequence[Deletion]:
        await node.members.current(node.run_logs.deletions)
        known = node.run_logs.deletions
        return known.hiding() if hiding else known.all()

    return deletions


def make_queue(settings: Settings, node: Node) -> SegmentQueue:
    """The segment queue of a started node; the node's own segments wake it."""
    environment = node.environment
    return SegmentQueue(
        node.store,
        environment.clock,
        environment.entropy,
        StoreTime(environment.clock, environment.newest_date),
        settings.queue,
        woken=node.confirmations.next,
        answers=node.environment.answers,
    )


def make_app(
    settings: Settings,
    machine: Machine,
    node: Node,
    engine: Callable[[], QueryEngine],
    live: LiveMatches,
    queue: SegmentQueue,
    leases: LeasesOfStore,
    compaction: CompactionChild | None = None,
    place: WorkerPlace | None = None,
    control: AccessControl | None = None,
) -> Application:
    """The HTTP API of the node; `place` is its number among several workers."""
    sources = MetricSources(
        node,
        engine(),
        machine.http,
        machine.store,
        machine.fsync,
        machine.state,
        queue.counters,
        compaction=compaction,
        compactor_file=compactor_file(settings, machine),
    )
    scrape, peers = scraper(sources), node.members.peers
    contents = Contents(
        node.store,
        deletions_of(node),
        settings.queue.decoded_bytes,
        unreadable=lambda: node.run_logs.deletions.unreadable(),
    )
    erasure = Erasure(
        node.store,
        open_table(settings).snapshot,
        lambda: node.places,
        lambda: node.members.peers,
        lambda: (node.identity.node, *node.identity.parents),
        texts=settings.runs.prefix,
    )
    verification = VerificationCommand(
        verify_command(settings),
        verify_environment(settings),
        answers=node.environment.answers.check,
    )
    return build_app(
        node,
        HttpApi(
            settings=http_settings(settings),
            counters=machine.http,
            clock=machine.clock,
            entropy=machine.entropy,
            scrape=(scrape if place is None or peers is None else of_all(scrape, place, peers)),
            query=engine,
            live=lambda: live,
            queue=lambda: queue,
            contents=lambda: contents,
            leases=leases,
            pipelines=leases.pipelines,
            verification=lambda: verification,
            erasure=lambda: erasure,
            reported_version=settings.openmetadata.version,
            guard=browser_guard(settings),
            routers=() if settings.nodes.listen else internal(settings, node, scrape, control),
            control=control,
        ),
    )


def internal(
    settings: Settings,
    node: Node,
    scrape: Callable[[], Awaitable[bytes]] | None,
    control: AccessControl | None,
) -> tuple[APIRouter, ...]:
    """The routes between nodes; none for a node that asks no others."""
    if not settings.nodes.ask:
        return ()
    answers, members = Answers(node, node.environment.clock, scrape), node.members
    return (
        internal_routes(
            settings.nodes.secrets,
            lambda: members.instance,
            answers.answer,
            members.contacts,
            control,
        ),
    )


def make_access_control(settings: Settings, machine: Machine) -> AccessControl | None:
    """The rules of access; None without them. Raises `InvalidInput` if they are unreadable."""
    access = settings.access
    if not access.rules:
        return None
    data = os.path.abspath(settings.data)
    audit = AuditLog(
        os.path.abspath(access.audit_log or os.path.join(data, "audit.log")),
        Disk(private=True),
        machine.clock,
    )
    rules = Access(
        os.path.abspath(access.rules), machine.clock, refused=machine.http.access_refused
    )

    def fresh_id() -> str:
        return ulids.fresh_text(machine.clock, machine.entropy)

    return AccessControl(rules, audit, machine.clock, fresh_id)


def browser_guard(settings: Settings) -> BrowserGuard:
    """The host names that the service answers, and the origins that may change data."""
    server = settings.server
    return BrowserGuard(
        names=[server.host, socket.gethostname(), urlsplit(settings.nodes.url).hostname or ""],
        hosts=items(server.allowed_hosts),
        origins=[*items(server.allowed_origins), *items(server.cors_origins)],
        private=not is_loopback(server.host),
    )


def compactor_file(settings: Settings, machine: Machine) -> CompactorFile | None:
    """The file in which a compactor on the same data folder writes its metrics."""
    name = settings.compaction.metrics_file
    if not name:
        return None
    return CompactorFile(machine.fs, os.path.join(os.path.abspath(settings.data), name))


def http_settings(settings: Settings) -> HttpSettings:
    """The settings of the HTTP API. The limit of open files bounds the connections."""
    return HttpSettings(
        server=settings.server,
        ingest=settings.ingest,
        doors=settings.doors,
        pages=settings.pages,
        sse=settings.sse,
        most_connections=for_connections(open_files()),
    )


def query_bucket(settings: Settings, answers: StoreAnswers | None = None) -> SearchedBucket | None:
    """The access of searches to a store on S3, with a deadline if requests wait for them."""
    if settings.bucket is None:
        return None
    # DuckDB and the vendor's modules are loaded where they are needed: 70 MB.
    from service.query.duckdb import SearchedBucket
    from tailrace.logstore.objects.s3.credentials import Credentials

    s3, place = settings.s3, settings.bucket.uri
    if answers is None:
        return SearchedBucket(place, s3, Credentials(s3))
    quick = s3.model_copy(
        update={
            "connect_timeout_seconds": min(s3.connect_timeout_seconds, answers.seconds),
            "read_timeout_seconds": min(s3.read_timeout_seconds, answers.seconds),
            "attempts": min(s3.attempts, _TRIES_OF_A_SEARCH),
        }
    )
    return SearchedBucket(place, quick, Credentials(s3), lambda: answers.silent)
