"""Our texts of ULIDs are those of python-ulid, and what it refuses is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import example, given
from hypothesis import strategies as st
from ulid import ULID

from tailrace.logstore import ulid
from tailrace.logstore.errors import InvalidInput

ANY = st.integers(0, (1 << 128) - 1)


@given(ANY)
@example(0)
@example((1 << 128) - 1)
def test_both_write_and_read_the_same(number: int) -> None:
    text = ulid.encode(number)
    assert text == str(ULID.from_int(number))
    assert ulid.decode(text) == ulid.decode(text.lower()) == number
    assert int(ulid.parse(text)) == int(ulid.parse(text.lower())) == number
    assert ulid.parse(text).milliseconds == ulid.time_ms(number)


@given(st.text(max_size=30) | st.text("0189AIZaiz-É", min_size=26, max_size=26))
@example("7" + "Z" * 25)
@example("8" + "0" * 25)
def test_both_take_and_refuse_the_same(text: str) -> None:
    assert _read(text, ulid.decode) == _read(text, lambda it: int(ulid.parse(it)))


def _read(text: str, read: Callable[[str], int]) -> int | str:
    """Its number, or why it has none."""
    try:
        return read(text)
    except InvalidInput as refused:
        return str(refused)
