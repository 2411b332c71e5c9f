"""Which names are rotations of one another: `app.log`, `app.log.1`, `app.log-20260101.gz`."""

from __future__ import annotations

import os
import re

_COMPRESSED = re.compile(r"\.(gz|gzip|zst|zstd|bz2|xz|old|bak|save|orig)$", re.IGNORECASE)
_NUMBERS = re.compile(r"[0-9]+")
_EDGES = re.compile(r"[-_.:T@~+]*$")


def is_archive(path: str) -> bool:
    """Whether a name says that the file is compressed."""
    return _COMPRESSED.search(path) is not None


def family(path: str) -> tuple[str, str]:
    """The folder, and the name without what a rotation adds to it or counts up in it."""
    folder, name = os.path.split(path)
    bare = _NUMBERS.sub("", _COMPRESSED.sub("", name))
    while (shorter := _EDGES.sub("", re.sub(r"([-_.:])[-_.:T@~+]+", r"\1", bare))) != bare:
        bare = shorter
    return folder, bare
