"""Buckets: each in one hour, about equal, found without reading the data."""

from __future__ import annotations

from bisect import bisect_right

from compactor.intake.buckets import bucket_bounds
from compactor.intake.verify import Span
from logstore import ulid
from tests.compactor.lake import HOUR, NOON

MIB = 1 << 20


def span(start_ms: int, end_ms: int, mib: int) -> Span:
    return Span(ulid.lowest_at(start_ms), ulid.highest_at(end_ms), mib * MIB)


def test_a_little_text_is_one_bucket_that_starts_with_its_hour() -> None:
    bounds = bucket_bounds([span(NOON + 5, NOON + 9, 1)], bucket_bytes=128 * MIB, cores=8)
    assert bounds == [ulid.lowest_at(NOON)]


def test_every_hour_has_its_own() -> None:
    spans = [span(NOON, NOON + 1, 1), span(NOON + 3 * HOUR, NOON + 3 * HOUR + 1, 1)]
    bounds = bucket_bounds(spans, bucket_bytes=128 * MIB, cores=1)
    assert bounds == [ulid.lowest_at(NOON), ulid.lowest_at(NOON + 3 * HOUR)]


def test_a_burst_is_cut_where_its_text_is_not_where_its_hour_is() -> None:
    burst = [span(NOON + s * 1000, NOON + s * 1000 + 999, 64) for s in range(8)]
    bounds = bucket_bounds(burst, bucket_bytes=128 * MIB, cores=2)
    assert len(bounds) == 4
    load = [0] * len(bounds)
    for one in burst:
        load[bisect_right(bounds, one.low) - 1] += one.size
    assert max(load) <= 192 * MIB
    assert all(ulid.time_ms(bound) < NOON + 8_000 for bound in bounds)


def test_cores_are_kept_busy_but_not_with_crumbs() -> None:
    spans = [span(NOON, NOON + 60_000, 96)]
    assert len(bucket_bounds(spans, bucket_bytes=128 * MIB, cores=2)) == 2
    assert len(bucket_bounds(spans, bucket_bytes=128 * MIB, cores=64)) == 3


def test_lines_of_a_single_millisecond_are_cut_too() -> None:
    bounds = bucket_bounds([span(NOON, NOON, 512)], bucket_bytes=128 * MIB, cores=1)
    assert len(bounds) == 4
    assert bounds == sorted(set(bounds))
