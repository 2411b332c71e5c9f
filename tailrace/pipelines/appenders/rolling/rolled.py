"""Rolled files: their names, compression and retention, their catalog, and settings.

sequence      app.log ─► app.000001.log, app.000002.log …, rising fixed_window  app.log ─►
app.1.log, the newest; older ones are renamed at each roll timestamp     app.log ─►
app.2026-11-23T18-00-00.000.log, when it was rolled (UTC)

Damaged lines of the catalog are warnings: their files stay.
"""

from __future__ import annotations

import logging
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final, Literal, Self
from zlib import crc32

import numpy as np
import orjson
import pyarrow as pa
import zstandard
from pydantic import field_validator, model_validator

from tailrace.logstore.filesystem import File, FileSystem, Stat
from tailrace.logstore.patterns import LinearRegex
from tailrace.logstore.ulid import encode
from tailrace.pipelines.appenders.rolling.paths import (
    FileAccessSettings,
    Indexes,
    PathTemplate,
    pairs_of,
)
from tailrace.pipelines.events import Deleted
from tailrace.pipelines.layouts import Layout, default_layout
from tailrace.pipelines.section import Bytes, BytesOrZero, Seconds, Section, setting

_PIECE: Final = 4 << 20
_NUMBER_DIGITS: Final = 6
_SUFFIXES: Final = {"gzip": ".gz", "zstd": ".zst", "none": ""}
_UNFINISHED: Final = ".unfinished"
_STAMP: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}-[0-9]{2}-[0-9]{2}\.[0-9]{3}"
_PACKED: Final = re.compile(r"\.(?:gz|zst)$")
_NUMBERED: Final = re.compile(rf"\.(?:{_STAMP}|[0-9]+)$")
Rename = Callable[[str, str], None]


class RolledSettings(Section):
    """What becomes of files that were rolled."""

    names: Literal["sequence", "fixed_window", "timestamp"] = setting(
        "sequence", "names of rolled files"
    )
    compress: Literal["none", "gzip", "zstd"] = setting("none", "compression of rolled files")
    keep_files: int = setting(0, "number of rolled files to keep of each path; 0: all", ge=0)
    keep_for: Seconds = setting(
        0.0, "a file is removed this long after its last write, rolled or not; 0: never"
    )
    keep_bytes: BytesOrZero = setting(0, "bytes of rolled files to keep of each path; 0: all")
    quota_bytes: BytesOrZero = setting(
        0, "maximum size of a tenant's files; the oldest are removed; 0: no limit"
    )
    quota_folders: int = setting(
        0, "number of leading folders of the path that make a tenant; 0: all files are one", ge=0
    )


class Rolled:
    """The rolled files below a folder. Paths are relative to it. Calls raise `OSError`."""

    def __init__(self, settings: RolledSettings, fs: FileSystem, folder: str) -> None:
        self._settings = settings
        self._fs = fs
        self._folder = folder
        self._listed: dict[str, dict[str, list[str]]] | None = None

    @property
    def spare_bytes(self) -> int:
        """How much longer than the file's own name those are that it gets when it is rolled."""
        number = len("." + _stamp(0)) if self._settings.names == "timestamp" else _NUMBER_DIGITS + 1
        ending = _SUFFIXES[self._settings.compress]
        return number + (len(ending + _UNFINISHED) if ending else 0)

    @contextmanager
    def listed_once(self) -> Iterator[None]:
        """Lists each folder only once during the block; files rolled meanwhile are not seen."""
        self._listed = {}
        try:
            yield
        finally:
            self._listed = None

    def of(self, path: str) -> list[str]:
        """The rolled files of a path, oldest first."""
        window = self._settings.names == "fixed_window"
        return [name for _, name in sorted(self._numbered(path).items(), reverse=window)]

    def next(self, path: str, now_ms: int, rename: Rename) -> str:
        """The name that the file of a path is to get; in a fixed window it is made free."""
        rolled = self._numbered(path)
        if self._settings.names == "sequence":
            last = int(max(rolled, default="0"))
            return _with(path, f"{last + 1:0{_NUMBER_DIGITS}d}")
        if self._settings.names == "timestamp":
            while (stamp := _stamp(now_ms)) in rolled:
                now_ms += 1
            return _with(path, stamp)
        for number in sorted(rolled, reverse=True):
            plain, name = _with(path, str(int(number))), rolled[number]
            rename(name, _with(path, str(int(number) + 1)) + name[len(plain) :])
        return _with(path, "1")

    def unpacked(self, paths: Iterable[str]) -> list[str]:
        """The rolled files of these paths that are not compressed."""
        with self.listed_once():
            found = [name for path in paths for name in self.of(path)]
        return [name for name in found if not _PACKED.search(name)]

    def finish(self, rolled: Sequence[str], protect: Callable[[str], None]) -> None:
        """Compresses rolled files; `protect` is called for each new file. May be repeated."""
        for path in rolled:
            self._compress(path, protect)

    def remove_old(self, path: str, now_ms: int) -> bool:
        """Removes what the settings do not keep of a path; whether something is left."""
        settings, kept = self._settings, 0
        total = 0
        for name in reversed(self.of(path)):
            whole = os.path.join(self._folder, name)
            found = self._fs.stat(whole)
            if found is None:
                continue
            kept, total = kept + 1, total + found.size
            too_many = settings.keep_files and kept > settings.keep_files
            too_large = settings.keep_bytes and total > settings.keep_bytes
            if too_many or too_large or self.too_old(found, now_ms):
                self._fs.unlink(whole)
                kept, total = kept - 1, total - found.size
        return kept > 0

    def keep_quota(self, paths: Iterable[str], busy: Collection[str]) -> list[str]:
        """Removes the oldest files of each tenant that has more than its quota.

        `busy` are files that are written, or that no saved checkpoint has as they are: they count,
        and stay. Gives the paths of which nothing is left.
        """
        with self.listed_once():
            names = {path: [*self.of(path), path] for path in paths}
        tenants: dict[tuple[str, ...], list[tuple[int, int, str]]] = {}
        for path, files in names.items():
            tenant = tuple(path.split("/")[:-1][: self._settings.quota_folders])
            for name in files:
                found = self._fs.stat(os.path.join(self._folder, name))
                if found is not None:
                    one = found.modified_ns, found.size, name
                    tenants.setdefault(tenant, []).append(one)
        left = {name for kept in tenants.values() for name in self._within_quota(kept, busy)}
        return [path for path, files in names.items() if left.isdisjoint(files)]

    def _within_quota(
        self, files: list[tuple[int, int, str]], busy: Collection[str]
    ) -> Iterator[str]:
        """Removes the oldest of a tenant's files, and gives the others."""
        over = sum(size for _, size, _ in files) - self._settings.quota_bytes
        for _, size, name in sorted(files):
            if over > 0 and name not in busy:
                self._fs.unlink(os.path.join(self._folder, name))
                over -= size
            else:
                yield name

    def too_old(self, found: Stat, now_ms: int) -> bool:
        """Whether `keep_for` is over for a file."""
        age = now_ms / 1000 - found.modified_ns / 1e9
        return bool(self._settings.keep_for) and age > self._settings.keep_for

    def _numbered(self, path: str) -> dict[str, str]:
        """The rolled files of a path by number or time, as text of equal length."""
        folder, name = os.path.split(path)
        stem, ending = os.path.splitext(name)
        number = _STAMP if self._settings.names == "timestamp" else "[0-9]+"
        form = LinearRegex(rf"{re.escape(stem)}\.({number}){re.escape(ending)}(?:\.gz|\.zst)?")
        found = {}
        for one in self._names(folder).get(name, ()):
            match = form.fullmatch(one)
            if match is not None:
                found[str(match[1]).rjust(20, "0")] = os.path.join(folder, one)
        return found

    def _names(self, folder: str) -> Mapping[str, Sequence[str]]:
        """The files of a folder that may have been rolled, by the name that they had before."""
        known = None if self._listed is None else self._listed.get(folder)
        if known is None:
            known = {}
            for one, is_folder in self._fs.scan(os.path.join(self._folder, folder)):
                if not is_folder:
                    for path in actives(one):
                        known.setdefault(path, []).append(one)
            if self._listed is not None:
                self._listed[folder] = known
        return known

    def _compress(self, path: str, protect: Callable[[str], None]) -> None:
        ending, fs = _SUFFIXES[self._settings.compress], self._fs
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
        protect(draft)
        fs.rename(draft, target)
        fs.sync_folder(os.path.dirname(whole))
        fs.unlink(whole)


def actives(rolled: str) -> set[str]:
    """The paths whose file may have been rolled to this name; one may have no ending."""
    plain = _PACKED.sub("", rolled)
    stem, ending = os.path.splitext(plain)
    return {_NUMBERED.sub("", stem) + ending, _NUMBERED.sub("", plain)}


def _stamp(now_ms: int) -> str:
    moment = datetime.fromtimestamp(now_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H-%M-%S}.{now_ms % 1000:03d}"


def _with(path: str, number: str) -> str:
    stem, ending = os.path.splitext(path)
    return f"{stem}.{number}{ending}"


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


# Files of several runs: a run that was deleted and made again begins a new file.
#
# Most paths that distinguish runs distinguish their generations as well (`PathTemplate`).
# Otherwise, as in `{fqn}.log`, the growing file has the lines of the deleted run. It is rolled
# before the first line of the run's next generation: once for each path, run and deletion. The
# appender's state has the last `_MOST` of them, as hashes, so that a checkpoint stays small. One
# that is forgotten rolls a file once more, and mixes nothing.


_MOST: Final = 1000
_HASH_BYTES: Final = 8


class Generations:
    """The generations for which files of a path were rolled; `known` comes from the state."""

    def __init__(self, template: PathTemplate, known: Iterable[str] = ()) -> None:
        self._template = template
        self._known = dict.fromkeys(known)

    def __len__(self) -> int:
        return len(self._known)

    @property
    def known(self) -> list[str]:
        """What is to be in the appender's state."""
        return list(self._known)

    def begin(
        self, events: pa.Table, groups: Sequence[tuple[str, Indexes]], deleted: Deleted
    ) -> list[str]:
        """The paths whose files are to be rolled before these events are written.

        `deleted` covers none of the events. The paths count as rolled from here on.
        """
        if not deleted or self._template.tells_runs:
            return []
        place, pairs = pairs_of(events)
        names = [self._name(fqn, run, deleted) for fqn, run in pairs]
        if not any(names):
            return []
        found = [(path, self._hashes(path, names, place[rows])) for path, rows in groups]
        to_roll = [path for path, hashes in found if not hashes <= self._known.keys()]
        for _, hashes in found:
            for one in hashes:
                self._known.pop(one, None)
                self._known[one] = None
        for one in list(self._known)[:-_MOST]:
            del self._known[one]
        return to_roll

    def _name(self, fqn: str, run: str, deleted: Deleted) -> str:
        """The deletion that a run has behind it and that no path tells; empty: none."""
        whole, own = deleted.get((fqn, None), 0), deleted.get((fqn, run), 0)
        if own > whole:
            return f"{encode(own)} {run} {fqn}"
        return f"{encode(whole)} {fqn}" if whole and not self._template.tells_pipelines else ""

    def _hashes(self, path: str, names: Sequence[str], chosen: Indexes) -> set[str]:
        found = [names[one] for one in np.unique(chosen).tolist() if names[one]]
        texts = [f"{name} {path}".encode() for name in found]
        return {blake2b(text, digest_size=_HASH_BYTES).hexdigest() for text in texts}


# Lines in which a torn end is recognised: CRC-32 in hex, a space, a JSON list, a newline.


Entry = list[str | int]


def line_of(entry: Sequence[str | int]) -> bytes:
    """The line of an entry."""
    body = orjson.dumps(entry)
    return b"%08x %b\n" % (crc32(body), body)


def entry_of(line: bytes) -> Entry | None:
    """The entry of a line without its newline; None for a torn one."""
    if len(line) < 10 or line[:8] != b"%08x" % crc32(line[9:]):
        return None
    found: Entry = orjson.loads(line[9:])
    return found


def read_lines(fs: FileSystem, path: str) -> tuple[list[Entry], bool]:
    """The entries of a file, and whether it has nothing else. Raises `OSError`."""
    file = fs.open(path, "read")
    try:
        lines = file.pread(file.size(), 0).split(b"\n")
    finally:
        file.close()
    entries = [entry_of(line) for line in lines[:-1]]
    found = [entry for entry in entries if entry is not None]
    return found, not lines[-1] and len(found) == len(entries)


def has_damage(fs: FileSystem, path: str) -> bool:
    """Whether a line that has its end is not whole: a torn one has none. Raises `OSError`."""
    file = fs.open(path, "read")
    try:
        lines = file.pread(file.size(), 0).split(b"\n")[:-1]
    finally:
        file.close()
    return any(entry_of(line) is None for line in lines)


# The catalog: the files that one writer has made. It rolls, counts and removes no other file.
#
#   DIR/.tailrace/{name}/catalog    a line each: CRC-32 in hex, a space, the path as JSON
#
# Other programs may have files in the same folder whose names look alike. So a file is removed only
# if the catalog has it, never by its name. A path is added before its file is begun, where other
# writers see it, and synced before a checkpoint has its file. A torn line at the end is of a file
# that no checkpoint has. A damaged line is a warning: its file stays, and nothing removes it.


log = logging.getLogger("tailrace.pipelines")


def catalog_in(folder: str) -> str:
    """The catalog of the writer whose folder DIR/.tailrace/{name} this is."""
    return os.path.join(folder, "catalog")


def paths_in(fs: FileSystem, catalog: str) -> tuple[list[str], bool]:
    """The paths of a catalog, and whether nothing else is there. Raises `OSError`."""
    entries, whole = read_lines(fs, catalog)
    return [str(path) for (path,) in entries], whole


class RolledCatalog:
    """The paths, relative to the folder of the files. All calls block; they raise `OSError`."""

    def __init__(self, fs: FileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._known: dict[str, None] = {}
        self._unsynced = False
        self._file: File | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._known))

    def start(self) -> None:
        """Reads the catalog. Its folder exists, and no other process writes it."""
        draft = self._path + _UNFINISHED
        if self._fs.stat(draft) is not None:
            self._fs.unlink(draft)
        if self._fs.stat(self._path) is not None:
            paths, whole = paths_in(self._fs, self._path)
            self._known = dict.fromkeys(paths)
            if has_damage(self._fs, self._path):
                log.warning(
                    "%s is damaged and lost the name of a file. That file keeps its lines, and is"
                    " not rolled, counted or removed any more. Remove it by hand when it is old.",
                    self._path,
                )
            if not whole:
                self._rewrite()
        self._open()

    def add(self, paths: Iterable[str]) -> list[str]:
        """These files are, or will be, written here; gives those that are new."""
        new = [path for path in paths if path not in self._known]
        if new and self._file is not None:
            self._file.write([line_of([path]) for path in new])
            self._known.update(dict.fromkeys(new))
            self._unsynced = True
        return new

    def sync(self) -> None:
        """All that was added survives a power cut."""
        if self._unsynced and self._file is not None:
            self._file.sync()
            self._unsynced = False

    def drop(self, paths: Iterable[str]) -> None:
        """Nothing is left of these."""
        gone = [path for path in paths if path in self._known]
        if not gone:
            return
        for path in gone:
            del self._known[path]
        self._unsynced = False
        self.stop()
        self._rewrite()
        self._open()

    def stop(self) -> None:
        """Gives the descriptor back."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> None:
        made = self._fs.stat(self._path) is None
        self._file = self._fs.open(self._path, "append")
        if made:
            self._fs.sync_folder(os.path.dirname(self._path))

    def _rewrite(self) -> None:
        draft = self._path + _UNFINISHED
        file = self._fs.open(draft, "create")
        try:
            if self._known:
                file.write([line_of([path]) for path in self._known])
            file.sync()
        finally:
            file.close()
        self._fs.rename(draft, self._path)
        self._fs.sync_folder(os.path.dirname(self._path))


# The keys of rolling files.


_MIB: Final = 1 << 20


class RollingFileSettings(RolledSettings, FileAccessSettings):
    """Where the files are, and when they are rolled."""

    dir: str = setting(..., "folder of all files")
    path: str = setting("{fqn}.log", "file of an event, below `dir`")
    layout: Layout = setting(default_layout(), "how an event becomes a line")
    max_file_size: Bytes = setting(100 * _MIB, "a file is rolled before it is larger")
    roll_every: Seconds = setting(
        0.0, "files are rolled at the end of each such period in UTC, as 1h or 1d; 0: never"
    )
    roll_idle: Seconds = setting(0.0, "a file is rolled after this time without a write; 0: never")
    idle_close: Seconds = setting(1800.0, "a file is closed after this time without a write")
    max_open_files: int = setting(
        200, "maximum number of open files; at most a quarter of `ulimit -n`", ge=1
    )
    on_delete: Literal["keep", "remove"] = setting(
        "keep", "whether files of a deleted run are kept or removed"
    )

    @property
    def output(self) -> str:
        """The template of all files."""
        return os.path.join(os.path.abspath(self.dir), self.path)

    @field_validator("path")
    @classmethod
    def _is_template(cls, value: str) -> str:
        PathTemplate(value)
        return value

    @model_validator(mode="after")
    def _can_remove(self) -> Self:
        if self.on_delete == "remove" and PathTemplate(self.path).run_folders is None:
            raise ValueError(
                "on_delete: remove needs {fqn} and {run} as folders in the path, such as"
                " {fqn}/{run}/log.txt: a file of several runs cannot be removed for one"
            )
        return self
