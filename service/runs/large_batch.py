"""Reads parts of a large batch that is not in a chunk yet.

A batch may have 64 MiB of text, while a piece of a page has half a MiB. Chunks have an index of
their lines; journal and segments have none. The first read within such a batch therefore scans
it in steps and remembers where its lines are: 8 bytes per 64 KiB of text for a batch whose
records are lines, 16 bytes per record for one whose records hold newlines. Later reads fetch
only the bytes that they return.

A read ends at the end of a record, because a cursor names records. Batches never change, so an
index stays valid.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from logstore.batch import Batches, line_ends
from logstore.errors import Unavailable

_STEP_BYTES = 64 << 10
_KEPT_BYTES = 16 << 20
_AT_ONCE_BYTES = 1 << 20
_ENTRY_BYTES = 512  # of Python's own, for each

Ints = NDArray[np.int64]


class BatchLines(NamedTuple):
    """Whole lines of a batch, and how many there are."""

    text: bytes
    lines: int


class LineIndex(NamedTuple):
    """Bytes of a batch's text and the lines that end within them, at some places of it.

    The places are steps of 64 KiB from 0 on, or behind each record if records hold newlines.
    """

    bytes: Ints
    lines: Ints


_ONE_STEP = LineIndex(np.zeros(1, np.int64), np.zeros(1, np.int64))


class LineIndexes:
    """The indexes of the large batches that were read last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int, int], LineIndex] = OrderedDict()
        self._bytes = 0

    def of(self, batches: Batches, at: int) -> LineIndex:
        """The index of one row; reads all of its text the first time."""
        key = _key(batches, at)
        index = self._kept.get(key)
        if index is None:
            index = _indexed(batches, at)
            self._keep(key, index)
        self._kept.move_to_end(key)
        return index

    async def prepare(self, batches: Batches, at: int) -> None:
        """Reads a row's text off the event loop, if it is so large that others would notice."""
        key = _key(batches, at)
        row = batches.rows[at]
        if int(row["size"]) + int(row["meta"]) > _AT_ONCE_BYTES and key not in self._kept:
            self._keep(key, await asyncio.to_thread(_indexed, batches, at))

    def _keep(self, key: tuple[str, int, int], index: LineIndex) -> None:
        before = self._kept.pop(key, None)
        self._bytes += _size(index) - (0 if before is None else _size(before))
        self._kept[key] = index
        while self._bytes > _KEPT_BYTES and len(self._kept) > 1:
            self._bytes -= _size(self._kept.popitem(last=False)[1])


def _key(batches: Batches, at: int) -> tuple[str, int, int]:
    row = batches.rows[at]
    return batches.node, int(row["pos"]), int(row["digest"])


def read_lines_of(
    batches: Batches, at: int, indexes: LineIndexes, skip: int, most: int, max_bytes: int
) -> BatchLines:
    """Up to `most` lines after the first `skip` of a row whose records are lines, one at least.

    Fewer if they take more than `max_bytes`. Raises `Unavailable` if the text is cut short.
    """
    begin = _begin_of_line(batches, at, indexes, skip) if skip else 0
    size = max_bytes
    while True:
        text = batches.slice(at, begin, begin + size)
        ends = line_ends(text)
        if len(ends) or len(text) < size:
            break
        size *= 2
    if not len(ends):
        raise _cut(batches, at)
    lines = 1 if size > max_bytes else min(most, len(ends))
    return BatchLines(text[: int(ends[lines - 1])], lines)


def read_records_of(
    batches: Batches, at: int, indexes: LineIndexes, skip: int, most: int, max_bytes: int
) -> BatchLines:
    """Lines after the first `skip` of a row whose records hold newlines, to the end of a record.

    Up to `most` lines and `max_bytes`, but what is left of one record at least. Raises
    `Unavailable` if the text is cut short.
    """
    ends, lines = indexes.of(batches, at)
    first = int(np.searchsorted(lines, skip, "right"))
    begin, line = (int(ends[first - 1]), int(lines[first - 1])) if first else (0, 0)
    fitting = min(
        int(np.searchsorted(ends, begin + max_bytes, "right")),
        int(np.searchsorted(lines, skip + most, "right")),
    )
    last = max(fitting, first + 1) - 1
    text = batches.slice(at, begin, int(ends[last]))
    if begin + len(text) < int(ends[last]):
        raise _cut(batches, at)
    skipped = int(line_ends(text)[skip - line - 1]) if skip > line else 0
    return BatchLines(text[skipped:], int(lines[last]) - skip)


def records_through(batches: Batches, at: int, indexes: LineIndexes, lines: int) -> int:
    """How many of the row's records its first `lines` lines belong to."""
    row = batches.rows[at]
    if lines == int(row["lines"]):
        return int(row["records"])
    if has_plain_records(batches, at):
        return lines
    ends = indexes.of(batches, at).lines
    known = int(np.searchsorted(ends, lines, "left")) + 1
    return known if known < len(ends) else int(row["records"])


def lines_through(batches: Batches, at: int, indexes: LineIndexes, records: int) -> int:
    """How many of the row's lines its first `records` records have; all lines, if it has fewer."""
    row = batches.rows[at]
    if records >= int(row["records"]):
        return int(row["lines"])
    if records == 0 or has_plain_records(batches, at):
        return records
    return int(indexes.of(batches, at).lines[records - 1])


def has_plain_records(batches: Batches, at: int) -> bool:
    """Whether each record of the row is a line."""
    row = batches.rows[at]
    return int(row["records"]) == int(row["lines"])


def _begin_of_line(batches: Batches, at: int, indexes: LineIndexes, line: int) -> int:
    """The offset behind the newline number `line` of the text."""
    if int(batches.rows["size"][at]) <= _STEP_BYTES:
        steps, before = _ONE_STEP
    else:
        steps, before = indexes.of(batches, at)
    step = int(np.searchsorted(before, line, "left")) - 1
    begin = int(steps[step])
    ends = line_ends(batches.slice(at, begin, begin + _STEP_BYTES))
    number = line - int(before[step]) - 1
    if number >= len(ends):
        raise _cut(batches, at)
    return begin + int(ends[number])


def _indexed(batches: Batches, at: int) -> LineIndex:
    size = int(batches.rows["size"][at])
    steps = np.arange(0, size, _STEP_BYTES, dtype=np.int64)
    if has_plain_records(batches, at):
        places = steps
    elif meta := batches.meta(at):
        places = np.array(meta.ends, np.int64)
    else:  # which line is which record is not known: all of it is one place
        places = np.array([size], np.int64)
    lines, before = np.zeros(len(places), np.int64), 0
    for step in steps.tolist():
        ends = line_ends(batches.slice(at, step, step + _STEP_BYTES)) + step
        low, high = np.searchsorted(places, [step, step + _STEP_BYTES], "right")
        lines[low:high] = before + np.searchsorted(ends, places[low:high], "right")
        before += len(ends)
    return LineIndex(places, lines)


def _size(index: LineIndex) -> int:
    return _ENTRY_BYTES + index.bytes.nbytes + index.lines.nbytes


def _cut(batches: Batches, at: int) -> Unavailable:
    pos = int(batches.rows["pos"][at])
    return Unavailable(
        f"the batch at {pos} of {batches.node} is shorter than when it was written",
        hint="Run `tailrace verify`.",
    )
