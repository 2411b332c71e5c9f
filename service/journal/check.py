"""Checks entries before their lines leave the journal for good.

A disk may give back other bytes than were synced. A segment gets checksums of its own, so it
would certify wrong bytes as right. Each entry is therefore compared with its CRC32C and with
its row, in one pass over the file's bytes and with no work per line.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from logstore.batch import Rows
from service.journal import format as wal
from service.journal.file import JournalFile

_SPAN_BYTES = 1 << 20
_HEAD = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("names", "<u2", 3),
        ("records", "<u4"),
        ("lines", "<u4"),
        ("meta", "<u4"),
        ("pos", "<u8"),
        ("digest", "<u8"),
        ("ulid_hi", ">u8"),
        ("ulid_lo", ">u8"),
    ]
)
_SAME = ("records", "lines", "meta", "pos", "digest", "ulid_hi", "ulid_lo")

Ints = NDArray[np.int64]


def damaged(file: JournalFile, rows: Rows) -> Rows:
    """The `rows` of the file, in order, whose entries are not what was written."""
    if len(rows) == 0:
        return rows
    index = file.index
    runs = [len(key.fqn.encode()) + len(key.run.encode()) for key in index.runs]
    connectors = [len((name or "").encode()) for name in index.connectors]
    names = np.array(runs)[rows["run"]] + np.array(connectors)[rows["connector"]]
    texts = rows["offset"].astype(np.int64)
    starts = texts - names - wal.BATCH_HEAD.size - wal.PREFIX.size
    stops = texts + rows["size"].astype(np.int64) + rows["meta"]
    whole = np.zeros(len(rows), np.bool_)
    low = 0
    while low < len(rows):
        high = max(int(np.searchsorted(stops, starts[low] + _SPAN_BYTES, "right")), low + 1)
        whole[low:high] = _whole(file, rows[low:high], starts[low:high], stops[low:high])
        low = high
    return rows[~whole]


def _whole(file: JournalFile, rows: Rows, starts: Ints, stops: Ints) -> NDArray[np.bool_]:
    first, size = int(starts[0]), int(stops[-1] - starts[0])
    data = file.read(size, first).ljust(size, b"\0")  # less if the file was cut
    begins = starts - first
    every = np.frombuffer(data, np.uint8)
    prefixes = every[begins[:, None] + np.arange(wal.PREFIX.size)].view("<u4")
    bodies = begins + wal.PREFIX.size
    heads = every[bodies[:, None] + np.arange(_HEAD.itemsize)].view(_HEAD)[:, 0]
    pairs = zip(bodies.tolist(), (stops - first).tolist(), strict=True)
    seals = wal.seals([data[low:high] for low, high in pairs], file.secret)
    found: NDArray[np.bool_] = (prefixes[:, 0] == stops - starts - wal.PREFIX.size) & (
        prefixes[:, 1] == np.array(seals, np.uint32)
    )
    for name in _SAME:
        found &= heads[name] == rows[name]
    return found
