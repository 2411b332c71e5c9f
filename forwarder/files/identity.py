"""Which files are the same, told by what they hold.

A file that was read is known by its **fingerprint**, the first N bytes of its decompressed content
(fewer while it is shorter), and by its **window**, a hash of the bytes just before the offset up to
which it was read. A file that begins with the one and has the other at that offset holds what was
read: it is the same file, or a copy of it, whatever its name and inode are. A file that shares
the first N bytes only is another one.
"""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

from forwarder.files.content import Content

WINDOW = 1024
_SAMPLES = 8

Window = tuple[int, int, int]
NO_WINDOW: Window = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a file's content: how it begins, and how what was read of it ends."""

    fingerprint: bytes
    window: Window
    least: int = 0
    """So many bytes it has at least: batches were made of them."""
    ranges: tuple[Window, ...] = ()
    """Offset, length and hash of bytes that it has, whatever comes before them."""
    blind: bool = False
    """Nothing is known of the bytes that count as read: no content can be told to be this one."""
    exact: bool = False
    """Nothing comes after the window."""


def window_of(tail: bytes, offset: int) -> Window:
    """The window before `offset`, of the bytes before it, at least `WINDOW` if there are."""
    part = tail[-WINDOW:]
    return offset, len(part), xxhash.xxh3_64_intdigest(part)


def read_window(content: Content, offset: int) -> bytes:
    """The bytes that the window before `offset` is made of; fewer if the file ends earlier."""
    length = min(offset, WINDOW)
    return content.read(offset - length, length)


def holds(content: Content, known: Known) -> bool:
    """Whether a file holds what another was read to. Raises `OSError`, `Damaged`."""
    fingerprint = known.fingerprint
    if known.blind or content.read(0, len(fingerprint)) != fingerprint:
        return False
    offset, length, digest = known.window
    if length:
        part = content.read(offset - length, length)
        if len(part) < length or xxhash.xxh3_64_intdigest(part) != digest:
            return False
    if any(not _has(content, each) for each in known.ranges):
        return False
    if known.exact and content.read(offset, 1):
        return False
    return known.least <= offset or bool(content.read(known.least - 1, 1))


def find_end(content: Content) -> int:
    """The end of the content, also of a compressed file. Raises `OSError`, `Damaged`."""
    if content.compressed:
        while content.read(content.end(), 1 << 20):
            pass
    return content.end()


def _has(content: Content, range_: Window) -> bool:
    offset, length, digest = range_
    part = content.read(offset, length)
    return len(part) == length and xxhash.xxh3_64_intdigest(part) == digest


def begins(content: Content, original: Content) -> bool:
    """Whether one file is the beginning of the other, or both are the same.

    Compares the beginning, the last bytes that both have, and a few places between. Raises
    `OSError`, `Damaged`.
    """
    size = original.end() if content.compressed else min(content.end(), original.end())
    step = max(size // _SAMPLES, WINDOW)
    for place in [*range(0, max(size - WINDOW, 0), step), max(size - WINDOW, 0)]:
        length = min(WINDOW, size - place)
        mine, its = content.read(place, length), original.read(place, length)
        common = min(len(mine), len(its))
        if mine[:common] != its[:common]:
            return False
        if len(mine) < length:  # a compressed file ends here
            last = max(content.end() - WINDOW, 0)
            return content.read(last, WINDOW) == original.read(last, content.end() - last)
    return True
