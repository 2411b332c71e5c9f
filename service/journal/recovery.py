"""Opens a journal folder after any kind of end: stop, kill -9, power cut, damaged disk.

Recovery reads every file once. It cuts unused space and a torn tail off the newest one, and
writes a filler over a torn range that whole entries follow. It copies damage to `aside/` and
reports it, and moves a file that cannot be read there whole.
The journal continues from the result; `Journal` begins a new file. Recovery may be interrupted
anywhere and started again.

Invariants:

- All entries of the newest file are synced before anybody sees them: kill -9 leaves bytes in
  the page cache that no sync has covered.
- Positions of lost lines are not given out again: a range of n bytes holds at most n lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from logstore.descriptors import NO_DESCRIPTOR
from logstore.filesystem import File, FileSystem
from service.journal import format as wal
from service.journal import index as indexes
from service.journal.failures import translated
from service.journal.file import JournalFile, ReadHandles, discard
from service.journal.reading import QUARANTINE, Found, JournalReading, header_of, missing_newest
from service.journal.state import JournalState

# Of a torn tail no more is copied: behind it may be all the space of a full file.
_TORN_BYTES = 8 << 20


@dataclass(slots=True)
class Recovered:
    """A journal as it was found. `state` is None for a folder without one.

    `found` is damage: bytes that had been synced are lost. `torn` are tails that, as far as is
    known, no sync had covered when the process or the power went. `spares` are paths of files
    to be overwritten; `handles` are the handles for reading `files`.
    """

    files: list[JournalFile] = field(default_factory=list)
    spares: list[str] = field(default_factory=list)
    state: JournalState | None = None
    next_pos: int = 0
    found: list[Found] = field(default_factory=list)
    torn: list[Found] = field(default_factory=list)
    handles: ReadHandles | None = None

    def problems(self) -> Iterator[str]:
        """What was damaged when the journal was opened, as sentences."""
        for damage in self.found:
            yield damage.sentence()

    def keep(self, earlier: Recovered) -> None:
        """Adds what an earlier recovery of this process found, which has changed the folder."""
        known = {(found.file, found.offset) for found in self.found}
        again = [found for found in earlier.found if (found.file, found.offset) not in known]
        self.found[:0] = again

    @property
    def lost_lines(self) -> int:
        """Lines that the damage took, at most, and that are in no segment."""
        return sum(found.lines for found in self.found)


def recover(fs: FileSystem, folder: str) -> Recovered:
    """Reads all files of `folder`, oldest first.

    Raises `UnsupportedVersion` for a file of a newer format, `JournalFull` or
    `JournalFailed` if the disk is full or fails, `NodeNotReady` if descriptors run out.
    """
    with translated(f"the journal in {folder} could not be read"):
        return _Recovery(fs, folder).run()


class _Recovery:
    def __init__(self, fs: FileSystem, folder: str) -> None:
        self._fs = fs
        self._folder = folder
        self._handles = ReadHandles(fs)
        self._result = Recovered(handles=self._handles)
        self._reading = JournalReading()

    def run(self) -> Recovered:
        self._fs.make_folders(self._folder)
        present = [name for name, is_folder in self._fs.scan(self._folder) if not is_folder]
        names = sorted(name for name in present if name.endswith(wal.SUFFIX))
        self._remove_leftovers(present)
        self._find_spares(present, names)
        for name in names:
            self._file(name, newest=name == names[-1])
        result = self._result
        end_pos = max([file.end_pos for file in result.files], default=0)
        result.next_pos = end_pos + self._lost_behind()
        result.state = self._reading.replay.state
        missing = missing_newest(self._fs, self._folder, names)
        if missing is not None:
            self._reading.found.append(missing)
        self._reading.settle()
        result.found, result.torn = self._reading.found, self._reading.torn
        return result

    def _lost_behind(self) -> int:
        """Bytes of whole files in quarantine that are newer than all readable files.

        This start or an interrupted one moved them there. No file says where their positions end.
        """
        quarantine = f"{self._folder}/{QUARANTINE}"
        if (QUARANTINE, True) not in list(self._fs.scan(self._folder)):
            return 0
        newest = max([file.ulid for file in self._result.files], default="")
        names = [name for name, _ in self._fs.scan(quarantine) if name.endswith(wal.SUFFIX)]
        stats = [
            self._fs.stat(f"{quarantine}/{name}") for name in names if name > newest + wal.SUFFIX
        ]
        return sum([stat.size for stat in stats if stat is not None])

    def _remove_leftovers(self, present: list[str]) -> None:
        """Removes files whose creation was interrupted, and indexes, which are written again."""
        for name in present:
            if name.endswith((wal.MAKING_SUFFIX, wal.NEW_SPARE_SUFFIX, indexes.SUFFIX)):
                discard(self._fs, f"{self._folder}/{name}")

    def _find_spares(self, present: list[str], names: list[str]) -> None:
        """Finds spares. A power cut may have left two names of one file: the first counts."""
        held = [self._fs.stat(f"{self._folder}/{name}") for name in names]
        inodes = {stat.inode for stat in held if stat is not None}
        for name in sorted(name for name in present if name.endswith(wal.SPARE_SUFFIX)):
            path = f"{self._folder}/{name}"
            stat = self._fs.stat(path)
            if stat is not None and stat.inode in inodes:
                self._fs.unlink(path)
            elif stat is not None:
                self._result.spares.append(path)

    def _file(self, name: str, *, newest: bool) -> None:
        path = f"{self._folder}/{name}"
        source = self._fs.open(path, "read")
        try:
            header = self._header(source, name)
            if header is None:
                return
            size = source.size()
            file = JournalFile(
                self._fs, path, header=header, size=size, space=size, handles=self._handles
            )
            self._reading.admit(file)
            self._read(source, header, file, newest=newest)
        finally:
            source.close()
        if newest:
            _sync(self._fs, file.path)
        self._result.files.append(file)
        file.spill_index()

    def _header(self, source: File, name: str) -> wal.FileHeader | None:
        header, reason = header_of(source, name.removesuffix(wal.SUFFIX))
        if header is None:
            self._move_to_quarantine(name, source.size(), reason)
        elif reason:
            self._reading.note(Found(f"{self._folder}/{name}", 0, header.size, "", reason))
        return header

    def _read(
        self, source: File, header: wal.FileHeader, file: JournalFile, *, newest: bool
    ) -> None:
        found, torn = len(self._reading.found), len(self._reading.torn)
        cut = self._reading.read(source, header, file, newest=newest)
        for damage in self._reading.found[found:]:
            damage.copy = self._copy_to_quarantine(file, damage.offset, damage.size)
        for part in self._reading.torn[torn:]:
            size = min(part.size, _TORN_BYTES)
            part.copy = self._copy_to_quarantine(file, part.offset, size)
            if part.followed:
                self._fill(file, part.offset, part.size)
        if cut is not None:
            self._cut(file, cut)

    def _fill(self, file: JournalFile, offset: int, size: int) -> None:
        """Writes a filler over a torn range: in an older file it would count as damage."""
        target = self._fs.open(file.path, "update")
        try:
            target.write_at([wal.encode_filler(file.secret, size)], offset)
        finally:
            target.close()

    def _cut(self, file: JournalFile, size: int) -> None:
        target = self._fs.open(file.path, "append")
        try:
            target.truncate(size)
        finally:
            target.close()
        file.size = file.space = size

    def _copy_to_quarantine(self, file: JournalFile, offset: int, size: int) -> str:
        """Copies bytes, and gives the path; empty if the disk has no space for them."""
        path = f"{self._folder}/{QUARANTINE}/{file.ulid}-{offset}.bin"
        try:
            self._fs.make_folders(os.path.dirname(path))
            if self._fs.stat(path) is not None:
                self._fs.unlink(path)
            self._copy(file.path, offset, size, path)
            self._fs.sync_folder(os.path.dirname(path))
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                raise
            # What matters stays readable without the copy; where the bytes stood is reported.
            return ""
        return path

    def _copy(self, path: str, offset: int, size: int, quarantine: str) -> None:
        source = self._fs.open(path, "read")
        try:
            target = self._fs.open(quarantine, "create")
            try:
                self._fs.copy(source, offset, size, target)
                target.sync()
            finally:
                target.close()
        finally:
            source.close()

    def _move_to_quarantine(self, name: str, size: int, reason: str) -> None:
        quarantine = f"{self._folder}/{QUARANTINE}"
        path = f"{self._folder}/{name}"
        self._fs.make_folders(quarantine)
        self._fs.rename(path, f"{quarantine}/{name}")
        self._fs.sync_folder(quarantine)
        self._fs.sync_folder(self._folder)
        self._reading.lose(Found(path, 0, size, f"{quarantine}/{name}", reason))


def _sync(fs: FileSystem, path: str) -> None:
    target = fs.open(path, "append")
    try:
        target.sync()
    finally:
        target.close()
