"""Places in lines that nodes held while the store was silent, as clients pass them back."""

from __future__ import annotations

import pytest

from service.run_log.cursors import parse_token
from service.run_log.lines import HeldPlace, LineSum, given
from tailrace.logstore.errors import InvalidCursor
from tailrace.logstore.position import Cursor, Position, as_number

SEEN = Cursor({"a": Position("file", 7)})


@pytest.mark.parametrize("before", [None, 0, 12, Cursor({"b": Position("other", 3)})])
def test_a_place_comes_back_as_it_was(before: Cursor | int | None) -> None:
    place = HeldPlace(before, SEEN, LineSum().plus(1 << 100, 5))
    assert parse_token(place.encode()) == place
    number = as_number(place.encode(), 17)
    assert float(number) < 18
    assert parse_token(number) == place


def test_a_place_goes_on_from_where_the_reader_really_was() -> None:
    later = Cursor({"a": Position("file", 9)})
    first, then = LineSum().plus(1 << 80, 5), LineSum().plus(3 << 90, 2)
    both = LineSum().plus(3 << 90, 2).plus(1 << 80, 5)
    assert given(given(12, SEEN, first), later, then) == HeldPlace(12, later, both)


def test_sums_of_as_many_lines_of_other_batches_differ() -> None:
    assert LineSum().plus(1 << 80, 5) != LineSum().plus(3 << 80, 5)
    assert LineSum().plus(1 << 80, 1).plus(3 << 80, 1) != LineSum().plus(2 << 80, 2)


@pytest.mark.parametrize(
    "text", ["h1.", "h1.e30", "h1.WzEsMiwzXQ", "h1.!", "h1.W251bGwsImM0LiIsLTFd"]
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursor):
        parse_token(text)
