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
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from logstore import ulid
from logstore.errors import Damaged
from logstore.objects.store import is_remote
from logstore.table.footers import footer_at
from service.query.request import QueryRequest
from service.query.tiles import Tile

MESSAGE: Final = "message"
ATTRIBUTES: Final = "attributes"
NAMES: Final = ["fqn", "run_id", "level", "connector_id"]
_MOST_BYTES: Final = 16 << 20  # of footers as they are stored; parsed they take some times more


@dataclass(frozen=True, slots=True)
class Group:
    """A row group: its number, its rows from `first` to before `end`, and its column of messages.

    That has so many bytes when decompressed.
    """

    number: int
    first: int
    end: int
    text_bytes: int


class Footer:
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

    def announce(self, groups: Sequence[Group], most: int) -> int:
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

    def may_hold(self, group: Group, request: QueryRequest, tile: Tile | None) -> bool:
        """False only if no row of the group is of the request's pipeline and run, in the tile."""
        if request.fqn is not None and not self._meets(group, "fqn", request.fqn, request.fqn):
            return False
        if request.run is not None and not self._meets(group, "run_id", request.run, request.run):
            return False
        if tile is None:
            return True
        return self._meets(group, "ulid", ulid.encode(tile.low), ulid.encode(tile.high))

    def _meets(self, group: Group, column: str, low: str, high: str) -> bool:
        chunk = self.metadata.row_group(group.number).column(self.columns[column])
        bounds = chunk.statistics
        if bounds is None or not bounds.has_min_max:
            return True
        # Parquet orders strings by their UTF-8 bytes, and so does Python by code point.
        return bool(bounds.min <= high and bounds.max >= low)

    def _groups(self) -> list[Group]:
        groups, first = [], 0
        for number in range(self.metadata.num_row_groups):
            group = self.metadata.row_group(number)
            chunk, end = group.column(self.columns[MESSAGE]), first + group.num_rows
            groups.append(Group(number, first, end, chunk.total_uncompressed_size))
            first = end
        return groups


class Footers:
    """Those of files that were asked for lately. For several threads.

    `fetched` gives what the footer of a file on S3 says.
    """

    def __init__(self, fetched: Callable[[str], pq.FileMetaData] | None = None) -> None:
        self._fetched = fetched
        self._kept: OrderedDict[str, tuple[tuple[int, int], Footer, int]] = OrderedDict()
        self._bytes = 0
        self._changing = Lock()
        self._reading: dict[str, Lock] = {}

    def has(self, path: str) -> bool:
        """Whether it was asked for lately."""
        return path in self._kept

    def of(self, path: str) -> Footer:
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

    def _there(self, path: str, identity: tuple[int, int]) -> Footer | None:
        kept = self._kept.get(path)
        if kept is None or kept[0] != identity:
            return None
        self._kept.move_to_end(path)
        return kept[1]

    def _read(self, path: str, identity: tuple[int, int]) -> Footer:
        read = self._fetched if self._fetched is not None and is_remote(path) else footer_at
        metadata = read(path)
        footer, size = Footer(path, metadata), metadata.serialized_size
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
