"""Verifies the table: its files exist, each line is in it once, its statistics and log are right.

The table is checked in ranges of whole hours, one after another up to `RANGE_BYTES` of files: a
line's hour is that of its ULID, so a copy of a line can only be in the same range. Ranges leave out
no ULID between them, so that missing lines are found even if the table lacks their whole hour.

Every line of the segments at or below the table's mark that is not deleted must be in the table,
with the same message; in runs that one node wrote, with the same position, time, level, connector
and attributes. Lines of hours that the retention took may be missing. Segments that were consumed
and removed cannot be compared.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from compactor.placement import is_whole
from compactor.skip_index import build
from service.query.duckdb import Database
from service.query.sql import READABLE, literal
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import Damaged, NotFound, UnsupportedVersion
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.table.file_check import check_table_file
from tailrace.logstore.table.log import commit_name
from tailrace.logstore.table.skip_index import parse
from tailrace.logstore.table.snapshot import TableFile, TableSnapshot
from tailrace.logstore.table.table import LOG
from tailrace.verification.compare import LIVE
from tailrace.verification.findings import Findings, Kind, run_place
from tailrace.verification.segments import Whole

# Table files, each checked once: whether it exists, its bytes, and its skip index.
#
# Each page is compared with its CRC, and the bounds in a file's footer with the values, since
# readers skip row groups by them.
#
# A skip index is optional, and a damaged one costs speed alone, since searches then read its whole
# file. One that is whole and wrong would hide lines from searches, so each is built again and
# compared.


_AT_ONCE: Final = 16
_READ_AT_ONCE: Final = 2  # files, of each some row groups are in memory


@dataclass(slots=True)
class TableFiles:
    """The state of the table's files; a file that differs from the log is reported when found."""

    store: ObjectStore
    database: Database
    findings: Findings
    _good: set[str] = field(default_factory=set)
    _bad: set[str] = field(default_factory=set)
    _unchecked: int = 0
    _reading: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_READ_AT_ONCE))

    async def usable(self, files: Iterable[TableFile]) -> list[TableFile]:
        """The files that exist and are not known to be unreadable. Raises `StoreUnavailable`."""
        wanted = list(files)
        turns = asyncio.Semaphore(_AT_ONCE)

        async def look(file: TableFile) -> None:
            async with turns:
                await self._look(file)

        known = self._good | self._bad
        await asyncio.gather(*(look(file) for file in wanted if file.path not in known))
        return [file for file in wanted if file.path not in self._bad]

    def trust(self, files: Iterable[TableFile]) -> None:
        """Takes files that did not change since they were sound as good."""
        self._good.update(file.path for file in files)

    def unreadable(self, files: Sequence[TableFile]) -> bool:
        """Reads each file whole, reports unreadable ones, and returns whether there are any."""
        found = False
        for file in files:
            if file.path in self._bad:
                continue
            try:
                self.database.number(READABLE, {"files": [literal(file.uri)]})
            except Damaged as error:
                self._report(file, str(error))
                found = True
        return found

    def note_unchecked(self) -> None:
        """Says how many files have no page CRCs, which is no fault."""
        if self._unchecked:
            self.findings.note(
                f"{self._unchecked} table files have no page CRCs, because an older version wrote"
                " them: damage is noticed only if a page cannot be read"
            )

    async def _look(self, file: TableFile) -> None:
        try:
            size = (await self.store.head(f"{keys.TABLE}/{file.path}")).size
            if size != file.size:
                self._report(file, f"{size} bytes; the table's log says {file.size}")
                return
            async with self._reading:
                if not await check_table_file(self.store, file, statistics=True):
                    self._unchecked += 1
        except NotFound:
            self._bad.add(file.path)
            detail = "missing, although the table's log names it"
            self.findings.add("table-file-missing", file.path, detail, lines=file.rows)
        except Damaged as error:
            self._report(file, str(error))
        else:
            self._good.add(file.path)
        finally:
            self.findings.count("table files")

    def _report(self, file: TableFile, detail: str) -> None:
        self._bad.add(file.path)
        self.findings.add("table-file-damaged", file.path, detail, lines=file.rows)


_ADVICE = "remove it; the compactor makes it again"


async def check_skip_indexes(
    store: ObjectStore, findings: Findings, files: Iterable[TableFile]
) -> None:
    """Compares the indexes that there are of files that read. Raises `StoreUnavailable`."""
    for file in files:
        key = keys.skip_index(file.path)
        try:
            body = (await store.get(key))[1]
            made = await build(store, file)
        except (NotFound, Damaged):
            continue  # an index is optional; what is wrong with a file is said where it is read
        findings.count("skip indexes")
        try:
            index = parse(body, size=file.size)
            index.check()
        except UnsupportedVersion:
            findings.note(f"{key} is of another version, and was not compared")
        except Damaged as error:
            findings.add("skip-index-damaged", key, f"{error}: {_ADVICE}", lines=file.rows)
        else:
            if not index.agrees(parse(made, size=file.size)):
                detail = f"it belongs to another file: {_ADVICE}"
                findings.add("skip-index-wrong", key, detail, lines=file.rows)


RANGE_BYTES: Final = 128 << 20
_HOUR_MS: Final = 3_600_000
_LOWEST, _HIGHEST = "0" * 26, "7" + "Z" * 25
_KEYS: Final = "fqn, run_id, ulid"
_SAME: Final = "r.fqn = o.fqn AND r.run_id = o.run_id AND r.ulid = o.ulid"
_ROW: Final = f"{_KEYS}, pos, hash(message) AS h, hash(ts, level, connector_id, attributes) AS rest"
_EMPTY: Final = (
    "SELECT ''::VARCHAR AS fqn, '' AS run_id, '' AS ulid, 0::BIGINT AS pos, 0::UBIGINT AS h,"
    " 0::UBIGINT AS rest, '' AS filename WHERE false"
)
_FILES: Final = "SELECT filename, count(*), min(ulid), max(ulid) FROM lines GROUP BY filename"
_TWICE: Final = (
    f"SELECT fqn, run_id, count(*), min(ulid) FROM (SELECT {_KEYS} FROM lines"  # noqa: S608
    " GROUP BY ALL HAVING count(*) > 1) GROUP BY ALL ORDER BY ALL"
)
_MISSING: Final = (
    "SELECT r.fqn, r.run_id, count(DISTINCT r.ulid), min(r.ulid) FROM held r"  # noqa: S608
    f" WHERE r.ulid >= $expired AND {LIVE}"
    f" AND NOT EXISTS (SELECT 1 FROM lines o WHERE {_SAME})"
    " GROUP BY ALL ORDER BY ALL"
)
_DIFFERS: Final = (
    "SELECT r.fqn, r.run_id, count(DISTINCT r.ulid), min(r.ulid) FROM held r"  # noqa: S608
    f" JOIN lines o ON {_SAME} LEFT JOIN known k ON k.fqn = r.fqn AND k.run_id = r.run_id"
    " WHERE (r.h <> o.h OR (k.single AND (r.pos <> o.pos OR r.rest <> o.rest)))"
    f" AND {LIVE} GROUP BY ALL ORDER BY ALL"
)
_UNKNOWN: Final = (
    "SELECT r.fqn, r.run_id, count(DISTINCT r.ulid), min(r.ulid) FROM"  # noqa: S608
    f" (SELECT {_KEYS} FROM lines UNION ALL SELECT {_KEYS} FROM settled) r"
    f" WHERE r.ulid >= $kept AND {LIVE}"
    " AND NOT EXISTS (SELECT 1 FROM known k WHERE k.fqn = r.fqn AND k.run_id = r.run_id)"
    f" AND NOT EXISTS (SELECT 1 FROM fresh o WHERE {_SAME})"
    " GROUP BY ALL ORDER BY ALL"
)


_NO_VALUES: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class HourRange:
    """The files of some hours, and the range of ULIDs that they cover, inclusive, as text."""

    files: tuple[TableFile, ...]
    low: str
    high: str

    def may_overlap(self, segment: Whole) -> bool:
        """Whether the segment may have lines of the range."""
        return segment.rows > 0 and segment.low <= self.high and segment.high >= self.low


@dataclass(frozen=True, slots=True)
class SegmentsByCondition:
    """Segments by the condition that must hold for them; one may be in several."""

    held: Sequence[Whole]  # at or below the table's marks
    settled: Sequence[Whole]  # at or below the watermarks
    fresh: Sequence[Whole]  # above the watermarks


def oldest_kept(snapshot: TableSnapshot) -> str:
    """The lowest ULID that the retention has left in the table."""
    return ulids.encode(ulids.lowest_at(snapshot.expired_ms))


def hour_ranges(files: Sequence[TableFile]) -> Iterator[HourRange]:
    """Divides the table, and all of time, into ranges in order."""
    ordered = sorted(files, key=lambda f: (f.date, f.hour, f.path))
    low, taken, size = _LOWEST, list[TableFile](), 0
    for file in ordered:
        after = taken and (file.date, file.hour) != (taken[-1].date, taken[-1].hour)
        if after and size + file.size > RANGE_BYTES:
            high = ulids.encode(ulids.lowest_at(_hour_ms(taken[-1]) + _HOUR_MS) - 1)
            yield HourRange(tuple(taken), low, high)
            low, taken, size = ulids.encode(ulids.decode(high) + 1), [], 0
        taken.append(file)
        size += file.size
    yield HourRange(tuple(taken), low, _HIGHEST)


def _hour_ms(file: TableFile) -> int:
    day = datetime(file.date.year, file.date.month, file.date.day, file.hour, tzinfo=UTC)
    return int(day.timestamp()) * 1000


@dataclass(slots=True)
class TableCheck:
    """Checks one snapshot, range by range; `kept` is the lowest ULID whose run's text is kept."""

    files: TableFiles
    database: Database
    findings: Findings
    kept: str
    has_manifest: Callable[[RunKey], Awaitable[bool]]
    is_unchanged: Callable[[HourRange], bool] = lambda _: False
    sound: Callable[[HourRange], None] = lambda _: None
    """Hears of ranges without a fault."""

    async def check(self, snapshot: TableSnapshot, segments: SegmentsByCondition) -> None:
        """Checks all ranges.

        Raises `StoreUnavailable`; `Damaged` if segments were removed meanwhile.
        """
        expired = oldest_kept(snapshot)
        every = [*segments.held, *segments.settled, *segments.fresh]
        for hours in hour_ranges(snapshot.files):
            if self.is_unchanged(hours) and not any(hours.may_overlap(one) for one in every):
                continue
            before = self.findings.total
            await self._check_range(hours, segments, expired)
            if self.findings.total == before:
                self.sound(hours)

    async def _check_range(
        self, hours: HourRange, segments: SegmentsByCondition, expired: str
    ) -> None:
        try:
            await self._compare(hours, segments, expired)
        except Damaged:
            if not self.files.unreadable(hours.files):
                raise
            await self._compare(hours, segments, expired)

    async def _compare(self, hours: HourRange, segments: SegmentsByCondition, expired: str) -> None:
        files = {file.uri: file for file in await self.files.usable(hours.files)}
        self._load("lines", list(files), hours, ", filename")
        self._load("held", [s.uri for s in segments.held if hours.may_overlap(s)], hours)
        self._load("settled", [s.uri for s in segments.settled if hours.may_overlap(s)], hours)
        self._load("fresh", [s.uri for s in segments.fresh if hours.may_overlap(s)], hours)
        self._statistics(files)
        self._report("table-line-twice", _TWICE, "are in the table more than once")
        # A file that is gone says enough; its lines are not told one run after another.
        if len(files) == len(hours.files):
            detail = "of segments that were ingested are missing in the table"
            self._report("table-line-missing", _MISSING, detail, {"expired": expired})
        detail = "differ between the table and their segment"
        self._report("table-line-differs", _DIFFERS, detail)
        for fqn, run, count, first in list(self._rows(_UNKNOWN, {"kept": self.kept})):
            if not await self.has_manifest(RunKey(fqn, run)):
                text = f"{count} lines are stored, the first {first}, but the run has no manifest"
                self.findings.add("run-lost", run_place(fqn, run), text, lines=count)

    def _load(self, name: str, uris: Sequence[str], hours: HourRange, more: str = "") -> None:
        statement, values = _EMPTY, dict[str, Any]()
        if uris:
            option = ", filename = true" if more else ""
            statement = (
                f"SELECT {_ROW}{more} FROM read_parquet($files,"  # noqa: S608
                f" hive_partitioning = false{option})"
            )
            values = {"files": [literal(uri) for uri in uris]}
            if not more:  # of the table every line is looked at, wherever it should be
                statement += " WHERE ulid >= $low AND ulid <= $high"
                values |= {"low": hours.low, "high": hours.high}
        create = f"CREATE OR REPLACE TEMP TABLE {name} AS {statement}"
        for _ in self.database.run(create, values):
            pass

    def _statistics(self, files: Mapping[str, TableFile]) -> None:
        """Compares each file with its statistics in the log, and with its hour."""
        found = {row[0]: row[1:] for row in self._rows(_FILES, {})}
        for uri, file in files.items():
            count, low, high = found.get(uri, (0, None, None))
            self.findings.count("table lines", count)
            if file.rows and count != file.rows:  # a log need not say it
                detail = f"{count} lines; the table's log says {file.rows}"
                self.findings.add("table-file-damaged", file.path, detail, lines=count)
            elif file.ulids is not None and (low, high) != file.ulids:
                detail = f"its ULIDs are {low} to {high}; the table's log says {file.ulids}"
                self.findings.add("table-file-damaged", file.path, detail, lines=count)
            start = _hour_ms(file)
            bounds = (ulids.lowest_at(start), ulids.lowest_at(start + _HOUR_MS) - 1)
            if low is not None and (
                low < ulids.encode(bounds[0]) or high > ulids.encode(bounds[1])
            ):
                detail = f"its ULIDs are {low} to {high}, not of {file.date} hour {file.hour}"
                self.findings.add("table-line-misplaced", file.path, detail, lines=count)

    def _report(
        self, kind: Kind, statement: str, detail: str, values: Mapping[str, Any] = _NO_VALUES
    ) -> None:
        for fqn, run, count, first in self._rows(statement, values):
            text = f"{count} lines {detail}, the first {first}"
            self.findings.add(kind, run_place(fqn, run), text, lines=count)

    def _rows(self, statement: str, values: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        for batch in self.database.run(statement, values):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


# Files of the table's log, so that a log that cannot be read is named by its object.
#
# Entries have their number of actions, and a checkpoint is a Parquet file. Their statements about
# the table's files are compared with these files (`TableCheck`).


_FOLDER: Final = f"{keys.TABLE}/{LOG}/"
_ENTRY: Final = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT: Final = re.compile(r"([0-9]{20})\.checkpoint(\.[0-9]{10}\.[0-9]{10})?\.parquet")
_POINTER: Final = "_last_checkpoint"
_ENTRY_ADVICE: Final = "Put an intact version of the object back"
_CHECKPOINT_ADVICE: Final = (
    f"{_ENTRY_ADVICE}. If every entry since the previous checkpoint exists, remove it instead, and"
    " `_last_checkpoint` with it: readers then use the entries. On a local store the compactor"
    " does so with a checkpoint that cannot be read"
)


async def check_table_log(store: ObjectStore, findings: Findings) -> bool:
    """Reports each file that does not read, or is gone between others; whether there is one.

    Raises `StoreUnavailable`.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def look(key: str) -> bool:
        async with turns:
            try:
                body = (await store.get(key))[1]
            except NotFound:
                return False  # cleaned away since it was listed
            found = await asyncio.to_thread(_fault, key.rpartition("/")[2], body)
        findings.count("files of the table's log")
        if found:
            findings.add("table-log-damaged", key, found)
        return bool(found)

    every = [info.key async for info in store.list(_FOLDER)]
    damaged = await asyncio.gather(*(look(key) for key in every))
    names = [key.rpartition("/")[2] for key in every]
    gone = {commit_name(number): "later entries exist" for number in _missing(names)}
    named = await _named_checkpoint(store)
    if named is not None and not any(name.startswith(named) for name in names):
        gone[f"{named}.parquet"] = f"`{_POINTER}` names it"
    for name, why in gone.items():
        advice = _ENTRY_ADVICE if _ENTRY.fullmatch(name) else _CHECKPOINT_ADVICE
        findings.add("table-log-damaged", f"{_FOLDER}{name}", f"it is gone, and {why}. {advice}")
    return any(damaged) or bool(gone)


async def blame_checkpoint(store: ObjectStore, findings: Findings, error: Exception) -> bool:
    """Reports the newest checkpoint of a log that does not read, though each of its files does.

    False if the log has none. Raises `StoreUnavailable`.
    """
    names = [info.key.removeprefix(_FOLDER) async for info in store.list(_FOLDER)]
    newest = max([name for name in names if _CHECKPOINT.fullmatch(name)], default=None)
    if newest is not None:
        detail = f"the table cannot be read with it: {error}. {_CHECKPOINT_ADVICE}"
        findings.add("table-log-damaged", f"{_FOLDER}{newest}", detail)
    return newest is not None


async def _named_checkpoint(store: ObjectStore) -> str | None:
    """How the name of the checkpoint begins that readers look for first."""
    try:
        body = (await store.get(f"{_FOLDER}{_POINTER}"))[1]
        return f"{int(orjson.loads(body)['version']):020}.checkpoint"
    except (NotFound, ValueError, TypeError, KeyError):
        return None  # they list the log instead


def _missing(names: Sequence[str]) -> list[int]:
    """Versions without an entry since the last checkpoint, or the first entry."""
    entries = {int(found[1]) for name in names if (found := _ENTRY.fullmatch(name))}
    checkpoints = [int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name))]
    first = max(checkpoints, default=min(entries, default=0))
    return [number for number in range(first + 1, max(entries, default=0)) if number not in entries]


def _fault(name: str, body: bytes) -> str:
    if _ENTRY.fullmatch(name) and not is_whole(body):
        return f"it lacks actions that were committed. {_ENTRY_ADVICE}"
    if _CHECKPOINT.fullmatch(name):
        try:
            pq.read_table(pa.BufferReader(body)).validate(full=True)
        except (OSError, ValueError, pa.ArrowException) as error:
            return f"the checkpoint cannot be read: {error}. {_CHECKPOINT_ADVICE}"
    return ""
