"""Every declared metric moves: by requests to a service, in searches, or in a node's life."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.parquet as pq
import pytest

from service.ingest.batch import IncomingBatch
from service.journal.file import Unused, read_header, scan
from service.metrics.aliases import OKLOG, OPENMETADATA
from service.metrics.declared import MetricSources
from service.metrics.http import HTTP
from service.metrics.node import NODE, RUN_LOGS, STORE
from service.metrics.scrape import METRICS
from service.node import Node
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import LimitReached, Unavailable
from tailrace.logstore.table.schema import COLUMNS
from tailrace.logstore.table.skip_index import grams_of
from tailrace.logstore.table.snapshot import TableFile
from tests.e2e.test_segment_process import MOVE_WITH_A_PROCESS
from tests.service.client_model import Clients
from tests.service.doors.test_counts import MOVE_AT_DOORS
from tests.service.http.test_rights import MOVE_BY_ACCESS
from tests.service.http.test_shedding import MOVE_BY_SHEDDING
from tests.service.metrics.test_compaction import MOVE_WITH_COMPACTION
from tests.service.metrics.test_leases import MOVE_WITH_LEASES
from tests.service.metrics.test_queue import MOVE_IN_QUEUES
from tests.service.metrics.test_reports import MOVE_BY_REPORTS
from tests.service.metrics.watched import Watched
from tests.service.peers.test_contact import MOVE_BETWEEN_NODES
from tests.service.query.test_file_cache_faults import MOVE_IN_FILE_CACHES
from tests.service.query.test_limits import ALL, endless
from tests.service.query.world import engine_of
from tests.service.shipping.copies import CLONE, Copies
from tests.service.simulated_node import DATA, SMALL, TUNING
from tests.service.test_main import MOVE_OVER_HTTP
from tests.settings import settings_with
from tests.simulation.virtual_time import VirtualClock

RUN = RunKey("service.pipeline", "run-1")
OTHER = RunKey("service.pipeline", "run-2")
DAY_MS = 86_400_000

MOVE_IN_SEARCHES = {
    *("tailrace_queries_running", "tailrace_queries_waiting", "tailrace_queries_refused"),
    *("tailrace_queries_stopped", "tailrace_skip_indexes_damaged", "tailrace_scan_copies_bytes"),
    *("tailrace_scan_copies_made", "tailrace_scan_copies_failed"),
}
MOVE_IN_OUTAGES = {
    *("tailrace_batches_slowed", "tailrace_segment_failures"),
    *("tailrace_segment_consecutive_failures", "tailrace_run_flush_failures"),
    *("tailrace_run_consecutive_failures", "tailrace_runs_failing", "tailrace_close_failures"),
    *("om_s3_errors", "om_streamable_logs_s3_errors"),
    "om_streamable_logs_consecutive_flush_failures",
}
MOVE_WITH_DAMAGE = {
    *("tailrace_damaged_entries", "tailrace_damaged_manifests", "tailrace_unreadable_segments"),
    "tailrace_journal_cut_off_bytes",
    "tailrace_watermarks_rebuilt",
}
# Of the watch around a program's store, so a real one: tests/e2e/test_damaged_state.py.
MOVE_IN_STATE_WATCHES = {"tailrace_damaged_state_objects"}
# For five minutes: tests/service/runs/test_flusher.py, tests/service/test_lasting_problems.py and
# tests/service/shipping/test_encoding.py have what they are read from.
MOVE_WHERE_WORK_HANGS = {
    *("tailrace_oldest_cut_seconds", "tailrace_oldest_flush_seconds"),
    "tailrace_oldest_query_overdue_seconds",
}
MOVE_WITH_LOST_LINES = {"tailrace_journal_lost_lines"}
MOVE_WITH_TIME = {
    *("tailrace_runs_finalised", "tailrace_chunks_swept", "tailrace_runs_expired"),
    "tailrace_flush_alert_after_failures",
}
MOVE_ON_S3 = {"tailrace_s3_requests"}
MOVE_BY_REPAIR = {
    *("tailrace_chunks_vanished", "tailrace_chunks_repaired", "tailrace_chunks_lost"),
    "tailrace_runs_rebuilt",
}
MOVE_AT_WORK = (
    {metric.name for metric in (*NODE, *RUN_LOGS, *STORE, *OKLOG, *OPENMETADATA)}
    - MOVE_OVER_HTTP
    - MOVE_IN_OUTAGES
    - MOVE_WITH_DAMAGE
    - MOVE_WITH_LOST_LINES
    - MOVE_WHERE_WORK_HANGS
    - MOVE_IN_STATE_WATCHES
    - MOVE_WITH_TIME
    - MOVE_ON_S3
    - MOVE_BY_REPAIR
    - MOVE_BY_SHEDDING
    - MOVE_BETWEEN_NODES
    - MOVE_WITH_A_PROCESS
    - {"tailrace_forks", "tailrace_cluster_size"}
)


def test_every_metric_is_in_one_of_these_tests() -> None:
    here = MOVE_AT_WORK | MOVE_IN_OUTAGES | MOVE_WITH_DAMAGE | MOVE_WITH_TIME
    here |= (
        MOVE_WHERE_WORK_HANGS | MOVE_WITH_LOST_LINES | {"tailrace_forks", "tailrace_cluster_size"}
    )
    elsewhere = MOVE_IN_SEARCHES | MOVE_OVER_HTTP | MOVE_ON_S3 | MOVE_BY_REPAIR
    elsewhere |= MOVE_BY_REPORTS | MOVE_IN_QUEUES | MOVE_WITH_LEASES
    elsewhere |= MOVE_WITH_COMPACTION | MOVE_BY_SHEDDING | MOVE_BY_ACCESS | MOVE_WITH_A_PROCESS
    elsewhere |= MOVE_AT_DOORS | MOVE_IN_FILE_CACHES | MOVE_BETWEEN_NODES | MOVE_IN_STATE_WATCHES
    assert {metric.name for metric in METRICS} == here | elsewhere


@pytest.mark.in_turn(3)
def test_the_metrics_of_a_node_at_work(tmp_path: Path) -> None:
    watched, clients = Watched(tmp_path), Clients()

    async def work(node: Node, clock: VirtualClock) -> None:
        for _ in range(20):
            sent = await clients.send(node, clock, RUN)
            await clients.send(node, clock, OTHER)
            await clock.sleep(1.5)
        await clients.repeat(node, sent)
        ahead = ulids.lowest_at(clock.now_ms() + 3_600_000)
        await node.append(IncomingBatch(RUN, b"00000 0/1\n", 1, 1, above=ahead))
        await clients.close(node, RUN)
        await clients.delete(node, OTHER)
        await clients.send(node, clock, RUN)
        watched.ahead_seconds = 30
        await clock.sleep(60)

    watched.live(work)
    assert MOVE_AT_WORK - watched.moved() == set()


@pytest.mark.in_turn(4)
def test_the_metrics_of_a_store_that_fails(tmp_path: Path) -> None:
    watched, clients = Watched(tmp_path), Clients()

    async def outages(node: Node, clock: VirtualClock) -> None:
        watched.outage.words = {f"put {keys.SEGMENTS}"}
        while node.writer.journal.fullness < 0.7:
            await clients.send(node, clock, RUN)
        await clock.sleep(30)
        watched.outage.words = {keys.RUNS}
        await clock.sleep(30)
        assert await clients.close(node, RUN) == "closing"
        await clock.sleep(30)
        watched.outage.words = set()
        await clock.sleep(120)

    full = settings_with(SMALL, journal={"max_bytes": 20_000})
    watched.live(outages, settings=full)
    assert MOVE_IN_OUTAGES - watched.moved() == set()


def test_the_metrics_of_what_nobody_does(tmp_path: Path) -> None:
    watched, clients = Watched(tmp_path), Clients()
    settings = settings_with(
        SMALL,
        runs={
            "stream_timeout_minutes": 60.0,
            "expiration_days": 1,
            "pending_flush_alert_after_failures": 3,
        },
    )
    tuning = replace(TUNING, orphan_seconds=3600.0)

    async def write(node: Node, clock: VirtualClock) -> None:
        for _ in range(10):
            await clients.send(node, clock, RUN)
            await clock.sleep(4)

    async def nothing(node: Node, clock: VirtualClock) -> None:
        await clock.sleep(20)

    watched.live(write)
    watched.now_ms += DAY_MS // 2
    watched.live(nothing, settings=settings, tuning=tuning)
    watched.now_ms += 2 * DAY_MS
    watched.live(nothing, settings=settings, tuning=tuning)
    assert MOVE_WITH_TIME - watched.moved() == set()


def test_the_metrics_of_what_is_not_what_was_written(tmp_path: Path) -> None:
    watched, clients = Watched(tmp_path), Clients()

    async def write(node: Node, clock: VirtualClock) -> None:
        watched.outage.words = {f"put {keys.RUNS}"}  # segments go, chunks stay behind
        for _ in range(10):
            await clients.send(node, clock, RUN)
            await clock.sleep(1)
        for _ in range(10):
            await clients.send(node, clock, OTHER)
        store = watched.store(clock)
        async for info in store.list(keys.SEGMENTS):
            await store.put(info.key, b"not a segment")
            break
        watched.outage.words = set()
        await store.put(f"{keys.RUNS}?.json", b"not a manifest")
        await store.put(keys.watermark(node.identity.node), b"not a mark")

    async def nothing(node: Node, clock: VirtualClock) -> None:
        await clock.sleep(20)

    watched.live(write, stops=False)
    damage(watched)
    watched.live(nothing, name="renamed", stops=False)
    assert MOVE_WITH_DAMAGE - watched.moved() == set()


def test_the_metric_of_lines_that_a_journal_lost(tmp_path: Path) -> None:
    watched, clients = Watched(tmp_path), Clients()

    async def write(node: Node, clock: VirtualClock) -> None:
        watched.outage.words = {f"put {keys.SEGMENTS}"}
        for _ in range(10):
            await clients.send(node, clock, RUN)

    async def nothing(_: Node, clock: VirtualClock) -> None:
        await clock.sleep(20)

    watched.live(write, stops=False)
    watched.outage.words = set()
    flip(watched)
    watched.live(nothing, stops=False)
    assert MOVE_WITH_LOST_LINES - watched.moved() == set()


def test_the_metric_of_a_folder_that_was_copied(tmp_path: Path) -> None:
    watched, clients = Watched(tmp_path), Clients()

    async def write(node: Node, clock: VirtualClock) -> None:
        for _ in range(3):
            await clients.send(node, clock, RUN)
            await clock.sleep(5)

    watched.live(write, stops=False)
    copies = Copies(0)
    copies.fs = watched.fs
    copies.copy(DATA, CLONE)
    watched.live(write)
    watched.live(write, data=CLONE)
    assert "tailrace_forks" in watched.moved()


def damage(watched: Watched) -> None:
    """One byte of the journal's oldest file becomes another; the newest ends in a torn write."""
    folder, names = flip(watched)
    newest = watched.fs.open(f"{folder}/{names[-1]}", "update")
    unused = [item.offset for item in scan(newest, read_header(newest)) if isinstance(item, Unused)]
    newest.write_at([b"torn write"], unused[0] if unused else newest.size())
    newest.sync()


def flip(watched: Watched) -> tuple[str, list[str]]:
    """Changes a byte in the middle of the oldest journal file; gives the folder and its files."""
    folder = f"{DATA}/journal"
    names = sorted(name for name, _ in watched.fs.scan(folder) if name.endswith(".wal"))
    with closing(watched.fs.open(f"{folder}/{names[0]}", "update")) as file:
        middle = file.size() // 2
        (byte,) = file.pread(1, middle)
        file.write_at([bytes([byte ^ 1])], middle)
        file.sync()
    return folder, names


async def test_the_metrics_of_searches(tmp_path: Path) -> None:
    shown: dict[str, set[Any]] = {metric.name: set() for metric in HTTP}
    world = endless(tmp_path)
    async with engine_of(world, max_concurrent=1, max_waiting=1) as engine:
        sources = MetricSources(cast("Node", SimpleNamespace()), engine)

        def look() -> None:
            for metric in HTTP:
                shown[metric.name].add(str(metric.read(sources)))

        look()
        first = await engine.open(ALL)
        second = asyncio.ensure_future(engine.open(ALL))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await engine.open(ALL)
        look()
        counting = asyncio.ensure_future(first.count())
        await asyncio.sleep(0)
        await first.close()
        with pytest.raises(LimitReached):
            await counting
        await (await second).close()
        file = TableFile("x.parquet", "", 1, 1, date(2026, 11, 21), 12, None, None, None)
        await world.store.put(keys.skip_index(file.path), b"harmed")
        assert engine.indexes.which([file], grams_of("a text")) == {}
        stored = tmp_path / "y.parquet"
        pq.write_table(COLUMNS.empty_table(), stored)
        good = replace(file, path="y.parquet", uri=str(stored), rows=0)
        for copied in (good, replace(good, path="z.parquet", rows=1)):
            engine.copies.note_read(copied, copied.size)
        async with asyncio.timeout(60):
            while not (engine.copies.made and engine.copies.failed):
                await asyncio.sleep(0.01)
        look()
    assert {name for name in MOVE_IN_SEARCHES if len(shown[name]) < 2} == set()
