"""The rows that the node keeps of a journal file: one of `BATCH` for each batch, no texts.

Rows are appended to a small flat array and frozen into immutable blocks, so that a
reader takes the blocks as they are and copies at most one of them. When a file is full,
its rows are written to `{ULID}.idx` beside it and mapped from there: memory stays flat
however much of the journal is pending. The side file is a cache: it is not synced, and
each start writes it again from the journal.

One thread appends; others may read meanwhile: frozen blocks and the growing tail are
exchanged together, by one assignment.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from logstore import ulid as ulids
from logstore.batch import BATCH, Rows, RunKey
from logstore.segments.ulids import times_ms

BLOCK_ROWS = 4096
SUFFIX = ".idx"

_ROW = struct.Struct("<6Q6I")
_BLOCK_BYTES = BLOCK_ROWS * BATCH.itemsize
_LOW_BITS = (1 << 64) - 1


class FileIndex:
    """The rows of one file, and the names that they refer to."""

    def __init__(self) -> None:
        self.runs: list[RunKey] = []
        self.connectors: list[str | None] = [None]
        self._run_numbers: dict[RunKey, int] = {}
        self._connector_numbers: dict[str | None, int] = {None: 0}
        self._held: tuple[list[Rows], bytearray] = ([], bytearray())
        self._times = (1 << 48, -1)  # of the earliest and the latest batch, in ms

    def number(self, key: RunKey) -> int | None:
        """The number of a run in the column `run`, None if it has no row."""
        return self._run_numbers.get(key)

    def __len__(self) -> int:
        blocks, tail = self._held
        return sum(len(block) for block in blocks) + len(tail) // BATCH.itemsize

    def add(
        self,
        key: RunKey,
        connector: str | None,
        *,
        offset: int,
        pos: int,
        ulid: int,
        digest: int,
        size: int,
        records: int,
        lines: int,
        meta: int,
        flags: int = 0,
    ) -> None:
        """Appends the row of a batch whose text is at `offset` of the file."""
        run = self._run_numbers.get(key)
        if run is None:
            # Listed before it has a number: a reader that sees the number finds the name.
            self.runs.append(key)
            run = self._run_numbers[key] = len(self.runs) - 1
        sender = self._connector_numbers.get(connector)
        if sender is None:
            self.connectors.append(connector)
            sender = self._connector_numbers[connector] = len(self.connectors) - 1
        high, low = ulid >> 64, ulid & _LOW_BITS
        time, (earliest, latest) = ulids.time_ms(ulid), self._times
        if not earliest <= time <= latest:
            self._times = (min(time, earliest), max(time, latest))
        blocks, tail = self._held
        tail += _ROW.pack(
            offset, pos, high, low, digest, size, records, lines, run, sender, meta, flags
        )
        if len(tail) >= _BLOCK_BYTES:
            self._held = ([*blocks, _rows(tail)], bytearray())

    def blocks(self) -> list[Rows]:
        """All rows in order, as immutable arrays."""
        blocks, tail = self._held
        return [*blocks, _rows(tail)] if tail else list(blocks)

    def within(self, times: tuple[int, int] | None) -> list[Rows]:
        """The rows of batches of these times, in order: ms of their ULIDs, inclusive."""
        if times is None:
            return self.blocks()
        low, high = times
        earliest, latest = self._times
        if earliest > high or latest < low:
            return []
        if low <= earliest and latest <= high:
            return self.blocks()
        return [_of_times(block, low, high) for block in self.blocks()]

    def spill(self, write: Callable[[Iterator[bytes]], None], load: Callable[[], Rows]) -> None:
        """Writes the rows to the side file and maps them from there. Raises `OSError`."""
        write(block.tobytes() for block in self.blocks())
        rows = load()
        pieces = [rows[i : i + BLOCK_ROWS] for i in range(0, len(rows), BLOCK_ROWS)]
        self._held = (pieces, bytearray())


def _of_times(rows: Rows, low: int, high: int) -> Rows:
    times = times_ms(rows)
    return rows[(times >= low) & (times <= high)]


def _rows(tail: bytearray) -> Rows:
    return np.frombuffer(bytes(tail), dtype=BATCH)


def select(blocks: Sequence[Rows], start: int, end: int) -> list[Rows]:
    """The rows with `start` <= pos < `end`; rows are in order of pos."""
    found = []
    for block in blocks:
        if len(block) == 0 or block["pos"][-1] < start or block["pos"][0] >= end:
            continue
        low = int(np.searchsorted(block["pos"], start, side="left"))
        high = int(np.searchsorted(block["pos"], end, side="left"))
        if high > low:
            found.append(block[low:high])
    return found
