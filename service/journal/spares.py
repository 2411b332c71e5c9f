"""Files whose space exists already, for the journal to write over.

An append changes the file's size and takes blocks, so its sync is a commit of the file
system's journal, and waits for whatever else is being written there. To overwrite needs
none of it. So a file that was let go is renamed instead of deleted, and the next journal
file is written over it; while none was let go, one is filled with zeros.

    {ULID}.spare               was the journal file of that name
    zeros-{ULID}.spare         was filled beside it
    zeros-{ULID}.spare.new     is being filled

Invariants:

- Nothing in a spare means anything, whatever it holds.
- A spare is at least as long as a full journal file, and at most twice as long.
- What is being filled has another name until nobody writes to it any more.
- Spares never keep a batch or a file out: they are dropped when the disk is scarce.

Files are given from any thread; the rest is used from the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from functools import partial

from logstore.clock import Clock
from logstore.filesystem import FileSystem
from service.journal import format as wal
from service.journal.file import discard
from service.offload import Offload

_PIECE = 1 << 20
# A full file of 64 MiB in about four seconds: a fraction of what any disk writes.
_PAUSE_SECONDS = 0.05
_ZEROS = bytes(_PIECE)


class Spares:
    """At most `most` files of at least `file_bytes`."""

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        clock: Clock,
        offload: Offload | None,
        *,
        file_bytes: int,
        min_free_bytes: int,
        most: int,
        found: Sequence[str],
    ) -> None:
        self._fs = fs
        self._folder = folder
        self._clock = clock
        self._offload = offload
        self._file_bytes = file_bytes
        self._min_free_bytes = min_free_bytes
        self._most = most
        self._lock = threading.Lock()
        self._paths: list[str] = []
        self._filling: asyncio.Task[None] | None = None
        self._tried_beside = ""
        self._closed = False
        for path in found:
            stat = fs.stat(path)
            self._keep(path, path, 0 if stat is None else stat.size)

    @property
    def lacking(self) -> bool:
        """Whether the next file would have to grow, and nothing is done about it."""
        if self._offload is None or self._paths or self._closed or self._most == 0:
            return False
        return self._filling is None or self._filling.done()

    def give(self, path: str, size: int) -> None:
        """Takes a journal file that nobody reads any more, or removes it.

        Not once the journal is closed: the next one to open the folder may hold the file.
        """
        if self._closed:
            return
        self._keep(path, path.removesuffix(wal.SUFFIX) + wal.SPARE_SUFFIX, size)

    def take(self) -> str | None:
        """The path of one, which is the caller's from now on."""
        with self._lock:
            return self._paths.pop() if self._paths else None

    def drop(self) -> None:
        """Removes all of them: their room is needed."""
        while (path := self.take()) is not None:
            discard(self._fs, path)

    async def close(self) -> None:
        """Leaves the folder as it is from now on."""
        self._closed = True
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait((self._filling,))

    def begin_to_fill(self, ulid: str) -> None:
        """Fills one with zeros beside the newest file, `ulid`: one try for each."""
        if self._offload is not None and self.lacking and ulid != self._tried_beside:
            self._tried_beside = ulid
            self._filling = asyncio.create_task(self._fill(ulid, self._offload), name="spare")

    async def _fill(self, ulid: str, offload: Offload) -> None:
        """Makes one of zeros, little by little; not on a disk that is scarce or fails."""
        path = f"{self._folder}/zeros-{ulid}{wal.SPARE_SUFFIX}"
        making = f"{self._folder}/zeros-{ulid}{wal.NEW_SPARE_SUFFIX}"
        # A file ends with the group that fills it, so a little more is used than its size.
        size = self._file_bytes + min(self._file_bytes // 8, _PIECE)
        try:
            for offset in range(0, size, _PIECE):
                self._check_room(size - offset)
                await offload(partial(self._zero, making, offset, min(_PIECE, size - offset)))
                await self._clock.sleep(_PAUSE_SECONDS)
            await offload(partial(self._keep, making, path, size))
        except OSError:
            # The journal does without; what fails on its own files it hears by itself.
            discard(self._fs, making)

    def _check_room(self, size: int) -> None:
        free = self._fs.free_bytes(self._folder)
        if free < self._min_free_bytes + size:
            raise OSError(f"{free} bytes are free")

    def _zero(self, path: str, offset: int, size: int) -> None:
        # Opened each time: the thread owns what it writes to, however the loop ends.
        out = self._fs.open(path, "update")
        try:
            out.write_at([memoryview(_ZEROS)[:size]], offset)
            out.sync()
        finally:
            out.close()

    def _keep(self, path: str, spare: str, size: int) -> None:
        fits = self._file_bytes <= size <= 2 * self._file_bytes
        with self._lock:
            if fits and len(self._paths) < self._most and self._renamed(path, spare):
                self._paths.append(spare)
                return
        discard(self._fs, path)

    def _renamed(self, path: str, spare: str) -> bool:
        if path == spare:
            return True
        try:
            self._fs.rename(path, spare)
        except OSError:
            return False
        return True
