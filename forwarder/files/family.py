"""Which names are rotations of one another: `app.log`, `app.log.1`, `app.log-20260101.gz`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

_COMPRESSED = re.compile(r"\.(gz|gzip|zst|zstd|bz2|xz|old|bak|save|orig)$", re.IGNORECASE)
_NUMBERS = re.compile(r"[0-9]+")
_EDGES = re.compile(r"[-_.:T@~+]*$")
_ADDED = re.compile(r"[-_.:T@~+]+[0-9]*$|[0-9]+$")
_INDEX = re.compile(r"[-_.:@~+]*[0-9]+(?=\.[^.0-9]+$)")
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


def may_be_rotation(path: str, other: str, is_log: Callable[[str], bool]) -> bool:
    """Whether the names allow that one file is a rotation or a copy of the other.

    They do if one name is the other with what a rotation adds: a number, a date, a compression.
    Two such names of one log do, if `is_log` knows the path of that log: without it,
    `nightly-1.log` and `nightly-2.log` are two logs. So does a compressed form in the same family.
    A file that moved to another folder has kept its name, but for a compression.
    """
    folder, name = os.path.split(path)
    other_folder, other_name = os.path.split(other)
    if folder != other_folder:
        return _uncompressed(name) == _uncompressed(other_name)
    if is_archive(name) != is_archive(other_name) and family(path) == family(other):
        return True
    common = _log_names(name) & _log_names(other_name)
    return (
        name in common
        or other_name in common
        or any(is_log(os.path.join(folder, each)) for each in common)
    )


def _uncompressed(name: str) -> str:
    return _COMPRESSED.sub("", name)


def _log_names(name: str) -> set[str]:
    """The name, and those of the logs that it may be a rotation of."""
    return {name, *written_names(name), _INDEX.sub("", _uncompressed(name))}
