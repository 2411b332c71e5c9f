"""Rolling files: events as lines in files below a folder, each event exactly once.

    DIR/{path}                    the file that grows
    DIR/{path} as app.000001.log  a rolled file (`Rolled`)

A file is rolled before an event that would make it larger than `max_file_size`, when a period of
`roll_every` is over, and when nothing was written to it for `roll_idle`. Changes between two
checkpoints are in an undo log (`UndoLog`), so a start after a crash restores the files of the last
checkpoint, and writes the later events again.

Rolled files are compressed, and old files are removed, only when a later checkpoint is saved: no
start goes back to an earlier one any more. The files are recorded in a catalog (`RolledCatalog`).

A run that was deleted and written again is another one: `{run}` is then `RUN~ULID`, with the ULID
of the deletion, and `{fqn}` alike where the path has no run (`PathTemplate`). A file of several
runs is rolled before such a run's first line (`Generations`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.errors import Damaged
from tailrace.logstore.filesystem import File, FileSystem, Lock, open_files
from tailrace.pipelines.appenders.contract import AppenderContext, AppenderFailed, State
from tailrace.pipelines.appenders.rolling.paths import (
    FileAccess,
    PathTemplate,
    encoded,
    refused_name,
    template_in,
    writable,
)
from tailrace.pipelines.appenders.rolling.rolled import (
    Generations,
    Rolled,
    RolledCatalog,
    RollingFileSettings,
    actives,
    catalog_in,
    has_damage,
    line_of,
    paths_in,
    read_lines,
)
from tailrace.pipelines.events import Deleted, generation
from tailrace.pipelines.section import Section

# An undo log: takes files back to a checkpoint, whatever changed since.
#
#   DIR/.tailrace/{name}/
#     lock             held (flock) by the writer of these files
#     saved            the newest checkpoint that is known to be saved: a line as below, ["saved",
#                      number]. A start with an older one, of a copy of the store that was put
#                      back, is refused: these files already have what it would write again
#     {number}.undo    the changes since checkpoint `number` was prepared, a line each:
#                      CRC-32 in hex, a space, a JSON list: ["cut", path, size] the file had that
#                      size; ["made", path] there was no file; ["moved", path, new path]
#
# A line is synced before its change is made. So the change of a torn last line never happened. A
# bad line that has its end is damage, and so is a missing log in an existing folder: the files
# cannot be taken back, and the appender does not start. Paths are relative to DIR.
#
# A checkpoint ends the log: its files are synced, the next log is begun, and its number is saved in
# the store. When that is certain, the older logs are removed. A start undoes all logs from the
# saved number on, the newest first, each from its end to its beginning. Undoing may break off and
# begin again.


_FOLDER: Final = ".tailrace"
_SUFFIX: Final = ".undo"
_SAVED: Final = "saved"


def older_checkpoint(number: int | None, newest: int) -> str:
    """The error of an appender that starts with an older checkpoint than was saved for it."""
    begins = f"begins at checkpoint {number}" if number else "has no checkpoint"
    return (
        f"it {begins}, and checkpoint {newest} was saved for what it has written: an older copy of"
        " the store was put back"
    )


def hint_to_begin(mark: str) -> str:
    """What to do then."""
    return (
        "Put the newer checkpoints back. Or move away what was written since, and remove"
        f" {mark}: what is left there comes twice."
    )


class UndoLog:
    """The undo log of one writer of files below `folder`. All calls block; they raise `OSError`."""

    def __init__(self, fs: FileSystem, folder: str, name: str) -> None:
        self._fs = fs
        self._folder = folder
        self._logs = os.path.join(folder, _FOLDER, name)
        self._lock: Lock | None = None
        self._file: File | None = None
        self._known: set[str] = set()
        self.number = 0

    def start(self, number: int | None) -> None:
        """Takes the files back to the checkpoint that saved `number`; None: there was none.

        Raises `AppenderFailed` if another process writes these files, or if a later checkpoint was
        saved for them.
        """
        fs = self._fs
        known_here = fs.stat(os.path.join(self._logs, "lock")) is not None
        fs.make_folders(self._logs)
        self._lock = fs.lock(os.path.join(self._logs, "lock"), wait=False)
        if self._lock is None:
            raise AppenderFailed(
                f"another process writes the files that {self._logs} belongs to",
                hint="Stop it. If it hangs, it stops writing when it notices that its lease is"
                " over.",
            )
        newest = self._newest_saved()
        if newest > (number or 0):
            self.stop()
            raise AppenderFailed(older_checkpoint(number, newest), hint=hint_to_begin(self._logs))
        known = self._numbers()
        gone = known_here and number is not None and max(known, default=-1) < number
        if gone or any(has_damage(fs, self._path(one)) for one in known):
            self.stop()
            raise AppenderFailed(
                f"an undo log in {self._logs} is {'gone' if gone else 'damaged'}",
                hint="Put an intact version back. Or remove the folder: lines since the last"
                " checkpoint may then be in the files twice.",
            )
        for one in reversed(known):
            if number is None or one >= number:
                self._undo(one)
        self._begin(max([number or 0, *known]) + 1)
        self._remove_before(self.number)

    @property
    def folder(self) -> str:
        """Where the logs are, and what else belongs to this writer alone."""
        return self._logs

    def note(self, entries: Sequence[Sequence[str | int]]) -> None:
        """Writes the change that is about to be made, and syncs it."""
        if entries and self._file is not None:
            self._file.write([line_of(entry) for entry in entries])
            self._file.sync()

    def touch(self, paths: Sequence[str]) -> None:
        """Writes down how large these files are before they grow, once after each checkpoint."""
        entries: list[Sequence[str | int]] = []
        for path in paths:
            if path not in self._known:
                found = self._fs.stat(os.path.join(self._folder, path))
                entries.append(["made", path] if found is None else ["cut", path, found.size])
        self.note(entries)
        self._known.update(paths)

    def move(self, path: str, target: str) -> None:
        """Renames a file; the target must not be there."""
        self.note([["moved", path, target]])
        self._rename(path, target)
        self._known.discard(path)

    def prepare(self) -> int:
        """Begins the next log; its number is to be saved. The files are synced already."""
        assert self._file is not None
        self._file.close()
        self._begin(self.number + 1)
        return self.number

    def saved(self) -> None:
        """The number of the last `prepare` is saved: older undo logs are no longer needed."""
        self._remember_saved()
        self._remove_before(self.number)

    def stop(self) -> None:
        """Lets another process write the files."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _remember_saved(self) -> None:
        # Each line is as long as the last. It is not synced: at worst an older number is found.
        line = line_of([_SAVED, f"{self.number:012d}"])
        path = os.path.join(self._logs, _SAVED)
        if self._fs.stat(path) is None:
            file = self._fs.open(path, "create")
            file.write([line])
        else:
            file = self._fs.open(path, "update")
            file.write_at([line], 0)
        file.close()

    def _newest_saved(self) -> int:
        """The newest checkpoint that is known to be saved, or 0."""
        path = os.path.join(self._logs, _SAVED)
        if self._fs.stat(path) is None:
            return 0
        numbers = [int(one[1]) for one in read_lines(self._fs, path)[0] if one[0] == _SAVED]
        return max(numbers, default=0)

    # --- logs --------------------------------------------------------------------------

    def _numbers(self) -> list[int]:
        found = [name for name, is_folder in self._fs.scan(self._logs) if not is_folder]
        stems = [name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX)]
        return sorted(int(stem) for stem in stems if stem.isdigit())

    def _path(self, number: int) -> str:
        return os.path.join(self._logs, f"{number:012d}{_SUFFIX}")

    def _begin(self, number: int) -> None:
        self._file = self._fs.open(self._path(number), "create")
        self._fs.sync_folder(self._logs)
        self.number = number
        self._known = set()

    def _remove_before(self, number: int) -> None:
        for one in self._numbers():
            if one < number:
                self._fs.unlink(self._path(one))

    def _undo(self, number: int) -> None:
        entries, _ = read_lines(self._fs, self._path(number))
        for entry in reversed(entries):
            self._undo_one(entry)

    def _undo_one(self, entry: Sequence[str | int]) -> None:
        match entry:
            case ["cut", str(path), int(size)]:
                self._cut(os.path.join(self._folder, path), size)
            case ["made", str(path)]:
                with suppress(FileNotFoundError):
                    self._fs.unlink(os.path.join(self._folder, path))
                    self._sync_folder_of(path)
            case ["moved", str(path), str(target)]:
                self._move_back(path, target)
            case _:
                raise Damaged(f"{self._logs} has an unknown entry: {entry!r}")

    def _cut(self, path: str, size: int) -> None:
        found = self._fs.stat(path)
        if found is None or found.size <= size:
            return
        file = self._fs.open(path, "append")
        try:
            file.truncate(size)
            file.sync()
        finally:
            file.close()

    def _move_back(self, path: str, target: str) -> None:
        old, new = (self._fs.stat(os.path.join(self._folder, one)) for one in (path, target))
        if new is not None and old is None:
            self._rename(target, path)
        elif new is not None and old is not None and new.inode == old.inode:
            # A power cut in the middle of a rename: the file has both names.
            self._fs.unlink(os.path.join(self._folder, target))
            self._sync_folder_of(target)

    def _rename(self, path: str, target: str) -> None:
        source, goal = (os.path.join(self._folder, one) for one in (path, target))
        self._fs.rename(source, goal)
        self._sync_folder_of(path)
        if os.path.dirname(goal) != os.path.dirname(source):
            self._sync_folder_of(target)

    def _sync_folder_of(self, path: str) -> None:
        self._fs.sync_folder(os.path.dirname(os.path.join(self._folder, path)))


# Other writers below the same folder: a file has only one, whatever their templates are.
#
# Two appenders with one template are refused before they run (`tailrace.pipelines.definition`). Two
# templates that differ may still lead to one file, such as `{fqn}.log` and `{service}.log`. Each
# would take the file back to its own checkpoint, and cut off the lines of the other one. So a
# writer that begins a file, or starts, looks into the catalogs of the active writers.


def refuse_shared(fs: FileSystem, own: str, paths: Collection[str]) -> None:
    """Raises `AppenderFailed` if another writer that is at work has one of the paths.

    `own` is the folder DIR/.tailrace/{name} of who asks.
    """
    if not paths:
        return
    writers, name = os.path.split(own)
    for other, is_folder in fs.scan(writers):
        folder = os.path.join(writers, other)
        if not is_folder or other == name or fs.stat(catalog_in(folder)) is None:
            continue
        shared = sorted({*paths_in(fs, catalog_in(folder))[0]}.intersection(paths))
        if shared and _is_at_work(fs, folder):
            raise AppenderFailed(
                f"{shared[0]} is written by {other}, and cannot have a second writer",
                hint="Give one of the two appenders another path.",
            )


def _is_at_work(fs: FileSystem, folder: str) -> bool:
    lock = fs.lock(os.path.join(folder, "lock"), wait=False)
    if lock is None:
        return True
    lock.release()
    return False


log = logging.getLogger("tailrace.pipelines")

_SWEEP_SECONDS: Final = 60.0
_MOST_NAMED: Final = 200
_PART_OF_PROCESS: Final = 4  # of its open files: sources, connections and others need some


@dataclass(slots=True)
class _OpenFile:
    """A file that grows: whose deletion ends it, and up to which ULID that was deleted before."""

    file: File
    size: int
    used: float
    owner: tuple[str, str | None] | None = None
    generation: int = 0


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a started appender."""

    context: AppenderContext
    undo: UndoLog
    catalog: RolledCatalog
    rolled: Rolled
    access: FileAccess
    generations: Generations


class RollingFile:
    """Writes events to files. One is made for each part of the pipelines' names."""

    settings: ClassVar[type[Section]] = RollingFileSettings

    def __init__(self, settings: RollingFileSettings) -> None:
        self._settings = settings
        self._template = PathTemplate(settings.path)
        self._folder = os.path.abspath(settings.dir)
        self._open: BoundedCache[str, _OpenFile] = BoundedCache()
        self._most_open = max(min(settings.max_open_files, open_files() // _PART_OF_PROCESS), 1)
        self._grown: set[str] = set()  # since the last sync, and closed meanwhile or not
        self._new_in: set[str] = set()  # folders with names that are not synced
        self._rolled: list[str] = []  # since the last saved checkpoint
        self._settled: list[str] = []
        self._swept_at: float | None = None
        self._period = 0  # files of earlier ones are rolled
        self._parts: _Parts | None = None

    def start(self, context: AppenderContext, state: State | None) -> None:
        self._template = template_in(context, self._settings.path)
        undo = UndoLog(context.fs, self._folder, context.name)
        self._parts = parts = _Parts(
            context,
            undo,
            RolledCatalog(context.fs, catalog_in(undo.folder)),
            Rolled(self._settings, context.fs, self._folder),
            FileAccess.of(self._settings),
            Generations(self._template, (state or {}).get("generations", ())),
        )
        new = not os.path.isdir(self._folder)
        parts.undo.start(None if state is None else int(state["undo"]))
        if new:
            parts.access.folder(self._folder)
        parts.catalog.start()
        refuse_shared(context.fs, undo.folder, list(parts.catalog))
        self._period = int((state or {}).get("period", self._period_now()))
        rolled = (state or {}).get("rolled", ())
        self._finish(parts.rolled.unpacked(parts.catalog) if rolled is None else rolled)

    def append(self, events: pa.Table) -> None:
        parts = self._started()
        if self._period_now() != self._period:
            self._sweep()
        found = self._template.groups(events, parts.context.part, parts.context.generation)
        groups = writable(events, list(found), self._refused, parts.context.refuse)
        if not groups:
            return
        lines = self._settings.layout.lines(events)
        new = parts.catalog.add(path for path, _ in groups)
        refuse_shared(parts.context.fs, parts.undo.folder, new)
        for path in parts.generations.begin(events, groups, parts.context.deletions()):
            if self._size(path):
                self._roll(path)
        parts.undo.touch([path for path, _ in groups])
        for path, rows in groups:
            chosen = lines if len(rows) == len(lines) else lines.take(pa.array(rows))
            self._write(path, *_bytes_of(chosen))
            one = self._open.peek(path)
            assert one is not None
            if one.owner is None and (owner := self._template.owner(events, int(rows[0]))):
                one.owner, one.generation = owner, parts.context.generation(*owner)
        self._close_idle()

    def sync(self) -> State:
        parts = self._started()
        for path in sorted(self._grown):
            self._sync(path, self._file(path))
        for folder in sorted(self._new_in):
            parts.context.fs.sync_folder(folder)
        self._grown.clear()
        self._new_in.clear()
        self._settled, self._rolled = [*self._settled, *self._rolled], []
        parts.catalog.sync()
        # A checkpoint is small: of very many files a start looks which are to be finished.
        rolled = list(self._settled) if len(self._settled) <= _MOST_NAMED else None
        state: dict[str, object] = {"undo": parts.undo.prepare(), "rolled": rolled}
        if self._settings.roll_every:
            state["period"] = self._period
        if parts.generations:
            state["generations"] = parts.generations.known
        return state

    def saved(self) -> None:
        self._started().undo.saved()
        settled, self._settled = self._settled, []
        self._finish(settled)

    def stop(self) -> None:
        for one in self._open.values():
            one.file.close()
        self._open.clear()
        if self._parts is not None:
            self._parts.catalog.stop()
            self._parts.undo.stop()

    def flush(self) -> bool:
        """Rolls and removes files that are due by the clock, and closes idle ones."""
        self._close_idle()
        now = self._started().context.clock.monotonic()
        due = self._swept_at is None or now - self._swept_at >= self._sweep_seconds
        if self._period_now() == self._period and not due:
            return False
        self._swept_at = now
        return self._sweep()

    def deleted(self, deleted: Deleted) -> None:
        """Closes the files of deleted runs, and removes them if the settings say so."""
        parts, folders = self._started(), self._template.run_folders
        for path, open_ in list(self._open.items()):
            if open_.owner and generation(deleted, *open_.owner) > open_.generation:
                self._close(path)
        if self._settings.on_delete == "keep" or folders is None or not deleted:
            return
        names = encoded(deleted)
        gone = [path for path in parts.catalog if folders.is_deleted(path, names)]
        for path in gone:
            self._forget(path)
            for one in (path, *parts.rolled.of(path)):
                self._unlink(one)
        self._remove_folders(gone)
        if gone:
            parts.catalog.drop(gone)
            log.info("%s: removed files of deleted runs: %d", parts.context.name, len(gone))

    def _sync(self, path: str, one: _OpenFile) -> None:
        """Syncs a file. Raises `AppenderFailed` if its name is nobody's, or another file's.

        The appender goes back to its checkpoint then, and begins the file again.
        """
        there = self._started().context.fs.stat(os.path.join(self._folder, path))
        if there is None or there.inode != one.file.stat().inode:
            raise AppenderFailed(
                f"{path} was removed or replaced by another program while it was written",
                hint="It is created again; its lines before the last checkpoint are lost with it.",
            )
        one.file.sync()

    # --- written lines, as dead letters are sent again ----------------------------------

    def end(self) -> None:
        for path in self._started().catalog:
            if self._size(path):
                self._roll(path)

    def ended(self) -> list[str]:
        parts = self._started()
        return [name for path in parts.catalog for name in parts.rolled.of(path)]

    def read(self, name: str) -> bytes:
        file = self._started().context.fs.open(os.path.join(self._folder, name), "read")
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            self._unlink(name)

    # --- writing -----------------------------------------------------------------------

    def _refused(self, path: str) -> str:
        """Why no file can have this path; empty: one can."""
        whole = os.path.join(self._folder, path)
        return refused_name(whole, self._started().rolled.spare_bytes)

    def _started(self) -> _Parts:
        if self._parts is None:
            raise AppenderFailed("the appender was not started")
        return self._parts

    def _write(self, path: str, data: memoryview, ends: NDArray[np.int64]) -> None:
        """Writes lines that end at `ends` in `data`, and rolls the file between them."""
        line, start = 0, 0
        while line < len(ends):
            open_ = self._file(path)
            room = self._settings.max_file_size - open_.size
            stop = int(np.searchsorted(ends, start + room, side="right"))
            if stop <= line and open_.size == 0:
                stop = line + 1  # a line that is larger than a file has one of its own
            if stop <= line:
                self._roll(path)
                continue
            end = int(ends[stop - 1])
            open_.size += open_.file.write([data[start:end]])
            self._grown.add(path)
            line, start = stop, end

    def _file(self, path: str) -> _OpenFile:
        """The file of that path, opened if need be."""
        parts = self._started()
        context, access = parts.context, parts.access
        known = self._open.get(path)
        if known is None:
            while len(self._open) >= self._most_open:
                self._close(next(iter(self._open)))
            whole = os.path.join(self._folder, path)
            context.fs.make_folders(os.path.dirname(whole))
            self._new_in.add(os.path.dirname(whole))
            file = context.fs.open(whole, "append")
            access.file(whole)
            folder = os.path.dirname(path)
            while folder:
                access.folder(os.path.join(self._folder, folder))
                folder = os.path.dirname(folder)
            known = _OpenFile(file, file.size(), 0.0)
            self._open.put(path, known)
        known.used = context.clock.monotonic()
        return known

    def _size(self, path: str) -> int:
        """How large the file of a path is; 0 without one."""
        if (known := self._open.peek(path)) is not None:
            return known.size
        found = self._started().context.fs.stat(os.path.join(self._folder, path))
        return 0 if found is None else found.size

    def _close(self, path: str) -> None:
        one = self._open.pop(path)
        assert one is not None
        try:
            if path in self._grown:
                self._sync(path, one)
                self._grown.discard(path)
        finally:
            one.file.close()

    def _close_idle(self) -> None:
        now = self._started().context.clock.monotonic()
        while self._open:
            path, oldest = next(iter(self._open.items()))
            if now - oldest.used < self._settings.idle_close:
                return
            self._close(path)

    # --- rolling -----------------------------------------------------------------------

    def _roll(self, path: str) -> None:
        parts = self._started()
        if path in self._open:
            self._close(path)
        target = parts.rolled.next(path, parts.context.clock.now_ms(), self._move)
        parts.undo.move(path, target)
        parts.undo.note([["made", path]])
        self._rolled.append(target)

    def _move(self, name: str, target: str) -> None:
        """Renames a rolled file."""
        self._started().undo.move(name, target)
        self._rolled = [target if one == name else one for one in self._rolled]
        self._settled = [target if one == name else one for one in self._settled]

    # --- by the clock --------------------------------------------------------------------

    @property
    def _sweep_seconds(self) -> float:
        idle = self._settings.roll_idle
        return min(_SWEEP_SECONDS, idle / 2) if idle else _SWEEP_SECONDS

    def _period_now(self) -> int:
        every, now_ms = self._settings.roll_every, self._started().context.clock.now_ms()
        return int(now_ms / 1000 // every) if every else 0

    def _sweep(self) -> bool:
        """Looks at every file once; whether one was rolled, or a period ended."""
        parts, settings = self._started(), self._settings
        now_ms, period = parts.context.clock.now_ms(), self._period_now()
        ended, rolled, gone = period != self._period, len(self._rolled), []
        if not (ended or settings.roll_idle or settings.keep_for or settings.quota_bytes):
            return False
        pending = {path for one in (*self._settled, *self._rolled) for path in actives(one)}
        roll_idle = settings.roll_idle or float("inf")
        with parts.rolled.listed_once():
            for path in parts.catalog:
                found = parts.context.fs.stat(os.path.join(self._folder, path))
                idle = 0.0 if found is None else now_ms / 1000 - found.modified_ns / 1e9
                if found is not None and parts.rolled.too_old(found, now_ms):
                    if path not in self._grown:
                        self._forget(path)
                        self._unlink(path)
                        found = None
                elif found is not None and found.size and (ended or idle > roll_idle):
                    self._roll(path)
                if not settings.keep_for or path in pending:
                    continue
                if not parts.rolled.remove_old(path, now_ms) and found is None:
                    gone.append(path)
        if settings.quota_bytes:
            busy = {*self._open, *self._grown, *self._settled, *self._rolled}
            gone += parts.rolled.keep_quota(parts.catalog, busy)
        parts.catalog.drop(gone)
        self._remove_folders(gone)
        self._period = period
        return ended or len(self._rolled) > rolled

    def _forget(self, path: str) -> None:
        """Closes a file whose bytes are not needed any more."""
        one = self._open.pop(path)
        self._grown.discard(path)
        if one is not None:
            one.file.close()

    def _remove_folders(self, paths: Iterable[str]) -> None:
        """Removes the folders of files that are gone, if they are empty."""
        for path in paths:
            folder = os.path.dirname(path)
            with suppress(OSError):  # it has other files, or is gone
                while folder:
                    whole = os.path.join(self._folder, folder)
                    self._started().context.fs.remove_folder(whole)
                    self._new_in.discard(whole)
                    folder = os.path.dirname(folder)

    def _unlink(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._started().context.fs.unlink(os.path.join(self._folder, path))

    # --- after a saved checkpoint --------------------------------------------------------

    def _finish(self, rolled: Sequence[str]) -> None:
        """Compresses rolled files, and removes those that are too old. May be repeated."""
        parts = self._started()
        parts.rolled.finish(rolled, parts.access.file)
        for path in {path for one in rolled for path in actives(one)}:
            parts.rolled.remove_old(path, parts.context.clock.now_ms())


def _bytes_of(lines: pa.Array) -> tuple[memoryview, NDArray[np.int64]]:
    """The bytes of lines of `large_string`, and where each ends in them."""
    _, offsets, data = lines.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[lines.offset : lines.offset + len(lines) + 1]
    first = int(bounds[0]) if len(bounds) else 0
    text = memoryview(data if data is not None else b"")
    return text[first : int(bounds[-1])], bounds[1:] - first
