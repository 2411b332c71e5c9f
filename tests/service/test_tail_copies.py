"""What of the live end may be a copy of what a reader has seen at another node."""

from __future__ import annotations

from dataclasses import dataclass

from service.tail import Tick
from tailrace.logstore.position import MOST_NEWEST, Cursor, Position
from tailrace.logstore.ulid import LINE_BITS


@dataclass
class Batch:
    """One record."""

    number: int
    pos: int = 0
    records: int = 1
    lines: int = 1
    text: bytes = b"x\n"
    meta: bytes = b""
    connector: str | None = None

    @property
    def ulid(self) -> int:
        return self.number << LINE_BITS


def seen(*numbers: int, node: str = "a") -> Cursor:
    cursor = Cursor()
    for pos, number in enumerate(numbers):
        cursor = cursor.advanced(node, Position("file", pos), [number << LINE_BITS])
    return cursor


def tick(number: int, node: str = "b") -> Tick:
    return Tick(node, [Batch(number)], Position("file", 0))


def test_a_batch_below_the_highest_seen_at_another_node_may_be_a_copy() -> None:
    cursor = seen(*range(1, 5 * MOST_NEWEST))
    for number in (1, 20, 5 * MOST_NEWEST - 1):
        assert tick(number).may_repeat(cursor)
    assert not tick(5 * MOST_NEWEST).may_repeat(cursor)


def test_the_highest_is_known_after_many_that_were_lower() -> None:
    cursor = seen(1000, *range(1, 5 * MOST_NEWEST))
    assert len(cursor.newest["a"]) == MOST_NEWEST
    assert tick(1000).may_repeat(Cursor.decode(cursor.encode()))
    assert not tick(1001).may_repeat(cursor)


def test_what_was_seen_of_one_node_alone_is_not_repeated_by_it() -> None:
    assert not tick(1, "a").may_repeat(seen(1, 2, 3))
    assert not tick(1, "a").may_repeat(Cursor())


def test_what_was_seen_of_a_node_last_is_known_however_much_comes_of_others() -> None:
    """The node is away, and its client sends the batch to another one after a while."""
    cursor = seen(1, 2, 3)
    for number in range(4, 1000):
        cursor = cursor.advanced("b", Position("file", number), [number << LINE_BITS])
    found = Cursor.decode(cursor.encode())
    assert {number << LINE_BITS for number in (1, 2, 3, 999)} <= set(found.last_records)
    assert len(found.last_records) == 3 + MOST_NEWEST
