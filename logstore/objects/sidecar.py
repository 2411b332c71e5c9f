"""The sidecar of an object in the local store: its ETag and metadata in `.meta/{key}.json`.

    {"etag": …, "size": …, "mtime_ns": …, "inode": …, "metadata": {…}, "replaced": {the same five}}

It is valid only for a file of that size, time and inode. For any other file the ETag is computed
from the bytes. It is written before the file is renamed to its key, so it also tells what is known
of the file that stands there until then, or for ever if the writer is killed. It is written without
a sync; its loss loses nothing but user metadata.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from logstore import ulid
from logstore.checked import decode_checked, encode_checked
from logstore.clock import Clock, Entropy
from logstore.filesystem import FileSystem, Stat
from logstore.objects.keypath import KeyPaths

_ATTEMPTS = 100
_MAX_BYTES = 1 << 16


class Known(NamedTuple):
    """ETag and user metadata of one object."""

    etag: str
    metadata: Mapping[str, str]


class KnownFile(NamedTuple):
    """A file, and what is known of it."""

    stat: Stat
    known: Known


class Sidecars:
    """Reads and writes sidecars."""

    def __init__(self, fs: FileSystem, paths: KeyPaths, clock: Clock, entropy: Entropy) -> None:
        self._fs = fs
        self._paths = paths
        self._clock = clock
        self._entropy = entropy

    def read(self, key: str, stat: Stat) -> KnownFile | None:
        """The stored ETag and metadata of the file with that `stat`; None if there are none."""
        try:
            file = self._fs.open(self._paths.sidecar(key), "read")
        except OSError:  # absent, or a name too long: then nothing is known
            return None
        try:
            return _parse(file.pread(_MAX_BYTES, 0), stat)
        finally:
            file.close()

    def write(self, key: str, described: KnownFile, replaced: KnownFile | None = None) -> None:
        """Stores what is known of a file, and of the one that it will replace. Raises `OSError`."""
        temporary = self.new_temporary()
        file = self._fs.open(temporary, "create")
        try:
            file.write([_spell(described, replaced)])
        finally:
            file.close()
        move(self._fs, temporary, self._paths.sidecar(key))

    def remove(self, key: str) -> None:
        """Removes the sidecar, if there is one."""
        try:
            self._fs.unlink(self._paths.sidecar(key))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return

    def new_temporary(self) -> str:
        """A path for a file that is not an object yet."""
        name = ulid.fresh_text(self._clock, self._entropy)
        return f"{self._paths.temporaries}/{name}"


def move(fs: FileSystem, source: str, target: str) -> None:
    """Renames into a folder, which is made if needed, and made again if it is removed meanwhile."""
    folder = os.path.dirname(target)
    for attempt in range(_ATTEMPTS):
        try:
            if attempt:
                fs.make_folders(folder, sync=False)
            fs.rename(source, target)
        except FileNotFoundError:
            continue
        return
    raise FileNotFoundError(source)


def _spell(described: KnownFile, replaced: KnownFile | None) -> bytes:
    fields = _fields(described)
    return encode_checked(fields if replaced is None else {**fields, "replaced": _fields(replaced)})


def _fields(described: KnownFile) -> dict[str, object]:
    return {
        "etag": described.known.etag,
        "size": described.stat.size,
        "mtime_ns": described.stat.modified_ns,
        "inode": described.stat.inode,
        "metadata": dict(described.known.metadata),
    }


def _parse(text: bytes, stat: Stat) -> KnownFile | None:
    wanted = (stat.size, stat.modified_ns, stat.inode)
    try:
        newest = decode_checked(text)
        for found in (newest, newest.get("replaced")):
            if found and (found["size"], found["mtime_ns"], found["inode"]) == wanted:
                return KnownFile(stat, Known(str(found["etag"]), dict(found["metadata"])))
    except (ValueError, KeyError, TypeError, AttributeError):  # torn by a power cut, or changed
        pass
    return None
