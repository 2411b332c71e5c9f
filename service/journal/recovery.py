"""Opens a journal folder after any kind of end: stop, kill -9, power cut, damaged disk.

`recover` reads every file once. It cuts unused space and a torn tail off the newest file, and
writes a filler over a torn range that whole entries follow. It copies damaged bytes to `aside/` and
reports them; it moves a file that cannot be read there whole. The journal continues from the
result; `Journal` begins a new file. Recovery may be interrupted anywhere and started again.

`JournalReading` reads the files one after another and classifies their faults. A start and
`tailrace verify` both use it, so they report the same about a file. For each fault it reports the
number of lost lines and their run, as far as the entries around it tell: positions rise by one for
each line. Lines of confirmed segments are not lost.

Invariants:

- All entries of the newest file are synced before any caller sees them: after kill -9 the page
  cache has bytes that no sync has covered.
- Positions of lost lines are not given out again: a range of n bytes holds at most n lines.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import orjson

from service.journal import file as indexes
from service.journal import format as wal
from service.journal.file import (
    Damage,
    JournalEntry,
    JournalFile,
    Passed,
    ReadHandles,
    Torn,
    Unused,
    discard,
    read_header,
    salvage_header,
    scan,
)
from service.journal.format import translated
from service.journal.state import JournalReplay, JournalState, decode_cut_entry
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import Damaged, InvalidInput, UnsupportedVersion
from tailrace.logstore.filesystem import NO_DESCRIPTOR, File, FileSystem

# The folder of quarantined files and bytes; the name is part of the format.
QUARANTINE = "aside"
_NAME = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}\.wal")
_NAMED_BYTES = wal.PREFIX.size + wal.BATCH_HEAD.size + 3 * wal.MAX_NAME_BYTES


@dataclass(slots=True)
class DamagedRange:
    """An unreadable range of a file, and the reason.

    `torn` ranges were never synced, as far as is known; all others are damage. Whole entries follow
    a torn range that is `followed`. Positions from `first` up to, not including, `end` are lost;
    `end` is None while it is unknown. `lines` of them are in no segment; this is an upper bound
    unless `exact`. `run` is the run of the damaged batch, if its head is whole, and `counted` the
    number of lines in that head. `copy` is the path of the copied bytes, empty if there is none.
    """

    file: str
    offset: int
    size: int
    copy: str
    reason: str
    followed: bool = False
    torn: bool = False
    first: int = 0
    end: int | None = None
    lines: int = 0
    exact: bool = True
    run: RunKey | None = None
    counted: int | None = None

    def sentence(self) -> str:
        """A sentence about the fault and the loss."""
        return f"{self.file}: {self.size} bytes at {self.offset} {self.reason}; {self.loss()}"

    def loss(self) -> str:
        """The loss, as a part of a sentence."""
        of = "" if self.run is None else f" of run {self.run.run!r} of {self.run.fqn!r}"
        if self.lines:
            return f"{self._lines()} lost{of}, from position {self.first} on"
        if self.end is not None and self.end > self.first:
            return f"the {_count(self.end - self.first)}{of} in segments"
        if self.end is None and self.size == 0:
            return "how many lines are lost is unknown"
        if self.size in (0, wal.MARK_BYTES):
            return "no line is lost"
        return "no line is lost, but a request to close or to delete may be"

    def _lines(self) -> str:
        if self.exact:
            return _count(self.lines)
        return (
            f"at most {_count(self.lines)}"
            if self.counted is None
            else (f"by the entry's own count {_count(self.lines)}")
        )

    def settle(self, shipped: int) -> None:
        """Counts the lost lines; those below position `shipped` are in segments."""
        self.exact = self.end is not None
        most = self.size if self.counted is None else min(self.size, self.counted)
        end = self.first + most if self.end is None else self.end
        self.lines = max(0, end - max(self.first, shipped))


def _count(lines: int) -> str:
    return "1 line is" if lines == 1 else f"{lines} lines are"


@dataclass(slots=True)
class JournalReading:
    """The result of the files read so far. For each call `admit`, then `read`; finally `settle`.

    `found` are faults and gaps; `torn` are ranges that were never synced, as far as is known.
    """

    replay: JournalReplay = field(default_factory=JournalReplay)
    found: list[DamagedRange] = field(default_factory=list)
    torn: list[DamagedRange] = field(default_factory=list)
    _open: list[DamagedRange] = field(default_factory=list)
    _gaps: list[tuple[int, DamagedRange]] = field(default_factory=list)
    _last: JournalFile | None = None
    _whole_lost: bool = False
    unfinished: str = ""
    """The last file, if it ends neither as that of an idle journal nor of a closed one."""

    def lose(self, found: DamagedRange) -> None:
        """Adds a whole file that cannot be read."""
        self.found.append(found)
        if self._last is not None:
            self._begin(found, self._last.end_pos)
        self._whole_lost = True

    def note(self, found: DamagedRange) -> None:
        """Adds a fault that costs no line."""
        found.end = found.first
        self.found.append(found)

    def admit(self, file: JournalFile) -> None:
        """Checks that the file begins where the one before it ended."""
        last = self._last
        if last is None:
            self.replay.low_pos = file.first_pos
        elif file.first_pos > last.end_pos and not self._whole_lost:
            missing = file.first_pos - last.end_pos
            reason = f"{missing} lines before this file are gone"
            gap = DamagedRange(file.path, 0, 0, "", reason, first=last.end_pos, end=file.first_pos)
            self._gaps.append((file.first_pos, gap))
        elif file.first_pos < last.end_pos:
            # The range lost from the previous file ends below this position.
            last.end_pos = file.first_pos
        self._end_all(file.first_pos)
        self._whole_lost = False
        self._last = file

    def read(
        self, source: File, header: wal.FileHeader, file: JournalFile, *, newest: bool
    ) -> int | None:
        """Applies the file's entries. Returns where they end; None if at the end of the file."""
        # An older file was synced completely before the next one was begun.
        known = 0 if newest else source.size()
        lost, stated, cut = 0, False, None
        self.unfinished, marked = "", False
        for item in scan(source, header, synced=known):
            if isinstance(item, JournalEntry) and self._beyond(item, file):
                at, size = item.offset - wal.PREFIX.size, wal.PREFIX.size + len(item.body)
                self._fault(source, file, Torn(at, size, followed=True))
                continue
            if isinstance(item, Passed):
                self._end_all(item.pos)
                file.end_pos, lost = max(file.end_pos, item.pos), 0
                self.unfinished, marked = "", True
                continue
            if marked and not isinstance(item, Unused):
                self.unfinished = file.path
            fault = (
                None if isinstance(item, JournalEntry | Unused) else self._fault(source, file, item)
            )
            if isinstance(item, Unused) or (isinstance(item, Torn) and not item.followed):
                cut = item.offset
            elif isinstance(item, JournalEntry):
                if not stated and item.kind != wal.STATE:
                    self.replay.without_state(header.node)
                    stated = True
                fault = self._apply(item, source, file)
                stated = stated or fault is None
                lost = 0 if fault is None and item.kind == wal.BATCH else lost
            if fault is not None and not fault.torn:
                lost += fault.size
        if not stated:
            self.replay.without_state(header.node)
        file.end_pos += lost
        return cut

    def settle(self) -> None:
        """Counts lost lines, and adds gaps in positions that no segment covers."""
        state = self.replay.state
        shipped = 0 if state is None else state.confirmed.end
        self.found += [gap for end, gap in self._gaps if end > shipped]
        for found in [*self.found, *self.torn]:
            found.settle(shipped)

    def _beyond(self, entry: JournalEntry, file: JournalFile) -> bool:
        """Whether the entry is a cut or a close after torn lines; it then counts as torn, too.

        The positions of these lines are given out again, and the new lines belong to neither.
        """
        if not self.torn or self.torn[-1].file != file.path:
            return False
        try:
            pos = None if entry.kind == wal.BATCH else _pos_of(entry)
        except (ValueError, KeyError, TypeError):
            return False  # `_apply` reports it
        return pos is not None and pos > file.end_pos

    def _apply(self, entry: JournalEntry, source: File, file: JournalFile) -> DamagedRange | None:
        try:
            self.replay.apply(entry, file)
        except (Damaged, InvalidInput, ValueError, KeyError, TypeError) as error:
            size = wal.PREFIX.size + len(entry.body)
            return self._fault(
                source, file, Damage(entry.offset - wal.PREFIX.size, size, str(error))
            )
        if self._open:
            pos = _pos_of(entry)
            if pos is not None:
                self._end_all(pos)
        return None

    def _fault(self, source: File, file: JournalFile, item: Damage | Torn) -> DamagedRange:
        torn = isinstance(item, Torn)
        reason = (
            "do not read, and nothing says that they were synced"
            if isinstance(item, Torn)
            else item.reason
        )
        found = DamagedRange(file.path, item.offset, item.size, "", reason, torn=torn)
        found.followed = isinstance(item, Torn) and item.followed
        head = _head_at(source, item.offset, item.size, file)
        self._begin(found, file.end_pos)
        if head is not None:
            found.run, found.counted = head.key, head.records
        (self.torn if torn else self.found).append(found)
        return found

    def _begin(self, found: DamagedRange, first: int) -> None:
        found.first = first
        self._open.append(found)

    def _end_all(self, pos: int) -> None:
        """Ends all open ranges: the next readable line has position `pos`.

        The first of several faults without a batch between them counts for all of them.
        """
        for number, found in enumerate(self._open):
            found.end = max(pos, found.first) if number == 0 else found.first
        self._open.clear()


def _pos_of(entry: JournalEntry) -> int | None:
    """Returns the next position at the time of the entry, if the entry contains it."""
    if entry.kind == wal.BATCH:
        return wal.decode_batch(entry.body).pos
    if entry.kind == wal.CUT:
        return decode_cut_entry(orjson.loads(entry.body[1:]))[1].end
    if entry.kind == wal.CLOSE:
        return int(orjson.loads(entry.body[1:])["pos"])
    return None


def _head_at(source: File, offset: int, size: int, file: JournalFile) -> wal.BatchEntry | None:
    """Returns the head of a damaged batch, if it has the next position and a known run."""
    body = source.pread(min(size, _NAMED_BYTES), offset)[wal.PREFIX.size :]
    if len(body) < wal.BATCH_HEAD.size or body[0] != wal.BATCH:
        return None
    try:
        batch = wal.decode_batch(body + bytes(max(0, size - wal.PREFIX.size - len(body))))
    except Damaged:
        return None
    known = batch.pos == file.end_pos and file.index.number(batch.key) is not None
    return batch if known else None


def missing_newest(fs: FileSystem, folder: str, names: Sequence[str]) -> DamagedRange | None:
    """Reports the newest file of the journal if it is missing; `names` are the present files.

    Raises `OSError`.
    """
    path = f"{folder}/{wal.NEWEST}"
    stat = fs.stat(path)
    if stat is None:
        return None
    source = fs.open(path, "read")
    try:
        name = wal.decode_newest(source.pread(stat.size, 0)) + wal.SUFFIX
    finally:
        source.close()
    moved = fs.stat(f"{folder}/{QUARANTINE}/{name}") is not None
    if not _NAME.fullmatch(name) or moved or name <= max(names, default=""):
        return None
    return DamagedRange(f"{folder}/{name}", 0, 0, "", "the newest file of the journal is gone")


def header_of(source: File, ulid: str) -> tuple[wal.FileHeader | None, str]:
    """Returns the header of file `ulid` (None if it cannot be rebuilt), and what is wrong with it.

    Raises `UnsupportedVersion`.
    """
    try:
        header = read_header(source)
    except UnsupportedVersion:
        raise
    except Damaged as error:
        return salvage_header(source, ulid), str(error)
    if header.file != ulid:
        return None, f"it is a copy of {header.file}{wal.SUFFIX}"
    return header, ""


# At most this much of a torn tail is copied: it may include all unused space of a full file.
_TORN_BYTES = 8 << 20


@dataclass(slots=True)
class Recovered:
    """A recovered journal. `state` is None for a folder without a journal.

    `found` is damage: synced bytes that are lost. `torn` are ranges that, as far as is known, no
    sync had covered when the process or the power ended. `spares` are paths of files to be
    overwritten; `handles` are the handles for reading `files`.
    """

    files: list[JournalFile] = field(default_factory=list)
    spares: list[str] = field(default_factory=list)
    state: JournalState | None = None
    next_pos: int = 0
    found: list[DamagedRange] = field(default_factory=list)
    torn: list[DamagedRange] = field(default_factory=list)
    handles: ReadHandles | None = None

    def problems(self) -> Iterator[str]:
        """Yields a sentence about each damage that the opening of the journal found."""
        for damage in self.found:
            yield damage.sentence()

    def keep(self, earlier: Recovered) -> None:
        """Adds the findings of an earlier recovery of this process, which changed the folder."""
        known = {(found.file, found.offset) for found in self.found}
        again = [found for found in earlier.found if (found.file, found.offset) not in known]
        self.found[:0] = again

    @property
    def lost_lines(self) -> int:
        """The highest possible number of lines that the damage lost and that are in no segment."""
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
        """Returns the bytes of whole files in quarantine that are newer than all readable files.

        This start or an interrupted one moved them there. The end of their positions is unknown.
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
        """Finds spares. If a power cut left two names of one file, the first counts."""
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
            self._reading.note(DamagedRange(f"{self._folder}/{name}", 0, header.size, "", reason))
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
        """Copies bytes. Returns the path, empty if the disk has no space for them."""
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
            # Readable entries do not need the copy; the report has the offset of the bytes.
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
        self._reading.lose(DamagedRange(path, 0, size, f"{quarantine}/{name}", reason))


def _sync(fs: FileSystem, path: str) -> None:
    target = fs.open(path, "append")
    try:
        target.sync()
    finally:
        target.close()
