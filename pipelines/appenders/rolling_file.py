"""Rolling files: events as lines in files below a folder, each event exactly once.

    DIR/{path}                    the file that grows
    DIR/{path} as app.000001.log  what was rolled: numbered, rising (names: sequence), or
               app.1.log          1 is the newest, renamed at each roll (names: fixed_window)

A file is rolled before an event that would make it larger than `max_file_size`. Files by day or
hour come from `{date}` and `{hour}` in the path. What is done between two checkpoints is in an
undo log (`undo`), so a start after a crash finds the files as the last checkpoint had them, and
writes what came after it again.

What was rolled is compressed, and old files are removed, only when a checkpoint behind that is
saved: nobody goes back behind it any more.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import numpy as np
import pyarrow as pa
import zstandard
from numpy.typing import NDArray
from pydantic import field_validator

from logstore.filesystem import File
from pipelines.appenders.contract import AppenderFailed, Context, State
from pipelines.appenders.paths import PathTemplate
from pipelines.appenders.undo import UndoLog
from pipelines.layouts import Layout, default_layout
from pipelines.section import Bytes, Seconds, Section, key

_MIB: Final = 1 << 20
_PIECE: Final = 4 << 20
_NUMBER_DIGITS: Final = 6
_SUFFIXES: Final = {"gzip": ".gz", "zstd": ".zst", "none": ""}
_UNFINISHED: Final = ".unfinished"


class RollingFileSettings(Section):
    """Where the files are, and when they are rolled."""

    dir: str = key(..., "the folder below which all files are")
    path: str = key("{fqn}.log", "the file of an event, below `dir`")
    layout: Layout = key(default_layout(), "how an event becomes a line")
    max_file_size: Bytes = key(100 * _MIB, "a file is rolled before it is larger")
    names: Literal["sequence", "fixed_window"] = key("sequence", "of files that were rolled")
    keep_files: int = key(0, "rolled files of a path that are kept; 0: all", ge=0)
    keep_for: Seconds = key(
        0.0, "a rolled file is removed when it was last written so long ago; 0: never"
    )
    keep_bytes: int = key(0, "bytes of rolled files of a path that are kept; 0: all", ge=0)
    compress: Literal["none", "gzip", "zstd"] = key("none", "of what was rolled")
    idle_close: Seconds = key(1800.0, "a file that nothing was written to for so long is closed")
    max_open_files: int = key(200, "files that are open at once", ge=1)

    @field_validator("path")
    @classmethod
    def _is_template(cls, value: str) -> str:
        PathTemplate(value)
        return value


@dataclass(slots=True)
class _Open:
    file: File
    size: int
    used: float


class RollingFile:
    """Writes events to files. One is made for each part of the pipelines' names."""

    settings: ClassVar[type[Section]] = RollingFileSettings

    def __init__(self, settings: RollingFileSettings) -> None:
        self._settings = settings
        self._template = PathTemplate(settings.path)
        self._folder = os.path.abspath(settings.dir)
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._grown: set[str] = set()  # since the last sync, and closed meanwhile or not
        self._new_in: set[str] = set()  # folders with names that are not synced
        self._rolled: list[str] = []  # since the last saved checkpoint
        self._settled: list[str] = []
        self._context: Context | None = None
        self._undo: UndoLog | None = None

    def start(self, context: Context, state: State | None) -> None:
        if context.parts > 1 and not self._template.of_one_pipeline:
            raise AppenderFailed(
                f"the path {self._settings.path} is written by several parts of the pipeline",
                hint="Put {fqn} or {part} into the path, or set parts: 1.",
            )
        self._context = context
        self._undo = UndoLog(context.fs, self._folder, context.name)
        self._undo.start(None if state is None else int(state["undo"]))
        self._rolled = list((state or {}).get("rolled", ()))
        self._finish(self._rolled)
        self._rolled = []

    def append(self, events: pa.Table) -> None:
        context, undo = self._started()
        lines = self._settings.layout.lines(events)
        groups = list(self._template.groups(events, context.part))
        undo.touch([path for path, _ in groups])
        for path, rows in groups:
            chosen = lines if len(groups) == 1 else lines.take(pa.array(rows))
            self._write(path, *_bytes_of(chosen))
        self._close_idle()

    def sync(self) -> State:
        context, undo = self._started()
        for path in sorted(self._grown):
            self._file(path).file.sync()
        for folder in sorted(self._new_in):
            context.fs.sync_folder(folder)
        self._grown.clear()
        self._new_in.clear()
        self._settled, self._rolled = [*self._settled, *self._rolled], []
        return {"undo": undo.prepare(), "rolled": list(self._settled)}

    def saved(self) -> None:
        self._started()[1].saved()
        settled, self._settled = self._settled, []
        self._finish(settled)

    def stop(self) -> None:
        for one in self._open.values():
            one.file.close()
        self._open.clear()
        if self._undo is not None:
            self._undo.stop()

    # --- writing -----------------------------------------------------------------------

    def _started(self) -> tuple[Context, UndoLog]:
        if self._context is None or self._undo is None:
            raise AppenderFailed("the appender was not started")
        return self._context, self._undo

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
        context = self._started()[0]
        known = self._open.get(path)
        if known is None:
            while len(self._open) >= self._settings.max_open_files:
                self._close(next(iter(self._open)))
            whole = os.path.join(self._folder, path)
            context.fs.make_folders(os.path.dirname(whole))
            self._new_in.add(os.path.dirname(whole))
            file = context.fs.open(whole, "append")
            known = self._open[path] = _Open(file, file.size(), 0.0)
        known.used = context.clock.monotonic()
        self._open.move_to_end(path)
        return known

    def _close(self, path: str) -> None:
        one = self._open.pop(path)
        try:
            if path in self._grown:
                one.file.sync()
                self._grown.discard(path)
        finally:
            one.file.close()

    def _close_idle(self) -> None:
        now = self._started()[0].clock.monotonic()
        while self._open:
            path, oldest = next(iter(self._open.items()))
            if now - oldest.used < self._settings.idle_close:
                return
            self._close(path)

    # --- rolling -----------------------------------------------------------------------

    def _roll(self, path: str) -> None:
        undo = self._started()[1]
        self._close(path)
        rolled = self._archived(path)
        if self._settings.names == "sequence":
            target = _numbered(path, max(rolled, default=0) + 1, _NUMBER_DIGITS)
        else:
            for number in sorted(rolled, reverse=True):
                self._shift(rolled[number], _numbered(path, number, 1), number, path)
            target = _numbered(path, 1, 1)
        undo.move(path, target)
        undo.note([["made", path]])
        self._rolled.append(target)

    def _shift(self, name: str, plain: str, number: int, path: str) -> None:
        """Renames a rolled file to the next number, and keeps its compression."""
        undo, ending = self._started()[1], name[len(plain) :]
        target = _numbered(path, number + 1, 1) + ending
        undo.move(name, target)
        self._rolled = [target if one == name else one for one in self._rolled]
        self._settled = [target if one == name else one for one in self._settled]

    def _archived(self, path: str) -> Mapping[int, str]:
        """The rolled files of a path, by their numbers."""
        folder, name = os.path.split(path)
        stem, ending = os.path.splitext(name)
        form = re.compile(rf"{re.escape(stem)}\.([0-9]+){re.escape(ending)}(?:\.gz|\.zst)?")
        found = {}
        for one, is_folder in self._started()[0].fs.scan(os.path.join(self._folder, folder)):
            match = None if is_folder else form.fullmatch(one)
            if match is not None:
                found[int(match[1])] = os.path.join(folder, one)
        return found

    # --- behind a saved checkpoint -------------------------------------------------------

    def _finish(self, rolled: Sequence[str]) -> None:
        """Compresses what was rolled, and removes what is too old. May be repeated."""
        for path in rolled:
            self._compress(path)
        for path in {_active(path) for path in rolled}:
            self._remove_old(path)

    def _compress(self, path: str) -> None:
        ending, fs = _SUFFIXES[self._settings.compress], self._started()[0].fs
        whole = os.path.join(self._folder, path)
        if not ending or fs.stat(whole) is None:
            return
        draft, target = whole + ending + _UNFINISHED, whole + ending
        if fs.stat(draft) is not None:
            fs.unlink(draft)
        source, made = fs.open(whole, "read"), fs.open(draft, "create")
        try:
            packer = _packer(self._settings.compress)
            for offset in range(0, source.size(), _PIECE):
                made.write([packer.compress(source.pread(_PIECE, offset))])
            made.write([packer.flush()])
            made.sync()
        finally:
            source.close()
            made.close()
        fs.rename(draft, target)
        fs.sync_folder(os.path.dirname(whole))
        fs.unlink(whole)

    def _remove_old(self, path: str) -> None:
        settings, context = self._settings, self._started()[0]
        newest_last = sorted(self._archived(path).items(), reverse=settings.names == "fixed_window")
        total, kept = 0, 0
        for _, one in reversed(newest_last):
            found = context.fs.stat(os.path.join(self._folder, one))
            if found is None:
                continue
            kept, total = kept + 1, total + found.size
            age = context.clock.now_ms() / 1000 - found.modified_ns / 1e9
            too_many = settings.keep_files and kept > settings.keep_files
            too_large = settings.keep_bytes and total > settings.keep_bytes
            too_old = settings.keep_for and age > settings.keep_for
            if too_many or too_large or too_old:
                context.fs.unlink(os.path.join(self._folder, one))


def _bytes_of(lines: pa.Array) -> tuple[memoryview, NDArray[np.int64]]:
    """The bytes of lines of `large_string`, and where each ends in them."""
    _, offsets, data = lines.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[lines.offset : lines.offset + len(lines) + 1]
    first = int(bounds[0]) if len(bounds) else 0
    text = memoryview(data if data is not None else b"")
    return text[first : int(bounds[-1])], bounds[1:] - first


def _numbered(path: str, number: int, digits: int) -> str:
    stem, ending = os.path.splitext(path)
    return f"{stem}.{number:0{digits}d}{ending}"


def _active(rolled: str) -> str:
    """The path whose file was rolled to this name."""
    stem, ending = os.path.splitext(rolled)
    return os.path.splitext(stem)[0] + ending


class _Gzip:
    """gzip in pieces; equal bytes give equal bytes."""

    def __init__(self) -> None:
        self._packer = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)

    def compress(self, data: bytes) -> bytes:
        """The next bytes."""
        return self._packer.compress(data)

    def flush(self) -> bytes:
        """The last bytes."""
        return self._packer.flush()


def _packer(kind: str) -> _Gzip | zstandard.ZstdCompressionObj:
    return _Gzip() if kind == "gzip" else zstandard.ZstdCompressor(level=3).compressobj()
