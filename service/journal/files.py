"""Makes journal files, releases old ones, and checks the free space of their disk.

**Spares.** An append changes the file's size and allocates blocks, so its sync is a commit of the
file system's journal and waits for everything else that is written to that file system. Overwriting
avoids that. A released file is therefore renamed instead of deleted, and the next journal file
overwrites it. While no released file is available, a file is filled with zeros.

    {ULID}.spare               was the journal file of that name
    zeros-{ULID}.spare         was filled while that journal file was the newest
    zeros-{ULID}.spare.new     is being filled

Invariants:

- The content of a spare has no meaning.
- A spare is at least as long as a full journal file, and at most twice as long.
- After a deletion no older file becomes a spare, and spares that were journal files are removed.
- A file has the name `….new` while it is being filled, until the last write to it has ended.
- Spares never cause the refusal of a batch or a file: they are dropped when the disk is nearly
  full.

`Spares.give` may be called from any thread, everything else from the loop only.

**New files.** `FileMaker` makes a journal file in this order: header and state, sync, rename.
Invariants:

- It overwrites a spare if there is one; the spare is gone in any case.
- The file has another name until it is whole, so a failure leaves nothing that a later start could
  mistake for a journal file.
- After the rename nothing is opened any more: a rename that may or may not survive a power cut
  could not be undone. The folder is therefore held open from the start.

**Free space.** `DiskSpace` checks the free space of the disk before the journal accepts a batch.
While less than `JournalSettings.min_free_bytes` is free, the journal accepts no batch. This keeps
space for the cuts, without which nothing could be shipped and released. Spares are dropped first.
Asking the disk costs a system call, so batches ask once per MiB, and each batch asks while the disk
is nearly full.

**Forks.** A fork opens the folder of a journal again in the same process. Readers of the earlier
journal then still hold files that the later journal has as its own. `Succession` keeps the later
journal from giving them away to be overwritten while they are read.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial

from service.journal import format as wal
from service.journal.file import JournalFile, ReadHandles, discard
from service.journal.format import FULL, translated
from service.journal.state import JournalState
from service.runtime.process import Offload
from tailrace.logstore import ulid as ulids
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import JournalFailed, JournalFull, NodeNotReady
from tailrace.logstore.filesystem import File, FileSystem, OpenFolder

_PIECE = 1 << 20
# Fills a file of 64 MiB in about four seconds: a fraction of the write rate of any disk.
_PAUSE_SECONDS = 0.05
_ZEROS = bytes(_PIECE)
_ZEROS_PREFIX = "zeros-"


class Spares:
    """Holds at most `most` spares of at least `file_bytes`."""

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
        """Whether no spare is available for the next file and none is being filled."""
        if self._offload is None or self._paths or self._closed or self._most == 0:
            return False
        return self._filling is None or self._filling.done()

    def give(self, path: str, size: int) -> None:
        """Makes a spare of a journal file that has no reader, or removes the file.

        Does nothing once the journal is closed: the folder's next journal may hold the file.
        """
        if self._closed:
            return
        self._keep(path, path.removesuffix(wal.SUFFIX) + wal.SPARE_SUFFIX, size)

    def take(self) -> str | None:
        """Returns the path of a spare, which then belongs to the caller."""
        with self._lock:
            return self._paths.pop() if self._paths else None

    def drop(self) -> None:
        """Removes all spares: their space is needed."""
        while (path := self.take()) is not None:
            discard(self._fs, path)

    def drop_used(self) -> None:
        """Removes the spares that were journal files: they may hold deleted lines."""
        with self._lock:
            used = [path for path in self._paths if not _is_zeros(path)]
            self._paths = [path for path in self._paths if _is_zeros(path)]
        for path in used:
            discard(self._fs, path)

    async def close(self) -> None:
        """Stops all changes of the folder."""
        self._closed = True
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait((self._filling,))

    def begin_to_fill(self, ulid: str) -> None:
        """Starts to fill a spare with zeros; one try while file `ulid` is the newest."""
        if self._offload is not None and self.lacking and ulid != self._tried_beside:
            self._tried_beside = ulid
            self._filling = asyncio.create_task(self._fill(ulid, self._offload), name="spare")

    async def _fill(self, ulid: str, offload: Offload) -> None:
        """Writes a spare of zeros in small steps; gives up if the disk is scarce or fails."""
        path = f"{self._folder}/{_ZEROS_PREFIX}{ulid}{wal.SPARE_SUFFIX}"
        making = f"{self._folder}/{_ZEROS_PREFIX}{ulid}{wal.NEW_SPARE_SUFFIX}"
        # A file ends with the group that fills it, so it grows a little beyond its size.
        size = self._file_bytes + min(self._file_bytes // 8, _PIECE)
        try:
            for offset in range(0, size, _PIECE):
                self._check_room(size - offset)
                await offload(partial(self._zero, making, offset, min(_PIECE, size - offset)))
                await self._clock.sleep(_PAUSE_SECONDS)
            await offload(partial(self._keep, making, path, size))
        except OSError:
            # The journal works without a spare, and notices errors of its own files itself.
            discard(self._fs, making)

    def _check_room(self, size: int) -> None:
        free = self._fs.free_bytes(self._folder)
        if free < self._min_free_bytes + size:
            raise OSError(f"{free} bytes are free")

    def _zero(self, path: str, offset: int, size: int) -> None:
        # Opened each time: the thread owns the file that it writes, however the loop ends.
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


def _is_zeros(path: str) -> bool:
    return path.rsplit("/", 1)[-1].startswith(_ZEROS_PREFIX)


_FILE_CHAIN = 1000


class FileMaker:
    """Makes journal files in one existing folder. Raises `JournalFailed`, `NodeNotReady`."""

    def __init__(
        self,
        fs: FileSystem,
        folder: str,
        clock: Clock,
        entropy: Entropy,
        spares: Spares,
        handles: ReadHandles,
    ) -> None:
        self._fs = fs
        self._folder = folder
        self._clock = clock
        self._entropy = entropy
        self._spares = spares
        self._handles = handles
        with translated(f"the journal's folder {folder} could not be opened"):
            self._held: OpenFolder = fs.open_folder(folder)

    def make(
        self, state: JournalState, pos: int, older: Sequence[JournalFile]
    ) -> tuple[JournalFile, File]:
        """Makes the file after `older`, and adds it to `state.files`; `pos` is its first position.

        Raises `JournalFull` or `NodeNotReady`, which leave everything as it was, or
        `JournalFailed`.
        """
        ulid = ulids.encode(self._next_ulid([*state.files[-1:], *[f.ulid for f in older[-1:]]]))
        files = [*state.files, ulid][-_FILE_CHAIN:]
        secret = self._entropy.getrandbits(64).to_bytes(8, "big")
        header = wal.FileHeader(ulid, secret, pos, state.node, size=0)
        value = state.encoded(pos=pos, secret=secret) | {"files": files, wal.WRITE_MARKS: True}
        entry = wal.sealed(wal.encode_json(wal.STATE, value), wal.NO_SECRET)
        with translated("a new journal file could not be begun"):
            file, out = self._make(header, entry)
        with translated(f"the journal's folder {self._folder} could not be synced"):
            self._held.sync()
        self._name_newest(ulid)
        state.files = files
        return file, out

    def close(self) -> None:
        """Closes the folder."""
        self._held.close()

    def _name_newest(self, ulid: str) -> None:
        """Writes the name of the newest file, so that a reader notices if that file is gone.

        The name is not synced, and a refusal of the disk is ignored: an older name claims less.
        """
        path = f"{self._folder}/{wal.NEWEST}"
        making = f"{path}.new"
        try:
            discard(self._fs, making)
            out = self._fs.open(making, "create")
            try:
                out.write([wal.encode_newest(ulid)])
            finally:
                out.close()
            self._fs.rename(making, path)
        except OSError:
            discard(self._fs, making)

    def _next_ulid(self, known: Sequence[str]) -> int:
        """Returns a ULID above those of all older files, so that names sort as the files do."""
        fresh = ulids.fresh(self._clock, self._entropy)
        return max([fresh, *[ulids.decode(ulid) + 1 for ulid in known]])

    def _make(self, header: wal.FileHeader, entry: bytes) -> tuple[JournalFile, File]:
        path = f"{self._folder}/{header.file}{wal.SUFFIX}"
        making = f"{self._folder}/{header.file}{wal.MAKING_SUFFIX}"
        spare = self._spares.take()
        out: File | None = None
        try:
            if spare is not None:
                self._take_over(spare, making)
            out = self._fs.open(making, "update")
            size, space = _begin(out, header, entry)
            out.sync()
            self._fs.rename(making, path)
        except OSError as error:
            if out is not None:
                out.close()
            for left in (making, spare):
                if left is not None:
                    discard(self._fs, left)
            if error.errno in FULL:
                self._spares.drop()
            raise
        made = JournalFile(
            self._fs, path, header=header, size=size, space=space, handles=self._handles
        )
        return made, out

    def _take_over(self, spare: str, making: str) -> None:
        """Renames a spare, and syncs the rename before the first byte changes.

        After a power cut the earlier name must not come back with the bytes of the new file.
        """
        self._fs.rename(spare, making)
        self._held.sync()


def _begin(out: File, header: wal.FileHeader, state: bytes) -> tuple[int, int]:
    """Writes header and state. Returns the offset where they end, and the size of the file."""
    head = wal.encode_header(
        file=header.file, secret=header.secret, first_pos=header.first_pos, node=header.node
    )
    size, space = len(head) + len(state), out.size()
    out.write_at([head, state, wal.END] if size < space else [head, state], 0)
    return size, max(size, space)


_CHECK_BYTES = 1 << 20


class DiskSpace:
    """The free space of one folder's disk."""

    def __init__(self, fs: FileSystem, folder: str, spares: Spares, *, min_free_bytes: int) -> None:
        self._fs = fs
        self._folder = folder
        self._spares = spares
        self._min_free_bytes = min_free_bytes
        self._unchecked_bytes = 0
        self._scarce = False

    def take(self, size: int) -> None:
        """Checks the space for a batch of `size` bytes. Raises `JournalFull` or `JournalFailed`."""
        self._unchecked_bytes += size
        if self._scarce or self._unchecked_bytes >= _CHECK_BYTES:
            self._unchecked_bytes = 0
            shortage = self._shortage(size)
            self._scarce = shortage is not None
            if shortage is not None:
                raise JournalFull(shortage)

    def left_bytes(self) -> int:
        """Returns the free bytes beyond `min_free_bytes`; negative if less than that is free.

        Does not count the space of spares, which batches overwrite. Raises `JournalFailed`.
        """
        try:
            return self._fs.free_bytes(self._folder) - self._min_free_bytes
        except OSError as error:
            raise JournalFailed(f"the disk of the journal does not answer: {error}") from error

    def shortage(self) -> str | None:
        """Says in a sentence why even the smallest batch is refused; None if it is not.

        Asks the disk now; the answer holds for the next batch too.
        """
        try:
            found = self._shortage(0)
        except JournalFailed as error:
            return str(error)
        self._scarce = self._scarce or found is not None
        return found

    def _shortage(self, size: int) -> str | None:
        if self.left_bytes() >= size:
            return None
        self._spares.drop()
        if self.left_bytes() >= size:
            return None
        # The same words each time, since a problem is identified by its text.
        return (
            f"the disk of the journal is full: only the {self._min_free_bytes} bytes that are"
            f" kept free are left"
        )


class Succession:
    """Files of one journal that readers may hold when it ends, and whether it has ended."""

    def __init__(self) -> None:
        self._leaving: list[JournalFile] = []
        self._over = False

    def let_go(self, file: JournalFile, give: Callable[[str, int], None]) -> None:
        """Releases a file, and remembers it as long as it has readers."""
        self._leaving = [other for other in [*self._leaving, file] if other.pins]
        file.release(give)

    @property
    def is_read(self) -> bool:
        """Whether a released file still has readers, so that it still exists."""
        return any(file.pins for file in self._leaving)

    def hand_over(self, earlier: Sequence[JournalFile], later: Sequence[JournalFile]) -> None:
        """Ends this journal: its folder, with its files `earlier`, was opened again."""
        held = {file.path: file for file in [*self._leaving, *earlier]}
        for file in later:
            file.after = held.get(file.path)
        self._over = True

    def check(self) -> None:
        """Refuses to begin reading a journal that has ended. Raises `NodeNotReady`."""
        if self._over:
            raise NodeNotReady(
                "the node goes on under another name since this was begun",
                hint="Ask again from the beginning.",
            )
