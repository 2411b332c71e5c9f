"""The paths at which the local store keeps objects, the keys that it accepts, and their order.

    {root}/{key}               the object's bytes
    {root}/.meta/{key}.json    ETag and user metadata (`logstore.objects.sidecar`)
    {root}/.locks/{00..3f}     flock files; a key's is chosen by its hash. All are made at the
                               start, so that deleting works on a full disk; none is ever removed
    {root}/.tmp/{ULID}         objects that are being written
    {root}/.reserve/           room for a full disk, which the service takes

`Walk` lists keys in S3's order, lazily. S3 orders by the bytes of the whole key: `a-b`, `a.b`,
`a/b`, `a0`. A folder therefore sorts as its name with the `/`. The order of `str` is the order of
UTF-8, so nothing is encoded. Only the names of the folders on the way down to the present key are
in memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import xxhash

from logstore.errors import InvalidName
from logstore.filesystem import FileSystem
from logstore.objects.oserrors import means_absent

META, LOCKS, TEMPORARIES, RESERVE = ".meta", ".locks", ".tmp", ".reserve"
OWN = frozenset({META, LOCKS, TEMPORARIES, RESERVE})
LOCKS_COUNT = 64
MAX_KEY_BYTES = 1024
MAX_COMPONENT_BYTES = 245  # of the 255 of a file name; the sidecar's adds five

_FOLDER_LIKE_SIDECAR = re.compile(r"(\.json%*)/")
_HINT = "Encode names with logstore.names and spell keys with logstore.keys."


class KeyPaths:
    """Paths of keys below one root folder."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)
        self.temporaries = f"{self.root}/{TEMPORARIES}"
        self.locks = f"{self.root}/{LOCKS}"
        self.meta = f"{self.root}/{META}"

    def object(self, key: str) -> str:
        """The path of the object's bytes.

        Raises `InvalidName` for a key that no object can have.
        """
        check_key(key)
        return f"{self.root}/{key}"

    def sidecar(self, key: str) -> str:
        """The path of the object's sidecar.

        A folder's name that ends in `.json` gets a `%`, so that the sidecar of `a` does not
        stand in the way of those of `a.json/b`.
        """
        spelled = _FOLDER_LIKE_SIDECAR.sub(r"\1%/", key)
        return f"{self.meta}/{spelled}.json"

    def lock(self, key: str) -> str:
        """The path of the lock that every writer of the key holds while it decides and renames."""
        stripe = xxhash.xxh3_64_intdigest(os.fsencode(key)) % LOCKS_COUNT
        return f"{self.locks}/{stripe:02x}"

    def all_locks(self) -> list[str]:
        """The paths of all locks that `lock` can return."""
        return [f"{self.locks}/{stripe:02x}" for stripe in range(LOCKS_COUNT)]


def check_key(key: str) -> None:
    """Raises `InvalidName` unless it is relative, clean and short enough."""
    components = key.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in components):
        raise InvalidName(f"{key!r} is not a key", field="key", hint=_HINT)
    if components[0] in OWN:
        raise InvalidName(f"{components[0]} belongs to the store itself", field="key", hint=_HINT)
    if len(os.fsencode(key)) > MAX_KEY_BYTES:
        raise InvalidName(f"a key has at most {MAX_KEY_BYTES} bytes", field="key", hint=_HINT)
    if any(len(os.fsencode(part)) > MAX_COMPONENT_BYTES for part in components):
        raise InvalidName(
            f"a key's component has at most {MAX_COMPONENT_BYTES} bytes", field="key", hint=_HINT
        )


@dataclass(slots=True)
class _Place:
    """How far a walk has come: only keys above `after` are wanted."""

    after: str


class Walk:
    """The objects below `root` as keys."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root

    def keys(self, prefix: str, after: str) -> Generator[str, str | None]:
        """Keys that begin with `prefix` and are above `after`, or above a key that is sent."""
        base = prefix[: prefix.rfind("/") + 1]
        if is_clean(base):
            yield from self._below(base, prefix, _Place(after))

    def folders(self, prefix: str, after: str) -> Iterator[str]:
        """Components below `prefix` that have objects below themselves, above `after`."""
        if not is_clean(prefix):
            return
        for entry in self._entries(prefix):
            is_new = not after or entry > f"{after}/"
            if entry.endswith("/") and is_new and self._has_objects(prefix + entry):
                yield entry[:-1]

    def _below(self, base: str, prefix: str, place: _Place) -> Generator[str, str | None]:
        for entry in self._entries(base):
            key = base + entry
            if not key.startswith(prefix):
                continue
            if not entry.endswith("/"):
                if key > place.after:
                    place.after = (yield key) or place.after
            elif key > place.after or place.after.startswith(key):
                yield from self._below(key, prefix, place)

    def _has_objects(self, base: str) -> bool:
        return next(self._below(base, base, _Place("")), None) is not None

    def _entries(self, base: str) -> list[str]:
        try:
            found = list(self._fs.scan(f"{self._root}/{base}".rstrip("/")))
        except OSError as error:
            if means_absent(error):
                return []
            raise
        own = OWN if not base else frozenset[str]()
        return sorted([f"{name}/" if folder else name for name, folder in found if name not in own])


def is_clean(base: str) -> bool:
    """Whether keys may begin with `base`: it is empty, or folders with a `/` after each."""
    return not base or all(part not in ("", ".", "..") for part in base[:-1].split("/"))
