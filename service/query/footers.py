"""Caches parsed footers of Parquet files, and holds lines of row groups that were found in them.

A file of the table never changes, nor does a copy of one. If a path of this machine has another
file, its size and time show it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from threading import Lock
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from service.query.request import QueryRequest, UlidRange
from tailrace.logstore import ulid
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.errors import Damaged
from tailrace.logstore.filesystem import advise
from tailrace.logstore.objects.store import is_remote
from tailrace.logstore.parquet import footer_at
from tailrace.logstore.segments.file_format import CARRIED, texts_of
from tailrace.logstore.table.line_map import LINE
from tailrace.logstore.table.schema import RECORD_SCHEMA

MESSAGE: Final = "message"
ATTRIBUTES: Final = "attributes"
NAMES: Final = ["fqn", "run_id", "level", "connector_id"]
_MOST_BYTES: Final = 16 << 20  # of footers as stored; parsed they take several times as much


@dataclass(frozen=True, slots=True)
class FooterRowGroup:
    """A row group: its number, its rows from `first` to before `end`, its message column.

    The last field is the number of bytes of the messages when decompressed.
    """

    number: int
    first: int
    end: int
    text_bytes: int


class TableFileFooter:
    """The footer of one file."""

    def __init__(self, path: str, metadata: pq.FileMetaData) -> None:
        self.path = path
        self.metadata = metadata
        self.columns = {metadata.schema.column(n).path: n for n in range(metadata.num_columns)}
        self.groups = self._groups()

    @contextmanager
    def open(self) -> Iterator[pq.ParquetFile]:
        """Opens the file; names come as dictionaries. Raises `OSError`, `pa.ArrowException`."""
        with (  # from a path, Arrow would first find out the kind of its file system
            pa.OSFile(self.path) as source,
            pq.ParquetFile(source, metadata=self.metadata, read_dictionary=NAMES) as file,
        ):
            yield file

    def announce(self, groups: Sequence[FooterRowGroup], most: int) -> int:
        """Asks the system to read these row groups from the disk, up to about `most` bytes.

        Returns the bytes that were announced. Raises `OSError`.
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
                advise(file.fileno(), begin, size, "WILLNEED")
                announced += size
        return announced

    def may_hold(
        self, group: FooterRowGroup, request: QueryRequest, time_range: UlidRange | None
    ) -> bool:
        """Returns false only if no row of the group is of the pipeline and run, in the range."""
        if request.fqn is not None and not self._meets(group, "fqn", request.fqn, request.fqn):
            return False
        if request.run is not None and not self._meets(group, "run_id", request.run, request.run):
            return False
        if time_range is None:
            return True
        return self._meets(group, "ulid", ulid.encode(time_range.low), ulid.encode(time_range.high))

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
    """The footers of files that were requested lately. Thread-safe.

    `fetched` returns the footer of a file on S3.
    """

    def __init__(self, fetched: Callable[[str], pq.FileMetaData] | None = None) -> None:
        self._fetched = fetched
        self._kept: BoundedCache[str, tuple[tuple[int, int], TableFileFooter, int]] = BoundedCache(
            _MOST_BYTES, itemgetter(2), least=1
        )
        self._changing = Lock()
        self._reading: dict[str, Lock] = {}

    def has(self, path: str) -> bool:
        """Returns true if the footer was requested lately."""
        return path in self._kept

    def of(self, path: str) -> TableFileFooter:
        """Returns the footer of the file.

        Raises `Damaged`, `OSError`, and the errors of fetching it. Blocks.
        """
        identity = (0, 0)
        if not is_remote(path):
            found = os.stat(path)
            identity = (found.st_size, found.st_mtime_ns)
        with self._changing:
            if (kept := self._there(path, identity)) is not None:
                return kept
            turn = self._reading.setdefault(path, Lock())
        with turn:  # another thread may be about to cache it
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
        return None if kept is None or kept[0] != identity else kept[1]

    def _read(self, path: str, identity: tuple[int, int]) -> TableFileFooter:
        read = self._fetched if self._fetched is not None and is_remote(path) else footer_at
        metadata = read(path)
        footer, size = TableFileFooter(path, metadata), metadata.serialized_size
        with self._changing:
            self._kept.put(path, (identity, footer, size))
        return footer


@contextmanager
def as_damage() -> Iterator[None]:
    """Turns errors of files into `Damaged`."""
    try:
        yield
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise Damaged(f"what is stored cannot be read: {error}") from error


# --- Found lines --------------------------------------------------------------------------------
#
# Lines of table files that were found before DuckDB, as records with numbers for names.


NO_NAME: Final = 0xFFFF
_SOME_BYTES: Final = 4 * LINE.itemsize  # overhead of a line besides its message


@dataclass(frozen=True, slots=True)
class MatchedLines:
    """Lines of a row group: their row numbers, their other columns (`LINE`), their messages.

    A number without a name stands for no name.
    """

    names: dict[int, str]
    numbers: Sequence[int]
    records: NDArray[Any]
    messages: Sequence[bytes]

    @property
    def nbytes(self) -> int:
        """Returns about how much memory they take."""
        return sum(map(len, self.messages)) + _SOME_BYTES * len(self.numbers)


def batch_of(found: Sequence[MatchedLines]) -> pa.RecordBatch:
    """Returns all of these lines, without attributes."""
    names: dict[str | None, int] = {None: 0}
    records = np.concatenate([_renumbered(one, names) for one in found])
    texts = pa.array(list(names), pa.string())
    columns = {
        "ulid": _ulids(texts_of(records["hi"], records["lo"])),
        "ts": pa.array(records["ts"]).cast(RECORD_SCHEMA.field("ts").type),
        "pos": pa.array(records["pos"]),
        MESSAGE: _strings([text for one in found for text in one.messages]),
        ATTRIBUTES: pa.nulls(len(records), RECORD_SCHEMA.field(ATTRIBUTES).type),
        CARRIED: pa.array(records["carried"], mask=~records["carried"]),
    }
    columns |= {name: texts.take(pa.array(records[name])) for name in NAMES}
    return pa.RecordBatch.from_arrays(
        [columns[one.name] for one in RECORD_SCHEMA], schema=RECORD_SCHEMA
    )


def _renumbered(found: MatchedLines, names: dict[str | None, int]) -> NDArray[Any]:
    """Returns the records with numbers of `names`, to which their names are added."""
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


# --- Counts of reads ----------------------------------------------------------------------------


_MOST_COUNTED: Final = 10_000  # files


class ReadCounts:
    """Counts bytes read per file; caches use it to decide what to keep. Its owner locks it."""

    def __init__(self) -> None:
        self._read: BoundedCache[str, float] = BoundedCache(_MOST_COUNTED)

    def add(self, path: str, size: float) -> float:
        """Counts more bytes of a file; returns its total."""
        read = (self._read.peek(path) or 0.0) + size
        self._read.put(path, read)
        return read

    def reset(self, path: str, size: float = 0.0) -> None:
        """Restarts a file's count at `size`.

        Below 0, that many bytes are read without effect first.
        """
        self._read.put(path, size)
