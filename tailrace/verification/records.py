"""Splits a range of text into records: their ids, positions and messages, without a loop.

Where a block's lines are its records each line end ends a record; a block that is one
record with newlines in it ends once. A record's number within its batch is the distance of
its position from that of the batch's first record.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logstore.batch import line_ends
from logstore.errors import Damaged
from logstore.runs.blocks import Blocks
from logstore.segments.ulids import line_ulids

Ints = NDArray[np.int64]


def records(blocks: Blocks, text: bytes, starts: Ints) -> pa.Table:
    """`ulid`, `pos`, `block` and `message` (binary, without its last newline) of each record.

    `text` is that of the blocks, one after another; `starts` is each one's batch's first
    position. Blocks of which nobody knows where records end are left out. Raises `Damaged`
    if the text has other lines than the blocks say.
    """
    sizes = blocks["size"].astype(np.int64)
    bounds = np.cumsum(sizes)
    ends = line_ends(text)
    owner = np.searchsorted(bounds, ends, "left")
    lines = np.bincount(owner, minlength=len(blocks)) if len(ends) else np.zeros(len(blocks), int)
    if len(text) != int(sizes.sum()) or not np.array_equal(lines, blocks["lines"]):
        raise Damaged("the text has other lines than its index says")
    plain = blocks["records"] == blocks["lines"]
    known = plain | (blocks["records"] == 1)
    kept = known[owner] & (plain[owner] | (ends == bounds[owner]))
    chosen, counts = ends[kept], np.where(known, blocks["records"].astype(np.int64), 0)
    begins = _begins(chosen, owner[kept], bounds, sizes)
    block = np.repeat(np.arange(len(blocks)), counts)
    within = np.arange(len(block)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = (blocks["pos"].astype(np.int64) - starts)[block]
    return pa.table(
        {
            "ulid": line_ulids(blocks, counts, first + within),
            "pos": blocks["pos"].astype(np.int64)[block] + within,
            "block": block,
            "message": _messages(text, begins, chosen),
        }
    )


def _begins(ends: Ints, owner: Ints, bounds: Ints, sizes: Ints) -> Ints:
    """Where each record begins: behind the one before it, or with its block."""
    before = np.concatenate((np.zeros(1, np.int64), ends[:-1])) if len(ends) else ends
    begins: Ints = np.maximum(before, (bounds - sizes)[owner])
    return begins


def _messages(text: bytes, begins: Ints, ends: Ints) -> pa.Array:
    # Every second item is a message with its newline; what lies between is nobody's.
    edges = np.empty(2 * len(ends) + 1, np.int64)
    edges[0:-1:2], edges[1::2] = begins, ends
    edges[-1] = len(text)
    whole = pa.Array.from_buffers(
        pa.large_binary(), 2 * len(ends), [None, pa.py_buffer(edges), pa.py_buffer(text)]
    )
    taken = whole.take(pa.array(np.arange(0, 2 * len(ends), 2)))
    return pc.binary_slice(taken, 0, -1) if len(ends) else taken
