"""Single rows of a copy of a table file (`scan_copies`), read where they lie.

To decode a row group takes 4 ms, for however few of its rows. But a copy is not compressed, and of
each row group it has one page of messages, which lie one behind the other at the end of it. A
second file beside the copy says where each of them ends, and has all other columns as records of
the same width, so one of them is read by the number of its row.

    row group | ends, 4 bytes a row | records, 49 bytes a row                   | part filter
    ...       |                     | ULID, time, position, numbers of its names | 512 KiB at most

What Parquet's writer does is not taken on trust: while the second file is made, the messages in the
copy are compared with what Parquet's reader gives. If they lie otherwise, there is no such file.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from io import FileIO
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from logstore.colours import is_coloured
from logstore.segments.schema import CARRIED
from logstore.segments.ulids import parse
from logstore.table.pages.line_map import LINE
from logstore.table.skip_index import ranges
from service.query.footers import MESSAGE, NAMES
from service.query.found_rows import NO_NAME, Found
from service.query.hot import SCHEMA
from service.query.part_filter import PARTS, part_filter, parts_with

_END: Final = np.dtype("<u4")
BYTES_A_ROW: Final = _END.itemsize + LINE.itemsize
"""Of the file beside a copy, which has a part filter for each row group as well."""
_ULID_WIDTH: Final = 26
_WORTH_A_LOOK: Final = 1 << 16  # bytes of messages, for which a filter is asked
_COLUMNS: Final = ["ulid", "ts", "pos", *NAMES, CARRIED, MESSAGE]


class _Group(NamedTuple):
    """Where the values of a row group are: messages in the copy, the others beside it.

    `runs` are neighbours of one run: where their messages begin, and the numbers of its names.
    `parts` are bytes of messages in each part of the part filter.
    """

    rows: int
    messages: int
    size: int
    runs: Sequence[tuple[int, int, int]]
    parts: NDArray[np.int64]
    ends: int
    coloured: bool = False

    @property
    def records(self) -> int:
        return self.ends + self.rows * _END.itemsize

    @property
    def filter(self) -> int:
        return self.records + self.rows * LINE.itemsize


class CopyRows:
    """The rows of one copy, whose second file is at `path`. For several threads."""

    def __init__(
        self, copy: str, path: str, groups: Sequence[_Group], names: Sequence[str]
    ) -> None:
        self.path = path
        self._copy = copy
        self._groups = groups
        self._names = dict(enumerate(names))
        self.coloured = frozenset(n for n, group in enumerate(groups) if group.coloured)

    def spans(
        self, number: int, fqn: str | None, run: str | None, needed: Sequence[Sequence[bytes]]
    ) -> list[tuple[int, int]]:
        """Where in the copy those messages of a row group lie, and their size, that may match.

        A match has one text of each group in `needed`. They are those of a pipeline or run, and
        what lies between them; or all. Raises `OSError`.
        """
        group, (low, high) = self._groups[number], self._span(number, fqn, run)
        if high - low < _WORTH_A_LOOK:
            return [(group.messages + low, high - low)] if low < high else []
        with open(self.path, "rb", buffering=0) as beside:
            parts = parts_with(beside, group.filter, group.size, needed)
        wanted = np.array([parts >> part & 1 for part in range(PARTS)], np.bool_)
        found = [
            (max(low, first), min(high, last + 1)) for first, last in ranges(group.parts, wanted)
        ]
        return [(group.messages + begin, end - begin) for begin, end in found if begin < end]

    def _span(self, number: int, fqn: str | None, run: str | None) -> tuple[int, int]:
        """Where the messages of the pipeline or run begin and end among those of the row group."""
        group, names = self._groups[number], self._names
        ends = [*(begin for begin, _, _ in group.runs[1:]), group.size]
        wanted = [
            (begin, end)
            for (begin, of_fqn, of_run), end in zip(group.runs, ends, strict=True)
            if fqn in (None, names[of_fqn]) and run in (None, names[of_run])
        ]
        return (wanted[0][0], wanted[-1][1]) if wanted else (0, 0)

    def at(self, number: int, places: Sequence[int]) -> Found:
        """The rows of a row group whose messages lie at these places of the copy, in order.

        Raises `OSError` if a file is gone, cut off or overwritten.
        """
        group, width = self._groups[number], LINE.itemsize
        with (
            open(self._copy, "rb", buffering=0) as copy,
            open(self.path, "rb", buffering=0) as beside,
        ):
            ends = memoryview(_read(beside, group.ends, group.rows * _END.itemsize)).cast("I")
            rows = sorted({bisect_right(ends, place - group.messages) for place in places})
            if rows and rows[-1] >= len(ends):
                raise OSError(f"{self.path} is not as it was written")
            records = b"".join([_read(beside, group.records + row * width, width) for row in rows])
            bounds = [(ends[row - 1] if row else 0, ends[row]) for row in rows]
            texts = [_read(copy, group.messages + first, end - first) for first, end in bounds]
        return Found(self._names, rows, np.frombuffer(records, LINE), texts)


def write_rows(copy: str, path: str, give_way: Callable[[], None]) -> CopyRows | None:
    """Makes the second file of a copy; None if messages do not lie in the copy as they are to.

    `give_way` is called before each row group. Raises `OSError`, `pa.ArrowException`.
    """
    groups: list[_Group] = []
    names: dict[str, int] = {}
    with (
        pq.ParquetFile(copy, read_dictionary=NAMES) as file,
        open(copy, "rb", buffering=0) as raw,
        Path(path).open("xb") as beside,
    ):
        metadata, number_of = file.metadata, file.schema_arrow.names.index(MESSAGE)
        if any(file.schema_arrow.field(name).type != _type(name) for name in ("ts", "pos")):
            return None
        for number in range(metadata.num_row_groups):
            give_way()
            read = file.read_row_group(number, columns=_COLUMNS, use_threads=False)
            messages = _whole(read.column(MESSAGE))
            data = _data(messages)
            begin = _begin(raw, metadata.row_group(number).column(number_of), data)
            records = _records(read, names)
            if messages.null_count or begin is None or records is None or len(names) > NO_NAME:
                return None
            bounds = _bounds(messages) - _bounds(messages)[0]
            runs, size = _runs(records, bounds), int(bounds[-1])
            cuts = _cuts(bounds)
            parts, coloured = np.diff(cuts), is_coloured(data)
            groups.append(_Group(read.num_rows, begin, size, runs, parts, beside.tell(), coloured))
            beside.write(bounds[1:].astype(_END).tobytes())
            beside.write(records.tobytes())
            beside.write(part_filter([data[low:end] for low, end in pairwise(cuts)]))
    return CopyRows(copy, path, groups, list(names))


def _begin(raw: FileIO, chunk: Any, data: bytes) -> int | None:
    """Where the messages begin in the file, if all of them lie at the end of their pages."""
    begin = int(chunk.data_page_offset + chunk.total_compressed_size) - len(data)
    if begin < 0 or os.pread(raw.fileno(), len(data), begin) != data:
        return None
    return begin


def _records(read: pa.Table, names: dict[str, int]) -> NDArray[np.void] | None:
    """All columns but the messages, if they have values; new names are added to `names`."""
    ulids, times, positions = (_whole(read.column(name)) for name in ("ulid", "ts", "pos"))
    if any(column.null_count for column in (ulids, times, positions)):
        return None
    if not np.all(np.diff(_bounds(ulids)) == _ULID_WIDTH):
        return None
    records = np.empty(read.num_rows, LINE)
    characters = np.frombuffer(_data(ulids), np.uint8).reshape(-1, _ULID_WIDTH)
    records["hi"], batch, number = parse(characters)
    records["lo"] = batch | number.astype(np.uint64)
    records["ts"] = times.cast(pa.int64()).to_numpy()
    records["pos"] = positions.to_numpy()
    records["carried"] = _whole(read.column(CARRIED)).fill_null(False).to_numpy(False)
    for name in NAMES:
        records[name] = _codes(read.column(name), names)
    return records


def _runs(records: NDArray[Any], begins: NDArray[Any]) -> Sequence[tuple[int, int, int]]:
    """Where the messages of each run begin, and the numbers of its names."""
    names = records[["fqn", "run_id"]]
    firsts = np.flatnonzero(np.r_[True, names[1:] != names[:-1]])[: len(names)].tolist()
    return [(int(begins[first]), *names[first].tolist()) for first in firsts]


def _cuts(bounds: NDArray[Any]) -> NDArray[np.int64]:
    """Where parts of about the same size begin, each with a message, and the last one ends."""
    aims = np.arange(PARTS + 1) * int(bounds[-1]) // PARTS
    cuts: NDArray[np.int64] = bounds[np.searchsorted(bounds, aims)].astype(np.int64)
    return cuts


def _codes(column: pa.ChunkedArray, names: dict[str, int]) -> NDArray[np.int64]:
    """The number of each row's name; new ones are added to `names`."""
    column = _whole(column)
    numbers = [names.setdefault(name, len(names)) for name in column.dictionary.to_pylist()]
    known: NDArray[np.int64] = np.array([*numbers, NO_NAME], np.int64)
    codes: NDArray[np.int64] = known[column.indices.fill_null(len(numbers)).to_numpy()]
    return codes


def _whole(column: pa.ChunkedArray) -> Any:
    return pa.concat_arrays(column.unify_dictionaries().chunks or [pa.array([], column.type)])


def _data(strings: pa.StringArray) -> bytes:
    """The bytes of all strings, one behind the other."""
    data, bounds = strings.buffers()[2], _bounds(strings)
    return b"" if data is None else memoryview(data)[bounds[0] : bounds[-1]].tobytes()


def _bounds(strings: pa.StringArray) -> NDArray[Any]:
    """Where each string begins in the bytes of all, and the last ends."""
    found: NDArray[np.int32] = np.frombuffer(strings.buffers()[1], np.int32)
    bounds: NDArray[Any] = found[strings.offset :][: len(strings) + 1]
    return bounds


def _type(name: str) -> pa.DataType:
    return SCHEMA.field(name).type


def _read(file: FileIO, at: int, size: int) -> bytes:
    data = os.pread(file.fileno(), size, at)
    if len(data) < size:
        raise OSError(f"a copy of a table file is cut off at {at + len(data)}")
    return data
