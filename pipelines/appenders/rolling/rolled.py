"""Files that were rolled: their names, how they are compressed, and how many are kept.

sequence      app.log ─► app.000001.log, app.000002.log …, rising
fixed_window  app.log ─► app.1.log, the newest; older ones are renamed at each roll
timestamp     app.log ─► app.2026-11-23T18-00-00.000.log, when it was rolled (UTC)
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final, Literal

import zstandard

from logstore.filesystem import FileSystem, Stat
from logstore.patterns import LinearRegex
from pipelines.definition.section import BytesOrZero, Seconds, Section, key

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

    names: Literal["sequence", "fixed_window", "timestamp"] = key(
        "sequence", "of files that were rolled"
    )
    compress: Literal["none", "gzip", "zstd"] = key("none", "of what was rolled")
    keep_files: int = key(0, "rolled files of a path that are kept; 0: all", ge=0)
    keep_for: Seconds = key(
        0.0, "a file is removed when it was last written so long ago, rolled or not; 0: never"
    )
    keep_bytes: BytesOrZero = key(0, "bytes of rolled files of a path that are kept; 0: all")
    quota_bytes: BytesOrZero = key(
        0, "bytes of all files of a tenant, rolled or not; the oldest are removed; 0: no limit"
    )
    quota_folders: int = key(
        0, "so many folders of the path are a tenant; 0: the appender is one", ge=0
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
        """Each folder is listed once while this lasts; what is rolled meanwhile is not seen."""
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
        """Compresses what was rolled; `protect` is called for each new file. May be repeated."""
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
