"""Orders batches by ULID and divides them into slices, each of one record batch or row group.

A slice holds whole records of one or many batches, at most `MAX_TEXT` bytes of
text (unless one record is longer) and `MAX_ROWS` records, so that memory stays
near one slice whatever the sizes of batches and lines are. Batches that share an id
(two runs that chose the same) are processed together, in windows of line numbers, so that
the records of consecutive slices never overlap in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tailrace.logstore.batch import Batches, Indexes, Rows, RunKey, has_record_meta, line_ends
from tailrace.logstore.errors import Damaged
from tailrace.logstore.segments.file_format import MAX_ROWS, MAX_TEXT

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RecordSlice:
    """Records of some batches, one after another.

    `ends` are the offsets in `text` after each record's last newline. The batch at `batches[i]` (an
    index of `Batches.rows`) has `counts[i]` of them, the first of which is its record number
    `firsts[i]`. `shared` says that ids may repeat among batches. `plain` says that every newline in
    `text` ends a record, and that no record has a time or level besides its text.
    """

    text: bytes
    ends: Ints
    batches: Indexes
    counts: Ints
    firsts: Ints
    shared: bool
    plain: bool


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a slice may be: bytes of text and records."""

    text: int = MAX_TEXT
    rows: int = MAX_ROWS


def slices(batches: Batches, order: Indexes, limits: Limits | None = None) -> Iterator[RecordSlice]:
    """The batches at `order` as slices; batches of one id must stand together in it."""
    limits = Limits() if limits is None else limits
    for group in _groups(batches.rows, order, limits):
        rows = batches.rows[group]
        small = rows["size"].sum() <= limits.text and rows["records"].sum() <= limits.rows
        if small:
            yield _whole(batches, group)
        elif len(group) == 1:
            yield from _long(batches, group, limits)
        else:
            yield from _side_by_side(batches, group, limits)


def _groups(rows: Rows, order: Indexes, limits: Limits) -> Iterator[Indexes]:
    """Pieces of `order` within the limits, each at least the batches of one id."""
    if len(order) == 0:
        return
    chosen = rows[order]
    new = _new_ids(chosen)
    heads = np.flatnonzero(new)
    sizes = np.add.reduceat(chosen["size"], heads).tolist()
    counts = np.add.reduceat(chosen["records"].astype(np.int64), heads).tolist()
    start = size = count = 0
    for head, more_size, more_count in zip(heads.tolist(), sizes, counts, strict=True):
        size, count = size + more_size, count + more_count
        if (size > limits.text or count > limits.rows) and head > start:
            yield order[start:head]
            start, size, count = head, more_size, more_count
    yield order[start:]


def _new_ids(chosen: Rows) -> NDArray[np.bool_]:
    """Which rows have another id than the row before them."""
    new = np.ones(len(chosen), dtype=np.bool_)
    new[1:] = chosen["ulid_lo"][1:] != chosen["ulid_lo"][:-1]
    new[1:] |= chosen["ulid_hi"][1:] != chosen["ulid_hi"][:-1]
    return new


def _whole(batches: Batches, group: Indexes) -> RecordSlice:
    """A slice of all records of some batches."""
    rows = batches.rows[group]
    text = batches.text(group)
    counts = rows["records"].astype(np.int64)
    plain = not has_record_meta(rows).any()
    ends = line_ends(text) if plain else _mixed_ends(batches, group, text)
    _check(rows, counts, ends, len(text))
    shared = not _new_ids(rows).all()
    return RecordSlice(text, ends, group, counts, np.zeros_like(counts), shared, plain)


def _mixed_ends(batches: Batches, group: Indexes, text: bytes) -> Ints:
    """The ends of records where some batches bring their own."""
    view, pieces, start = memoryview(text), [], 0
    for index, size in zip(group.tolist(), batches.rows["size"][group].tolist(), strict=True):
        pieces.append(_ends(batches, index, view[start : start + size]) + start)
        start += size
    return np.concatenate(pieces)


def _ends(batches: Batches, index: int, text: bytes | memoryview) -> Ints:
    """The ends of the records of one batch."""
    meta = batches.meta(index) if batches.rows["meta"][index] else None
    return line_ends(text) if meta is None else np.asarray(meta.ends, dtype=np.int64)


def _check(rows: Rows, counts: Ints, ends: Ints, size: int) -> None:
    """Raises `Damaged` unless the records end where the batches do."""
    stops = np.concatenate((np.zeros(1, np.int64), ends))[np.cumsum(counts).clip(0, len(ends))]
    whole = counts.sum() == len(ends) and size == rows["size"].sum()
    if not whole or not np.array_equal(stops, np.cumsum(rows["size"]).astype(np.int64)):
        raise Damaged("the text of a batch has not the records that the batch says")


def _long(batches: Batches, group: Indexes, limits: Limits) -> Iterator[RecordSlice]:
    """Slices of a batch that is larger than one."""
    row = batches.rows[group]
    text = memoryview(batches.text(group))
    plain, first = not has_record_meta(row).any(), 0
    cuts = _plain_cuts(text, limits) if plain else _cuts(batches, group, text, limits)
    for start, ends in cuts:
        count = np.array([len(ends)], dtype=np.int64)
        part = bytes(text[start : start + int(ends[-1])])
        yield RecordSlice(part, ends, group, count, np.array([first], np.int64), False, plain)
        first += len(ends)
    if first != row["records"][0]:
        raise Damaged("the text of a batch has not the records that the batch says")


def _plain_cuts(text: memoryview, limits: Limits) -> Iterator[tuple[int, Ints]]:
    """(offset, ends from there) of successive cuts, looking at one window at a time."""
    body, start = text.obj, 0
    if not isinstance(body, bytes):
        raise TypeError("the text of a batch is bytes")
    while start < len(body):
        stop = body.rfind(b"\n", start, start + limits.text) + 1
        if stop == 0:
            stop = body.find(b"\n", start) + 1 or len(body)
        for offset, ends in _split(line_ends(text[start:stop]), limits.rows):
            yield start + offset, ends
        start = stop


def _split(ends: Ints, rows: int) -> Iterator[tuple[int, Ints]]:
    """`ends` in pieces of at most `rows`, each counted from its own offset."""
    offset = 0
    for piece in (ends[k : k + rows] for k in range(0, len(ends), rows)):
        yield offset, piece - offset
        offset = int(piece[-1])


def _cuts(
    batches: Batches, group: Indexes, text: memoryview, limits: Limits
) -> Iterator[tuple[int, Ints]]:
    """As `_plain_cuts`, for a batch of records that may hold newlines."""
    ends, start, offset = _ends(batches, int(group[0]), text), 0, 0
    while start < len(ends):
        stop = int(np.searchsorted(ends, offset + limits.text, side="right"))
        stop = min(max(stop, start + 1), start + limits.rows)
        yield offset, ends[start:stop] - offset
        start, offset = stop, int(ends[stop - 1])


def _side_by_side(batches: Batches, group: Indexes, limits: Limits) -> Iterator[RecordSlice]:
    """Slices of several large batches of one id: the same line numbers of each."""
    texts = [batches.text(group[k : k + 1]) for k in range(len(group))]
    ends = [_ends(batches, int(i), text) for i, text in zip(group, texts, strict=True)]
    longest = max(len(e) for e in ends)
    parts = sum(map(len, texts)) // limits.text + sum(map(len, ends)) // limits.rows + 1
    step = max(1, longest // parts)
    plain = not has_record_meta(batches.rows[group]).any()
    for first in range(0, longest, step):
        yield _window(group, texts, ends, (first, first + step), plain)


def _window(
    group: Indexes,
    texts: Sequence[bytes],
    ends: Sequence[Ints],
    window: tuple[int, int],
    plain: bool,
) -> RecordSlice:
    """The records of each batch whose number is in the window."""
    first, stop = window
    chosen = [k for k in range(len(group)) if len(ends[k]) > first]
    pieces, stops, size = [], [], 0
    for k in chosen:
        start = int(ends[k][first - 1]) if first else 0
        stops.append(ends[k][first:stop] - start + size)
        pieces.append(texts[k][start : int(ends[k][first:stop][-1])])
        size += len(pieces[-1])
    counts = np.array([len(s) for s in stops], dtype=np.int64)
    firsts = np.full(len(chosen), first, dtype=np.int64)
    return RecordSlice(
        b"".join(pieces), np.concatenate(stops), group[chosen], counts, firsts, True, plain
    )


def by_ulid(rows: Rows, runs: Sequence[RunKey]) -> Indexes:
    """Indexes in order of (ULID, fqn, run, `pos`), exact duplicates and empty batches left out.

    A duplicate has the run, id, size and checksum of another; the one with the lowest `pos`
    stays.
    """
    ranks = np.empty(len(runs), dtype=np.int64)
    ranks[sorted(range(len(runs)), key=runs.__getitem__)] = np.arange(len(runs))
    run = ranks[rows["run"]] if len(rows) else np.empty(0, dtype=np.int64)
    order = np.lexsort((rows["pos"], run, rows["ulid_lo"], rows["ulid_hi"]))
    order = order[rows["records"][order] > 0]
    sorted_rows = rows[order]
    same = np.ones(max(len(order) - 1, 0), dtype=np.bool_)
    for column in ("ulid_lo", "ulid_hi", "digest", "size", "records"):
        same &= sorted_rows[column][1:] == sorted_rows[column][:-1]
    same &= run[order][1:] == run[order][:-1]
    kept: Indexes = order[np.concatenate((np.ones(min(len(order), 1), dtype=np.bool_), ~same))]
    return kept


def out_of_order(rows: Rows, order: Indexes) -> NDArray[np.bool_]:
    """By run index: whether `order` puts batches of the run in another order than `pos`."""
    run, pos = rows["run"][order], rows["pos"][order]
    grouped = np.argsort(run, kind="stable")
    run, pos = run[grouped], pos[grouped]
    backwards = (run[1:] == run[:-1]) & (pos[1:] < pos[:-1])
    marks = np.zeros(int(rows["run"].max(initial=0)) + 1, dtype=np.bool_)
    marks[run[1:][backwards]] = True
    return marks
