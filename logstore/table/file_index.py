"""The files of one version of the table by hour, so that a search considers only its hours.

An index never changes. The index of the next version shares all unchanged hours with it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from functools import cached_property
from typing import Final, NamedTuple

from logstore import ulid
from logstore.table.snapshot import HOUR_MS, TableFile

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


def _overlaps(bounds: tuple[int, int] | None, low: int | None, high: int | None) -> bool:
    if bounds is None:
        return True
    return (low is None or bounds[1] >= low) and (high is None or bounds[0] <= high)


def _hour_of(value: int) -> int:
    return ulid.time_ms(value) // HOUR_MS


def _hour(files: Iterable[TableFile]) -> Hour:
    kept = tuple(files)
    return Hour(kept, sum(file.size for file in kept))


_NONE: Final = Hour((), 0)
