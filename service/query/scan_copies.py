"""Copies of table files on the local disk, without compression, so that a search scans them faster.

A scan spends most of its time on decompression: the copy of a file is scanned in a third of the
time, and on S3 without a request. It has the same rows in the same row groups, so ranges of row
numbers and skip indexes hold for both. A few of its rows are read where they lie (`copy_rows`). It
takes six to seven times the space of its file; the kernel keeps in memory what searches use of it,
and gives that memory to others at any time.

A file is copied once searches have read as much of it as it has. So copying never costs more than
a small multiple of the reading that led to it, and one search over everything copies nothing.
Before each row group the copying waits while searches run, two seconds at most.
All copies together have a budget. One that was used lately does not make room for another, since
files that displace each other in turn would be copied for each search.

A copy is removed once no search has used it for an hour, and within a minute after its file has
left the newest version of the table: so deleted lines do not stay. A copy is optional. If one
cannot be made or read, searches read the file itself.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from logstore import keys
from logstore.clock import Clock
from logstore.errors import Damaged, TailraceError
from logstore.objects.store import ObjectStore, is_remote
from logstore.segments.schema import CARRIED
from logstore.table.snapshot import TableFile
from service.query.copy_rows import BYTES_A_ROW, CopyRows, write_rows
from service.query.footers import ATTRIBUTES, NAMES
from service.query.hot import SCHEMA
from service.query.page_checks import Identity, identity_of
from service.query.part_filter import filter_bytes
from service.query.read_counts import ReadCounts
from service.runtime.spare_disk import spare_bytes
from service.runtime.threads import low_priority_threads

log = logging.getLogger(__name__)
_USED_LATELY_SECONDS: Final = 600.0
_IDLE_SECONDS: Final = 3600.0
_LOOK_SECONDS: Final = 60.0
_AGAIN_AFTER: Final = 8  # times its size are to be read of a file that could not be copied
_FETCHED_BYTES: Final = 32 << 20  # in a request
_GIVES_WAY_SECONDS: Final = 2.0  # before each row group: so under any load a copy is made
ENCODING: Final[dict[str, Any]] = {  # the quickest to scan (decision 085)
    "compression": "none",
    "use_dictionary": NAMES,
    "column_encoding": {"message": "DELTA_LENGTH_BYTE_ARRAY"},
    "write_statistics": ["ulid", "ts", "fqn", "run_id", "pos", "level"],
    "store_schema": False,
    "data_page_size": 1 << 30,  # a page for each column of a row group
    "max_rows_per_page": 1 << 30,
    "write_page_checksum": True,
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ScanCopy:
    """A copy that is there. It is `bare` if it has no attributes, since no line of its file has.

    `size` is that of all of its files; `rows` reads some of its rows, if they lie as they are to.
    `written` are the identities of its files as they were written.
    """

    path: str
    size: int
    bare: bool
    rows: CopyRows | None
    written: Sequence[Identity]

    def is_intact(self) -> bool:
        """Whether nobody has changed its files since."""
        try:
            return self.written == _written(self.path, self.rows)
        except OSError:
            return False


class ScanCopies:
    """Makes copies in `folder` and gives them out. Made in its event loop.

    They have at most `most_bytes` in total, and a tenth of the disk stays free. `current` gives
    the paths of the table's newest files; it blocks, and may raise `StoreUnavailable`. `quiet` is
    set while no search runs.
    """

    def __init__(
        self,
        store: ObjectStore,
        current: Callable[[], Collection[str]],
        clock: Clock,
        folder: str,
        quiet: Event,
        *,
        most_bytes: int,
    ) -> None:
        self.made = self.failed = 0
        self.folder = folder
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._current = current
        self._clock = clock
        self._quiet = quiet
        self._most_bytes = most_bytes
        self._changing = Lock()
        self._copies: OrderedDict[str, ScanCopy] = OrderedDict()  # the one used last at the end
        self._used: dict[str, float] = {}
        self._read = ReadCounts()
        self._wanted: dict[str, TableFile] = {}
        self._number = 0
        self._thread = low_priority_threads(1, "copies")
        self._copying: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def bytes(self) -> int:
        """How large all copies are."""
        with self._changing:
            return sum(copy.size for copy in self._copies.values())

    def of(self, file: TableFile) -> ScanCopy | None:
        """The copy of a file, if there is one. May be called from any thread."""
        with self._changing:
            copy = self._copies.get(file.path)
            if copy is None:
                return None
            self._copies.move_to_end(file.path)
            self._used[file.path] = self._clock.monotonic()
        if copy.is_intact():
            return copy
        self.forget(file.path)
        return None

    def note_read(self, file: TableFile, size: float) -> None:
        """A search reads so many bytes of a file itself. May be called from any thread."""
        with self._changing:
            read = self._read.add(file.path, size)
        if read >= file.size and self._most_bytes > 0:
            self._loop.call_soon_threadsafe(self._want, file)

    def paths(self) -> list[str]:
        """The files that have a copy. May be called from any thread."""
        with self._changing:
            return list(self._copies)

    def forget(self, path: str) -> None:
        """Removes the copy of the file with this path. May be called from any thread."""
        with self._changing:
            copy = self._copies.pop(path, None)
            self._used.pop(path, None)
        if copy is not None:
            _remove(copy.path)
            _remove(_beside(copy.path))

    def close(self) -> None:
        """Ends the work and removes all copies. Waits for a row group that is being copied."""
        self._most_bytes = 0
        self._quiet.set()
        for task in (self._copying, self._watching):
            if task is not None:
                task.cancel()
        self._thread.shutdown(wait=True, cancel_futures=True)
        with self._changing:
            self._copies.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _want(self, file: TableFile) -> None:
        if self._most_bytes == 0:  # it was closed meanwhile
            return
        self._wanted[file.path] = file
        if self._copying is None or self._copying.done():
            self._copying = asyncio.ensure_future(self._copy_wanted())

    async def _copy_wanted(self) -> None:
        while self._wanted:
            path, file = self._wanted.popitem()
            if path in self._copies:
                continue
            made = await self._made(file)
            with self._changing:
                self._read.reset(path, 0.0 if made else -float(_AGAIN_AFTER * file.size))
            # Others may wait for long: from the first copy on, somebody looks whether its file is
            # still in the table.
            if self._copies and (self._watching is None or self._watching.done()):
                self._watching = asyncio.ensure_future(self._watch())

    async def _made(self, file: TableFile) -> bool:
        """Whether the file has a copy now. What hinders that is no error of any search."""
        self._number += 1
        target = f"{self.folder}/{self._number}.parquet"
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            copy = await self._copy(file, target) if self._make_room(file.size) else None
        except (TailraceError, OSError, pa.ArrowException) as error:
            self.failed += 1
            log.info("%s of the table gets no copy to scan: %s", file.path, error)
            return False
        if copy is None:
            return False
        with self._changing:
            self._copies[file.path] = copy
            self._used[file.path] = self._clock.monotonic()
        self.made += 1
        return True

    async def _copy(self, file: TableFile, target: str) -> ScanCopy | None:
        """The copy, None if there is no room for it."""
        if not is_remote(file.uri):
            return await self._in_thread(lambda: self._encode(file.uri, target, file.rows))
        fetched = f"{target}.fetched"
        try:
            for offset in range(0, file.size, _FETCHED_BYTES):
                size = min(_FETCHED_BYTES, file.size - offset)
                key = f"{keys.TABLE}/{file.path}"
                _, body = await self._store.get(key, offset=offset, size=size)
                await self._in_thread(lambda body=body: _append(fetched, body))  # type: ignore[misc]
            return await self._in_thread(lambda: self._encode(fetched, target, file.rows))
        finally:
            _remove(fetched)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._thread, work)

    def _encode(self, source: str, target: str, rows: int) -> ScanCopy | None:
        """Writes the copy, row group by row group as long as there is room for it. Blocks."""
        copy = None
        try:
            with pq.ParquetFile(source, page_checksum_verification=True) as file:
                if file.metadata.num_rows != rows:
                    raise Damaged(f"it has {file.metadata.num_rows} rows of {rows}")
                groups = range(file.num_row_groups)
                sizes = [file.metadata.row_group(group).total_byte_size for group in groups]
                size = sum(sizes) + sum(map(filter_bytes, sizes)) + rows * BYTES_A_ROW
                schema, bare = file.schema_arrow, all(_is_bare(file, group) for group in groups)
                if bare:
                    schema = schema.remove(schema.get_field_index(ATTRIBUTES))
                if CARRIED not in schema.names:  # so a copy has it in any case
                    schema = schema.append(SCHEMA.field(CARRIED))
                with pq.ParquetWriter(target, schema, **ENCODING) as writer:
                    for group in groups:
                        self._give_way()
                        if not self._make_room(size):
                            return None
                        read = file.read_row_group(group, columns=schema.names, use_threads=False)
                        if CARRIED not in read.column_names:
                            nulls = pa.nulls(read.num_rows, pa.bool_())
                            read = read.append_column(SCHEMA.field(CARRIED), nulls)
                        read = read.select(schema.names)
                        writer.write_table(read, row_group_size=max(read.num_rows, 1))
            beside = write_rows(target, _beside(target), self._give_way)
            if beside is None:
                _remove(_beside(target))
            size = os.path.getsize(target) + (os.path.getsize(beside.path) if beside else 0)
            copy = ScanCopy(target, size, bare, beside, _written(target, beside))
            return copy
        finally:
            if copy is None:
                _remove(target)
                _remove(_beside(target))

    def _give_way(self) -> None:
        """Leaves the processors to searches that run. Blocks."""
        self._quiet.wait(_GIVES_WAY_SECONDS)

    def _make_room(self, size: int) -> bool:
        """Whether `size` bytes fit. Removes copies for them that nobody has used lately."""
        before = self._clock.monotonic() - _USED_LATELY_SECONDS
        while self.bytes + size > self._most_bytes:
            with self._changing:
                old = [path for path in self._copies if self._used[path] < before][:1]
            if not old:
                return False
            self.forget(*old)
        return size <= spare_bytes(self.folder)

    async def _watch(self) -> None:
        """Removes copies that nobody uses, and those of files that the table has no more."""
        while self._copies:
            await self._clock.sleep(_LOOK_SECONDS)
            try:
                current = await asyncio.to_thread(self._current)
            except TailraceError as error:  # the next look is in a minute
                log.info("copies of table files are not compared with the table: %s", error)
                continue
            before = self._clock.monotonic() - _IDLE_SECONDS
            with self._changing:
                used = dict(self._used)
            for path, last in used.items():
                if path not in current or last < before:
                    self.forget(path)


def _is_bare(file: pq.ParquetFile, group: int) -> bool:
    """Whether no line of the row group has attributes."""
    read = file.read_row_group(group, columns=[ATTRIBUTES], use_threads=False)
    return bool(read.column(0).null_count == read.num_rows)


def _written(path: str, rows: CopyRows | None) -> list[Identity]:
    """The identities of a copy's files. Raises `OSError`."""
    return [identity_of(one) for one in (path, *([rows.path] if rows else []))]


def _beside(copy: str) -> str:
    return f"{copy}.rows"


def _append(path: str, body: bytes) -> None:
    with Path(path).open("ab") as file:
        file.write(body)


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.remove(path)
