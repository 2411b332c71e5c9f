"""Lines that tell a torn end: CRC-32 in hex, a space, a JSON list, a newline."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import orjson

from logstore.filesystem import FileSystem

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
