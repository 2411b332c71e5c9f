"""The prefixes of records are the same bytes, wherever in a text they stand and are looked at."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.logstore.segments.levels import WIDTH, prefixes
from tailrace.logstore.segments.times import find_times
from tests.logstore.segments.corpora import LINES

TEXTS = st.lists(LINES, min_size=1, max_size=20).map(
    lambda lines: [f"{x}\n".encode() for x in lines]
)


def ends_of(texts: list[bytes]) -> np.typing.NDArray[np.int64]:
    return np.array(list(accumulate(map(len, texts))), dtype=np.int64)


@settings(deadline=None)
@given(TEXTS)
def test_a_row_is_what_stands_from_the_byte_before_the_record(texts: list[bytes]) -> None:
    texts = [text.replace(b"\x1b", b"e") for text in texts]
    text, ends = b"".join(texts), ends_of(texts)
    look = prefixes(text, ends)
    padded = b"\n" + text + b"\n" * WIDTH
    starts = [0, *ends.tolist()[:-1]]
    assert [row.tobytes() for row in look.rows] == [padded[s : s + WIDTH] for s in starts]
    assert look.lengths.tolist() == [len(line) for line in texts]


def test_colours_take_no_place() -> None:
    texts = [b"\x1b[1mab\x1b[0m\n", b"cd\n", b"\x1b[2m" * 30 + b"x" * 200 + b"\n"]
    look = prefixes(b"".join(texts), ends_of(texts))
    assert look.rows[0].tobytes().startswith(b"\nab\ncd\n")
    assert look.rows[2].tobytes() == b"\n" + b"x" * (WIDTH - 1)
    assert look.lengths.tolist() == [3, 3, 201]


@settings(deadline=None)
@given(TEXTS, st.integers(1, 20))
def test_what_is_found_does_not_depend_on_how_many_are_searched_together(
    texts: list[bytes], step: int
) -> None:
    text, ends = b"".join(texts), ends_of(texts)
    whole = prefixes(text, ends)
    parts = [prefixes(text, ends, slice(k, k + step)) for k in range(0, len(texts), step)]
    assert np.concatenate([find_times(p) for p in parts]).tolist() == find_times(whole).tolist()
