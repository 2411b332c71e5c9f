"""Which names are rotations of one another: `app.log`, `app.log.1`, `app.log-20260101.gz`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

_COMPRESSED = re.compile(r"\.(gz|gzip|zst|zstd|bz2|xz|old|bak|save|orig)$", re.IGNORECASE)
_NUMBERS = re.compile(r"[0-9]+")
_EDGES = re.compile(r"[-_.:T@~+]*$")
_ADDED = re.compile(r"[-_.:T@~+]+[0-9]*$|[0-9]+$")
_DATE = re.compile(r"(?:19|20)[0-9]{2}[-_.]?[01][0-9][-_.]?[0-3][0-9](?:[-_.:T@]?[0-9]+)*")


def is_archive(path: str) -> bool:
    """Whether a name says that the file is compressed."""
    return _COMPRESSED.search(path) is not None


def uncompressed(path: str) -> str:
    """Where the original of an archive is, as long as that is being written."""
    return _COMPRESSED.sub("", path)


def family(path: str) -> tuple[str, str]:
    """The folder, and the name without what a rotation adds to it or counts up in it."""
    folder, name = os.path.split(path)
    bare = _NUMBERS.sub("", _COMPRESSED.sub("", name))
    while (shorter := _EDGES.sub("", re.sub(r"([-_.:])[-_.:T@~+]+", r"\1", bare))) != bare:
        bare = shorter
    return folder, bare


def find_date(path: str) -> str:
    """The digits of the date that a rotation has put into a name, or nothing."""
    found = _DATE.search(os.path.basename(path))
    return "".join(_NUMBERS.findall(found[0])) if found else ""


def written_names(name: str) -> Iterator[str]:
    """The names under which a rotated file may have been written, the most similar first."""
    bare = name
    while compressed := _COMPRESSED.search(bare):
        bare = bare[: compressed.start()]
        yield bare
    if date := _DATE.search(bare):
        begin = len(bare[: date.start()].rstrip("-_.:@~+"))
        yield bare[:begin] + bare[date.end() :]
    while (shorter := _ADDED.sub("", bare)) not in (bare, ""):
        bare = shorter
        yield bare
