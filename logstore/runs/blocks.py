"""Blocks: the places of a chunk's text that can be found without reading the text.

A block is a batch, or a part of a large one: at most about 64 KiB that end with a line
(one line may be longer). A batch whose records hold newlines has a block per record, so
that in every block either line `i` is record `i`, or there is one record.

A block holds where its bytes and lines begin, the writer that received it and its position,
its batch ULID, and for a batch's first block the digest of the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from logstore.batch import Batches, Indexes, RecordMeta, line_ends

BLOCK = np.dtype(
    [
        ("offset", "<u8"),  # bytes from the beginning of the text
        ("line", "<u8"),  # lines from the beginning of the text
        ("pos", "<u8"),  # of its first record
        ("ulid_hi", "<u8"),  # of its batch
        ("ulid_lo", "<u8"),
        ("digest", "<u8"),  # of its batch; 0 in a batch's later blocks
        ("size", "<u8"),
        ("lines", "<u4"),
        ("records", "<u4"),
        ("writer", "<u4"),  # index into the writers that go with the blocks
        ("first", "<u4"),  # 1 if it begins its batch
    ]
)
Blocks = NDArray[np.void]
BLOCK_BYTES = 64 << 10


def blocks_of(batches: Batches, indexes: Indexes, text: bytes) -> Blocks:
    """The blocks of the rows at `indexes`, whose texts one after another are `text`.

    The writer is 0: all rows are of one node.
    """
    rows = batches.rows[indexes]
    plain = np.zeros(len(rows), BLOCK)
    for name in ("pos", "ulid_hi", "ulid_lo", "digest", "size", "lines", "records"):
        plain[name] = rows[name]
    plain["first"] = 1
    plain["offset"] = np.cumsum(rows["size"]) - rows["size"]
    split = (rows["size"] > BLOCK_BYTES) | (rows["records"] != rows["lines"])
    if split.any():
        plain = _with_split(batches, indexes, text, plain, np.flatnonzero(split))
    plain["line"] = np.cumsum(plain["lines"], dtype=np.uint64) - plain["lines"]
    return plain


def _with_split(
    batches: Batches, indexes: Indexes, text: bytes, plain: Blocks, split: Indexes
) -> Blocks:
    parts: list[Blocks] = []
    done = 0
    for number in split.tolist():
        parts.append(plain[done:number])
        meta = batches.meta(int(indexes[number]))
        parts.append(_split(plain[number], text, meta))
        done = number + 1
    parts.append(plain[done:])
    return np.concatenate(parts)


def _split(whole: np.void, text: bytes, meta: RecordMeta | None) -> Blocks:
    """One batch as several blocks."""
    offset, size = int(whole["offset"]), int(whole["size"])
    ends = line_ends(memoryview(text)[offset : offset + size])
    if int(whole["records"]) == int(whole["lines"]):
        cuts = _cuts(ends, size)
        lines = np.searchsorted(ends, cuts, "right")
        records = lines
    elif meta is not None:
        cuts = np.asarray(meta.ends, np.int64)
        lines = np.searchsorted(ends, cuts, "right")
        records = np.arange(1, len(cuts) + 1)
    else:  # which line is which record is not known: all of it is one place
        return whole.reshape(1).copy()
    return _parts(whole, cuts, lines, records)


def _cuts(ends: Indexes, size: int) -> Indexes:
    """Line ends so that most parts are just below `BLOCK_BYTES`."""
    cuts: list[int] = []
    at = 0
    while at < size:
        last = int(np.searchsorted(ends, at + BLOCK_BYTES, "right")) - 1
        if last < 0 or int(ends[last]) <= at:
            last += 1
        at = int(ends[last]) if last < len(ends) else size
        cuts.append(at)
    return np.array(cuts, np.int64)


def _parts(
    whole: np.void,
    cuts: NDArray[np.int64],
    lines: NDArray[np.int64],
    records: NDArray[np.int64],
) -> Blocks:
    parts = np.repeat(whole.reshape(1), len(cuts))
    parts["size"] = np.diff(cuts, prepend=0)
    parts["offset"] = int(whole["offset"]) + cuts - parts["size"].astype(np.int64)
    parts["lines"] = np.diff(lines, prepend=0)
    parts["records"] = np.diff(records, prepend=0)
    parts["pos"] = int(whole["pos"]) + records - parts["records"].astype(np.int64)
    parts["digest"][1:] = 0
    parts["first"][1:] = 0
    return parts


def positions(blocks: Blocks, writers: Sequence[str]) -> dict[str, tuple[int, int]]:
    """For each writer the lowest position, and one past the highest."""
    ends = blocks["pos"] + blocks["records"]
    ranges: dict[str, tuple[int, int]] = {}
    for number in np.unique(blocks["writer"]).tolist():
        chosen = blocks["writer"] == number
        ranges[writers[number]] = (int(blocks["pos"][chosen].min()), int(ends[chosen].max()))
    return ranges


def changed_batch(blocks: Blocks, text: bytes, *, ended: bool) -> int | None:
    """The ULID of a batch whose text does not have its digest; None without one.

    `text` is that of the blocks. A batch is compared if all of it is there: it begins in the
    blocks, and ends before the last of them, or with it if that one is known to have `ended` it.
    """
    firsts = np.flatnonzero(blocks["first"] == 1)
    if len(firsts) == 0:
        return None
    begins = (blocks["offset"][firsts] - blocks["offset"][0]).tolist()
    ends = [*begins[1:], len(text)] if ended else begins[1:]
    view = memoryview(text)
    for number, (begin, end, digest) in enumerate(
        zip(begins, ends, blocks["digest"][firsts].tolist(), strict=False)
    ):
        if xxhash.xxh3_64_intdigest(view[begin:end]) != digest:
            changed = blocks[firsts[number]]
            return int(changed["ulid_hi"]) << 64 | int(changed["ulid_lo"])
    return None
