"""The next segments: in sequence, up to a gap, within the limit."""

from __future__ import annotations

from compactor.intake.plan import Plan, StoredSegment, choose, nodes_of, segments_of
from logstore import keys
from logstore.clock import SystemClock
from logstore.table.commit import Advance, commit_segments
from logstore.table.snapshot import Snapshot
from tests.compactor.lake import Lake


def stored(node: str, seq: int, *, size: int = 10, at: int = 0) -> StoredSegment:
    return StoredSegment(node, seq, keys.segment(node, seq), size, at)


def chosen(plan: Plan) -> list[tuple[str, int]]:
    return [(segment.node, segment.seq) for segment in plan.segments]


def plan_of(*segments: StoredSegment, snapshot: Snapshot | None = None, limit: int = 1000) -> Plan:
    listed: dict[str, list[StoredSegment]] = {}
    for segment in segments:
        listed.setdefault(segment.node, []).append(segment)
    base = snapshot or Snapshot("none")
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
    lake.put_bytes(keys.aside("n/1 x", 2), b"{}")
    assert lake.run(nodes_of(lake.store)) == ["n/1 x"]
    first, second = lake.run(segments_of(lake.store, "n/1 x"))
    assert (first.seq, first.size, first.aside) == (1, 1, False)
    assert (second.seq, second.size, second.aside) == (2, 2, True)
