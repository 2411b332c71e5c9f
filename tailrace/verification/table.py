"""Verifies the table: its files exist, each line is in it once, and its statistics are true.

It is looked at in tiles, whole hours one after another up to `TILE_BYTES` of files: a line's
hour is that of its ULID, so a copy of a line can only be in the same tile. Between two tiles
no ULID is left out, so that lines are found missing of which the table has no hour at all.

Segments at or below the table's mark must have each line that is not deleted in the table,
with the same message; in runs that one node wrote, with the same position, time, level,
connector and attributes. Lines of hours that the retention took need not be there. Segments that
were consumed and removed cannot be compared.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.errors import Damaged
from logstore.table.snapshot import Snapshot, TableFile
from service.query.database import Database
from service.query.sql import literal
from tailrace.verification.catalog import Whole
from tailrace.verification.compare import LIVE
from tailrace.verification.fault import Findings, Kind, run_place
from tailrace.verification.files import TableFiles

TILE_BYTES: Final = 128 << 20
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
class Tile:
    """Some hours' files, and the ULIDs for which they stand, inclusive, as text."""

    files: tuple[TableFile, ...]
    low: str
    high: str

    def may_overlap(self, segment: Whole) -> bool:
        """Whether the segment may have lines of the tile."""
        return segment.rows > 0 and segment.low <= self.high and segment.high >= self.low


@dataclass(frozen=True, slots=True)
class Segments:
    """Segments by what must hold of them; one may be in several."""

    held: Sequence[Whole]  # at or below the table's marks
    settled: Sequence[Whole]  # at or below the watermarks
    fresh: Sequence[Whole]  # above the watermarks


def oldest_kept(snapshot: Snapshot) -> str:
    """The lowest ULID that the retention has left in the table."""
    return ulids.encode(ulids.lowest_at(snapshot.expired_ms))


def tiles(files: Sequence[TableFile]) -> Iterator[Tile]:
    """Divides the table, and all of time, into tiles in order."""
    ordered = sorted(files, key=lambda f: (f.date, f.hour, f.path))
    low, taken, size = _LOWEST, list[TableFile](), 0
    for file in ordered:
        after = taken and (file.date, file.hour) != (taken[-1].date, taken[-1].hour)
        if after and size + file.size > TILE_BYTES:
            high = ulids.encode(ulids.lowest_at(_hour_ms(taken[-1]) + _HOUR_MS) - 1)
            yield Tile(tuple(taken), low, high)
            low, taken, size = ulids.encode(ulids.decode(high) + 1), [], 0
        taken.append(file)
        size += file.size
    yield Tile(tuple(taken), low, _HIGHEST)


def _hour_ms(file: TableFile) -> int:
    day = datetime(file.date.year, file.date.month, file.date.day, file.hour, tzinfo=UTC)
    return int(day.timestamp()) * 1000


@dataclass(slots=True)
class TableCheck:
    """Checks one snapshot, tile by tile; `kept` is the lowest ULID whose run's text is kept."""

    files: TableFiles
    database: Database
    findings: Findings
    kept: str
    has_manifest: Callable[[RunKey], Awaitable[bool]]
    is_unchanged: Callable[[Tile], bool] = lambda _: False
    sound: Callable[[Tile], None] = lambda _: None
    """Hears of tiles without a fault."""

    async def check(self, snapshot: Snapshot, segments: Segments) -> None:
        """Checks all tiles.

        Raises `StoreUnavailable`; `Damaged` if segments were removed meanwhile.
        """
        expired = oldest_kept(snapshot)
        every = [*segments.held, *segments.settled, *segments.fresh]
        for tile in tiles(snapshot.files):
            if self.is_unchanged(tile) and not any(tile.may_overlap(one) for one in every):
                continue
            before = self.findings.total
            await self._tile(tile, segments, expired)
            if self.findings.total == before:
                self.sound(tile)

    async def _tile(self, tile: Tile, segments: Segments, expired: str) -> None:
        try:
            await self._compare(tile, segments, expired)
        except Damaged:
            if not self.files.unreadable(tile.files):
                raise
            await self._compare(tile, segments, expired)

    async def _compare(self, tile: Tile, segments: Segments, expired: str) -> None:
        files = {file.uri: file for file in await self.files.usable(tile.files)}
        self._load("lines", list(files), tile, ", filename")
        self._load("held", [s.uri for s in segments.held if tile.may_overlap(s)], tile)
        self._load("settled", [s.uri for s in segments.settled if tile.may_overlap(s)], tile)
        self._load("fresh", [s.uri for s in segments.fresh if tile.may_overlap(s)], tile)
        self._statistics(files)
        self._report("table-line-twice", _TWICE, "are in the table more than once")
        # A file that is gone says enough; its lines are not told one run after another.
        if len(files) == len(tile.files):
            detail = "of segments that the table says it holds are not in it"
            self._report("table-line-missing", _MISSING, detail, {"expired": expired})
        detail = "are in the table, and not as their segment has them"
        self._report("table-line-differs", _DIFFERS, detail)
        for fqn, run, count, first in list(self._rows(_UNKNOWN, {"kept": self.kept})):
            if not await self.has_manifest(RunKey(fqn, run)):
                text = f"{count} lines are stored, the first {first}, and no manifest names the run"
                self.findings.add("run-lost", run_place(fqn, run), text, lines=count)

    def _load(self, name: str, uris: Sequence[str], tile: Tile, more: str = "") -> None:
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
                values |= {"low": tile.low, "high": tile.high}
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
                detail = f"{count} lines where the table's log says {file.rows}"
                self.findings.add("table-file-damaged", file.path, detail, lines=count)
            elif file.ulids is not None and (low, high) != file.ulids:
                detail = f"its ULIDs are {low} to {high}, the table's log says {file.ulids}"
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
