"""Finds where the lines of an intact segment are: in time, and of each run in each hour.

The footer says it for each row group. The rows of a group are read only if it crosses an hour, so
that no empty hour is planned, or if it spans more than a minute: if some lines are late, most
others are far from them in time, and of other runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from compactor.ingest.prune import RunRange, TimeRange, hour_of
from logstore import ulid
from logstore.batch import RunKey
from logstore.segments.footer import Footer
from logstore.segments.reader import SegmentFile
from logstore.segments.record_keys import KEY_COLUMNS

_SLICE_MS: Final = 60_000  # an hour has a whole number of them
_SHORTEST: Final = 64  # bytes that a line counts for at least: its ids are sorted with it
_BATCH_CHARACTERS: Final = 21  # of a ULID's 26: the last five are the line number
_FIRST_LINE: Final = "0" * 5
_LAST_LINE: Final = "Z" * 5

Batch: TypeAlias = tuple[str, RunKey, int]
"""The ULID's part that names it, whose it is, and its rows."""


@dataclass(frozen=True, slots=True)
class SegmentRanges:
    """Time ranges with all of a segment's text, and run ranges with all of its lines."""

    time_ranges: tuple[TimeRange, ...] = ()
    run_ranges: tuple[RunRange, ...] = ()


def ranges_of(opened: SegmentFile) -> SegmentRanges:
    """The ranges of a segment in memory. Raises `Damaged`."""
    time_ranges: list[TimeRange] = []
    run_ranges: list[RunRange] = []
    runs = _runs_by_group(opened.footer)
    for index in range(opened.parquet.num_row_groups):
        group = opened.parquet.metadata.row_group(index)
        chunks = {c.path_in_schema: c for c in map(group.column, range(group.num_columns))}
        bounds, size = chunks["ulid"].statistics, text_of(group.num_rows, chunks["message"])
        low, high = ulid.decode(bounds.min), ulid.decode(bounds.max)
        if ulid.time_ms(high) - ulid.time_ms(low) < _SLICE_MS and hour_of(low) == hour_of(high):
            time_ranges.append(TimeRange(low, high, size))
            hour = hour_of(low)
            run_ranges += (RunRange(hour, run, bounds.min, bounds.max) for run in runs[index])
        else:
            batches = _batches(opened.group(index, list(KEY_COLUMNS)))
            time_ranges += _time_ranges(batches, size)
            run_ranges += _run_ranges(batches)
    return SegmentRanges(tuple(time_ranges), tuple(run_ranges))


def text_of(rows: int, message: Any) -> int:
    """The bytes that count for a row group, by its column chunk of messages."""
    return max(int(message.total_uncompressed_size), rows * _SHORTEST)


def _runs_by_group(footer: Footer) -> Mapping[int, Sequence[RunKey]]:
    found: dict[int, list[RunKey]] = defaultdict(list)
    for run in footer.runs:
        for index in run.groups:
            found[index].append(run.key)
    return found


def _batches(rows: Any) -> list[Batch]:
    """The batches in the rows of one group, by their ULIDs."""
    names = {name: rows.column(name).cast(pa.string()) for name in ("fqn", "run_id")}
    prefixes = pc.utf8_slice_codeunits(rows.column("ulid"), 0, _BATCH_CHARACTERS)
    counted = pa.table({"batch": prefixes, **names}).group_by(["batch", *names])
    found = counted.aggregate([([], "count_all")]).to_pylist()
    return sorted(
        (one["batch"], RunKey(one["fqn"], one["run_id"]), one["count_all"]) for one in found
    )


def _time_ranges(batches: Sequence[Batch], size: int) -> Iterator[TimeRange]:
    """The group's `size` by the minute of the batches' time."""
    slices: dict[int, list[tuple[int, int]]] = {}
    for prefix, _, count in batches:
        batch = ulid.decode(prefix + _FIRST_LINE)
        slices.setdefault(ulid.time_ms(batch) // _SLICE_MS, []).append((batch, count))
    rows = sum(count for _, _, count in batches)
    for some in slices.values():
        share = sum(count for _, count in some)
        yield TimeRange(some[0][0], some[-1][0] | ulid.LINE_MASK, size * share // rows)


def _run_ranges(batches: Iterable[Batch]) -> list[RunRange]:
    found: dict[tuple[int, RunKey], RunRange] = {}
    for prefix, run, _ in batches:
        hour = hour_of(ulid.decode(prefix + _FIRST_LINE))
        first = found.get((hour, run))
        low = prefix + _FIRST_LINE if first is None else first.low
        found[hour, run] = RunRange(hour, run, low, prefix + _LAST_LINE)
    return list(found.values())
