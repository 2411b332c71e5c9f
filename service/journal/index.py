"""What the node keeps of a journal file's batches: one row of `BATCH` each, no texts.

Rows are appended to a small flat array and frozen into immutable blocks, so that a
reader takes the blocks as they are and copies at most one block's worth. When a file
is full its rows go to `{ULID}.idx` beside it and are mapped from there: memory stays
flat however much of the journal is pending. The side file is a cache: it is not
synced, and made again from the journal at each start.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from logstore.batch import BATCH, Rows, RunKey

BLOCK_ROWS = 4096
_WORDS = BATCH.itemsize // 8
SUFFIX = ".idx"


class FileIndex:
    """The rows of one file, and the names that they refer to."""

    def __init__(self) -> None:
        self.runs: list[RunKey] = []
        self.connectors: list[str | None] = [None]
        self._run_numbers: dict[RunKey, int] = {}
        self._connector_numbers: dict[str | None, int] = {None: 0}
        self._blocks: list[Rows] = []
        self._tail = array("Q")

    def number(self, key: RunKey) -> int | None:
        """The number of a run in the column `run`, None if it has no row."""
        return self._run_numbers.get(key)

    def __len__(self) -> int:
        return sum(len(block) for block in self._blocks) + len(self._tail) // _WORDS

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
    ) -> None:
        """Appends the row of a batch whose text stands at `offset` of the file."""
        run = self._run_numbers.get(key)
        if run is None:
            run = self._run_numbers[key] = len(self.runs)
            self.runs.append(key)
        number = self._connector_numbers.get(connector)
        if number is None:
            number = self._connector_numbers[connector] = len(self.connectors)
            self.connectors.append(connector)
        tail = self._tail
        tail.extend(
            (
                offset,
                pos,
                ulid >> 64,
                ulid & 0xFFFF_FFFF_FFFF_FFFF,
                digest,
                size,
                records | lines << 32,
                run | number << 32,
                meta,
            )
        )
        if len(tail) >= BLOCK_ROWS * _WORDS:
            self._blocks.append(self._frozen_tail())
            self._tail = array("Q")

    def _frozen_tail(self) -> Rows:
        return np.frombuffer(self._tail.tobytes(), dtype=BATCH)

    def blocks(self) -> list[Rows]:
        """All rows in order, as immutable arrays."""
        return [*self._blocks, self._frozen_tail()] if self._tail else list(self._blocks)

    def spill(self, write: Callable[[Iterator[bytes]], None], load: Callable[[], Rows]) -> None:
        """Writes the rows to the side file and maps them from there."""
        write(block.tobytes() for block in self.blocks())
        rows = load()
        self._blocks = [rows[i : i + BLOCK_ROWS] for i in range(0, len(rows), BLOCK_ROWS)]
        self._tail = array("Q")


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
