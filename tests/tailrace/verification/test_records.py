"""Records out of a stretch of text, as the journal's own rules make them."""

from __future__ import annotations

import numpy as np
import pytest

from tailrace.logstore import ulid
from tailrace.logstore.batch import RecordMeta, RunKey
from tailrace.logstore.errors import Damaged
from tailrace.logstore.runs.chunk_index import blocks_of
from tailrace.verification.findings import records
from tests.batches import Entry, make_batches

RUN = RunKey("f", "r")
LARGE = b"".join(b"line %06d of a large batch\n" % n for n in range(10_000))


def meta(*ends: int) -> RecordMeta:
    nothing: list[None] = [None] * len(ends)
    return RecordMeta(list(ends), nothing, nothing, nothing)


def seen(*entries: Entry, first: int = 0, cut: bytes | None = None) -> list[tuple[int, int, bytes]]:
    """(ULID, position, message) of each record."""
    batches = make_batches("n", list(entries), first_pos=first)
    indexes = np.arange(len(entries))
    text = batches.text(indexes)
    blocks = blocks_of(batches, indexes, text)
    begins = np.maximum.accumulate(np.where(blocks["first"] == 1, np.arange(len(blocks)), 0))
    starts = blocks["pos"].astype(np.int64)[begins]
    table = records(blocks, text if cut is None else cut, starts)
    columns = (table.column(name).to_pylist() for name in ("ulid", "pos", "message"))
    return [(ulid.decode(u), pos, message) for u, pos, message in zip(*columns, strict=True)]


def test_lines_are_records() -> None:
    one, two = 1 << 80, 2 << 80
    assert seen((RUN, one, b"a\n\nb\n"), (RUN, two, b"c\xff\n"), first=7) == [
        (one, 7, b"a"),
        (one + 1, 8, b""),
        (one + 2, 9, b"b"),
        (two, 10, b"c\xff"),
    ]


def test_records_with_newlines() -> None:
    one = 1 << 80
    text = b"first\nof two\nsecond\n\nlast\n"
    batch: Entry = (RUN, one, text, None, meta(13, 21, 26))
    assert seen(batch, (RUN, 2 << 80, b"x\n")) == [
        (one, 0, b"first\nof two"),
        (one + 1, 1, b"second\n"),
        (one + 2, 2, b"last"),
        (2 << 80, 3, b"x"),
    ]


def test_a_batch_of_many_blocks() -> None:
    one = 1 << 80
    found = seen((RUN, one, LARGE), first=3)
    assert [message for _, _, message in found] == LARGE.split(b"\n")[:-1]
    assert [(u - one, pos - 3) for u, pos, _ in found] == [(n, n) for n in range(10_000)]


@pytest.mark.parametrize("other", [b"a\nb\nc", b"a b\nc\n", b"a\nb\nc\nd\n", b""])
def test_a_text_of_other_lines(other: bytes) -> None:
    with pytest.raises(Damaged):
        seen((RUN, 1 << 80, b"a\nb\nc\n"), cut=other)
