"""Rolling files: events as lines in files below a folder, each event exactly once.

    DIR/{path}                    the file that grows
    DIR/{path} as app.000001.log  what was rolled (`rolled`)

A file is rolled before an event that would make it larger than `max_file_size`, when a period of
`roll_every` is over, and when nothing was written to it for `roll_idle`. What is done between two
checkpoints is in an undo log (`undo`), so a start after a crash finds the files as the last
checkpoint had them, and writes what came after it again.

What was rolled is compressed, and old files are removed, only when a checkpoint behind that is
saved: nobody goes back behind it any more. The files are known by a catalog (`catalog`).

A run that was deleted and written again is another one: `{run}` is then `RUN~ULID`, with the ULID
of the deletion, and `{fqn}` alike where the path has no run (`paths`). A file of several runs is
rolled before such a run's first line (`generations`).
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logstore.descriptors import open_files
from logstore.filesystem import File
from pipelines.appenders.contract import AppenderFailed, Context, State
from pipelines.appenders.rolling.access import Access
from pipelines.appenders.rolling.catalog import Catalog, catalog_in
from pipelines.appenders.rolling.generations import Generations
from pipelines.appenders.rolling.neighbours import refuse_shared
from pipelines.appenders.rolling.paths import (
    PathTemplate,
    encoded,
    refused_name,
    template_in,
    writable,
)
from pipelines.appenders.rolling.rolled import Rolled, actives
from pipelines.appenders.rolling.settings import RollingFileSettings
from pipelines.appenders.rolling.undo import UndoLog
from pipelines.definition.section import Section
from pipelines.deletions import Deleted, generation

log = logging.getLogger("tailrace.pipelines")

_SWEEP_SECONDS: Final = 60.0
_MOST_NAMED: Final = 200
_PART_OF_PROCESS: Final = 4  # of its open files: sources, connections and others need some


@dataclass(slots=True)
class _Open:
    """A file that grows: whose deletion ends it, and up to which ULID that was deleted before."""

    file: File
    size: int
    used: float
    owner: tuple[str, str | None] | None = None
    generation: int = 0


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a started appender works with."""

    context: Context
    undo: UndoLog
    catalog: Catalog
    rolled: Rolled
    access: Access
    generations: Generations


class RollingFile:
    """Writes events to files. One is made for each part of the pipelines' names."""

    settings: ClassVar[type[Section]] = RollingFileSettings

    def __init__(self, settings: RollingFileSettings) -> None:
        self._settings = settings
        self._template = PathTemplate(settings.path)
        self._folder = os.path.abspath(settings.dir)
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._most_open = max(min(settings.max_open_files, open_files() // _PART_OF_PROCESS), 1)
        self._grown: set[str] = set()  # since the last sync, and closed meanwhile or not
        self._new_in: set[str] = set()  # folders with names that are not synced
        self._rolled: list[str] = []  # since the last saved checkpoint
        self._settled: list[str] = []
        self._swept_at: float | None = None
        self._period = 0  # files of earlier ones are rolled
        self._parts: _Parts | None = None

    def start(self, context: Context, state: State | None) -> None:
        self._template = template_in(context, self._settings.path)
        undo = UndoLog(context.fs, self._folder, context.name)
        self._parts = parts = _Parts(
            context,
            undo,
            Catalog(context.fs, catalog_in(undo.folder)),
            Rolled(self._settings, context.fs, self._folder),
            Access.of(self._settings),
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
            one = self._open[path]
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
        """Rolls and removes what is due by the clock, and closes what is idle."""
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
            log.info("%s: files of deleted runs are removed: %d", parts.context.name, len(gone))

    def _sync(self, path: str, one: _Open) -> None:
        """Syncs a file. Raises `AppenderFailed` if its name is nobody's, or another file's.

        The appender goes back to its checkpoint then, and begins the file again.
        """
        there = self._started().context.fs.stat(os.path.join(self._folder, path))
        if there is None or there.inode != one.file.stat().inode:
            raise AppenderFailed(
                f"{path} was removed or replaced by somebody else while it was written",
                hint="It is begun again; what it had at the last checkpoint is gone with it.",
            )
        one.file.sync()

    # --- what was written, as dead letters are sent again -------------------------------

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

    def _file(self, path: str) -> _Open:
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
            known = self._open[path] = _Open(file, file.size(), 0.0)
        known.used = context.clock.monotonic()
        self._open.move_to_end(path)
        return known

    def _size(self, path: str) -> int:
        """How large the file of a path is; 0 without one."""
        if path in self._open:
            return self._open[path].size
        found = self._started().context.fs.stat(os.path.join(self._folder, path))
        return 0 if found is None else found.size

    def _close(self, path: str) -> None:
        one = self._open.pop(path)
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
        one = self._open.pop(path, None)
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

    # --- behind a saved checkpoint -------------------------------------------------------

    def _finish(self, rolled: Sequence[str]) -> None:
        """Compresses what was rolled, and removes what is too old. May be repeated."""
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
