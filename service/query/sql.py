"""Builds the statements of a search. User input is bound, never spelled into them.

    SELECT … FROM (
        (SELECT … FROM read_parquet($table)    WHERE … ORDER BY … LIMIT n)
        UNION ALL
        (SELECT … FROM read_parquet($segments) WHERE … ORDER BY … LIMIT n)
        UNION ALL
        (SELECT … FROM journal                 WHERE … ORDER BY … LIMIT n))
    ORDER BY ulid, fqn, run_id, source, pos LIMIT n

With a limit each source is cut on its own, since DuckDB skips row groups that cannot reach a Top-N
only directly above a scan. Copies of a record come out next to each other, the one that is stored
longest first; of copies that two nodes shipped, the one with the lower `pos`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from service.query.request import QueryRequest, RecordKey, UlidRange
from tailrace.logstore import ulid
from tailrace.logstore.objects.store import is_remote
from tailrace.logstore.search.conditions import Field, asks_for_text
from tailrace.logstore.search.translate import Where, without_colours
from tailrace.logstore.segments.file_format import KEY_COLUMNS

COLUMNS: Final = "ulid, ts, fqn, run_id, pos, level, connector_id, message, attributes, carried"
KEY: Final = "ulid, fqn, run_id"

_KIND: Final = ("r.fqn", "r.run_id", "r.level", "r.attributes")
_POS_BITS: Final = 60
_PATTERN: Final = re.compile(r"[*?\[]")


_NULLS: Final = {
    "attributes": "NULL::MAP(VARCHAR, VARCHAR) AS attributes",
    "carried": "NULL::BOOLEAN AS carried",
}
_MISSED: Final[Mapping[str, Collection[str]]] = {
    "bare": ("attributes",),
    "unmarked": ("carried",),
    "bare unmarked": ("attributes", "carried"),
    "unmarked segments": ("carried",),
}
"""Columns that are not read of a source: no line has a value, or the files lack them."""


def _scan(source: str, files: str) -> str:
    """Scans files as files of the source."""
    scan = f"read_parquet({files}, hive_partitioning = false)"
    missed = _MISSED.get(source, ())
    if not missed:
        return scan
    columns = [_NULLS[name] if name in missed else name for name in COLUMNS.split(", ")]
    return f"(SELECT {', '.join(columns)}, file_row_number FROM {scan})"  # noqa: S608


def files_of(source: str) -> str:
    """Returns the name of the parameter that has the files of a source."""
    return source.replace(" ", "_")


def table_source(*, bare: bool, marked: bool) -> str:
    """Returns the source of a table file: no line has attributes; it has the column `carried`."""
    names = [name for name, is_so in (("bare", bare), ("unmarked", not marked)) if is_so]
    return " ".join(names) or "table"


PLAIN_SEGMENTS: Final = "plain segments"
"""Segments without coloured lines: they are not searched for control sequences."""
# Oldest copy first: the table's version of a record does not change any more.
_RANKS: Final = {
    "found": 0,
    **dict.fromkeys(("table", "bare", "unmarked", "bare unmarked", "copies"), 0),
    **dict.fromkeys(("segments", PLAIN_SEGMENTS, "unmarked segments"), 1),
    "journal": 2,
}
_SOURCES: Final = {
    name: (rank, name if name in ("found", "journal") else _scan(name, f"${files_of(name)}"))
    for name, rank in _RANKS.items()
}
"""By name, the rank among copies of a record, and the FROM clause.

Copies of files count as the table, and so do lines `found` in it before the statement.
"""


_BOUNDS: Final = " AND r.ulid >= $low AND r.ulid <= $high"

READABLE: Final = (
    "SELECT count(*) FROM (SELECT hash(r) AS h"
    " FROM read_parquet($files, hive_partitioning = false) r) WHERE h IS NOT NULL"
)
"""Reads every byte of `$files`, segments or files of the table."""


@dataclass(frozen=True, slots=True)
class Scans:
    """The inputs of a statement: whole sources by name, and `ranges` of rows of table files.

    Only the source of a range matters here. Its parameters are `part`, `first` and `last` with its
    number. If all files of the table are `inside` the time range, their ULIDs are not compared with
    its bounds, which would read that column for every row. If no file has `coloured` lines, control
    sequences are not searched for.
    """

    names: Collection[str]
    ranges: Sequence[str] = ()
    inside: bool = False
    coloured: bool = True

    @property
    def copies(self) -> bool:
        """Returns true if a record may occur twice. Only the table alone is free of copies."""
        return any(_RANKS[name] for name in self.names)

    @property
    def bounded(self) -> bool:
        """Returns true if ULIDs are compared with the bounds of the time range."""
        return self.copies or not self.inside

    def scans(self, where: str) -> Iterator[tuple[int, str]]:
        """Yields the FROM clause of each source, as `r`, with the source's number."""
        plain = without_colours(where)
        in_table = where if self.coloured else plain
        for name, (rank, source) in _SOURCES.items():
            if name in self.names:
                bounds = "" if rank == 0 and self.inside else _BOUNDS
                term = in_table if rank == 0 else plain if name == PLAIN_SEGMENTS else where
                yield rank, f"{source} r{term}{bounds}"
        for n, source in enumerate(self.ranges):
            rows = f" AND r.file_row_number BETWEEN $first{n} AND $last{n}"
            bounds = "" if self.inside else _BOUNDS
            yield 0, f"{_scan(source, f'$part{n}')} r{in_table}{bounds}{rows}"


class Statement:
    """Builds the statements of one request; `parameters` are the values that they bind.

    `live` adds terms that each record must meet, after the others. Lines that continue a record are
    returned, but not counted separately, unless the request asks for text.
    """

    def __init__(self, request: QueryRequest) -> None:
        self._request = request
        self._conditions = Where()
        self._grouped: list[str] = []
        condition = request.condition
        self._term = None if condition is None else self._conditions.term(condition)
        self._counted = "" if asks_for_text(condition) else " AND r.carried IS NULL"
        self._given = COLUMNS
        if request.value is not None:
            self._given = f"{KEY}, {self._conditions.text(request.value)} AS value"

    def records(
        self, sources: Scans, after: RecordKey | None, limit: int | None, live: str = ""
    ) -> str:
        """Returns the records of the sources after `after`, in order."""
        where = self._where(after) + live
        cut = "" if limit is None else f" LIMIT {limit:d}"
        each = self._order(*KEY_COLUMNS) + cut if limit is not None else ""
        parts = [
            f"(SELECT {COLUMNS}, {number} AS source FROM {scan}{each})"  # noqa: S608
            for number, scan in sources.scans(where)
        ]
        union = " UNION ALL ".join(parts)
        order = self._order(*KEY_COLUMNS) + (", source, pos" if sources.copies else "")
        return f"SELECT {self._given} FROM ({union}) r{order}{cut}"  # noqa: S608

    def by_time(self, sources: Scans, limit: int, live: str = "") -> str:
        """Returns the `limit` records whose own time comes first in the order of the request."""
        where = self._where(None) + live
        cut = f"{self._order('ts', *KEY_COLUMNS)} LIMIT {limit:d}"
        if sources.copies and not asks_for_text(self._request.condition):
            return self._by_time_of_copies(sources, where, limit, cut)
        # Only the table has no copies, which would take the places of other records.
        parts = [
            f"(SELECT {COLUMNS}, {number} AS source FROM {scan}{'' if number else cut})"  # noqa: S608
            for number, scan in sources.scans(where)
        ]
        return f"SELECT {COLUMNS} FROM ({self._once(parts, sources)}){cut}"  # noqa: S608

    def _by_time_of_copies(self, sources: Scans, where: str, limit: int, cut: str) -> str:
        """Looks for the time of the last record first, without any text.

        Only records from that time on are then told from their copies. The unflushed ones come as a
        stream, which is read once.
        """
        held, scans = "", list(sources.scans(where))
        if "journal" in sources.names:
            number, scan = next(each for each in scans if each[1].startswith("journal r"))
            held = f"journal_rows AS MATERIALIZED (SELECT {COLUMNS} FROM {scan}), "  # noqa: S608
            scans[scans.index((number, scan))] = number, "journal_rows r WHERE true"
        best, sign = ("min", ">=") if self._request.descending else ("max", "<=")
        times = " UNION ALL ".join([f"SELECT ts, {KEY} FROM {scan}" for _, scan in scans])  # noqa: S608
        each = f"SELECT {best}(ts) AS ts FROM ({times}) GROUP BY {KEY}"  # noqa: S608
        last = f"SELECT {best}(ts) AS ts FROM ({each}{self._order('ts')} LIMIT {limit:d})"  # noqa: S608
        within = f" AND r.ts {sign} (SELECT ts FROM last_time)"  # noqa: S608
        parts = [
            f"(SELECT {COLUMNS}, {number} AS source FROM {scan}{within}{'' if number else cut})"  # noqa: S608
            for number, scan in scans
        ]
        found = self._once(parts, sources)
        return f"WITH {held}last_time AS ({last}) SELECT {COLUMNS} FROM ({found}) r{cut}"  # noqa: S608

    def windows(
        self,
        fields: Sequence[Field] | None,
        sources: Scans,
        live: str = "",
        *,
        origin_ns: int,
        width_ns: int,
    ) -> str:
        """Counts records and the bytes of their messages by values and windows of own time.

        The values are those of `fields` as text, or what makes the labels of a record: fqn, run,
        level and attributes. The window with the number n ends at `origin_ns + (n+1) * width_ns`,
        inclusive. No record is of `origin_ns` or before.
        """
        if not self._grouped:
            values = _KIND if fields is None else [self._conditions.text(f) for f in fields]
            self._grouped = [f"{value} AS v{n}" for n, value in enumerate(values)]
        where = self._where(None) + live
        window = f"(epoch_us(r.ts) * 1000 - {origin_ns + 1:d}) // {width_ns:d} AS number"
        shown = ", ".join([*self._grouped, window, "strlen(r.message) AS size"])
        key = f"{KEY}, pos, " if sources.copies else ""
        parts = [
            f"SELECT {key}{shown}, {number} AS source FROM {scan}"  # noqa: S608
            for number, scan in sources.scans(where)
        ]
        names = [*(f"v{n}" for n in range(len(self._grouped))), "number"]
        records = " UNION ALL ".join(parts)
        if sources.copies:
            records = self._oldest_of(records, [*names, "size"])
        counts = "count(*) AS lines, sum(size)::BIGINT AS bytes"
        return f"SELECT {', '.join(names)}, {counts} FROM ({records}) GROUP BY ALL"  # noqa: S608

    def attribute_names(self, sources: Scans, live: str = "") -> str:
        """Returns the names of attributes of records that match, each once."""
        scans = sources.scans(self._where(None) + live)
        union = " UNION ALL ".join([f"SELECT r.attributes FROM {scan}" for _, scan in scans])  # noqa: S608
        return f"SELECT DISTINCT unnest(map_keys(attributes)) AS name FROM ({union})"  # noqa: S608

    def _once(self, parts: Sequence[str], sources: Scans) -> str:
        """Returns each record of the parts once, as its oldest copy."""
        union = " UNION ALL ".join(parts)
        if not sources.copies:
            return union
        return f"SELECT DISTINCT ON ({KEY}) * FROM ({union}) ORDER BY {KEY}, source, pos"  # noqa: S608

    def _oldest_of(self, records: str, names: Sequence[str]) -> str:
        """Returns these columns of each record once, as its oldest copy has them."""
        pairs = ", ".join(f"{name} := {name}" for name in names)
        oldest = f"arg_min(struct_pack({pairs}), (source::BIGINT << {_POS_BITS}) + pos)"
        return f"SELECT unnest(r) FROM (SELECT {oldest} AS r FROM ({records}) GROUP BY {KEY})"  # noqa: S608

    def count(self, sources: Scans, after: RecordKey | None, live: str = "") -> str:
        """Counts the different records that match."""
        where = self._where(after) + self._counted + live
        parts = [f"SELECT {KEY} FROM {scan}" for _, scan in sources.scans(where)]  # noqa: S608
        union = " UNION ALL ".join(parts)
        if sources.copies:
            union = f"SELECT DISTINCT {KEY} FROM ({union})"  # noqa: S608
        return f"SELECT count(*) FROM ({union})"  # noqa: S608

    def levels(self, sources: Scans, live: str = "", *, by_ts: bool = False) -> str:
        """Returns time and level of each different record that matches, as its oldest copy has it.

        The time is the text of its ULID; with `by_ts` it is the line's own, in milliseconds, as
        `own_ms`. A level of its own is '' if the record has none.
        """
        where = self._where(None) + self._counted + live
        level = "coalesce(r.level, '') AS level" + (", epoch_ms(r.ts) AS own_ms" if by_ts else "")
        if not sources.copies:
            parts = [f"SELECT ulid, {level} FROM {scan}" for _, scan in sources.scans(where)]  # noqa: S608
            return " UNION ALL ".join(parts)
        parts = [
            f"SELECT {KEY}, {level}, pos, {number} AS source FROM {scan}"  # noqa: S608
            for number, scan in sources.scans(where)
        ]
        union, names = " UNION ALL ".join(parts), ("level", "own_ms") if by_ts else ("level",)
        place = f"(source::BIGINT << {_POS_BITS}) + pos"
        oldest = ", ".join(f"arg_min({name}, {place}) AS {name}" for name in names)
        return f"SELECT ulid, {oldest} FROM ({union}) GROUP BY {KEY}"  # noqa: S608

    def oldest(self, sources: Scans, live: str = "") -> str:
        """Returns the lowest time of lines that match, in milliseconds."""
        scans = sources.scans(self._where(None) + live)
        union = " UNION ALL ".join([f"SELECT ts FROM {scan}" for _, scan in scans])  # noqa: S608
        return f"SELECT min(epoch_ms(ts)) FROM ({union})"  # noqa: S608

    def groups(self, fields: Sequence[Field], sources: Scans, live: str = "") -> str:
        """Counts different records that match by values of fields, as text.

        Of copies of a record the oldest one counts.
        """
        if not self._grouped:
            self._grouped = [
                f"{self._conditions.text(field)} AS v{n}" for n, field in enumerate(fields)
            ]
        where = self._where(None) + self._counted + live
        values = ", ".join(self._grouped)
        names = ", ".join(f"v{n}" for n in range(len(fields)))
        key = f"{KEY}, pos, " if sources.copies else ""
        parts = [
            f"SELECT {key}{values}, {number} AS source FROM {scan}"  # noqa: S608
            for number, scan in sources.scans(where)
        ]
        records = " UNION ALL ".join(parts)
        if sources.copies:
            records = self._oldest_of(records, [f"v{n}" for n in range(len(fields))])
        return f"SELECT {names}, count(*) AS records FROM ({records}) GROUP BY ALL"  # noqa: S608

    def parameters(
        self, time_range: UlidRange, after: RecordKey | None, *, bounded: bool = True
    ) -> dict[str, Any]:
        """Returns values for all but the names of files; `bounded` as in `Scans`."""
        request = self._request
        values = dict(self._conditions.parameters)
        if bounded:
            values |= {"low": ulid.encode(time_range.low), "high": ulid.encode(time_range.high)}
        if request.fqn is not None:
            values["fqn"] = request.fqn
        if request.run is not None:
            values["run"] = request.run
        values |= {f"level{number}": level for number, level in enumerate(request.levels)}
        if after is not None:
            values |= {"after_ulid": after.ulid, "after_fqn": after.fqn, "after_run": after.run}
        return values

    def _where(self, after: RecordKey | None) -> str:
        request = self._request
        terms = ["true"]
        if request.fqn is not None:
            terms.append("r.fqn = $fqn")
        if request.run is not None:
            terms.append("r.run_id = $run")
        if request.levels:
            names = ", ".join(f"$level{number}" for number in range(len(request.levels)))
            terms.append(f"r.level IN ({names})")
        if self._term is not None:
            terms.append(self._term)
        if after is not None:
            sign = "<" if request.descending else ">"
            terms.append(f"(r.ulid, r.fqn, r.run_id) {sign} ($after_ulid, $after_fqn, $after_run)")
        return " WHERE " + " AND ".join(terms)

    def _order(self, *columns: str) -> str:
        direction = " DESC" if self._request.descending else ""
        return " ORDER BY " + ", ".join(column + direction for column in columns)


def literal(path: str) -> str:
    """Escapes a path for `read_parquet`, which takes names of files for patterns."""
    if is_remote(path):
        return path
    return _PATTERN.sub(r"[\g<0>]", path)
