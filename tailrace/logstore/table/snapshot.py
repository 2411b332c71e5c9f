"""One version of the table, which never changes for its reader; its files by hour.

A snapshot answers two questions at once, and only together are the answers right: which files hold
the table's lines, and up to which sequence each node's segments are in them.

`mark(node)` is 0 while no segment of the node is in the table. A table that does not exist yet is
the empty snapshot of version -1. The first request for a mark reads the marks of all nodes and
everything else that the log holds besides files.

`read` translates the errors of delta-rs.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from tailrace.logstore import ulid
from tailrace.logstore.errors import NotFound, OutcomeUnknown, StoreUnavailable
from tailrace.logstore.segments.file_format import CARRIED, KEY_COLUMNS
from tailrace.logstore.table.log import Log
from tailrace.logstore.table.schema import (
    EXPIRED,
    LAYOUT,
    PURGED,
    ROW_GROUP_ROWS,
    application,
    check_readable,
    check_writable,
    has_marks,
    lacks_columns,
    layout_of,
)

# The only place where errors of delta-rs are translated.
#
# delta-rs retries requests itself (`max_retries`), but not if the body of a listing or of a 404
# breaks off half-way: then `read` starts again.


# Its errors are trees drawn for a terminal, with colours and an arrow before each cause.
_DRAWN: Final = re.compile(r"\x1b\[[0-9;]*m|[↳\s]+")
_LONGEST: Final = 1_000  # characters
_BROKE_OFF: Final = "response body error"
_MORE_TRIES: Final = 3

T = TypeVar("T")
Bound = TypeVar("Bound", str, int)


def read(uri: str, call: Callable[[], T]) -> T:
    """The result of `call`, which reads the table by delta-rs; it may be called several times.

    Raises `NotFound` if there is no table, and `StoreUnavailable`.
    """
    left = _MORE_TRIES
    while True:
        try:
            return call()
        except TableNotFoundError as error:
            raise NotFound(f"there is no table at {uri}") from error
        except (DeltaError, OSError) as error:
            if not left or _BROKE_OFF not in str(error):
                raise StoreUnavailable(
                    f"the table at {uri} cannot be read: {_plain(error)}"
                ) from error
            left -= 1


@contextmanager
def writing(uri: str) -> Iterator[None]:
    """Translates what a commit may raise. Any failed commit may have happened: `OutcomeUnknown`."""
    try:
        yield
    except CommitFailedError as error:
        raise OutcomeUnknown(f"a commit to {uri} was not confirmed: {_plain(error)}") from error
    except (DeltaError, OSError) as error:
        raise OutcomeUnknown(f"a commit to {uri} broke off: {_plain(error)}") from error


def _plain(error: Exception) -> str:
    """The error as one line of text."""
    return _DRAWN.sub(lambda found: "" if found[0][0] == "\x1b" else " ", str(error))[:_LONGEST]


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
        """Returns whether it has the layout of an older program, and is large enough to rewrite."""
        return layout_of(self.path) < LAYOUT and self.rows > ROW_GROUP_ROWS

    @property
    def marked(self) -> bool:
        """Returns whether it has the column `carried`, also if another program wrote it."""
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
            _overlaps(self.ulids, _text(lowest), _text(highest))
            and _overlaps(self.fqns, fqn, fqn)
            and _overlaps(self.runs, run, run)
        )


@dataclass(frozen=True)
class TableSnapshot:
    """A pinned version.

    Reading its log may take a request per commit; call it off the event loop.
    """

    uri: str
    version: int = EMPTY
    _table: DeltaTable | None = field(default=None, repr=False, compare=False)
    _log: Log | None = field(default=None, repr=False, compare=False)

    def loaded(self) -> TableSnapshot:
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
        """Raises `UnsupportedVersion` for a table of another shape (`schema.py`)."""
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


def _text(value: int | None) -> str | None:
    return None if value is None else ulid.encode(value)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp()) * 1000


# The files of one version by hour, so that a search considers only its hours.
#
# An index never changes. The index of the next version shares all unchanged hours with it.


_DAY_HOURS: Final = 24
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()


class Hour(NamedTuple):
    """The files of one hour, and the sum of their bytes."""

    files: tuple[TableFile, ...]
    size: int


def hour_number(day: date, hour: int) -> int:
    """The hour of that day in UTC, in hours since the epoch."""
    return (day.toordinal() - _EPOCH_DAY) * _DAY_HOURS + hour


class FileIndex:
    """Files by hours since the epoch."""

    def __init__(self, hours: Mapping[int, Hour]) -> None:
        self._hours = hours

    @staticmethod
    def of(files: Iterable[TableFile]) -> FileIndex:
        """The index of all these files."""
        return FileIndex({}).changed(files, {})

    def changed(self, added: Iterable[TableFile], removed: Mapping[str, int | None]) -> FileIndex:
        """This index without the paths `removed`, and with the files `added`.

        `removed` says the hour of each path; None is unknown. A file that is added under a path
        that its hour has takes its place.
        """
        come: dict[int, dict[str, TableFile]] = {}
        for file in added:
            come.setdefault(hour_number(file.date, file.hour), {})[file.path] = file
        unknown = None in removed.values()
        touched = set(self._hours) if unknown else {h for h in removed.values() if h is not None}
        found = dict(self._hours)
        for number in touched | come.keys():
            there = found.pop(number, _NONE).files
            files = {file.path: file for file in there if file.path not in removed}
            files |= come.get(number, {})
            if files:
                found[number] = _hour(files.values())
        return FileIndex(found)

    @cached_property
    def count(self) -> int:
        """How many files there are."""
        return sum(len(hour.files) for hour in self._hours.values())

    def paths(self) -> Iterator[str]:
        """The path of each file, below the table's folder."""
        return (file.path for hour in self._hours.values() for file in hour.files)

    def newest_first(self) -> Iterator[TableFile]:
        """All files, those of the last hour first."""
        return (file for number in reversed(self._numbers) for file in self._hours[number].files)

    def sizes(self) -> Mapping[int, int]:
        """Stored bytes by hour."""
        return {number: hour.size for number, hour in self._hours.items()}

    def within(self, low: int, high: int) -> Iterator[TableFile]:
        """Files that may hold lines with ULIDs between the two, inclusive."""
        for number, whole in self._between(low, high):
            files = self._hours[number].files
            yield from files if whole else _meeting(files, low, high)

    def select(
        self,
        low: int,
        high: int,
        fqn: str | None,
        run: str | None,
        times: tuple[int | None, int | None] = (None, None),
    ) -> FileIndex:
        """The files that may hold lines with such ULIDs, inclusive, of the fqn and run.

        `times` bound the lines' own time, in microseconds since the epoch, inclusive.
        """
        found: dict[int, Hour] = {}
        for number, whole in self._between(low, high):
            hour = self._hours[number]
            if not whole:
                hour = _hour(_meeting(hour.files, low, high))
            if fqn is not None:
                hour = _hour(file for file in hour.files if _holds(file.fqns, fqn))
            if run is not None:
                hour = _hour(file for file in hour.files if _holds(file.runs, run))
            if times != (None, None):
                hour = _hour(file for file in hour.files if _overlaps(file.times, *times))
            if hour.files:
                found[number] = hour
        return FileIndex(found)

    @cached_property
    def _numbers(self) -> list[int]:
        return sorted(self._hours)

    def _between(self, low: int, high: int) -> Iterator[tuple[int, bool]]:
        """The hours that overlap the bounds, each with whether it lies wholly within them."""
        first, last = _hour_of(low), _hour_of(high)
        numbers = self._numbers
        for number in numbers[bisect_left(numbers, first) : bisect_right(numbers, last)]:
            yield number, first < number < last


def _meeting(files: Iterable[TableFile], low: int, high: int) -> Iterator[TableFile]:
    # Parquet orders strings by their UTF-8 bytes, and so does Python by code point.
    lowest, highest = ulid.encode(low), ulid.encode(high)
    for file in files:
        if file.ulids is None or (file.ulids[0] <= highest and file.ulids[1] >= lowest):
            yield file


def _holds(bounds: tuple[str, str] | None, value: str) -> bool:
    return bounds is None or bounds[0] <= value <= bounds[1]


def _overlaps(bounds: tuple[Bound, Bound] | None, low: Bound | None, high: Bound | None) -> bool:
    if bounds is None:
        return True
    # Parquet orders strings by their UTF-8 bytes, and so does Python by code point.
    return (low is None or bounds[1] >= low) and (high is None or bounds[0] <= high)


def _hour_of(value: int) -> int:
    return ulid.time_ms(value) // HOUR_MS


def _hour(files: Iterable[TableFile]) -> Hour:
    kept = tuple(files)
    return Hour(kept, sum(file.size for file in kept))


_NONE: Final = Hour((), 0)
