"""Ids within groups of lines: each names one place, and what is none of them is refused."""

from __future__ import annotations

import pytest

from service.http.sse import EventBatch, EventGroup, LiveStart, line_ids, parse_start, record_ids
from service.run_log.cursors import Begun
from tailrace.logstore.errors import InvalidCursor
from tailrace.logstore.position import Cursor, Position

ULID = 7 << 80
BEFORE = Cursor({"a": Position("FILE", 3), "b": Position("OTHER", 8)}, {"b": (ULID - 1,)})
GROUP = EventGroup("a", "FILE", (EventBatch(ULID, 4, 2, 2), EventBatch(ULID + (1 << 25), 6, 2, 5)))


def places(ids: list[bytes]) -> list[LiveStart]:
    return [parse_start(one.decode()) for one in ids]


def behind(pos: int, last: int) -> Cursor:
    return BEFORE.advanced("a", Position("FILE", pos), (last,))


def test_a_line_is_behind_a_record_of_its_node() -> None:
    first, second, *several = places(line_ids(BEFORE.encode(), GROUP))
    assert (first, second) == (
        LiveStart(behind(4, ULID)),
        LiveStart(behind(5, ULID + 1)),
    )
    at = BEFORE.advanced("a", Position("FILE", 5))
    assert several == [
        *[LiveStart(at, begun=Begun(GROUP.batches[-1].ulid, number)) for number in range(1, 5)],
        LiveStart(behind(7, GROUP.batches[-1].ulid + 1)),
    ]


def test_a_line_within_a_record_is_behind_lines_of_its_whole_batch() -> None:
    part = GROUP._replace(batches=(EventBatch(ULID, 6, 1, 3, first=2, before=4),))
    at = BEFORE.advanced("a", Position("FILE", 3))
    assert places(line_ids(BEFORE.encode(), part)) == [
        LiveStart(at, begun=Begun(ULID, 5)),
        LiveStart(at, begun=Begun(ULID, 6)),
        LiveStart(behind(6, ULID + 2)),
    ]


def test_before_the_first_record_of_a_node_nothing_of_it_was_seen() -> None:
    first = EventGroup("c", "FILE", (EventBatch(ULID, 0, 1, 2),))
    start = places(line_ids(BEFORE.encode(), first))[0]
    assert start == LiveStart(BEFORE, begun=Begun(ULID, 1))


def test_a_record_is_behind_itself_also_in_a_part_of_a_batch() -> None:
    part = GROUP._replace(batches=(EventBatch(ULID, 6, 2, 9, first=2),))
    assert places(record_ids(BEFORE.encode(), part)) == [
        LiveStart(behind(6, ULID + 2)),
        LiveStart(behind(7, ULID + 3)),
    ]


def test_lines_that_were_seen_have_no_id() -> None:
    every = line_ids(BEFORE.encode(), GROUP)
    assert line_ids(BEFORE.encode(), GROUP._replace(begun=1)) == every[1:]


def test_numbers_count_lines() -> None:
    assert parse_start("12+3") == LiveStart(12, 3)
    assert parse_start(f"{BEFORE.encode()}+3") == LiveStart(BEFORE, 3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+",
        "1+",
        "1+x",
        "1+-1",
        "1~F.1.2.3@n",
        f"{BEFORE.encode()}~",
        f"{BEFORE.encode()}~F.1@n",
        f"{BEFORE.encode()}~F.1.{'0' * 26}.1@",
        f"{BEFORE.encode()}~F.1.{'0' * 26}.-2@n",
        f"{BEFORE.encode()}~F.x.{'0' * 26}.1@n",
        f"{BEFORE.encode()}~F.1.nothing.1@n",
    ],
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursor):
        parse_start(text)
