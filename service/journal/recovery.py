"""Opens a journal folder after any kind of end: stop, kill -9, power cut, damaged disk.

Recovery reads every file once. It cuts unused space and a torn tail off the newest one. It
copies damage to `aside/` and reports it, and moves a file that cannot be read there whole.
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
from logstore.errors import Damaged, InvalidInput, UnsupportedVersion
from logstore.filesystem import File, FileSystem
from service.journal import format as wal
from service.journal import index as indexes
from service.journal.failures import translated
from service.journal.file import JournalFile, ReadHandles, discard
from service.journal.replay import Replay
from service.journal.scan import (
    Damage,
    Entry,
    TornTail,
    Unused,
    read_header,
    salvage_header,
    scan,
)
from service.journal.state import JournalState

# The folder of what was quarantined; the name is part of the format.
QUARANTINE = "aside"
# Of a torn tail no more is copied: behind it may be all the space of a full file.
_TORN_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Found:
    """A fault in a file: where it is, why, and where its bytes were copied to.

    `followed` belongs to torn tails, see `TornTail`.
    """

    file: str
    offset: int
    size: int
    copy: str
    reason: str
    followed: bool = False


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
            yield f"{damage.file}: {damage.size} bytes at {damage.offset} {damage.reason}"
        for tail in self.torn:
            if tail.followed:
                yield (
                    f"{tail.file}: {tail.size} bytes at {tail.offset} were cut off from an entry "
                    "on that does not read, though a whole one follows it: damage, or writes under "
                    f"way when the power went; a copy is at {tail.copy or 'no place: no room'}"
                )


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
        self._replay = Replay()
        self._gaps: list[tuple[int, Found]] = []
        self._quarantined_whole = False

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
        state = result.state = self._replay.state
        shipped = 0 if state is None else state.confirmed.end
        result.found += [gap for end, gap in self._gaps if end > shipped]
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
            self._admit(file)
            self._read(source, header, file, newest=newest)
        finally:
            source.close()
        if newest:
            _sync(self._fs, file.path)
        self._result.files.append(file)
        file.spill_index()

    def _header(self, source: File, name: str) -> wal.FileHeader | None:
        ulid = name.removesuffix(wal.SUFFIX)
        try:
            header = read_header(source)
            if header.file == ulid:
                return header
            reason = f"it is a copy of {header.file}{wal.SUFFIX}"
        except UnsupportedVersion:
            raise
        except Damaged as error:
            salvaged = salvage_header(source, ulid)
            if salvaged is not None:
                path = f"{self._folder}/{name}"
                self._result.found.append(Found(path, 0, salvaged.size, "", str(error)))
                return salvaged
            reason = str(error)
        self._move_to_quarantine(name, source.size(), reason)
        return None

    def _admit(self, file: JournalFile) -> None:
        """Adds the file; checks that it begins where the one before it ended."""
        files = self._result.files
        if not files:
            self._replay.low_pos = file.first_pos
        elif file.first_pos < files[-1].end_pos:
            # What was lost of the one before is known not to reach so far.
            files[-1].end_pos = file.first_pos
        elif file.first_pos > files[-1].end_pos and not self._quarantined_whole:
            missing = file.first_pos - files[-1].end_pos
            reason = f"{missing} lines before this file are gone"
            self._gaps.append((file.first_pos, Found(file.path, 0, 0, "", reason)))
        self._quarantined_whole = False

    def _read(
        self, source: File, header: wal.FileHeader, file: JournalFile, *, newest: bool
    ) -> None:
        # An older file was synced whole before the next one was begun.
        known = 0 if newest else source.size()
        lost = 0
        stated = False
        for item in scan(source, header, synced=known):
            damage = item if isinstance(item, Damage) else None
            if isinstance(item, TornTail):
                self._torn(file, item)
            if isinstance(item, TornTail | Unused):
                self._cut(file, item.offset)
                break
            if isinstance(item, Entry):
                if not stated and item.kind != wal.STATE:
                    stated = self._without_state(header)
                damage = self._apply(item, file)
                stated = stated or damage is None
                lost = 0 if damage is None and item.kind == wal.BATCH else lost
            if damage is not None:
                self._damaged(file, damage)
                lost += damage.size
        if not stated:
            self._without_state(header)
        file.end_pos += lost

    def _without_state(self, header: wal.FileHeader) -> bool:
        self._replay.without_state(header.node)
        return True

    def _apply(self, entry: Entry, file: JournalFile) -> Damage | None:
        try:
            self._replay.apply(entry, file)
        except (Damaged, InvalidInput, ValueError, KeyError, TypeError) as error:
            return Damage(
                entry.offset - wal.PREFIX.size, wal.PREFIX.size + len(entry.body), str(error)
            )
        return None

    def _torn(self, file: JournalFile, tail: TornTail) -> None:
        reason = "do not read, and nothing says that they were synced"
        quarantine = self._copy_to_quarantine(file, tail.offset, min(tail.size, _TORN_BYTES))
        self._result.torn.append(
            Found(file.path, tail.offset, tail.size, quarantine, reason, tail.followed)
        )

    def _cut(self, file: JournalFile, size: int) -> None:
        target = self._fs.open(file.path, "append")
        try:
            target.truncate(size)
        finally:
            target.close()
        file.size = file.space = size

    def _damaged(self, file: JournalFile, damage: Damage) -> None:
        quarantine = self._copy_to_quarantine(file, damage.offset, damage.size)
        self._result.found.append(
            Found(file.path, damage.offset, damage.size, quarantine, damage.reason)
        )

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
        self._quarantined_whole = True
        self._result.found.append(Found(path, 0, size, f"{quarantine}/{name}", reason))


def _sync(fs: FileSystem, path: str) -> None:
    target = fs.open(path, "append")
    try:
        target.sync()
    finally:
        target.close()
