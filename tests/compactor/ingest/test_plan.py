"""The next segments: in sequence, up to a gap, within the limit."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import pytest

from compactor.plan import (
    MOST_SEGMENTS,
    ListedSegment,
    Plan,
    Waiting,
    choose,
    nodes_of,
    segments_of,
    tally,
    waiting_above,
)
from compactor.report import Lag, PassReport
from compactor.runner import once
from compactor.settings import Compaction
from tailrace.logstore import keys
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.objects.store import ObjectInfo
from tailrace.logstore.table.snapshot import TableSnapshot
from tailrace.logstore.table.table import Advance, commit_segments
from tests.compactor.lake import Lake


def stored(node: str, seq: int, *, size: int = 10, at: int = 0) -> ListedSegment:
    return ListedSegment(node, seq, keys.segment(node, seq), size, at)


def chosen(plan: Plan) -> list[tuple[str, int]]:
    return [(segment.node, segment.seq) for segment in plan.segments]


def plan_of(
    *segments: ListedSegment, snapshot: TableSnapshot | None = None, limit: int = 1000
) -> Plan:
    listed: dict[str, list[ListedSegment]] = {}
    for segment in segments:
        listed.setdefault(segment.node, []).append(segment)
    base = snapshot or TableSnapshot("none")
    return choose(base, listed, batch_bytes=limit, gap_before_ms=100)


def test_all_nodes_in_sequence() -> None:
    plan = plan_of(stored("a", 1), stored("a", 2), stored("b", 1))
    assert sorted(chosen(plan)) == [("a", 1), ("a", 2), ("b", 1)]
    assert plan.alarms == ()


def test_a_missing_number_ends_the_nodes_turn_and_only_its() -> None:
    plan = plan_of(stored("a", 1), stored("a", 3, at=500), stored("b", 1))
    assert sorted(chosen(plan)) == [("a", 1), ("b", 1)]
    assert plan.alarms == ()


def test_an_old_gap_is_an_alarm_and_still_not_skipped() -> None:
    plan = plan_of(stored("a", 2, at=99))
    assert chosen(plan) == []
    assert "segment 1 of a is missing" in plan.alarms[0]


def test_as_many_as_the_limit_allows_but_at_least_one() -> None:
    assert chosen(plan_of(stored("a", 1, size=5_000))) == [("a", 1)]
    plan = plan_of(stored("a", 1, size=400), stored("a", 2, size=400), stored("a", 3, size=400))
    assert chosen(plan) == [("a", 1), ("a", 2)]


def test_what_fills_the_limit_exactly_is_one_batch() -> None:
    fitting = [stored("a", seq, size=400) for seq in (1, 2)]
    plan = plan_of(*fitting, limit=800)
    assert (chosen(plan), plan.more) == ([("a", 1), ("a", 2)], False)
    plan = plan_of(*fitting, limit=799)
    assert (chosen(plan), plan.more) == ([("a", 1)], True)


def test_a_gap_is_an_alarm_when_it_is_older_than_that_and_not_before() -> None:
    assert plan_of(stored("a", 2, at=100)).alarms == ()
    assert plan_of(stored("a", 2, at=99)).alarms != ()


def test_order_is_of_upload_yet_never_against_a_nodes_sequence() -> None:
    plan = plan_of(
        stored("a", 1, at=50), stored("a", 2, at=10), stored("b", 1, at=40), stored("b", 2, at=60)
    )
    assert chosen(plan) == [("b", 1), ("a", 1), ("a", 2), ("b", 2)]


def test_only_what_is_above_the_tables_mark(lake: Lake) -> None:
    table = lake.compactor.table
    clock = SystemClock()
    after = commit_segments(table, table.create(), [], [Advance("a", 1, 2)], job="J", clock=clock)
    plan = plan_of(stored("a", 1), stored("a", 2), stored("a", 3), snapshot=after)
    assert chosen(plan) == [("a", 3)]


def test_the_listing_knows_nodes_and_markers(lake: Lake) -> None:
    lake.put_bytes(keys.segment("n/1 x", 2), b"22")
    lake.put_bytes(keys.segment("n/1 x", 1), b"1")
    lake.put_bytes(keys.quarantine_marker("n/1 x", 2), b"{}")
    assert lake.run(nodes_of(lake.store)) == ["n/1 x"]
    first, second = lake.run(segments_of(lake.store, "n/1 x"))
    assert (first.seq, first.size, first.quarantined) == (1, 1, False)
    assert (second.seq, second.size, second.quarantined) == (2, 2, True)


class ListedStore(LocalStore):
    """A store of segments that are listed only, `sizes` of each node; counts what it gives."""

    def __init__(self, root: Path, sizes: Mapping[str, list[int] | range]) -> None:
        super().__init__(str(root), Disk(), SystemClock(), random.Random(1))
        self._sizes = sizes
        self.given = 0

    async def folders(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        for node in self._sizes if prefix == keys.SEGMENTS else ():
            yield node

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        for info in self._infos(prefix, after):
            self.given += 1
            yield info

    def _infos(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        node = prefix.split("/")[1]
        parsed = keys.parse_segment(after)
        for seq in range(parsed[1] + 1 if parsed else 1, len(self._sizes[node]) + 1):
            size = self._sizes[node][seq - 1]
            yield ObjectInfo(keys.segment(node, seq), size, "etag", seq * 1000)


def segments_in(waiting: Mapping[str, Waiting]) -> dict[str, tuple[ListedSegment, ...]]:
    return {node: of_node.segments for node, of_node in waiting.items()}


def test_of_a_million_segments_those_of_a_batch_are_listed(lake: Lake, tmp_path: Path) -> None:
    store = ListedStore(tmp_path / "listed", {"a": range(1000, 1_001_000), "b": range(2)})
    marks = {"a": 900_000, "b": 2}
    listed = lake.run(waiting_above(store, marks, batch_bytes=50_000_000))
    assert store.given < 60
    assert [segment.seq for segment in listed["a"].segments] == list(range(900_001, 900_057))
    assert (listed["a"].more, listed["b"]) == (True, Waiting(()))
    found = lake.run(tally(store, listed, 2_000_000_000))
    size = sum(range(901_000, 1_001_000))
    assert found.lag == Lag(100_000, size, (2_000_000_000 - 900_001_000) / 1000)
    assert found.ends == {"a": 1_000_000}


def test_a_batch_has_no_more_segments_than_a_driver_has_room_for(
    lake: Lake, tmp_path: Path
) -> None:
    store = ListedStore(tmp_path / "listed", {"a": [0] * (2 * MOST_SEGMENTS)})
    listed = lake.run(waiting_above(store, {"a": 0}, batch_bytes=1 << 40))
    plan = choose(TableSnapshot("none"), segments_in(listed), batch_bytes=1 << 40, gap_before_ms=0)
    assert store.given <= MOST_SEGMENTS + 2
    assert len(plan.segments) == MOST_SEGMENTS


@pytest.mark.parametrize("seed", range(20))
def test_what_is_not_listed_would_not_have_been_chosen(
    lake: Lake, tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    sizes = {n: [dice.randrange(40) for _ in range(dice.randrange(30))] for n in "abc"}
    store = ListedStore(tmp_path / "listed", sizes)
    limit = dice.randrange(200)

    def chosen_of(listed: Mapping[str, tuple[ListedSegment, ...]]) -> list[tuple[str, int]]:
        base = TableSnapshot("none")
        return chosen(choose(base, listed, batch_bytes=limit, gap_before_ms=0))

    near = lake.run(waiting_above(store, dict.fromkeys("abc", 0), batch_bytes=limit))
    far = lake.run(waiting_above(store, dict.fromkeys("abc", 0), batch_bytes=1 << 40))
    assert not any(of_node.more for of_node in far.values())
    assert chosen_of(segments_in(near)) == chosen_of(segments_in(far))


def test_segments_between_two_numbers(lake: Lake) -> None:
    for seq in range(1, 6):
        lake.put_bytes(keys.segment("n", seq), b"x")
        lake.put_bytes(keys.quarantine_marker("n", seq), b"{}")
    found = lake.run(segments_of(lake.store, "n", above=1, up_to=3))
    assert [(segment.seq, segment.quarantined) for segment in found] == [(2, True), (3, True)]


class MovingStore(LocalStore):
    """A store in which something else happens once, just as segments are listed."""

    move: Callable[[], Awaitable[object]] | None = None

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        if self.move is not None and prefix.startswith("segments/a"):
            move, self.move = self.move, None
            await move()
        async for info in super().list(prefix, after=after):
            yield info


def test_a_driver_that_is_overtaken_while_it_lists_goes_on_behind(lake: Lake) -> None:
    """What it listed is in the table by now, and what is next was beyond its batch."""
    for seq in range(1, 9):
        lake.put_bytes(keys.segment("a", seq), b"not a segment")
    lake.limits = Compaction(batch_bytes=30)

    async def others_take_four() -> None:
        table, clock = lake.compactor.table, SystemClock()
        commit_segments(table, table.create(), [], [Advance("a", 1, 4)], job="J", clock=clock)

    store = MovingStore(lake.settings.store_folder, Disk(), SystemClock(), random.Random(1))
    store.move = others_take_four
    lake.store = store
    report = lake.compact()
    assert lake.snapshot().mark("a") == 8
    assert (report.segments, report.commits) == (4, 2)
    assert report.lag == Lag()


def test_the_lag_is_of_all_that_waits_at_first_and_at_last(lake: Lake) -> None:
    for seq in (1, 2, 3, 4, 5, 7, 8, 9, 10, 11):
        lake.put_bytes(keys.segment("a", seq), b"not a segment")
    lake.limits = Compaction(batch_bytes=30)
    seen: list[tuple[int, int]] = []

    report = PassReport()

    def look(step: str) -> None:
        if step == "committed" and report.lag is not None:
            seen.append((report.lag.segments, report.lag.bytes))

    lake.reached = look
    lake.run(once(lake.compactor, report))
    assert seen[0] == (10, 130)
    assert report.lag is not None
    assert (report.lag.segments, report.lag.bytes) == (5, 65)
