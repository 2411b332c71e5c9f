"""The checkpoint log of a forwarder: what is known of each file, on disk before anything is sent.

    put(), forget()  ─►  memory  ─►  sync(): one frame, one fdatasync  ─►  the file of the log

The file with the highest number is the log (`forwarder.checkpoints.folder`). Each start, and each
time when the log is over four times what it began with and over 8 MiB, writes a new one of
what is known: written, synced, renamed, folder synced, and then the older ones are removed.

Invariants:
- When `sync` has returned, a power cut loses nothing that was put before it.
- Only a file in which every write and sync succeeded is appended to. After an error, whose effect
  nobody knows, the next `sync` writes a new file from memory: memory has everything.
- A file of the log has its name only when it is whole.
- A file that somebody removed or replaced is noticed by the next `sync`, which writes a new one.

For one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from forwarder.checkpoints.encoding import encode, encode_forget
from forwarder.checkpoints.folder import (
    DAMAGED,
    DRAFT,
    LOG,
    RESET,
    TORN,
    Folder,
    errors_as_ours,
)
from forwarder.checkpoints.generation import MAGIC, first_line, frame
from forwarder.model import FileState
from logstore.clock import Clock, SystemClock
from logstore.disk import Disk
from logstore.filesystem import File, FileSystem

COMPACT_FROM_BYTES = 8 << 20
_TIMES_LIVE = 4
_PAYLOAD_BYTES = 256 << 10


class Checkpoints:
    """The states of all files; one process at a time has a folder.

    Raises `StorageInUse` if another process has it, `StorageDamaged` for a log that is not as it
    was synced (with `salvage`, what is readable of it is kept, and the file as well), and
    `StorageFailed` where the disk refuses. `say` takes a sentence that a person should know.
    `on_sync` takes the seconds that each write with its sync took.
    """

    def __init__(
        self,
        folder: str,
        fs: FileSystem | None = None,
        *,
        say: Callable[[str], None],
        clock: Clock | None = None,
        on_sync: Callable[[float], None] = lambda _: None,
        compact_from_bytes: int = COMPACT_FROM_BYTES,
        salvage: bool = False,
    ) -> None:
        self._folder = Folder(folder, fs or Disk(private=True))
        self._say = say
        self._clock = clock or SystemClock()
        self._on_sync = on_sync
        self._compact_from = compact_from_bytes
        self._files: dict[str, FileState] = {}
        self._pending: dict[str, None] = {}  # ids, in the order in which they were put first
        self._fingerprints: dict[str, bytes] = {}  # those that the file of the log has
        self._file: File | None = None
        self._number = 0
        self._size = 0
        self._compact_at = 0
        with errors_as_ours(self.path):
            used = self._folder.used()
            self._lock = self._folder.lock()
            try:
                self._begin(salvage, used)
                self._folder.mark_used()
            except BaseException:
                self._lock.release()
                raise

    @property
    def path(self) -> str:
        """The folder, absolute."""
        return self._folder.path

    @property
    def files(self) -> Mapping[str, FileState]:
        """The last state that was put for each id. Not to be changed."""
        return self._files

    def put(self, state: FileState) -> None:
        """Takes the state of a file in the place of an earlier one; `sync` makes it safe."""
        self._files[state.id] = state
        self._pending[state.id] = None

    def forget(self, id: str) -> None:  # noqa: A002 -- the field's own name
        """Drops what is known of a file. Nothing happens for an unknown id."""
        if self._files.pop(id, None) is not None:
            self._pending[id] = None

    def sync(self) -> None:
        """When it returns, all that was put survives a power cut.

        Raises `StorageFailed`; what was put is kept, and may be synced by a later call. Raises
        `StorageInUse` if the folder was removed and another forwarder has begun one in its place.
        """
        with errors_as_ours(self.path):
            lost = self._file is not None and self._is_lost(self._file)
        if not (self._pending or lost):
            return
        began = self._clock.monotonic()
        with errors_as_ours(self.path):
            if lost:
                self._begin_again()
            elif self._file is None:
                self._write_new()
            else:
                self._append(self._file)
        self._on_sync(self._clock.monotonic() - began)
        if self._size > self._compact_at:
            self._compact()

    def close(self) -> None:
        """Syncs and lets others use the folder. Raises `StorageFailed` if it cannot be synced."""
        try:
            self.sync()
        finally:
            self._close_file()
            self._lock.release()

    def reset(self) -> str:
        """Forgets all files, and keeps the log aside: the path that it has now."""
        for file_id in list(self._files):
            self.forget(file_id)
        kept = self._folder.file(self._number, RESET)
        with errors_as_ours(self.path):
            self._write_new(keep_as=RESET)
        return kept

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _begin(self, salvage: bool, used: bool) -> None:
        """`used`: whether an earlier process had the folder."""
        folder = self._folder
        numbers = folder.numbers(LOG)
        self._number = max([0, *numbers, *folder.numbers(DRAFT)])
        if numbers:
            found, torn = folder.read(numbers[-1], salvage=salvage)
            self._files = found.files
            if torn:
                kept = folder.keep(numbers[-1], TORN, torn)
                self._say(
                    f"the last {len(torn)} bytes of {found.path} were not written completely:"
                    f" they are kept in {kept}. If a crash broke off the write, nothing is missing;"
                    " if somebody cut the file, lines may be sent twice"
                )
            if found.damage:
                self._write_new(keep_as=DAMAGED)
                kept = folder.file(numbers[-1], DAMAGED)
                self._say(f"{found.path} {found.damage}: it is kept as {kept}")
                return
        elif used:
            self._say(
                f"ALARM: {self.path} was in use before, and its checkpoints are gone: files are"
                " read as if nothing had been sent, so their lines may be there twice"
            )
        self._write_new()

    def _is_lost(self, file: File) -> bool:
        """Whether the file of the log is not in its place any more."""
        found = self._folder.fs.stat(self._folder.file(self._number, LOG))
        return found is None or found.inode != file.stat().inode

    def _begin_again(self) -> None:
        """Writes what memory has in the place of a folder, or a file, that was taken away."""
        if not self._folder.has_lock():
            lock = self._folder.lock()
            self._lock.release()
            self._lock = lock
        self._write_new()
        self._folder.mark_used()
        self._say(
            f"ALARM: somebody removed or replaced the checkpoints in {self.path} while this"
            " forwarder runs: they are written again, and nothing is lost"
        )

    def _append(self, file: File) -> None:
        changed = list(self._pending)
        payload = b"".join([self._line(file_id) for file_id in changed])
        head = frame(payload)
        try:
            file.write([head, payload])
            file.sync()
        except OSError:
            self._close_file()
            raise
        self._size += len(head) + len(payload)
        self._pending.clear()
        for file_id in changed:
            self._remember(file_id)

    def _line(self, file_id: str) -> bytes:
        state = self._files.get(file_id)
        if state is None:
            return encode_forget(file_id)
        known = self._fingerprints.get(file_id) == state.fingerprint
        return encode(state, with_fingerprint=not known)

    def _remember(self, file_id: str) -> None:
        state = self._files.get(file_id)
        if state is None:
            self._fingerprints.pop(file_id, None)
        else:
            self._fingerprints[file_id] = state.fingerprint

    def _compact(self) -> None:
        """Writes a new file, if the disk takes it; all of this is on the disk in either case."""
        try:
            self._write_new()
        except OSError as error:
            self._compact_at = self._size + self._compact_from
            self._say(f"checkpoints in {self.path} cannot be compacted: {error.strerror or error}")

    def _write_new(self, *, keep_as: str = "") -> None:
        """Puts a new file of what is known in the place of the old ones, or beside them."""
        folder = self._folder
        self._remove(DRAFT)
        number = self._number + 1
        draft = folder.file(number, DRAFT)
        file = folder.fs.open(draft, "create")
        try:
            size = self._write_all(file)
        except BaseException:
            file.close()
            with suppress(OSError):  # the next attempt removes it
                folder.fs.unlink(draft)
            raise
        # From here on the old file may be behind this one: it is not appended to any more.
        self._close_file()
        self._number = number
        try:
            folder.fs.rename(draft, folder.file(number, LOG))
            folder.fs.sync_folder(folder.path)
        except BaseException:
            file.close()
            raise
        self._file, self._size = file, size
        self._compact_at = max(self._compact_from, size * _TIMES_LIVE)
        self._pending.clear()
        self._fingerprints = {state.id: state.fingerprint for state in self._files.values()}
        if keep_as:
            for older in folder.numbers(LOG)[:-1]:
                folder.fs.rename(folder.file(older, LOG), folder.file(older, keep_as))
        self._remove(LOG, below=number)

    def _write_all(self, file: File) -> int:
        size = file.write([MAGIC])
        for payload in _payloads(self._files):
            size += file.write([frame(payload), payload])
        file.sync()
        return size

    def _remove(self, ending: str, *, below: int | None = None) -> None:
        for number in self._folder.numbers(ending):
            if below is None or number < below:
                self._folder.fs.unlink(self._folder.file(number, ending))

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _payloads(files: Mapping[str, FileState]) -> Iterator[bytes]:
    """The states as payloads of frames, of which none is large."""
    lines, size = [first_line(len(files))], 0
    for state in files.values():
        lines.append(encode(state, with_fingerprint=True))
        size += len(lines[-1])
        if size >= _PAYLOAD_BYTES:
            yield b"".join(lines)
            lines, size = [], 0
    if lines:
        yield b"".join(lines)
