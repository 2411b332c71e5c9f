"""A pass ends though segments come all the time, and others' commits do not hold it up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from compactor.ingest import ingest_all
from compactor.purge import purge
from compactor.report import Lag, PassReport
from compactor.runner import once
from compactor.settings import Compaction
from tailrace.logstore import keys, ulid
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.objects.store import ObjectInfo
from tailrace.logstore.table.log import LocalLogFolder, LogFile, Look
from tailrace.logstore.table.table import Advance, commit_segments
from tests.compactor.another_driver import elsewhere
from tests.compactor.files import add_files
from tests.compactor.ingest.test_rebase import Only
from tests.compactor.lake import HOUR, NOON, Batch, Lake, batch
from tests.compactor.plain_engine import PlainEngine

MOST = 30


@pytest.fixture
def plain(lake: Lake) -> Lake:
    lake.session = PlainEngine()
    return lake


@dataclass
class Inflow:
    """A client that writes on: a segment of `node` more after each commit."""

    lake: Lake
    node: str = "a"
    came: list[Batch] = field(default_factory=list)

    def __call__(self, step: str) -> None:
        if step == "committed":
            assert len(self.came) < MOST, "the pass does not end"
            new = batch("f", "late", NOON + len(self.came), 3)
            self.came.append(new)
            elsewhere(lambda: self.lake.put(self.node, [new]))


def three(lake: Lake) -> list[Batch]:
    sent = [batch("f", "r", NOON + i, 5) for i in range(3)]
    for one in sent:
        lake.put("a", [one])
    return sent


def test_a_pass_takes_in_what_was_there_when_it_began(plain: Lake) -> None:
    sent = three(plain)
    plain.reached = inflow = Inflow(plain)
    report = plain.compact()
    assert (report.commits, report.segments, len(inflow.came)) == (1, 3, 1)
    assert report.lag is not None
    assert report.lag.segments == 1
    plain.holds(sent)
    plain.reached = lambda _step: None
    assert plain.compact().segments == 1
    plain.holds([*sent, *inflow.came])


def test_all_of_what_was_there_however_many_batches(plain: Lake) -> None:
    sent = three(plain)
    plain.limits = Compaction(batch_bytes=1)
    plain.reached = inflow = Inflow(plain)
    report = plain.compact()
    assert (report.commits, report.segments, len(inflow.came)) == (3, 3, 3)
    plain.holds(sent)


def test_a_node_that_comes_later_is_the_next_passs(plain: Lake) -> None:
    sent = three(plain)
    plain.reached = Inflow(plain, "b")
    assert plain.compact().segments == 3
    assert plain.snapshot().marks("ab") == {"a": 3, "b": 0}
    plain.holds(sent)


def test_maintenance_has_its_turn_while_segments_come(plain: Lake) -> None:
    """Expiry, purge, rewriting and clean-up are in the same pass."""
    long_ago = [batch("f", "old", NOON - 100 * 24 * HOUR, 5)]
    over = [batch("f", f"r{i}", NOON - 5 * HOUR + i, 20) for i in range(5)]
    add_files(plain, long_ago, *([one] for one in over))
    plain.delete("f", "r1", ulid.highest_at(NOON))
    sent = three(plain)
    plain.watermark("a", 3)
    plain.limits = Compaction(grace_seconds=0, retention_days=30, purge_seconds=0)
    plain.clock.shift_ms = 120_000
    plain.reached = Inflow(plain)
    report = plain.compact()
    assert (report.commits, report.segments_removed) == (1, 3)
    assert (report.hours_expired, report.rows_purged, report.hours_rewritten) == (1, 20, 1)
    plain.holds([*sent, *(one for one in over if one[0].run != "r1")])


class BusyStore(LocalStore):
    """Whenever the segments of `b` are listed, another driver takes one of them in."""

    on_list: Callable[[], object]

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        if prefix == keys.segments_of("b"):
            await asyncio.to_thread(self.on_list)
        async for info in super().list(prefix, after=after):
            yield info


def test_what_others_commit_of_their_nodes_holds_no_planning_up(lake: Lake) -> None:
    """All marks had to stand still while all nodes were listed, which they never did."""
    for node, count in (("a", 2), ("b", MOST)):
        for seq in range(1, count + 1):
            lake.put_bytes(keys.segment(node, seq), b"not a segment")
    store = BusyStore(lake.settings.store_folder, Disk(), SystemClock(), random.Random(1))
    table, taken = lake.compactor.table, iter(range(1, MOST + 1))
    table.create()

    def another_takes_one() -> None:
        seq = next(taken, None)
        if seq is not None:
            marks = [Advance("b", seq, seq)]
            commit_segments(table, table.snapshot(), [], marks, job=f"B{seq}", clock=SystemClock())

    store.on_list = another_takes_one
    lake.store = store
    report = PassReport()
    lake.run(ingest_all(replace(lake.compactor, assigner=Only("a")), report))
    marks = lake.snapshot().marks("ab")
    assert (marks["a"], report.segments, report.commits) == (2, 2, 1)
    assert marks["b"] < 10


def test_of_an_own_node_that_was_outrun_the_rest_is_listed_again(lake: Lake) -> None:
    """Twice another ingests all that was listed of it; what is behind is ingested by this one."""
    for seq in range(1, 13):
        lake.put_bytes(keys.segment("b", seq), b"not a segment")
    lake.limits = Compaction(batch_bytes=30)
    store = BusyStore(lake.settings.store_folder, Disk(), SystemClock(), random.Random(1))
    table, left = lake.compactor.table, [2]
    table.create()

    def another_takes_four() -> None:
        left[0] -= 1
        if left[0] >= 0:
            newest = table.snapshot()
            mark = newest.mark("b")
            marks = [Advance("b", mark + 1, mark + 4)]
            commit_segments(table, newest, [], marks, job=f"B{mark}", clock=SystemClock())

    store.on_list = another_takes_four
    lake.store = store
    report = lake.compact()
    assert left[0] < 0
    assert (lake.snapshot().mark("b"), report.segments) == (12, 4)
    assert report.lag == Lag()


@dataclass
class OffTheLoop:
    """A table's log that refuses to be read where an event loop waits; counts its listings."""

    inner: LocalLogFolder
    lists: int = 0

    def list(self, start: str) -> Iterator[LogFile]:
        self._check()
        self.lists += 1
        return self.inner.list(start)

    def get(self, name: str, offset: int = 0, size: int | None = None) -> bytes:
        self._check()
        return self.inner.get(name, offset, size)

    def look(self, version: int) -> Look:
        self._check()
        return self.inner.look(version)

    @staticmethod
    def _check() -> None:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()


def test_the_log_is_read_beside_the_loop_and_no_oftener_for_more_nodes(tmp_path: Path) -> None:
    """A store that hangs would stop heartbeats of leases, and the answer to SIGTERM."""
    lists = []
    for count in (1, 20):
        lake = Lake(tmp_path / f"{count}", session=PlainEngine())
        over = [batch("f", f"r{i}", NOON - 5 * HOUR + i, 20) for i in range(5)]
        add_files(lake, *([one] for one in over))
        lake.delete("f", "r1", ulid.highest_at(NOON))
        for number in range(count):
            lake.put(f"n{number}", [batch("f", f"n{number}", NOON, 3)])
        lake.limits = Compaction(grace_seconds=0, purge_seconds=0)
        lake.clock.shift_ms = 120_000
        uri = lake.compactor.table.uri
        log = OffTheLoop(LocalLogFolder(f"{uri}/_delta_log"))
        table = replace(lake.compactor.table, log_folder=log)
        report = lake.run(once(replace(lake.compactor, table=table)))
        assert (report.segments, report.rows_purged, report.hours_rewritten) == (count, 20, 1)
        lake.run(purge(replace(lake.compactor, table=table), PassReport()))
        lists.append(log.lists)
    assert lists[0] == lists[1]
