"""Footers of Parquet files on this machine, parsed once, and row groups of them.

A file of the table never changes, nor does a copy of one; that a path has another file is seen
by its size and time.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from logstore import ulid
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
        self._metadata = metadata
        self.columns = {metadata.schema.column(n).path: n for n in range(metadata.num_columns)}
        self.groups = self._groups()

    @contextmanager
    def open(self) -> Iterator[pq.ParquetFile]:
        """The file; names come as dictionaries. Raises `OSError`, `pa.ArrowException`."""
        with (  # of a path it would first be found out what kind of file system it is on
            pa.OSFile(self.path) as source,
            pq.ParquetFile(source, metadata=self._metadata, read_dictionary=NAMES) as file,
        ):
            yield file

    def announce(self, groups: Sequence[Group], most: int) -> int:
        """Has the system read these row groups from the disk meanwhile, up to about `most` bytes.

        The bytes that were announced. Raises `OSError`.
        """
        announced = 0
        with open(self.path, "rb", buffering=0) as file:
            for group in groups:
                columns = self._metadata.row_group(group.number)
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
        chunk = self._metadata.row_group(group.number).column(self.columns[column])
        bounds = chunk.statistics
        if bounds is None or not bounds.has_min_max:
            return True
        # Parquet orders strings by their UTF-8 bytes, and so does Python by code point.
        return bool(bounds.min <= high and bounds.max >= low)

    def _groups(self) -> list[Group]:
        groups, first = [], 0
        for number in range(self._metadata.num_row_groups):
            group = self._metadata.row_group(number)
            chunk, end = group.column(self.columns[MESSAGE]), first + group.num_rows
            groups.append(Group(number, first, end, chunk.total_uncompressed_size))
            first = end
        return groups


class Footers:
    """Those of files that were asked for lately. For several threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[tuple[int, int], Footer, int]] = OrderedDict()
        self._bytes = 0
        self._changing = Lock()

    def has(self, path: str) -> bool:
        """Whether it was asked for lately."""
        return path in self._kept

    def of(self, path: str) -> Footer:
        """The footer of the file. Raises `OSError`, `pa.ArrowException`."""
        found = os.stat(path)
        identity = (found.st_size, found.st_mtime_ns)
        with self._changing:
            kept = self._kept.get(path)
            if kept is not None and kept[0] == identity:
                self._kept.move_to_end(path)
                return kept[1]
        metadata = pq.read_metadata(path)
        footer = Footer(path, metadata)
        self._keep(path, identity, footer, metadata.serialized_size)
        return footer

    def _keep(self, path: str, identity: tuple[int, int], footer: Footer, size: int) -> None:
        with self._changing:
            _, _, before = self._kept.pop(path, (None, None, 0))
            self._kept[path] = identity, footer, size
            self._bytes += size - before
            while self._bytes > _MOST_BYTES and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1][2]
