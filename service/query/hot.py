"""The journal's part of a search: pinned batches, by time, as a stream of Arrow.

A batch has one time (its lines differ in the low 25 bits of the ULID only), so each
belongs to exactly one tile. Rows are 72 bytes a batch and are held for the length of
the search; texts are read, encoded and let go as DuckDB asks for them, whatever the
hot part's size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from logstore import ulid
from logstore.batch import Batches, Indexes, RecordMeta, Rows, RunKey
from logstore.segments.ulids import times_ms
from logstore.table.schema import COLUMNS, PARTITIONS
from service.query.tiles import HOUR_MS, Tile

SCHEMA: Final = pa.schema([field for field in COLUMNS if field.name not in PARTITIONS])


class Pin(Protocol):
    """The hot part of a node at one moment; its files stay until `release`."""

    @property
    def node(self) -> str:
        """The node."""
        ...

    @property
    def confirmed_pos(self) -> int:
        """All below it is in confirmed segments."""
        ...

    def batches(
        self,
        *,
        run: RunKey | None = None,
        start: int = 0,
        end: int | None = None,
        times: tuple[int, int] | None = None,
    ) -> Batches:
        """Batches that begin in [`start`, `end`), of one run or of all, and of these times.

        These are the milliseconds of their ULIDs, the first and the last.
        """
        ...

    def release(self) -> None:
        """Lets the files go."""
        ...


Encode = Callable[[Batches], Iterator[pa.RecordBatch]]
"""Records of batches with at least the columns of `SCHEMA`."""


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


class HotRecords:
    """What the journal held beyond its confirmed segments when it was pinned, within `bounds`.

    Or from the position `since` on, if that is given.

    With `start`, of the runs that have records at or above this position; what these runs had
    before comes as well, since a line that names no level has that of the line before.
    """

    def __init__(
        self,
        pin: Pin,
        encode: Encode,
        bounds: Tile,
        fqn: str | None,
        run: str | None,
        start: int = 0,
        since: int | None = None,
    ) -> None:
        since = pin.confirmed_pos if since is None else since
        exact = RunKey(fqn, run) if fqn is not None and run is not None else None
        times = (ulid.time_ms(bounds.low), ulid.time_ms(bounds.high))
        self._batches = pin.batches(run=exact, start=since, times=times)
        self._encode = encode
        rows = self._batches.rows
        wanted = np.array(
            [fqn in (None, k.fqn) and run in (None, k.run) for k in self._batches.runs], np.bool_
        )
        self._kept = np.arange(len(rows)) if wanted.all() else np.flatnonzero(wanted[rows["run"]])
        self._times = times_ms(rows)[self._kept]
        self._has_new = (rows["pos"] + rows["records"])[self._kept] > start

    def weights(self, bounds: Tile) -> Mapping[int, int]:
        """Bytes of text by hour, within the bounds."""
        chosen = self._within(bounds)
        hours = self._times[chosen] // HOUR_MS
        sizes = self._batches.rows["size"][self._kept[chosen]]
        found, places = np.unique(hours, return_inverse=True)
        totals = np.bincount(places, weights=sizes, minlength=len(found))
        return {int(h): int(t) for h, t in zip(found, totals, strict=True)}

    def size(self, tile: Tile) -> int:
        """Bytes of text in the tile; 0 if there is nothing."""
        return int(self._batches.rows["size"][self._kept[self._within(tile)]].sum())

    def records(self, tile: Tile) -> Iterator[pa.RecordBatch]:
        """Records of the tile's milliseconds, a slice at a time."""
        indexes = self._kept[self._within(tile)]
        part = Selected(self._batches, indexes, self._batches.rows[indexes])
        for batch in self._encode(part):
            yield batch.select(SCHEMA.names).cast(SCHEMA)

    def _within(self, tile: Tile) -> Indexes:
        low, high = ulid.time_ms(tile.low), ulid.time_ms(tile.high)
        within = (self._times >= low) & (self._times <= high)
        if not self._has_new.all():
            runs = self._batches.rows["run"][self._kept]
            within &= np.isin(runs, runs[within & self._has_new])
        return np.flatnonzero(within)
