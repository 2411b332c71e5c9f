"""Cursors as text: what they hold, how much of it, and what earlier versions have written."""

from __future__ import annotations

import base64
import random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.logstore import ulid as ulids
from tailrace.logstore.errors import InvalidCursor
from tailrace.logstore.position import MOST_NEWEST, MOST_NODES, MOST_OF_ALL, Cursor, Position

_HIGHEST = (1 << 128) - 1
_NAMES = st.text(min_size=1, max_size=8)
_NEWEST = st.dictionaries(_NAMES, st.lists(st.integers(0, _HIGHEST), max_size=5).map(tuple))
_POSITIONS = st.dictionaries(_NAMES, st.builds(Position, st.text(), st.integers(0, 1 << 50)))
SEEN = {"a": Position("file", 1)}
ULID = 1234 << ulids.RANDOM_BITS | 7 << ulids.LINE_BITS | 3


def batches(first: int, count: int) -> tuple[int, ...]:
    return tuple([number << ulids.LINE_BITS for number in range(first, first + count)])


def text(prefix: str, value: Any) -> str:
    return prefix + base64.urlsafe_b64encode(orjson.dumps(value)).decode().rstrip("=")


@given(_POSITIONS, _NEWEST)
def test_it_comes_back_as_it_was(
    positions: dict[str, Position], newest: dict[str, tuple[int, ...]]
) -> None:
    cursor = Cursor(positions, dict(list(newest.items())[:MOST_NODES]))
    assert Cursor.decode(cursor.encode()) == cursor


@given(_POSITIONS, _NEWEST, st.integers(0, 1 << 40))
def test_as_a_number_it_lies_between_its_line_and_the_next(
    positions: dict[str, Position], newest: dict[str, tuple[int, ...]], line: int
) -> None:
    cursor = Cursor(positions, dict(list(newest.items())[:MOST_NODES]))
    text = cursor.encode_numbered(line)
    assert line <= float(text) < line + 1
    assert Cursor.decode(text) == cursor
    assert len(text) < 20 + 2.5 * len(cursor.encode())


@pytest.mark.parametrize(
    "number", ["1.5", "1.1", "1.199999", "1.112345", "1.1253961", ".1253961", "1e3.1", "1.1\u0661"]
)
def test_a_number_that_is_no_cursor_is_refused(number: str) -> None:
    with pytest.raises(InvalidCursor, match="not a cursor"):
        Cursor.decode(number)


@pytest.mark.parametrize(
    ("counts", "left"),
    [
        ([MOST_NEWEST + 1], [MOST_NEWEST]),
        ([40, 40, 40], [32, 32, 32]),
        ([40, 40, 40, 2], [31, 31, 31, 2]),
        ([40] * MOST_NODES, [MOST_OF_ALL // MOST_NODES] * MOST_NODES),
        ([1] * (MOST_NODES + 3), [1] * MOST_NODES),
    ],
)
def test_there_is_room_for_the_newest_of_each_node(counts: list[int], left: list[int]) -> None:
    cursor = Cursor(SEEN)
    for node, count in enumerate(counts):
        for ulid in batches(1000 * node + 1, count):
            cursor = cursor.advanced(f"n{node:02}", Position("file", 1), [ulid])
    assert [len(found) for found in cursor.newest.values()] == left
    for name, found in cursor.newest.items():
        number = int(name[1:])
        assert found == batches(1000 * number + 1, counts[number])[-len(found) :]
    assert Cursor.decode(cursor.encode()) == cursor


def test_the_highest_stays_although_lower_ones_came_after_it() -> None:
    high, *low = batches(50, 1) + batches(1, MOST_NEWEST)
    cursor = Cursor(SEEN, {"a": (high,)}).advanced("a", SEEN["a"], low)
    assert cursor.newest["a"] == (high, *low[1:])


def test_of_a_batch_that_was_seen_further_it_knows_that() -> None:
    cursor = Cursor(SEEN, {"a": (ULID, *batches(1, 1))})
    assert cursor.advanced("a", SEEN["a"], [ULID + 2]).newest["a"] == (*batches(1, 1), ULID + 2)
    assert cursor.joined(Cursor(SEEN, {"a": (ULID - 1,)})).newest["a"][-1] == ULID


@pytest.mark.parametrize(
    ("old", "newest"),
    [
        (text("c3.", [{"a": ["file", 1]}, {"a": [ulids.encode(ULID)]}]), {"a": (ULID,)}),
        (text("c3.", [{"a": ["file", 1]}, [ulids.encode(ULID)]]), {"": (ULID,)}),
        (text("c3.", [{"a": ["file", 1]}, []]), {}),
        (text("c2.", {"a": ["file", 1]}), {}),
        (text("c1.", {"a": ["file", 1]}), {}),
    ],
)
def test_those_of_earlier_versions_are_read(old: str, newest: dict[str, tuple[int, ...]]) -> None:
    assert Cursor.decode(old) == Cursor(SEEN, newest, complete=not old.startswith("c1."))


def test_what_is_no_cursor_is_refused() -> None:
    good = Cursor(SEEN, {"a": (ULID,)}).encode()
    dice = random.Random(1)
    for prefix in ("c4.", "c3.", "c2.", "c1.", "c5.", ""):
        for size in range(60):
            wrong = base64.urlsafe_b64encode(dice.randbytes(size)).decode()
            with pytest.raises(InvalidCursor):
                Cursor.decode(prefix + wrong)
    for end in range(len(good)):
        with pytest.raises(InvalidCursor):
            Cursor.decode(good[:end])
    with pytest.raises(InvalidCursor):
        Cursor.decode(f"{good}AAAA")
    with pytest.raises(InvalidCursor):
        Cursor.decode(f"{good[:9]}\u0663{good[9:]}")


def test_its_length_is_known_to_those_who_pass_it_on() -> None:
    """A header or an address takes 8 KiB; of three nodes that take lines it is a fifth of that."""
    dice, cursor = random.Random(1), Cursor()
    file = ulids.encode(ULID)
    for at in range(40):
        for node in "abc":
            ulid = (1 << 40) + at << ulids.RANDOM_BITS | dice.getrandbits(55) << ulids.LINE_BITS
            cursor = cursor.advanced(f"{node}-{file}", Position(file, at), [ulid + 99])
    assert len(cursor.last_records) == MOST_OF_ALL
    assert len(cursor.encode()) < 1700
    alone = Cursor({f"a-{file}": Position(file, 9)})
    assert len(alone.encode()) < 150
