"""Counts the deleted lines of a table file by reading a small part of its keys.

The log's statistics say which files may hold such lines. The footers of these files are read;
their row groups have bounds too, and few groups match, because files are sorted by
(fqn, run_id, ulid). Of the matching groups fqn and run_id are read, which are tiny, being sorted;
ULIDs only if a deleted run is there.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logstore import keys, ulid
from logstore.errors import Damaged
from logstore.objects.parquet import SparseFile, byte_range, chunks_of, fetch_tail, opened
from logstore.objects.store import ObjectStore
from logstore.runs.deletions import Deletion
from logstore.table.snapshot import TableFile

_KEYS: Final = ("fqn", "run_id", "ulid")

Bounds = tuple[str, str] | None
"""Lowest and highest, inclusive; None is unknown."""


@dataclass(frozen=True, slots=True)
class Horizons:
    """The highest deleted ULIDs, of runs and of pipelines."""

    by_fqn: Sequence[tuple[str, str | None, str]]  # fqn, run, highest ULID that is gone; sorted
    runs: dict[tuple[str, str | None], str]

    @classmethod
    def of(cls, deletions: Iterable[Deletion]) -> Horizons:
        """The horizons of deletions; of several of one run or pipeline the highest counts."""
        runs: dict[tuple[str, str | None], str] = {}
        for one in deletions:
            key = (one.fqn, one.run)
            runs[key] = max(runs.get(key, ""), ulid.encode(one.t))
        rows = sorted(((*key, t) for key, t in runs.items()), key=lambda row: row[0])
        return cls(rows, runs)

    def horizon(self, fqn: str, run: str) -> str:
        """The highest deleted ULID of the run; "" if there is none."""
        return max(self.runs.get((fqn, run), ""), self.runs.get((fqn, None), ""))

    def may_take(self, fqns: Bounds, runs: Bounds, ulids: Bounds) -> bool:
        """False only if no line within the bounds is deleted."""
        return next(self.meeting(fqns, runs, ulids), None) is not None

    def meeting(self, fqns: Bounds, runs: Bounds, ulids: Bounds) -> Iterator[Any]:
        """Deletions that may remove a line within the bounds, as (fqn, run, highest ULID)."""
        start, end = 0, len(self.by_fqn)
        if fqns is not None:
            start = bisect_left(self.by_fqn, fqns[0], key=lambda row: row[0])
            end = bisect_right(self.by_fqn, fqns[1], key=lambda row: row[0])
        for index in range(start, end):
            _, run, t = self.by_fqn[index]
            within = runs is None or run is None or runs[0] <= run <= runs[1]
            if within and (ulids is None or ulids[0] <= t):
                yield self.by_fqn[index]

    def may_take_of(self, file: TableFile) -> bool:
        """`may_take`, by the log's statistics of the file."""
        low = ulid.encode(ulid.lowest_at(file.start_ms))
        ulids = file.ulids or (low, ulid.encode(ulid.highest_at(file.end_ms)))
        return self.may_take(file.fqns, file.runs, ulids)


@dataclass(frozen=True, slots=True)
class Taken:
    """The number of deleted lines of a file, and their runs (fqn, run)."""

    rows: int
    runs: frozenset[tuple[str, str]]


NOTHING: Final = Taken(0, frozenset())


async def taken(store: ObjectStore, file: TableFile, horizons: Horizons) -> Taken:
    """Counts the deleted lines of the file.

    Raises `NotFound` and `Damaged` if the file is not as the log says, `StoreUnavailable`.
    """
    key = f"{keys.TABLE}/{file.path}"
    sparse = await fetch_tail(store, key, file.size)
    parquet = await asyncio.to_thread(opened, sparse, key)
    found = NOTHING
    for index in range(parquet.num_row_groups):
        chunks = chunks_of(parquet.metadata, index)
        if not horizons.may_take(*(_bounds(chunks[name]) for name in _KEYS)):
            continue
        await _fetch(store, key, sparse, [chunks["fqn"], chunks["run_id"]])
        runs = await asyncio.to_thread(_Runs.read, parquet, index, horizons)
        if runs.any:
            await _fetch(store, key, sparse, [chunks["ulid"]])
            more = await asyncio.to_thread(runs.taken, parquet, index)
            found = Taken(found.rows + more.rows, found.runs | more.runs)
    return found


@dataclass(frozen=True, slots=True)
class _Runs:
    """The rows of a group by their run's horizon."""

    numbers: Any  # of each row, which of the group's runs it is of
    names: list[tuple[str, str]]  # of those runs
    horizons: list[str]

    @classmethod
    def read(cls, parquet: pq.ParquetFile, index: int, horizons: Horizons) -> _Runs:
        group = _read(parquet, index, ["fqn", "run_id"])
        fqns, runs = (_encoded(group.column(name)) for name in ("fqn", "run_id"))
        width = len(runs.dictionary) or 1
        codes = np.asarray(fqns.indices).astype(np.int64) * width + np.asarray(runs.indices)
        found, numbers = np.unique(codes, return_inverse=True)
        names = [
            (fqns.dictionary[code // width].as_py(), runs.dictionary[code % width].as_py())
            for code in found.tolist()
        ]
        return cls(numbers, names, [horizons.horizon(*name) for name in names])

    @property
    def any(self) -> bool:
        return any(self.horizons)

    def taken(self, parquet: pq.ParquetFile, index: int) -> Taken:
        group = _read(parquet, index, ["ulid"])
        horizons = pa.array(self.horizons, pa.string()).take(pa.array(self.numbers))
        gone = np.asarray(pc.less_equal(group.column("ulid").combine_chunks(), horizons))
        runs = np.unique(self.numbers[gone]).tolist()
        return Taken(int(gone.sum()), frozenset(self.names[number] for number in runs))


def _read(parquet: pq.ParquetFile, index: int, columns: list[str]) -> pa.Table:
    try:
        return parquet.read_row_group(index, columns=columns, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise Damaged(f"row group {index} does not read: {error}") from error


def _bounds(chunk: Any) -> Bounds:
    found = chunk.statistics
    return (found.min, found.max) if found is not None and found.has_min_max else None


async def _fetch(store: ObjectStore, key: str, sparse: SparseFile, chunks: Sequence[Any]) -> None:
    """Fetches all from the first to the last, in one piece: pyarrow reads across neighbours."""
    ranges = [byte_range(chunk, chunk) for chunk in chunks]
    start, end = min(low for low, _ in ranges), max(high for _, high in ranges)
    sparse.add(start, (await store.get(key, offset=start, size=end - start))[1])


def _encoded(column: pa.ChunkedArray) -> Any:
    return pc.dictionary_encode(column.combine_chunks())
