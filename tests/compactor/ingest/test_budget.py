"""How much one batch takes, by what footers say."""

from __future__ import annotations

import random

import pytest

from compactor.plan import BatchBudget, Coverage, TimeRange
from tailrace.logstore import ulid
from tests.compactor.lake import HOUR, NOON


def at_hour(hour: int, size: int = 1) -> TimeRange:
    start = NOON + hour * HOUR
    return TimeRange(ulid.lowest_at(start), ulid.highest_at(start + 5), size)


def test_a_first_segment_fits_whatever_it_has() -> None:
    budget = BatchBudget(100, most_tasks=1, most_hours=1, most_time_ranges=1)
    assert budget.takes([at_hour(hour, 1000) for hour in range(5)])
    assert not budget.takes([at_hour(0)])


def test_text_beyond_the_tasks_ends_a_batch() -> None:
    budget = BatchBudget(100, most_tasks=3)
    assert [budget.takes([at_hour(0, 100)]) for _ in range(4)] == [True, True, True, False]
    assert budget.takes([])


def test_new_hours_end_a_batch_and_old_ones_do_not() -> None:
    budget = BatchBudget(1 << 27, most_hours=3)
    assert budget.takes([at_hour(0), at_hour(1)])
    assert not budget.takes([at_hour(2), at_hour(3)])
    assert budget.takes([at_hour(2)])
    assert not budget.takes([at_hour(3)])
    assert budget.takes([at_hour(0), at_hour(1), at_hour(2)])


def test_segments_of_all_hours_are_taken_together() -> None:
    budget = BatchBudget(1 << 27, most_hours=10)
    every = [at_hour(hour) for hour in range(1_000)]
    assert all(budget.takes(every) for _ in range(20))


def test_so_many_spans_as_a_driver_keeps() -> None:
    budget = BatchBudget(1 << 27, most_time_ranges=10)
    assert [budget.takes([at_hour(0)] * 4) for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("seed", range(10))
def test_a_coverage_meets_what_one_of_its_spans_meets(seed: int) -> None:
    dice = random.Random(seed)

    def some() -> tuple[int, int]:
        low = dice.randrange(1000)
        return low, low + dice.randrange(20)

    time_ranges = [TimeRange(*some(), 1) for _ in range(dice.randrange(30))]
    coverage = Coverage(time_ranges)
    for _ in range(300):
        low, high = some()
        expected = any(
            time_range.low <= high and low <= time_range.high for time_range in time_ranges
        )
        assert coverage.may_overlap((ulid.encode(low), ulid.encode(high))) == expected
    assert coverage.may_overlap(None)
