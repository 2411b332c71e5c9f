"""The table's columns, the layout of its files, the shapes that are accepted, and statistics.

The columns are those of a segment, and the partition of the ULID's time in UTC: `date` (a date) and
`hour` (an integer), written in paths as `date=YYYY-MM-DD/hour=HH`. Spark, DuckDB, Trino and Polars
read their types alike. The Delta log says which file belongs to which partition; the path only
repeats it for readers of plain Parquet.

Application transactions are named `segments/{node}`: their version is the node's **mark**, the
sequence of its last segment that is in the table. Two more have a time in milliseconds as their
version: no file holds lines that a deletion stored by `deletions` deletes, and hours that ended by
`expired` are beyond the retention: their files were removed, and late files are removed too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache
from typing import Any, Final

import orjson
import pyarrow as pa
from deltalake import DeltaTable, Schema

from tailrace.logstore.errors import StoreUnavailable, UnsupportedVersion
from tailrace.logstore.parquet import footer_at
from tailrace.logstore.segments.file_format import CARRIED, KEY_COLUMNS

PARTITIONS: Final = ("date", "hour")
JOB: Final = "tailrace.job"
"""Key of the job's ULID in the commit info."""
ACTIONS: Final = "tailrace.actions"
"""Key of the number of the commit's actions there: an entry that was cut off has fewer."""
PURGED: Final = "deletions"
"""The application transaction that says up to when deletions are done."""
EXPIRED: Final = "expired"
"""The application transaction that says up to when hours are gone."""

COLUMNS: Final[Any] = pa.schema(
    [
        ("ulid", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("fqn", pa.string()),
        ("run_id", pa.string()),
        ("pos", pa.int64()),
        ("level", pa.string()),
        ("connector_id", pa.string()),
        ("message", pa.string()),
        ("attributes", pa.map_(pa.string(), pa.string())),
        (CARRIED, pa.bool_()),
        ("date", pa.date32()),
        ("hour", pa.int32()),
    ]
)
RECORD_SCHEMA: Final = pa.schema([field for field in COLUMNS if field.name not in PARTITIONS])
"""The columns of a record for searches and pages: those that stand in the files of the table."""
ADDED: Final = frozenset({CARRIED})
"""Columns that earlier versions did not know. Where one is missing it is null in all lines."""


def application(node: str) -> str:
    """The name of the application transaction that carries the node's mark."""
    return f"segments/{node}"


# Names and layout of the table's data files, for every program that writes them.
#
# A file is in the folder of its hour:
#
#   {job}-{bucket:05d}-R{layout}.parquet            made of segments: level 0
#   {job}-{bucket:05d}-R{layout}-L{level}.parquet   made of files of the levels below it
#   {job}-{bucket:05d}.parquet, …-L{level}.parquet   the same by older programs: layout 0
#
# The level says how often lines of the file were rewritten, at most. The layout says how the file
# is cut into row groups. Rewriting uses both. They are in the name because delta-rs's add actions
# take no tags.
#
# Lines of a file are sorted by (fqn, run_id, ulid), so a row group has a narrow range of that key,
# and readers skip groups by their statistics. In layout 1 every row group of a file but the last
# has exactly `ROW_GROUP_ROWS` rows. Only if lines are so long that the group would have more than
# `ROW_GROUP_BYTES` does it end earlier, so a reader takes the number of rows from the footer. In
# layout 0 a group ends at 128 MiB. Files of layout 2 have the column `carried`.


LAYOUT: Final = 2
"""Rises with a change that is worth rewriting files for. Older programs wrote 0: no number."""
ROW_GROUP_ROWS: Final = 32_768
"""Of 32,768 to 131,072 the fastest to search."""
ROW_GROUP_BYTES: Final = 16 << 20
"""About, as compressed: 32,768 lines of 2 KB have less. Writers hold a group in memory."""

_MARKED: Final = 2
_LEVEL: Final = re.compile(r"-L([1-9][0-9]*)\.parquet$")
_LAYOUT: Final = re.compile(r"-R([1-9][0-9]*)(?:-L[1-9][0-9]*)?\.parquet$")


def file_name(job: str, bucket: str, level: int) -> str:
    """The name of a file of the job, in today's layout; `bucket` as the job numbered it."""
    name = f"{job}-{bucket}-R{LAYOUT}"
    return f"{name}-L{level}.parquet" if level else f"{name}.parquet"


def level_of(path: str) -> int:
    """The level in the path; 0 for a file of any other name."""
    found = _LEVEL.search(path)
    return int(found[1]) if found else 0


def has_marks(path: str) -> bool:
    """Returns whether the name of the file shows that it has the column `carried`."""
    return layout_of(path) >= _MARKED


def layout_of(path: str) -> int:
    """The layout in the path; 0 for a file of any other name."""
    found = _LAYOUT.search(path)
    return int(found[1]) if found else 0


# Checks that a table still has the shape that we made: its Delta features and its columns.
#
# We write version 1 for readers and 2 for writers, which every engine supports. Another program
# that writes to the table may raise that. Then a file of the log is no longer just its rows (a
# deletion vector removes some of them), or its columns have other names inside (column mapping),
# and a program that reads plain Parquet, as DuckDB, Spark and we do, returns wrong lines without an
# error. Everything that is not known to be harmless is therefore refused.
#
#   | | readers | writers |
#   | --- | --- | --- |
#   | version for readers above 1 | refuse | refuse |
#   | a column of ours missing or of another type, other partitions | refuse | refuse |
#   | `ADDED` missing | accept | accept: `Table.create` adds them |
#   | further columns: rewriting would lose them | accept | refuse |
#   | features for writers, except `appendOnly` and others that demand nothing | accept | refuse |
#
# The marks are no rows: they can be read from a table of any shape (`Table.mark`).


_READER: Final = 1
_FEATURES: Final = 7  # the version of writers from which features are named one by one
_LEGACY_WRITER: Final = 4  # up to here what neither configuration nor columns ask for is off
_HARMLESS: Final = frozenset({"appendOnly", "invariants", "changeDataFeed"})
_HINT: Final = (
    "Another program changed the table. Take it back there, as docs/operate/verify.md says (A"
    " table of another shape), and let no other program write to it. Nothing was read or written"
    " meanwhile; segments wait."
)


def check_readable(delta: DeltaTable, uri: str) -> None:
    """Raises `UnsupportedVersion` if the table's files alone do not determine its lines."""
    _refuse(uri, "read", _unreadable(delta))


def check_writable(delta: DeltaTable, uri: str) -> None:
    """Raises `UnsupportedVersion` if our writes would not fulfil all that the table demands."""
    _refuse(uri, "written to", _unwritable(delta))


def lacks_columns(delta: DeltaTable) -> bool:
    """Returns whether the table is of an earlier version, without columns that were added since."""
    return any(name not in _types(delta.schema()) for name in ADDED)


def _refuse(uri: str, what: str, reasons: Iterator[str]) -> None:
    found = ", ".join(reasons)
    if found:
        raise UnsupportedVersion(
            f"the table at {uri} has another shape and is not {what}: {found}", hint=_HINT
        )


def _unreadable(delta: DeltaTable) -> Iterator[str]:
    protocol = delta.protocol()
    if protocol.min_reader_version > _READER:
        named = sorted(protocol.reader_features or ["columnMapping"])
        yield f"its readers must know {', '.join(named)}"
    partitions = delta.metadata().partition_columns
    if partitions != list(PARTITIONS):
        yield f"it is partitioned by {', '.join(partitions) or 'nothing'}"
    there = _types(delta.schema())
    for name, type_ in _ours().items():
        if name not in there:
            if name in ADDED:
                continue
            yield f"column {name} is gone"
        elif there[name] != type_:
            yield f"column {name} is of another type"


def _unwritable(delta: DeltaTable) -> Iterator[str]:
    yield from _unreadable(delta)
    protocol, schema = delta.protocol(), delta.schema()
    features = set(protocol.writer_features or ())
    if _LEGACY_WRITER < protocol.min_writer_version < _FEATURES:
        yield f"it is of version {protocol.min_writer_version} for writers"
    if features - _HARMLESS:
        yield f"its writers must know {', '.join(sorted(features - _HARMLESS))}"
    for name, value in sorted(delta.metadata().configuration.items()):
        if name.startswith("delta.constraints.") or (name, value) == ("delta.appendOnly", "true"):
            yield f"it has {name} = {value}"
    for field in _fields(schema):
        if field["name"] not in _ours():
            yield f"it has a column {field['name']}"
        if field.get("metadata"):
            yield f"column {field['name']} has {', '.join(sorted(field['metadata']))}"


@cache
def _ours() -> Mapping[str, Any]:
    return _types(Schema.from_arrow(COLUMNS))


def _types(schema: Schema) -> Mapping[str, Any]:
    return {field["name"]: field["type"] for field in _fields(schema)}


def _fields(schema: Schema) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads(schema.to_json())["fields"]
    return found


# The statistics of a written Parquet file, for its commit.
#
# The numbers come from the Parquet footer, never from the program that wrote the file. A bound that
# the footer lacks, or that is too long for the log, is left out, which readers take as "may hold
# anything".


_BOUNDED: Final = (*KEY_COLUMNS, "ts")
_LONGEST_BOUND: Final = 1_024  # characters


@dataclass(frozen=True, slots=True)
class NewFile:
    """A Parquet file of the table that is in no version yet. `stats` is Delta's JSON."""

    path: str
    size: int  # bytes
    rows: int
    date: date
    hour: int
    modified_ms: int
    stats: str


def read_footer(source: str) -> Any:
    """The Parquet footer of the file at the path.

    Raises `Damaged` if it is no Parquet file, `StoreUnavailable` if it cannot be read.
    """
    try:
        return footer_at(source)
    except OSError as error:
        raise StoreUnavailable(f"{source} cannot be read: {error}") from error


def describe(footer: Any, *, path: str, size: int, modified_ms: int) -> NewFile:
    """The file of this footer, to be committed as `path`: `date=…/hour=…/name`, below the table."""
    day, hour = _partition(path)
    return NewFile(path, size, footer.num_rows, day, hour, modified_ms, _stats(footer))


def _partition(path: str) -> tuple[date, int]:
    values = dict(part.split("=", 1) for part in path.split("/")[:-1])
    return date.fromisoformat(values["date"]), int(values["hour"])


def _stats(footer: Any) -> str:
    lows: dict[str, str] = {}
    highs: dict[str, str] = {}
    nulls: dict[str, int] = {}
    for index in range(footer.num_columns):
        name = footer.schema.column(index).path
        if name in _BOUNDED:
            _bounds(name, [g.column(index) for g in _groups(footer)], lows, highs, nulls)
    return orjson.dumps(
        {"numRecords": footer.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}
    ).decode()


def bounds_of(footer: Any, name: str) -> tuple[Any, Any] | None:
    """The lowest and highest value of a column by its footer; None if that does not say."""
    for index in range(footer.num_columns):
        if footer.schema.column(index).path == name:
            every = [group.column(index).statistics for group in _groups(footer)]
            if every and all(one is not None and one.has_min_max for one in every):
                return min(one.min for one in every), max(one.max for one in every)
    return None


def _groups(footer: Any) -> list[Any]:
    return [footer.row_group(index) for index in range(footer.num_row_groups)]


def _bounds(
    name: str, chunks: list[Any], lows: dict[str, str], highs: dict[str, str], nulls: dict[str, int]
) -> None:
    every = [chunk.statistics for chunk in chunks]
    if not every or any(s is None or not s.has_min_max for s in every):
        return
    low, high = min(s.min for s in every), max(s.max for s in every)
    if isinstance(low, bytes) or len(str(low)) > _LONGEST_BOUND or len(str(high)) > _LONGEST_BOUND:
        return
    lows[name], highs[name] = _json(low), _json(high)
    if all(s.has_null_count for s in every):
        nulls[name] = sum(s.null_count for s in every)


def _json(value: str | datetime) -> str:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value
