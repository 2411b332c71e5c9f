"""Batches: the unit of work from the append to the run's text and the segment.

A batch is whole lines of one run, as the bytes that stand in the run's text, under
one ULID. Many batches are held as columns (`Batches`), never as objects: one row of
`BATCH` is 72 bytes, and texts stay where they are (a journal file, a segment) until
`Batches.text` reads them.

`records` and `lines` differ only for batches posted as records: a record that holds
newlines is one record (one ULID, one `pos`, one table row) and several lines of text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

BATCH = np.dtype(
    [
        ("offset", "<u8"),  # where the text stands; meaning is the implementation's own
        ("pos", "<u8"),  # running number of the first record
        ("ulid_hi", "<u8"),  # the batch's ULID, upper and lower 64 bits
        ("ulid_lo", "<u8"),
        ("digest", "<u8"),  # of the text: `digest`
        ("size", "<u8"),  # bytes of text
        ("records", "<u4"),
        ("lines", "<u4"),
        ("run", "<u4"),  # index into `Batches.runs`
        ("connector", "<u4"),  # index into `Batches.connectors`
        ("meta", "<u4"),  # bytes of encoded metadata, 0 if there is none
        ("flags", "<u4"),  # CONSTANT_ATTRIBUTES, AHEAD, MADE_AFTER_DELETION
    ]
)
CONSTANT_ATTRIBUTES: Final = 1
"""The flag of a batch of plain lines whose metadata is the attributes that each of them has."""
AHEAD: Final = 2
"""The flag of a batch whose id was ahead of its node's clock, and was not taken from that."""
MADE_AFTER_DELETION: Final = 4
"""The flag of a batch whose id says when it was made (`tailrace.logstore.ulid.after_deletion`)."""
Rows = NDArray[np.void]
Indexes = NDArray[np.int64]
_LOW_BITS = (1 << 64) - 1
_NEWLINE = 10
WINDOW: Final = 1 << 18  # bytes that are searched together: they fit the CPU's cache


class RunKey(NamedTuple):
    """The name of a run: its pipeline's fully qualified name and its own id."""

    fqn: str
    run: str


@dataclass(frozen=True, slots=True)
class RecordMeta:
    """What structured records carry beside their text; lists of equal length.

    `ends` are offsets in the batch's text, each behind the record's last newline.
    `ts` are microseconds since the epoch.
    """

    ends: Sequence[int]
    ts: Sequence[int | None]
    levels: Sequence[str | None]
    attributes: Sequence[Mapping[str, str] | None]


class Batches(Protocol):
    """The batches of one node, in order of `pos`, as columns."""

    @property
    def node(self) -> str:
        """The name of the node that received them."""
        ...

    @property
    def rows(self) -> Rows:
        """An array of dtype `BATCH`."""
        ...

    @property
    def runs(self) -> Sequence[RunKey]:
        """The run keys that the column `run` indexes."""
        ...

    @property
    def connectors(self) -> Sequence[str | None]:
        """The connector names that the column `connector` indexes."""
        ...

    def text(self, indexes: Indexes) -> bytes:
        """The texts of the rows at `indexes`, one after another, in that order."""
        ...

    def slice(self, index: int, low: int, high: int) -> bytes:
        """The bytes of one row's text from `low` to before `high`, without reading the others.

        Returns fewer bytes where the text ends, or its file was cut.
        """
        ...

    def meta(self, index: int) -> RecordMeta | None:
        """Returns the metadata of each record of a row; None for plain lines."""
        ...

    def constant_attributes(self, index: int) -> Mapping[str, str] | None:
        """The attributes that each line of one row has; None without `CONSTANT_ATTRIBUTES`."""
        ...


def has_record_meta(rows: Rows) -> NDArray[np.bool_]:
    """Which of the rows have records that carry something each, for which `meta` is to be asked."""
    found: NDArray[np.bool_] = (rows["meta"] > 0) & (rows["flags"] & CONSTANT_ATTRIBUTES == 0)
    return found


def digest(text: bytes | bytearray | memoryview) -> int:
    """The checksum by which two batches of one id are compared: XXH3-64 of the text."""
    return xxhash.xxh3_64_intdigest(text)


def ulid_of(row: np.void) -> int:
    """The batch ULID of one row."""
    return int(row["ulid_hi"]) << 64 | int(row["ulid_lo"])


def of_batch(rows: Rows, ulid: int) -> NDArray[np.bool_]:
    """Which of the rows, or of a chunk's blocks, have this batch ULID."""
    same: NDArray[np.bool_] = rows["ulid_hi"] == ulid >> 64
    same &= rows["ulid_lo"] == ulid & _LOW_BITS
    return same


def lowest_and_highest(rows: Rows) -> tuple[int, int]:
    """The lowest and the highest batch ULID of rows or blocks; 0 and 0 of none."""
    if len(rows) == 0:
        return 0, 0
    high, low = rows["ulid_hi"], rows["ulid_lo"]
    if len(rows) == 1:  # of a small run, for which numpy's calls cost more than all else
        only = int(high[0]) << 64 | int(low[0])
        return only, only
    least, most = int(high.min()), int(high.max())
    return (least << 64 | int(low[high == least].min()), most << 64 | int(low[high == most].max()))


def newest_of_runs(batches: Batches) -> dict[RunKey, int]:
    """The highest batch ULID of each run that has rows, in time that grows with rows alone."""
    rows, runs = batches.rows, batches.runs
    of, high, low = rows["run"], rows["ulid_hi"], rows["ulid_lo"]
    most, least = np.zeros(len(runs), np.uint64), np.zeros(len(runs), np.uint64)
    np.maximum.at(most, of, high)
    last = high == most[of]
    np.maximum.at(least, of[last], low[last])
    there = np.flatnonzero(np.bincount(of, minlength=len(runs))).tolist()
    return {runs[number]: int(most[number]) << 64 | int(least[number]) for number in there}


def of_run(batches: Batches, key: RunKey) -> Indexes:
    """Indexes of the rows that belong to the run, in order."""
    if batches.runs == [key]:
        return np.arange(len(batches.rows))
    wanted = [i for i, run in enumerate(batches.runs) if run == key]
    return np.flatnonzero(np.isin(batches.rows["run"], wanted))


def line_ends(text: bytes | memoryview) -> Indexes:
    """Returns the offset after the newline of each line."""
    every = np.frombuffer(text, np.uint8)
    found = [
        np.flatnonzero(every[start : start + WINDOW] == _NEWLINE) + (start + 1)
        for start in range(0, len(every), WINDOW)
    ]
    return np.concatenate(found) if found else np.empty(0, np.int64)
