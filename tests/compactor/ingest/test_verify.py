"""Whole, corrupt, or waiting; and where the text lies."""

from __future__ import annotations

import pytest

from compactor.plan import BatchBudget, ListedSegment, segments_of
from compactor.verify import Corrupt, Stopped, Verdict, Verified, verify
from tailrace.logstore import keys, ulid
from tests.compactor.lake import HOUR, NOON, Lake, batch


def verdicts(lake: Lake, node: str = "n") -> list[Verdict]:
    return verified(lake, lake.run(segments_of(lake.store, node)))


def verified(lake: Lake, listed: list[ListedSegment]) -> list[Verdict]:
    return lake.run(verify(lake.store, listed, BatchBudget(1 << 27))).verdicts


def test_a_whole_segment_says_where_its_text_lies(lake: Lake) -> None:
    lake.put("n", [batch("f", "r", NOON, 10), batch("f", "r", NOON + 5_000, 10)])
    (verdict,) = verdicts(lake)
    assert isinstance(verdict, Verified)
    assert verdict.rows == 20
    (time_range,) = verdict.time_ranges
    assert ulid.time_ms(time_range.low) == NOON
    assert ulid.time_ms(time_range.high) == NOON + 5_000
    assert time_range.size > 0


def test_a_group_over_several_hours_names_only_those_it_has(lake: Lake) -> None:
    lake.put("n", [batch("f", "r", NOON, 10), batch("f", "r", NOON + 100 * HOUR, 30)])
    (verdict,) = verdicts(lake)
    assert isinstance(verdict, Verified)
    hours = [
        ulid.time_ms(time_range.low) // HOUR - NOON // HOUR for time_range in verdict.time_ranges
    ]
    assert hours == [0, 100]
    assert verdict.time_ranges[1].size > verdict.time_ranges[0].size


def test_where_some_lines_are_late_it_says_where_most_are(lake: Lake) -> None:
    late = batch("f", "r", NOON + 60_000, 5)
    most = [batch("f", "r", NOON + 3_000_000 + i, 100) for i in range(10)]
    lake.put("n", [late, *most])
    (verdict,) = verdicts(lake)
    assert isinstance(verdict, Verified)
    assert [ulid.time_ms(time_range.low) - NOON for time_range in verdict.time_ranges] == [
        60_000,
        3_000_000,
    ]
    assert verdict.time_ranges[1].size == pytest.approx(200 * verdict.time_ranges[0].size, rel=0.1)
    assert ulid.time_ms(verdict.time_ranges[1].high) - NOON == 3_000_009


@pytest.mark.parametrize("at", [0, 10, 300, -200, -40, -20, -1])
def test_any_changed_byte_makes_it_corrupt(lake: Lake, at: int) -> None:
    key = lake.put("n", [batch("f", "r", NOON, 50)])
    body = bytearray(lake.run(lake.store.get(key))[1])
    body[at] ^= 0x40
    lake.put_bytes(key, bytes(body))
    (verdict,) = verdicts(lake)
    assert isinstance(verdict, Corrupt)


@pytest.mark.parametrize("size", [0, 1, 11, 200, -1])
def test_a_cut_segment_is_corrupt(lake: Lake, size: int) -> None:
    key = lake.put("n", [batch("f", "r", NOON, 50)])
    lake.put_bytes(key, lake.run(lake.store.get(key))[1][:size])
    (verdict,) = verdicts(lake)
    assert isinstance(verdict, Corrupt)


def test_a_segment_under_another_key_is_corrupt(lake: Lake) -> None:
    key = lake.put("n", [batch("f", "r", NOON, 5)])
    lake.put_bytes(keys.segment("n", 2), lake.run(lake.store.get(key))[1])
    first, second = verdicts(lake)
    assert isinstance(first, Verified)
    assert isinstance(second, Corrupt)
    assert "segment 1 of n" in second.reason


def test_what_is_gone_stops_the_node(lake: Lake) -> None:
    lake.put("n", [batch("f", "r", NOON, 5)])
    listed = lake.run(segments_of(lake.store, "n"))
    lake.run(lake.store.delete([listed[0].key]))
    (verdict,) = verified(lake, listed)
    assert isinstance(verdict, Stopped)


def test_what_is_set_aside_is_empty_and_not_read(lake: Lake) -> None:
    lake.put_bytes(keys.segment("n", 1), b"damaged")
    lake.put_bytes(keys.quarantine_marker("n", 1), b"{}")
    (verdict,) = verdicts(lake)
    assert isinstance(verdict, Verified)
    assert (verdict.rows, verdict.time_ranges) == (0, ())
