"""Buckets: each in one hour, about equal, found without reading the data."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter

import pytest

from compactor.plan import Buckets, TimeRange, buckets_of, hour_of
from tailrace.logstore import ulid
from tests.compactor.lake import HOUR, NOON

MIB = 1 << 20


def time_range(start_ms: int, end_ms: int, mib: int) -> TimeRange:
    return TimeRange(ulid.lowest_at(start_ms), ulid.highest_at(end_ms), mib * MIB)


def loads(buckets: Buckets, time_ranges: list[TimeRange]) -> list[int]:
    """The text of each bucket; spans are narrow, or lie evenly."""
    found = [0] * len(buckets.bounds)
    for one in time_ranges:
        found[bisect_right(buckets.bounds, one.low) - 1] += one.size
    return found


def test_a_little_text_is_one_bucket_that_starts_with_its_hour() -> None:
    buckets = buckets_of([time_range(NOON + 5, NOON + 9, 1)], bucket_bytes=128 * MIB, cores=8)
    assert buckets == Buckets((ulid.lowest_at(NOON),), (0,))


def test_every_hour_has_its_own() -> None:
    time_ranges = [
        time_range(NOON, NOON + 1, 1),
        time_range(NOON + 3 * HOUR, NOON + 3 * HOUR + 1, 1),
    ]
    buckets = buckets_of(time_ranges, bucket_bytes=128 * MIB, cores=1)
    assert buckets.bounds == (ulid.lowest_at(NOON), ulid.lowest_at(NOON + 3 * HOUR))
    assert buckets.tasks == (0, 1)


def test_a_burst_is_cut_where_its_text_is_not_where_its_hour_is() -> None:
    burst = [time_range(NOON + s * 1000, NOON + s * 1000 + 999, 64) for s in range(8)]
    buckets = buckets_of(burst, bucket_bytes=128 * MIB, cores=2)
    assert len(buckets.bounds) == 4
    assert max(loads(buckets, burst)) <= 192 * MIB
    assert all(ulid.time_ms(bound) < NOON + 8_000 for bound in buckets.bounds)


def test_cores_are_kept_busy_but_not_with_crumbs() -> None:
    time_ranges = [time_range(NOON, NOON + 60_000, 96)]
    assert len(buckets_of(time_ranges, bucket_bytes=128 * MIB, cores=2).bounds) == 2
    assert len(buckets_of(time_ranges, bucket_bytes=128 * MIB, cores=64).bounds) == 3


def test_lines_of_a_single_millisecond_are_cut_too() -> None:
    bounds = buckets_of([time_range(NOON, NOON, 512)], bucket_bytes=128 * MIB, cores=1).bounds
    assert len(bounds) == 4
    assert list(bounds) == sorted(set(bounds))


FIVE_YEARS = 43_800


def test_five_years_of_hours_with_few_rows_are_files_of_some_tasks() -> None:
    """A segment a minute, each with one line, of five years; and then all of it once more."""
    dice = random.Random(1)
    starts = [NOON + hour * HOUR + dice.randrange(HOUR - 10) for hour in range(FIVE_YEARS)]
    time_ranges = [TimeRange(ulid.lowest_at(at), ulid.highest_at(at + 9), 500) for at in starts * 2]
    buckets = buckets_of(time_ranges, bucket_bytes=128 * MIB, cores=2)
    assert [hour_of(bound) for bound in buckets.bounds] == [
        NOON // HOUR + hour for hour in range(FIVE_YEARS)
    ]
    assert buckets.tasks == tuple(index // 256 for index in range(FIVE_YEARS))


def test_an_hour_of_a_hundred_million_rows_is_cut_evenly() -> None:
    """Three nodes, a segment of 10 s each, row groups of 8 MiB: 100 bytes a row, no rows at all."""
    group, seconds = 8 * MIB, 10
    groups_a_segment = 100_000_000 * 100 // (360 * 3) // group + 1
    time_ranges = [
        TimeRange(
            ulid.lowest_at(at), ulid.highest_at(at + seconds * 1000 // groups_a_segment), group
        )
        for segment in range(360)
        for part in range(groups_a_segment)
        for at in [NOON + segment * 10_000 + part * (seconds * 1000 // groups_a_segment)]
        for _node in range(3)
    ]
    buckets = buckets_of(time_ranges, bucket_bytes=128 * MIB, cores=2)
    assert len(buckets.bounds) == round(sum(s.size for s in time_ranges) / (128 * MIB)) >= 75
    assert buckets.tasks == tuple(range(len(buckets.bounds)))
    assert max(loads(buckets, time_ranges)) <= 1.25 * 128 * MIB
    assert {hour_of(bound) for bound in buckets.bounds} == {NOON // HOUR}


@pytest.mark.parametrize("seed", range(10))
def test_tasks_are_full_but_not_too_full_and_a_large_hour_is_apart(seed: int) -> None:
    dice = random.Random(seed)
    sizes = {hour: dice.choice([1, 1, 5, 40, 700]) for hour in dice.sample(range(5_000), 400)}
    time_ranges = [
        time_range(
            NOON + hour * HOUR + minute * 60_000, NOON + hour * HOUR + minute * 60_000 + 9, mib
        )
        for hour, mib in sizes.items()
        for minute in range(10)
    ]
    buckets = buckets_of(time_ranges, bucket_bytes=128 * MIB, cores=4)
    assert list(buckets.bounds) == sorted(set(buckets.bounds))
    assert sorted(set(buckets.tasks)) == list(range(buckets.tasks[-1] + 1))
    assert list(buckets.tasks) == sorted(buckets.tasks)
    files, load = Counter(buckets.tasks), Counter[int]()
    for size, task in zip(loads(buckets, time_ranges), buckets.tasks, strict=True):
        load[task] += size
    hours = Counter(hour_of(bound) for bound in buckets.bounds)
    for bound, task in zip(buckets.bounds, buckets.tasks, strict=True):
        assert files[task] == 1 or hours[hour_of(bound)] == 1
        assert files[task] == 1 or load[task] <= 128 * MIB
    # Two neighbours that are too much for one task are more than half of one each, on average.
    assert len(files) <= 2 * sum(s.size for s in time_ranges) / (128 * MIB) + 2
