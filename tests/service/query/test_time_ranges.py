"""Time ranges: no gap, no overlap, in order, and no larger than their budget."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from service.query.request import HOUR_MS, MOST_RANGES, TimeRanges, UlidRange, Weight, hour_of
from tailrace.logstore import ulid

BOUNDS = UlidRange(ulid.lowest_at(5 * HOUR_MS + 17), ulid.highest_at(40 * HOUR_MS + 3))


WEIGHTS = st.builds(Weight, st.integers(0, 100), st.integers(0, 40))


def all_ranges(time_ranges: TimeRanges, budget: int) -> list[UlidRange]:
    found = []
    while (time_range := time_ranges.take(budget)) is not None:
        found.append(time_range)
    return found


@given(
    st.dictionaries(st.integers(0, 60), WEIGHTS, min_size=1),
    st.integers(0, 300),
    st.booleans(),
)
def test_time_ranges_cover_the_bounds_once_in_order(
    weights: dict[int, Weight], budget: int, descending: bool
) -> None:
    time_ranges = all_ranges(TimeRanges(weights, BOUNDS, descending=descending), budget)
    forward = time_ranges[::-1] if descending else time_ranges
    assert forward[0].low == BOUNDS.low
    assert forward[-1].high == BOUNDS.high
    for earlier, later in pairwise(forward):
        assert later.low == earlier.high + 1
        assert earlier.low <= earlier.high


@given(st.dictionaries(st.integers(6, 39), WEIGHTS, min_size=1), st.integers(0, 300))
def test_a_time_range_is_one_hour_or_within_its_budget(
    weights: dict[int, Weight], budget: int
) -> None:
    time_ranges = all_ranges(TimeRanges(weights, BOUNDS, descending=True), budget)
    each = [[h for h in weights if hour_of(t.low) <= h <= hour_of(t.high)] for t in time_ranges]
    for hours in each:
        assert len(hours) == 1 or fits([weights[hour] for hour in hours], budget)
    for hours, earlier in pairwise(each):  # and it has all hours for which there is room
        assert not fits([*(weights[hour] for hour in hours), weights[max(earlier)]], budget)


def fits(weights: list[Weight], budget: int) -> bool:
    return (
        sum(one.bytes for one in weights) <= budget
        and sum(one.ranges for one in weights) <= MOST_RANGES
    )


def test_where_nothing_is_there_is_no_time_range() -> None:
    assert TimeRanges({}, BOUNDS, descending=True).take(1) is None
