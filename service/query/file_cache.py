"""Keeps files of the table on S3, and their skip indexes, unchanged on this machine's disk.

A search reads a cached file as if the store were a folder: without a request, and as fast after a
restart as before it. A file of the table is never written again under its name, so a complete
cached file is valid.

The cache fetches the newest hours first, each file as it comes into the table, until it is full. It
fetches an older file once searches have read as many bytes of it as it has. A file has a time: the
end of its hour, or its last use by a search. A file with an earlier time makes room for another. A
file that was used lately does not: files that displace each other in turn would be fetched for each
search. A node that was not searched for a day fetches nothing.

Fetching can wait: it has one thread of low priority, which waits before each request while searches
run, two seconds at most. A tenth of the disk stays free, or the cache shrinks. A file is removed
within a minute after it has left the newest version of the table, so deleted lines do not stay. The
cache is optional: on a read error the search uses the file on S3.

    NAME          a file: its path in the table, as a part of a URL; its time is its mtime
    NAME.skip…    its skip index, if it has one
    incoming-…    a file that is being fetched and is not complete
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from threading import Event, Lock
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from service.query.footers import ReadCounts
from service.query.page_checks import check_pages_of
from service.runtime.free_disk import spare_bytes
from service.runtime.process import low_priority_threads
from tailrace.logstore import keys
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import Damaged, NotFound, TailraceError
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.table.followed import TableVersion
from tailrace.logstore.table.skip_index import SHARE
from tailrace.logstore.table.snapshot import FileIndex, TableFile

if TYPE_CHECKING:
    from service.query.duckdb import Get

log = logging.getLogger(__name__)
_LOOK_SECONDS: Final = 60.0
_USED_LATELY_MS: Final = 600_000
_SEARCHED_SECONDS: Final = 86_400.0
_FETCHED_BYTES: Final = 8 << 20  # in a request, and in a write to the disk
_GIVES_WAY_SECONDS: Final = 2.0  # before each request: so under any load a file is fetched
_MOST_FILES: Final = 50_000
_TIMES_MS: Final = 3_600_000  # a file's time that moved by less is not written again
_INDEX_LOOKS: Final = 10  # tries for an index that was not made yet
_AGAIN_SECONDS: Final = 3600.0  # until a file that could not be cached is tried again
_INCOMING: Final = "incoming-"
_DISK: Final = Disk(private=True)


@dataclass(slots=True)
class _CachedFile:
    """A cached file. `time_ms` decides how long it is kept; `size` includes its index."""

    place: str
    file_size: int
    size: int
    time_ms: int
    indexed: bool
    looks: int = 0  # tries for its index
    used: bool = False  # since its time was last written
    written_ms: int = 0  # the time that was last written


class FileCache:
    """Caches files in `folder`. Made in its event loop.

    `get` reads the store, and `index_of` returns the address of a file's skip index by its path.
    `newest` returns the newest version of the table; both block, and may raise `StoreUnavailable`.
    `quiet` is set while no search runs. `check` raises `Damaged` for a fetched file that differs
    from the written one. All files have at most `most_bytes`; with 0 the cache is empty, and
    earlier files are removed.
    """

    def __init__(
        self,
        get: Get,
        index_of: Callable[[str], str],
        newest: Callable[[], TableVersion],
        clock: Clock,
        folder: str,
        quiet: Event,
        *,
        most_bytes: int,
        check: Callable[[str], None] = check_pages_of,
    ) -> None:
        self.fetched = self.failed = 0
        self.damaged: dict[str, str] = {}
        """How files are damaged in the store, by path, as they were fetched."""
        self.folder = folder
        self._get = get
        self._check = check
        self._index_of = index_of
        self._newest = newest
        self._clock = clock
        self._quiet = quiet
        self._most_bytes = most_bytes
        self._changing = Lock()
        self._kept: dict[str, _CachedFile] = {}  # by path
        self._read = ReadCounts()
        self._wanted: dict[str, TableFile] = {}
        self._skipped: dict[str, float] = {}  # files not to try until a time, in seconds
        self._searched = -_SEARCHED_SECONDS  # time of the last search, in seconds
        self._incoming = f"{folder}/{_INCOMING}{os.getpid()}-{id(self):x}"
        self._closing = Event()
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._thread = low_priority_threads(1, "cache")
        self._task: asyncio.Task[None] | None = None
        if most_bytes > 0:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self._find()
            self._task = asyncio.ensure_future(self._keep_up())
        else:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def used_bytes(self) -> int:
        """Returns the size of all cached files."""
        with self._changing:
            return sum(kept.size for kept in self._kept.values())

    def nearest(self, file: TableFile) -> TableFile:
        """Returns the file with the address from which to read it.

        May be called from any thread.
        """
        with self._changing:
            kept = self._kept.get(file.path)
            if kept is None or kept.file_size != file.size:
                return file
            kept.time_ms, kept.used = max(kept.time_ms, self._clock.now_ms()), True
            return replace(file, uri=kept.place)

    def has_index(self, file: TableFile) -> bool:
        """Returns true if the skip index of a file is cached. May be called from any thread."""
        kept = self._kept.get(file.path)
        return kept is not None and kept.indexed

    def index_place(self, path: str) -> str:
        """Returns the place of a file's skip index, if it is cached."""
        return self._place(path) + keys.INDEX_SUFFIX

    def note_read(self, file: TableFile, size: float) -> None:
        """Counts bytes that a search read of a file from S3. May be called from any thread."""
        if self._task is None:
            return
        with self._changing:
            if self._read.add(file.path, size) < file.size:
                return
            self._read.reset(file.path)
            self._wanted[file.path] = file
        self._loop.call_soon_threadsafe(self._woken.set)

    def note_search(self) -> None:
        """Notes the end of a search: for a day, files are fetched as they come into the table."""
        if not self._is_searched():
            self._woken.set()
        self._searched = self._clock.monotonic()

    def paths(self) -> list[str]:
        """Returns the paths of cached files. May be called from any thread."""
        with self._changing:
            return list(self._kept)

    def forget(self, path: str) -> None:
        """Removes the file with this path. May be called from any thread."""
        with self._changing:
            kept = self._kept.pop(path, None)
            self._skipped.pop(path, None)
            self.damaged.pop(path, None)
        if kept is not None:
            _remove(kept.place)
            _remove(kept.place + keys.INDEX_SUFFIX)

    def close(self) -> None:
        """Ends the work; the files stay. Waits for no server."""
        self._closing.set()
        self._quiet.set()
        if self._task is not None:
            self._task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _is_searched(self) -> bool:
        return self._clock.monotonic() - self._searched < _SEARCHED_SECONDS

    def _place(self, path: str) -> str:
        return f"{self.folder}/{_name(path)}"

    def _find(self) -> None:
        """Finds the files of an earlier process."""
        there = {entry.name: entry.stat() for entry in os.scandir(self.folder) if entry.is_file()}
        for name, stat in there.items():
            owner = name.removesuffix(keys.INDEX_SUFFIX)
            if name.startswith(_INCOMING) or owner not in there:
                _remove(f"{self.folder}/{name}")
            elif name == owner:
                index = there.get(name + keys.INDEX_SUFFIX)
                self._kept[unquote(name)] = _CachedFile(
                    place=f"{self.folder}/{name}",
                    file_size=stat.st_size,
                    size=stat.st_size + (index.st_size if index else 0),
                    time_ms=stat.st_mtime_ns // 1_000_000,
                    indexed=index is not None,
                    written_ms=stat.st_mtime_ns // 1_000_000,
                )

    async def _keep_up(self) -> None:
        """Updates the cache once a minute and on request."""
        while True:
            self._woken.clear()
            try:
                await self._look()
            except (TailraceError, OSError) as error:  # the next pass is in a minute
                self.failed += 1
                log.info("files of the table are not kept on this machine: %s", error)
            waits = [
                asyncio.ensure_future(self._clock.sleep(_LOOK_SECONDS)),
                asyncio.ensure_future(self._woken.wait()),
            ]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    async def _look(self) -> None:
        """Removes files that must go, and fetches files that should come."""
        if not self._kept and not self._is_searched():
            return
        # Not in the thread of low priority: searches wait for the reader of the table's log.
        version = await asyncio.to_thread(self._newest)
        await self._loop.run_in_executor(self._thread, self._follow, version.files)

    def _follow(self, files: FileIndex) -> None:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)  # somebody may have removed it
        there = set(os.listdir(self.folder))
        self._write_times()
        self._shrink()
        with self._changing:
            wanted, self._wanted = self._wanted, {}
            gone = {*self._kept, *self._skipped, *self.damaged, *wanted}.difference(files.paths())
            removed = {path for path in self._kept if _name(path) not in there}
        for path in gone | removed:
            self.forget(path)
        if not self._is_searched():
            return
        for path in wanted.keys() - gone:
            self._bring(wanted[path], self._clock.now_ms())
        for file in files.newest_first():
            if self._closing.is_set() or not self._bring(file, file.end_ms):
                return

    def _bring(self, file: TableFile, time_ms: int) -> bool:
        """Caches a file and its index, unless it is set aside; false if it does not fit."""
        kept, now = self._kept.get(file.path), self._clock.monotonic()
        if self._skipped.get(file.path, now) > now:
            return True
        if kept is not None and kept.file_size != file.size:  # cut off while the node was down
            self.forget(file.path)
            kept = None
        if kept is None and not self._make_room(file, time_ms):
            return False
        try:
            kept = kept or self._fetched(file, time_ms)
            if not kept.indexed and kept.looks < _INDEX_LOOKS:
                self._fetch_index(file, kept)
        except (NotFound, _Ended):  # it left the table meanwhile, or is not wanted any more
            pass
        except (Damaged, OSError):
            self._skipped[file.path] = now + _AGAIN_SECONDS
            raise
        return True

    def _fetched(self, file: TableFile, time_ms: int) -> _CachedFile:
        place = self._place(file.path)
        self._fetch(self._pieces(file), place)
        try:
            self._check(place)
        except Damaged as error:
            _remove(place)
            self.damaged[file.path] = str(error)
            raise
        self.damaged.pop(file.path, None)
        kept = _CachedFile(place, file.size, file.size, time_ms, indexed=False, used=True)
        with self._changing:
            self._kept[file.path] = kept
        self.fetched += 1
        self._write_times()
        return kept

    def _fetch_index(self, file: TableFile, kept: _CachedFile) -> None:
        """Fetches the skip index of a cached file, if it has one."""
        kept.looks += 1
        body = self._get(self._index_of(file.path), "")
        place = kept.place + keys.INDEX_SUFFIX
        self._fetch(iter([body]), place)
        with self._changing:
            kept.size, kept.indexed = kept.file_size + len(body), True
            if self._kept.get(file.path) is not kept:  # it was removed meanwhile
                _remove(place)

    def _pieces(self, file: TableFile) -> Iterator[bytes]:
        for offset in range(0, file.size, _FETCHED_BYTES):
            self._quiet.wait(_GIVES_WAY_SECONDS)
            size = min(_FETCHED_BYTES, file.size - offset)
            body = self._get(file.uri, f"bytes={offset}-{offset + size - 1}")
            if len(body) != size:
                raise Damaged(f"{file.uri} has {offset + len(body)} bytes of {file.size}")
            yield body

    def _fetch(self, pieces: Iterator[bytes], place: str) -> None:
        """Writes the pieces. A file under its name is complete, also after a power cut."""
        try:
            with closing(_DISK.open(self._incoming, "create")) as file:
                for piece in pieces:
                    if self._closing.is_set():
                        raise _Ended
                    file.write([piece])
                    file.sync()  # each time: a longer sync would delay the journal's
            _DISK.rename(self._incoming, place)
        finally:
            _remove(self._incoming)

    def _make_room(self, file: TableFile, time_ms: int) -> bool:
        """Returns true if the file fits. Removes files of an earlier time if that is enough."""
        size = round(file.size * (1 + SHARE))
        free = min(self._most_bytes - self.used_bytes, spare_bytes(self.folder))
        full = len(self._kept) >= _MOST_FILES
        if size <= free and not full:
            return True
        before = min(time_ms, self._clock.now_ms() - _USED_LATELY_MS)
        going = list[str]()
        for path, kept in self._oldest():
            if kept.time_ms >= before or (size <= free and not full):
                break
            going.append(path)
            free, full = free + kept.size, False
        if size > free or full:
            return False
        for path in going:
            self.forget(path)
        return True

    def _shrink(self) -> None:
        """Shrinks the cache by the space that the disk lacks."""
        short = -spare_bytes(self.folder)
        for path, kept in self._oldest() if short > 0 else ():
            self.forget(path)
            short -= kept.size
            if short <= 0:
                return

    def _oldest(self) -> Sequence[tuple[str, _CachedFile]]:
        """Returns all files, by their times."""
        with self._changing:
            kept = list(self._kept.items())
        return sorted(kept, key=lambda item: item[1].time_ms)

    def _write_times(self) -> None:
        """Writes the times of use for the next process."""
        with self._changing:
            used = [kept for kept in self._kept.values() if kept.used]
        for kept in used:
            kept.used = False
            if abs(kept.time_ms - kept.written_ms) < _TIMES_MS:
                continue  # after each written time the file is checked again
            kept.written_ms = kept.time_ms
            with suppress(FileNotFoundError):
                os.utime(kept.place, ns=(kept.time_ms * 1_000_000,) * 2)


def _name(path: str) -> str:
    return quote(path, safe="=")


class _Ended(Exception):
    """The cache was closed while a file was fetched."""


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.remove(path)
