"""The statistics of a written Parquet file, for its commit.

The numbers come from the Parquet footer, never from the program that wrote the file. A
bound that the footer lacks, or that is too long for the log, is left
out, which readers take as "may hold anything".
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

import orjson

from logstore.errors import StoreUnavailable
from logstore.segments.record_keys import KEY_COLUMNS
from logstore.table.footers import footer_at

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
        {
            "numRecords": footer.num_rows,
            "minValues": lows,
            "maxValues": highs,
            "nullCount": nulls,
        }
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
    name: str,
    chunks: list[Any],
    lows: dict[str, str],
    highs: dict[str, str],
    nulls: dict[str, int],
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
