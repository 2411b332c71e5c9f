"""One version of the table, which never changes for its reader.

A snapshot answers two questions at once, and only together are the answers right: which
files hold the table's lines, and up to which sequence each node's segments are in them.

`mark(node)` is 0 while no segment of the node is in the table. A table that does not exist yet is
the empty snapshot of version -1. The marks of all nodes, and what else the log holds beside
files, are read together at the first request for one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from logstore import ulid
from logstore.segments.record_keys import KEY_COLUMNS
from logstore.segments.schema import CARRIED
from logstore.table.layout import LAYOUT, ROW_GROUP_ROWS, has_marks, layout_of
from logstore.table.log import Log
from logstore.table.schema import EXPIRED, PURGED, application
from logstore.table.shape import check_readable, check_writable, lacks_columns
from logstore.table.vendor import read

EMPTY = -1
HOUR_MS = 3_600_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A Parquet file of the table. Bounds are inclusive; None is unknown, so read the file."""

    path: str  # below the table's folder
    uri: str
    size: int
    rows: int
    date: date
    hour: int
    ulids: tuple[str, str] | None
    fqns: tuple[str, str] | None
    runs: tuple[str, str] | None
    counted: bool = False  # the table's log says how often `carried` is null
    times: tuple[int, int] | None = None
    """The lowest and the highest `ts`, in microseconds since the epoch."""

    @property
    def start_ms(self) -> int:
        """When its hour began."""
        return _ms(datetime(self.date.year, self.date.month, self.date.day, self.hour, tzinfo=UTC))

    @property
    def end_ms(self) -> int:
        """The end of its hour, in ms: none of its lines is of that time or later."""
        return self.start_ms + HOUR_MS

    @property
    def outdated(self) -> bool:
        """Whether it has the layout of an older program, and is large enough for that to matter."""
        return layout_of(self.path) < LAYOUT and self.rows > ROW_GROUP_ROWS

    @property
    def marked(self) -> bool:
        """Whether it has the column `carried`, also if another program wrote it."""
        return self.counted or has_marks(self.path)

    def may_hold(
        self,
        lowest: int | None = None,
        highest: int | None = None,
        fqn: str | None = None,
        run: str | None = None,
    ) -> bool:
        """False only if no line in it has such a ULID (inclusive), fqn and run."""
        if lowest is not None and ulid.time_ms(lowest) >= self.end_ms:
            return False
        if highest is not None and ulid.time_ms(highest) < self.start_ms:
            return False
        return (
            _meets(self.ulids, _text(lowest), _text(highest))
            and _meets(self.fqns, fqn, fqn)
            and _meets(self.runs, run, run)
        )


@dataclass(frozen=True)
class Snapshot:
    """A pinned version.

    Reading its log may take a request per commit; call it off the event loop.
    """

    uri: str
    version: int = EMPTY
    _table: DeltaTable | None = field(default=None, repr=False, compare=False)
    _log: Log | None = field(default=None, repr=False, compare=False)

    def loaded(self) -> Snapshot:
        """Itself, with the log's transactions read: then marks and times make no request.

        Raises `StoreUnavailable`.
        """
        _ = self._transactions
        return self

    def mark(self, node: str) -> int:
        """The last sequence of the node's segments in this version. Raises `StoreUnavailable`."""
        return self._said_by(application(node))

    def marks(self, nodes: Iterable[str]) -> Mapping[str, int]:
        """The `mark` of each node."""
        return {node: self.mark(node) for node in nodes}

    @cached_property
    def purged_ms(self) -> int:
        """The time, in ms, up to which stored deletions are applied in all files.

        Raises `StoreUnavailable`.
        """
        return self._said_by(PURGED)

    @cached_property
    def expired_ms(self) -> int:
        """The time, in ms, up to which ended hours are removed for good.

        Raises `StoreUnavailable`.
        """
        return self._said_by(EXPIRED)

    @cached_property
    def files(self) -> tuple[TableFile, ...]:
        """All files of this version. Raises `StoreUnavailable`."""
        table = self._table
        if table is None:
            return ()
        actions = pa.table(read(self.uri, lambda: table.get_add_actions(flatten=True)))
        return tuple(_files(self.uri, actions))

    def files_for(
        self,
        lowest: int | None = None,
        highest: int | None = None,
        fqn: str | None = None,
        run: str | None = None,
    ) -> list[TableFile]:
        """Files that may hold lines with ULIDs between the two, inclusive, of the fqn and run."""
        return [file for file in self.files if file.may_hold(lowest, highest, fqn, run)]

    @property
    def delta(self) -> DeltaTable | None:
        """The table as delta-rs sees it at this version, for a commit planned from it."""
        return self._table

    @property
    def is_outdated(self) -> bool:
        """Whether the table lacks columns that were added since it was made."""
        return self._table is not None and lacks_columns(self._table)

    def check_readable(self) -> None:
        """Raises `UnsupportedVersion` for a table of another shape (`shape.py`)."""
        if self._table is not None:
            check_readable(self._table, self.uri)

    def check_writable(self) -> None:
        """The same, also for a table that we could read but not write to."""
        if self._table is not None:
            check_writable(self._table, self.uri)

    def _said_by(self, name: str) -> int:
        table, transactions = self._table, self._transactions
        if table is None:
            return 0
        if transactions is None:  # in a form that only delta-rs reads
            return read(self.uri, lambda: table.transaction_version(name)) or 0
        return transactions.get(name, 0)

    @cached_property
    def _transactions(self) -> Mapping[str, int] | None:
        """All application transactions as of this version."""
        if self._table is None or self._log is None:
            return None
        return self._log.transactions(self.version)


def _files(uri: str, actions: pa.Table) -> Iterator[TableFile]:
    """The files, made column by column, which takes a third of the time for many files."""

    def column(name: str) -> Sequence[Any]:
        there = name in actions.schema.names
        return actions.column(name).to_pylist() if there else [None] * actions.num_rows

    def bounds(name: str) -> Sequence[tuple[str, str] | None]:
        lows, highs = column(f"min.{name}"), column(f"max.{name}")
        pairs = zip(lows, highs, strict=True)
        return [None if None in pair else pair for pair in pairs]

    names = ("path", "size_bytes", "num_records", "partition.date", "partition.hour")
    times = map(bounds_of_time, column("min.ts"), column("max.ts"))
    counted = [nulls is not None for nulls in column(f"null_count.{CARRIED}")]
    columns = [*map(column, names), *map(bounds, KEY_COLUMNS), counted, times]
    for path, size, rows, day, hour, *rest in zip(*columns, strict=True):
        yield TableFile(path, f"{uri}/{path}", size, rows or 0, day, hour, *rest)


def bounds_of_time(
    low: str | datetime | None, high: str | datetime | None
) -> tuple[int, int] | None:
    """Bounds of `ts` by the log's statistics, in microseconds since the epoch; None if unknown.

    A writer may cut them to milliseconds, so the high one is that of the end of its millisecond.
    """
    try:
        return None if low is None or high is None else (_us(low), _us(high) // 1000 * 1000 + 999)
    except ValueError:
        return None


def _us(value: str | datetime) -> int:
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // timedelta(microseconds=1)


def _meets(bounds: tuple[str, str] | None, low: str | None, high: str | None) -> bool:
    if bounds is None:
        return True
    # Parquet orders strings by their UTF-8 bytes, and so does Python by code point.
    return (low is None or bounds[1] >= low) and (high is None or bounds[0] <= high)


def _text(value: int | None) -> str | None:
    return None if value is None else ulid.encode(value)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000
