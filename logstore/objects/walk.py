"""The keys of a folder tree in S3's order, lazily.

S3 orders by the bytes of the whole key: `a-b`, `a.b`, `a/b`, `a0`. A folder therefore
sorts as its name with the `/`. The order of `str` is the order of UTF-8, so nothing is encoded.
Only the names of the folders on the way down to the present key are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from logstore.filesystem import FileSystem
from logstore.objects.keypath import OWN


class Walk:
    """The objects below `root` as keys."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self._root = root

    def keys(self, prefix: str, after: str) -> Iterator[str]:
        """Keys that begin with `prefix` and are above `after`."""
        base = prefix[: prefix.rfind("/") + 1]
        if is_clean(base):
            yield from self._below(base, prefix, after)

    def folders(self, prefix: str, after: str) -> Iterator[str]:
        """Components below `prefix` that have objects below themselves, above `after`."""
        if not is_clean(prefix):
            return
        for entry in self._entries(prefix):
            is_new = not after or entry > f"{after}/"
            if entry.endswith("/") and is_new and self._has_objects(prefix + entry):
                yield entry[:-1]

    def _below(self, base: str, prefix: str, after: str) -> Iterator[str]:
        for entry in self._entries(base):
            key = base + entry
            if not key.startswith(prefix):
                continue
            if not entry.endswith("/"):
                if key > after:
                    yield key
            elif key > after or after.startswith(key):
                yield from self._below(key, prefix, after)

    def _has_objects(self, base: str) -> bool:
        return next(self._below(base, base, ""), None) is not None

    def _entries(self, base: str) -> list[str]:
        try:
            found = list(self._fs.scan(f"{self._root}/{base}".rstrip("/")))
        except (FileNotFoundError, NotADirectoryError):
            return []
        own = OWN if not base else frozenset[str]()
        return sorted([f"{name}/" if folder else name for name, folder in found if name not in own])


def is_clean(base: str) -> bool:
    """Whether keys may begin with `base`: it is empty, or folders with a `/` after each."""
    return not base or all(part not in ("", ".", "..") for part in base[:-1].split("/"))
