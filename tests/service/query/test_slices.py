"""Slices cover their time range, in order, and only where that pays."""

from __future__ import annotations

import random
from datetime import date
from itertools import pairwise

import pytest

from service.query.request import UlidRange, slices
from tailrace.logstore import ulid
from tailrace.logstore.table.snapshot import HOUR_MS, TableFile

HOUR = 494_000  # since the epoch
START = HOUR * HOUR_MS
HOUR_RANGE = UlidRange(ulid.lowest_at(START), ulid.highest_at(START + HOUR_MS - 1))
DAY = date.fromordinal(date(1970, 1, 1).toordinal() + HOUR // 24)


def file(rows: int, first: int = 0, last: int = HOUR_MS - 1, *, bounded: bool = True) -> TableFile:
    low, high = ulid.lowest_at(START + first), ulid.highest_at(START + last)
    ulids = (ulid.encode(low), ulid.encode(high)) if bounded else None
    return TableFile("a", "a", 1, rows, DAY, HOUR % 24, ulids, None, None)


@pytest.mark.parametrize("descending", [True, False])
def test_they_cover_the_time_range_without_a_gap(*, descending: bool) -> None:
    dice = random.Random(1)
    for _ in range(200):
        first, last = sorted(dice.sample(range(HOUR_MS), 2))
        files = [file(dice.randrange(1, 10**7), first, last)]
        found = list(slices(HOUR_RANGE, files, dice.randrange(1, 2_000), 1, descending=descending))
        if descending:
            found.reverse()
        assert (found[0].low, found[-1].high) == HOUR_RANGE
        assert all(one.low <= one.high for one in found)
        for one, following in pairwise(found):
            assert one.high + 1 == following.low


def test_the_first_is_as_long_as_twice_the_limit_takes() -> None:
    """Behind the last record of the table, which may be long before the end of the hour."""
    last = HOUR_MS // 2
    near, *rest = slices(HOUR_RANGE, [file(1_000_000, 0, last)], 1_000, 1, descending=True)
    assert near.low >> 80 == START + last - last // 500
    assert near.high == HOUR_RANGE.high
    assert len(rest) == 3
    near, *_ = slices(HOUR_RANGE, [file(1_000_000, last)], 1_000, 1, descending=False)
    assert near.low == HOUR_RANGE.low
    assert START + last < near.high >> 80 < START + last + HOUR_MS // 900


def test_in_one_piece_where_a_bound_is_no_help() -> None:
    for files, limit in (
        ([], 1),
        ([file(99)], 1),
        ([file(10_000)], 2_000),
        ([file(10_000), file(10_000, bounded=False)], 1),
    ):
        assert list(slices(HOUR_RANGE, files, limit, 100, descending=True)) == [HOUR_RANGE]
