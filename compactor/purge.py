"""Purge: removes deleted lines from the files of the table.

Tailrace's own readers leave out deleted lines at once. The purge removes them from the Parquet
files, where other engines would see them: files that hold such lines (`taken`) are rewritten
without them, an hour at a time, or just removed if they hold nothing else.

**Each deletion is applied once**: the table's transaction `deletions` is a time. All deletions that
the store had by then are done in all files. It is committed on exactly the snapshot whose files
were all examined, and is at least 60 s before the deletions were listed, by the store's clock,
which may have a resolution of whole seconds. A later file holds no such line: its commit was
planned on a later snapshot, and lists the deletions after that.

A record that cannot be read delays no other one, and is an alarm. The time does not pass it, so
that it is applied once it is readable again.

The cost is bounded: files are rewritten when a deletion has waited `compaction.purge_seconds`, or
at once if the files have at most `compaction.purge_bytes` in all. Files of hours that expire within
two hours are left to the retention, which costs nothing: the expiring runs are in these hours.

`taken` counts the deleted lines of a file by reading a small part of its keys. The log's statistics
show which files may hold such lines. The footers of these files are read; their row groups have
bounds, too, and few groups match, because files are sorted by (fqn, run_id, ulid). Of the matching
groups fqn and run_id are read, which are tiny because they are sorted, and ULIDs only if the group
has a deleted run.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactor.assignment import HOURS, Assignment
from compactor.cleanup import oldest_ms
from compactor.commit import make
from compactor.context import MOST_DELETIONS, Compactor, now_ms
from compactor.report import PassReport
from compactor.rewrite import (
    LostFile,
    describe,
    hour_of,
    lost_files,
    misread_files,
    replace,
    rewrite,
)
from tailrace.logstore import keys, ulid
from tailrace.logstore.errors import Damaged, NotFound, PreconditionFailed, Unavailable
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.parquet import SparseFile, byte_range, chunks_of, fetch_tail, opened
from tailrace.logstore.runs.deletions import Deletion, StoredDeletion
from tailrace.logstore.state import advice
from tailrace.logstore.table.schema import NewFile
from tailrace.logstore.table.snapshot import TableFile, TableSnapshot
from tailrace.logstore.table.table import TableChange

_KEYS: Final = ("fqn", "run_id", "ulid")

Bounds = tuple[str, str] | None
"""Lowest and highest, inclusive; None is unknown."""


@dataclass(frozen=True, slots=True)
class PurgeHorizons:
    """The highest deleted ULIDs, of runs and of pipelines."""

    by_fqn: Sequence[tuple[str, str | None, str]]  # fqn, run, highest ULID that is gone; sorted
    runs: dict[tuple[str, str | None], str]

    @classmethod
    def of(cls, deletions: Iterable[Deletion]) -> PurgeHorizons:
        """The horizons of deletions. If a run or pipeline has several, the highest counts."""
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
        """Whether a line within the bounds may be deleted; False only if none is."""
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
class PurgedLines:
    """The number of deleted lines of a file, and their runs (fqn, run)."""

    rows: int
    runs: frozenset[tuple[str, str]]


NOTHING: Final = PurgedLines(0, frozenset())


async def taken(store: ObjectStore, file: TableFile, horizons: PurgeHorizons) -> PurgedLines:
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
            found = PurgedLines(found.rows + more.rows, found.runs | more.runs)
    return found


@dataclass(frozen=True, slots=True)
class _Runs:
    """The rows of a group by their run's horizon."""

    numbers: Any  # for each row, the index of its run among those of the group
    names: list[tuple[str, str]]  # of those runs
    horizons: list[str]

    @classmethod
    def read(cls, parquet: pq.ParquetFile, index: int, horizons: PurgeHorizons) -> _Runs:
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

    def taken(self, parquet: pq.ParquetFile, index: int) -> PurgedLines:
        group = _read(parquet, index, ["ulid"])
        horizons = pa.array(self.horizons, pa.string()).take(pa.array(self.numbers))
        gone = np.asarray(pc.less_equal(group.column("ulid").combine_chunks(), horizons))
        runs = np.unique(self.numbers[gone]).tolist()
        return PurgedLines(int(gone.sum()), frozenset(self.names[number] for number in runs))


def _read(parquet: pq.ParquetFile, index: int, columns: list[str]) -> pa.Table:
    try:
        return parquet.read_row_group(index, columns=columns, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise Damaged(f"row group {index} cannot be read: {error}") from error


def _bounds(chunk: Any) -> Bounds:
    found = chunk.statistics
    return (found.min, found.max) if found is not None and found.has_min_max else None


async def _fetch(store: ObjectStore, key: str, sparse: SparseFile, chunks: Sequence[Any]) -> None:
    """Fetches the range from the first chunk to the last: pyarrow reads across neighbours."""
    ranges = [byte_range(chunk, chunk) for chunk in chunks]
    start, end = min(low for low, _ in ranges), max(high for _, high in ranges)
    sparse.add(start, (await store.get(key, offset=start, size=end - start))[1])


def _encoded(column: pa.ChunkedArray) -> Any:
    return pc.dictionary_encode(column.combine_chunks())


log = logging.getLogger("tailrace.compactor")
MARGIN_MS: Final = 60_000
_SOON_MS: Final = 2 * 3_600_000
_AT_ONCE: Final = 8  # files
_TRIES: Final = 5
"""Where others commit all the time, the rest is left to the next pass."""


@dataclass(frozen=True, slots=True)
class PendingDeletions:
    """Deletions that are not done in all files, and the time to commit once they are done."""

    deletions: Sequence[StoredDeletion]
    until_ms: int


async def purge(compactor: Compactor, report: PassReport) -> None:
    """Applies deletions to the table's files.

    Raises `StoreUnavailable`, `OutcomeUnknown`, `Unavailable`, `Damaged`.
    """
    with report.timed("purge", compactor.clock):
        snapshot = await compactor.newest()
        if snapshot.delta is None:
            return
        listing = now_ms(compactor) - MARGIN_MS
        stored = await compactor.deletions.all(compactor.store)
        for key, error in compactor.deletions.unreadable.items():
            report.alarm(f"the lines of a deletion stay in the table: {error}. {advice(key)}")
        listing = min([listing, *[at - 1 for at in compactor.deletions.unreadable_ms.values()]])
        found = pending(snapshot, stored, listing)
        if found.deletions:
            await _Purge(compactor, report, found).run()


def pending(
    snapshot: TableSnapshot,
    deletions: Sequence[StoredDeletion],
    before_ms: int,
    most: int = MOST_DELETIONS,
) -> PendingDeletions:
    """The oldest `most` deletions to be done, listed a minute after `before_ms`."""
    done = snapshot.purged_ms
    left = sorted((d for d in deletions if d.modified_ms > done), key=lambda d: d.modified_ms)
    if not left:
        return PendingDeletions((), done)
    until = min(before_ms, left[-1].modified_ms)
    if len(left) > most:  # all deletions of one moment, or none of them
        last = left[most].modified_ms
        some = [one for one in left if one.modified_ms < last]
        if some:
            return PendingDeletions(some, min(until, last - 1))
    return PendingDeletions(left, until)


@dataclass(slots=True)
class _Purge:
    """The purge of one pass. Its findings in a file are cached, because files never change."""

    compactor: Compactor
    report: PassReport
    pending: PendingDeletions
    _found: dict[str, PurgedLines] = field(default_factory=dict)
    _until_ms: int = field(init=False)
    _horizons: PurgeHorizons = field(init=False)

    def __post_init__(self) -> None:
        self._until_ms = self.pending.until_ms
        self._horizons = PurgeHorizons.of(one.deletion for one in self.pending.deletions)

    async def run(self) -> None:
        self.report.deletions_waiting = len(self.pending.deletions)
        for _ in range(_TRIES):
            snapshot = await self.compactor.newest()
            holding = await self._holding(snapshot)
            if holding and not (self._is_time(holding) and await self._take_out(holding)):
                return
            if not holding and await self._note(snapshot):
                return

    async def _holding(self, snapshot: TableSnapshot) -> list[TableFile]:
        """Files that hold deleted lines, except those that expire soon."""
        met = await asyncio.to_thread(
            lambda: [file for file in snapshot.files if self._horizons.may_take_of(file)]
        )
        turns = asyncio.Semaphore(_AT_ONCE)

        async def look(file: TableFile) -> None:
            async with turns:
                await self._look(file)

        await asyncio.gather(*(look(file) for file in met if file.path not in self._found))
        holding = [file for file in met if self._found[file.path].rows]
        soon = oldest_ms(self.compactor) + _SOON_MS
        for file in holding:
            if file.end_ms <= soon:
                self._wait_for(self._found[file.path].runs)
        return [file for file in holding if file.end_ms > soon]

    async def _look(self, file: TableFile) -> None:
        try:
            found = await taken(self.compactor.store, file, self._horizons)
        except (NotFound, Damaged) as error:
            self.report.alarm(f"{file.path} of the table cannot be read: {error}")
            self._until_ms = 0
            found = NOTHING
        self._found[file.path] = found

    def _wait_for(self, runs: Collection[tuple[str, str]]) -> None:
        """Postpones deletions of these runs until the file is gone."""
        fqns = {fqn for fqn, _ in runs}
        for one in self.pending.deletions:
            deletion = one.deletion
            whole = deletion.run is None and deletion.fqn in fqns
            if whole or (deletion.fqn, deletion.run) in runs:
                self._until_ms = min(self._until_ms, one.modified_ms - 1)

    def _is_time(self, holding: Sequence[TableFile]) -> bool:
        limits = self.compactor.limits
        waited = now_ms(self.compactor) - self.pending.deletions[0].modified_ms
        size = sum(file.size for file in holding)
        return size <= limits.purge_bytes or waited >= limits.purge_seconds * 1000

    async def _take_out(self, holding: Sequence[TableFile]) -> bool:
        """Rewrites files. Returns whether this driver could rewrite all of them."""
        hours: dict[str, list[TableFile]] = defaultdict(list)
        for file in holding:
            hours[hour_of(file)].append(file)
        async with self.compactor.assigner.joined(HOURS) as assignment:
            self.report.works += assignment.works
            mine = await assignment.claim(sorted(hours), set(hours))
            snapshot = await self.compactor.newest()
            for hour in mine:
                snapshot = await self._take_out_of(snapshot, assignment, hour, hours[hour])
        return len(mine) == len(hours)

    async def _take_out_of(
        self, snapshot: TableSnapshot, assignment: Assignment, hour: str, files: Sequence[TableFile]
    ) -> TableSnapshot:
        """Returns a version in which it is done, or a newer one if it must be repeated."""
        compactor = self.compactor
        there = {file.path for file in snapshot.files}
        files = [file for file in files if file.path in there]
        rest = [file for file in files if self._found[file.path].rows < file.rows]
        made: Sequence[NewFile] = ()
        if rest:
            deletions = [one.deletion for one in self.pending.deletions]
            if self._leave_out(hour, await misread_files(compactor.store, rest)):
                return snapshot
            try:
                made = await rewrite(compactor, snapshot, rest, deletions, self.report)
            except Unavailable:
                if not self._leave_out(hour, await lost_files(compactor.store, rest)):
                    raise
                return snapshot
        try:
            assignment.check({hour})
            after = await replace(compactor, snapshot, TableChange(files=made, removed=files))
        except PreconditionFailed as error:
            log.info("purging hour %s again: %s", hour, error)
            return await compactor.newest()
        compactor.reached("hour purged")
        self.report.files_purged += len(files)
        self.report.rows_purged += sum(self._found[file.path].rows for file in files)
        return after

    def _leave_out(self, hour: str, lost: Sequence[LostFile]) -> bool:
        """Continues without files that cannot be read any more, if there are any."""
        for one in lost:
            self.report.alarm(f"hour {hour} is not purged: {describe(one)}")
            self._found[one.file.path] = NOTHING
            self._until_ms = 0
        return bool(lost)

    async def _note(self, snapshot: TableSnapshot) -> bool:
        """Commits the time, unless the table has changed: then it may have more files."""
        if self._until_ms > snapshot.purged_ms:
            try:
                await make(self.compactor, snapshot, TableChange(purged_ms=self._until_ms))
            except PreconditionFailed as error:
                log.info("looking again for deleted lines: %s", error)
                return False
            self.compactor.reached("purged")
        after = [d for d in self.pending.deletions if d.modified_ms > self._until_ms]
        self.report.deletions_waiting = len(after)
        return True
