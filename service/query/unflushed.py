"""Reads the unflushed records of this node for searches: `JournalRecords`.

To encode a batch means to find the time and level of each line, which is most of a search over new
lines. A page that shows new lines asks again every few seconds, so `EncodedLines` keeps what it
encoded. A search that asks for the same batches and newer ones encodes the newer ones only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from threading import Lock
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from service.query.request import HOUR_MS, UlidRange
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import Batches, Indexes, RecordMeta, Rows, RunKey
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.search.conditions import Condition, may_hold_in
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.file_format import times_ms
from tailrace.logstore.segments.writer import record_batches
from tailrace.logstore.table.schema import RECORD_SCHEMA


class SearchPin(Protocol):
    """The unflushed part of a node at one moment; its files stay until `release`."""

    @property
    def node(self) -> str:
        """Returns the node's name."""
        ...

    @property
    def confirmed_pos(self) -> int:
        """Returns the position below which all records are in confirmed segments."""
        ...

    def batches(
        self,
        *,
        run: RunKey | None = None,
        start: int = 0,
        end: int | None = None,
        times: tuple[int, int] | None = None,
    ) -> Batches:
        """Returns batches that begin in [`start`, `end`), of one run or all, of these times.

        The times are the milliseconds of their ULIDs, the first and the last, inclusive.
        """
        ...

    def release(self) -> None:
        """Releases the files."""
        ...


Encode = Callable[[Batches], Iterator[pa.RecordBatch]]
"""Records of batches with at least the columns of `RECORD_SCHEMA`."""


@dataclass(frozen=True, slots=True)
class Selected:
    """Some rows of batches, as batches."""

    base: Batches
    indexes: Indexes
    rows: Rows

    @property
    def node(self) -> str:
        return self.base.node

    @property
    def runs(self) -> list[RunKey]:
        return list(self.base.runs)

    @property
    def connectors(self) -> list[str | None]:
        return list(self.base.connectors)

    def text(self, indexes: Indexes) -> bytes:
        return self.base.text(self.indexes[indexes])

    def slice(self, index: int, low: int, high: int) -> bytes:
        return self.base.slice(int(self.indexes[index]), low, high)

    def meta(self, index: int) -> RecordMeta | None:
        return self.base.meta(int(self.indexes[index]))

    def constant_attributes(self, index: int) -> Mapping[str, str] | None:
        return self.base.constant_attributes(int(self.indexes[index]))


class JournalRecords:
    """Records of the pinned journal beyond its confirmed segments, within `bounds`.

    With `since`, records from this position on instead.

    Without the runs whose names the `condition` rules out.

    With `start`, only records of runs that have records at or above this position. Earlier records
    of these runs are included, since a line without a level has the level of the line before.
    """

    def __init__(
        self,
        pin: SearchPin,
        encode: Encode,
        bounds: UlidRange,
        fqn: str | None,
        run: str | None,
        start: int = 0,
        since: int | None = None,
        condition: Condition | None = None,
    ) -> None:
        since = pin.confirmed_pos if since is None else since
        exact = RunKey(fqn, run) if fqn is not None and run is not None else None
        times = (ulids.time_ms(bounds.low), ulids.time_ms(bounds.high))
        self._batches = pin.batches(run=exact, start=since, times=times)
        self._encode = encode
        rows = self._batches.rows
        wanted = np.array(
            [
                fqn in (None, k.fqn) and run in (None, k.run) and may_hold_in(condition, k)
                for k in self._batches.runs
            ],
            np.bool_,
        )
        self._kept = np.arange(len(rows)) if wanted.all() else np.flatnonzero(wanted[rows["run"]])
        self._times = times_ms(rows)[self._kept]
        self._has_new = (rows["pos"] + rows["records"])[self._kept] > start

    def weights(self, bounds: UlidRange) -> Mapping[int, int]:
        """Returns bytes of text by hour, within the bounds."""
        chosen = self._within(bounds)
        hours = self._times[chosen] // HOUR_MS
        sizes = self._batches.rows["size"][self._kept[chosen]]
        found, places = np.unique(hours, return_inverse=True)
        totals = np.bincount(places, weights=sizes, minlength=len(found))
        return {int(h): int(t) for h, t in zip(found, totals, strict=True)}

    def size(self, time_range: UlidRange) -> int:
        """Returns the bytes of text in the time range; 0 if it has no records."""
        return int(self._batches.rows["size"][self._kept[self._within(time_range)]].sum())

    def records(self, time_range: UlidRange) -> Iterator[pa.RecordBatch]:
        """Yields records of the range's milliseconds, a slice at a time."""
        indexes = self._kept[self._within(time_range)]
        part = Selected(self._batches, indexes, self._batches.rows[indexes])
        for batch in self._encode(part):
            yield batch.select(RECORD_SCHEMA.names).cast(RECORD_SCHEMA)

    def _within(self, time_range: UlidRange) -> Indexes:
        low, high = ulids.time_ms(time_range.low), ulids.time_ms(time_range.high)
        within = (self._times >= low) & (self._times <= high)
        if not self._has_new.all():
            runs = self._batches.rows["run"][self._kept]
            within &= np.isin(runs, runs[within & self._has_new])
        return np.flatnonzero(within)


# --- Records that are kept for the next search ---------------------------------------------------


_KEPT_BYTES: Final = 64 << 20
_LEAST_KEPT: Final = 4_096
"""Fewer records are encoded in less than ten milliseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """The records of the batches at these `positions` of a node's journal.

    `carry` is the state of `runs` after them, `nbytes` the size of the records.
    """

    node: str
    positions: NDArray[np.int64]
    records: tuple[pa.RecordBatch, ...]
    runs: frozenset[RunKey]
    carry: Carry
    nbytes: int

    def begins(self, node: str, positions: NDArray[np.int64]) -> bool:
        """Returns true if these batches begin with those that are kept."""
        return node == self.node and np.array_equal(
            self.positions, positions[: len(self.positions)]
        )


class EncodedLines:
    """Encodes unflushed batches, and keeps their records for searches that ask again.

    `carry` returns the state of the runs before their unflushed lines. Records that are kept take
    at most `most_bytes`, and `drop` forgets them once a segment is stored. Fewer records than
    `least` are not kept. For any thread.
    """

    def __init__(
        self,
        carry: Callable[[], Carry],
        *,
        most_bytes: int = _KEPT_BYTES,
        least: int = _LEAST_KEPT,
    ) -> None:
        self._carry = carry
        self._most_bytes = most_bytes
        self._least = least
        self._kept: BoundedCache[int, _Kept] = BoundedCache(most_bytes, attrgetter("nbytes"))
        self._lock = Lock()

    @property
    def bytes(self) -> int:
        """The size of the records that are kept."""
        return self._kept.size

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Yields the records of the batches. Raises `Damaged` as `record_batches` does."""
        rows = batches.rows
        if int(rows["records"].sum()) < self._least:
            yield from record_batches(batches, self._carry())
            return
        positions = rows["pos"].astype(np.int64)
        known = self._longest(batches.node, positions)
        carry = self._state_before(batches.runs, known)
        records, size = ([], 0) if known is None else ([*known.records], known.nbytes)
        yield from records
        rest = np.arange(0 if known is None else len(known.positions), len(rows))
        for batch in record_batches(Selected(batches, rest, rows[rest]), carry, save=True):
            found = batch.select(RECORD_SCHEMA.names).cast(RECORD_SCHEMA)
            size += found.nbytes
            if size <= self._most_bytes:
                records.append(found)
            yield found
        if len(rest) and size <= self._most_bytes:
            runs = frozenset(batches.runs)
            self._keep(
                _Kept(batches.node, positions, tuple(records), runs, carry, size), instead_of=known
            )

    def drop(self) -> None:
        """Forgets all records: once a segment is stored, no search asks for its lines here."""
        with self._lock:
            self._kept.clear()

    def _longest(self, node: str, positions: NDArray[np.int64]) -> _Kept | None:
        """Returns the entry with the most of the batches that these begin with."""
        with self._lock:
            found = [kept for kept in self._kept.values() if kept.begins(node, positions)]
            best = max(found, key=lambda kept: len(kept.positions), default=None)
            return None if best is None else self._kept.get(id(best))

    def _keep(self, kept: _Kept, *, instead_of: _Kept | None) -> None:
        with self._lock:
            self._kept.pop(id(instead_of))
            self._kept.put(id(kept), kept)

    def _state_before(self, runs: Sequence[RunKey], known: _Kept | None) -> Carry:
        """Returns the state of the runs before the first batch that is not known."""
        carry = Carry() if known is None else known.carry.copy()
        fresh = [run for run in runs if known is None or run not in known.runs]
        carry.save(fresh, self._carry().load(fresh))
        return carry
