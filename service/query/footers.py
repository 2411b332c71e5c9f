"""Footers of Parquet files, parsed once, and row groups of them.

A file of the table never changes, nor does a copy of one; that a path of this machine has another
file is seen by its size and time.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from service.query.request import QueryRequest, UlidRange
from service.query.sources import SCHEMA
from tailrace.logstore import ulid
from tailrace.logstore.errors import Damaged
from tailrace.logstore.objects.store import is_remote
from tailrace.logstore.parquet import footer_at
from tailrace.logstore.segments.file_format import CARRIED, texts_of
from tailrace.logstore.table.line_map import LINE

MESSAGE: Final = "message"
ATTRIBUTES: Final = "attributes"
NAMES: Final = ["fqn", "run_id", "level", "connector_id"]
_MOST_BYTES: Final = 16 << 20  # of footers as they are stored; parsed they take some times more


@dataclass(frozen=True, slots=True)
class FooterRowGroup:
    """A row group: its number, its rows from `first` to before `end`, and its column of messages.

    That has so many bytes when decompressed.
    """

    number: int
    first: int
    end: int
    text_bytes: int


class TableFileFooter:
    """What the footer of one file says."""

    def __init__(self, path: str, metadata: pq.FileMetaData) -> None:
        self.path = path
        self.metadata = metadata
        self.columns = {metadata.schema.column(n).path: n for n in range(metadata.num_columns)}
        self.groups = self._groups()

    @contextmanager
    def open(self) -> Iterator[pq.ParquetFile]:
        """The file; names come as dictionaries. Raises `OSError`, `pa.ArrowException`."""
        with (  # of a path it would first be found out what kind of file system it is on
            pa.OSFile(self.path) as source,
            pq.ParquetFile(source, metadata=self.metadata, read_dictionary=NAMES) as file,
        ):
            yield file

    def announce(self, groups: Sequence[FooterRowGroup], most: int) -> int:
        """Has the system read these row groups from the disk meanwhile, up to about `most` bytes.

        The bytes that were announced. Raises `OSError`.
        """
        announced = 0
        with open(self.path, "rb", buffering=0) as file:
            for group in groups:
                columns = self.metadata.row_group(group.number)
                first, last = columns.column(0), columns.column(columns.num_columns - 1)
                begin = first.dictionary_page_offset or first.data_page_offset
                size = last.data_page_offset + last.total_compressed_size - begin
                if size <= 0 or announced >= most:
                    break
                os.posix_fadvise(file.fileno(), begin, size, os.POSIX_FADV_WILLNEED)
                announced += size
        return announced

    def may_hold(
        self, group: FooterRowGroup, request: QueryRequest, tile: UlidRange | None
    ) -> bool:
        """False only if no row of the group is of the request's pipeline and run, in the tile."""
        if request.fqn is not None and not self._meets(group, "fqn", request.fqn, request.fqn):
            return False
        if request.run is not None and not self._meets(group, "run_id", request.run, request.run):
            return False
        if tile is None:
            return True
        return self._meets(group, "ulid", ulid.encode(tile.low), ulid.encode(tile.high))

    def _meets(self, group: FooterRowGroup, column: str, low: str, high: str) -> bool:
        chunk = self.metadata.row_group(group.number).column(self.columns[column])
        bounds = chunk.statistics
        if bounds is None or not bounds.has_min_max:
            return True
        # Parquet orders strings by their UTF-8 bytes, and so does Python by code point.
        return bool(bounds.min <= high and bounds.max >= low)

    def _groups(self) -> list[FooterRowGroup]:
        groups, first = [], 0
        for number in range(self.metadata.num_row_groups):
            group = self.metadata.row_group(number)
            chunk, end = group.column(self.columns[MESSAGE]), first + group.num_rows
            groups.append(FooterRowGroup(number, first, end, chunk.total_uncompressed_size))
            first = end
        return groups


class Footers:
    """Those of files that were asked for lately. For several threads.

    `fetched` gives what the footer of a file on S3 says.
    """

    def __init__(self, fetched: Callable[[str], pq.FileMetaData] | None = None) -> None:
        self._fetched = fetched
        self._kept: OrderedDict[str, tuple[tuple[int, int], TableFileFooter, int]] = OrderedDict()
        self._bytes = 0
        self._changing = Lock()
        self._reading: dict[str, Lock] = {}

    def has(self, path: str) -> bool:
        """Whether it was asked for lately."""
        return path in self._kept

    def of(self, path: str) -> TableFileFooter:
        """The footer of the file.

        Raises `Damaged`, `OSError`, and what fetching it raises. Blocks.
        """
        identity = (0, 0)
        if not is_remote(path):
            found = os.stat(path)
            identity = (found.st_size, found.st_mtime_ns)
        with self._changing:
            if (kept := self._there(path, identity)) is not None:
                return kept
            turn = self._reading.setdefault(path, Lock())
        with turn:  # another thread may be about to have it
            with self._changing:
                if (kept := self._there(path, identity)) is not None:
                    return kept
            try:
                return self._read(path, identity)
            finally:
                with self._changing:
                    self._reading.pop(path, None)

    def _there(self, path: str, identity: tuple[int, int]) -> TableFileFooter | None:
        kept = self._kept.get(path)
        if kept is None or kept[0] != identity:
            return None
        self._kept.move_to_end(path)
        return kept[1]

    def _read(self, path: str, identity: tuple[int, int]) -> TableFileFooter:
        read = self._fetched if self._fetched is not None and is_remote(path) else footer_at
        metadata = read(path)
        footer, size = TableFileFooter(path, metadata), metadata.serialized_size
        with self._changing:
            _, _, before = self._kept.pop(path, (None, None, 0))
            self._kept[path] = identity, footer, size
            self._bytes += size - before
            while self._bytes > _MOST_BYTES and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1][2]
        return footer


@contextmanager
def as_damage() -> Iterator[None]:
    """Turns errors of files into `Damaged`."""
    try:
        yield
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise Damaged(f"what is stored cannot be read: {error}") from error


# Lines of table files that were found before DuckDB, as records with numbers for names.


NO_NAME: Final = 0xFFFF
_SOME_BYTES: Final = 4 * LINE.itemsize  # what a line takes beside its message


@dataclass(frozen=True, slots=True)
class MatchedLines:
    """Lines of a row group: their rows in it, what belongs to them (`LINE`), their messages.

    A number without a name is that of no name.
    """

    names: dict[int, str]
    numbers: Sequence[int]
    records: NDArray[Any]
    messages: Sequence[bytes]

    @property
    def nbytes(self) -> int:
        """About how much memory they take."""
        return sum(map(len, self.messages)) + _SOME_BYTES * len(self.numbers)


def batch_of(found: Sequence[MatchedLines]) -> pa.RecordBatch:
    """All of these lines, without attributes."""
    names: dict[str | None, int] = {None: 0}
    records = np.concatenate([_renumbered(one, names) for one in found])
    texts = pa.array(list(names), pa.string())
    columns = {
        "ulid": _ulids(texts_of(records["hi"], records["lo"])),
        "ts": pa.array(records["ts"]).cast(SCHEMA.field("ts").type),
        "pos": pa.array(records["pos"]),
        MESSAGE: _strings([text for one in found for text in one.messages]),
        ATTRIBUTES: pa.nulls(len(records), SCHEMA.field(ATTRIBUTES).type),
        CARRIED: pa.array(records["carried"], mask=~records["carried"]),
    }
    columns |= {name: texts.take(pa.array(records[name])) for name in NAMES}
    return pa.RecordBatch.from_arrays([columns[one.name] for one in SCHEMA], schema=SCHEMA)


def _renumbered(found: MatchedLines, names: dict[str | None, int]) -> NDArray[Any]:
    """The records with numbers of `names`, to which their names are added."""
    records = found.records.copy()
    used = np.unique(np.concatenate([records[column] for column in NAMES]))
    texts = [found.names.get(number) for number in used.tolist()]
    numbers = np.array([names.setdefault(text, len(names)) for text in texts])
    for column in NAMES:
        records[column] = numbers[np.searchsorted(used, records[column])]
    return records


def _ulids(texts: NDArray[np.uint8]) -> pa.StringArray:
    ends = np.arange(0, texts.size + 1, texts.shape[1], dtype=np.int32)
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(texts))


def _strings(texts: Sequence[bytes]) -> pa.StringArray:
    return pa.array(texts, pa.binary()).cast(pa.string(), safe=False)


# How much searches have read of the table's files, for who brings nearer what is read often.


_MOST_COUNTED: Final = 10_000  # files


class ReadCounts:
    """Bytes by path, of the files that were read last. Its owner locks it."""

    def __init__(self) -> None:
        self._read: OrderedDict[str, float] = OrderedDict()

    def add(self, path: str, size: float) -> float:
        """Counts so many bytes more of a file; gives all of them."""
        read = self._read.pop(path, 0.0) + size
        self._read[path] = read
        if len(self._read) > _MOST_COUNTED:
            self._read.popitem(last=False)
        return read

    def reset(self, path: str, size: float = 0.0) -> None:
        """Counts of a file anew, from `size`: below 0 so much is to be read in vain first."""
        self._read[path] = size
