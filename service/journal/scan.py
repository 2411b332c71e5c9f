"""Reads a journal file back after any crash or disk fault.

Entries are read one after another. At the first bad one:

- If a later mark, or the caller, says that bytes behind it had been synced, the disk lost
  synced bytes: the range up to the next mark (or to the end) is *damage*, and reading
  continues behind it.
- Otherwise reading ends there. The rest of the file is *unused* space if an end was written
  there, or nothing ever; anything else is a *torn tail*: writes that no sync had covered.

A file is read in pieces; only one entry has to fit in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import orjson

from logstore.errors import Damaged
from logstore.filesystem import File
from service.journal import format as wal

_PIECE = 1 << 20
_LONGEST_HEADER = 1 << 13


@dataclass(frozen=True, slots=True)
class Entry:
    """A whole entry; `offset` is where its body begins in the file."""

    kind: int
    offset: int
    body: memoryview


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of bytes that had been synced and cannot be read."""

    offset: int
    size: int
    reason: str = "entries fail their checksum"


@dataclass(frozen=True, slots=True)
class TornTail:
    """Where the whole entries end; no mark says that what follows was ever synced.

    `followed` if a whole entry stands right behind the bad one, by its length. The end of the
    process then did not break off a write: it is damage, or a power cut kept only the later of
    two writes.
    """

    offset: int
    size: int
    followed: bool


@dataclass(frozen=True, slots=True)
class Unused:
    """Where the whole entries end; what follows is no entry of this file's present life."""

    offset: int


class _Window:
    """The file as a sliding window of bytes."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._data = b""
        self._at = 0
        self.size = file.size()

    def bytes(self, offset: int, size: int) -> memoryview:
        """Up to `size` bytes from `offset`; fewer only at the end of the file."""
        start = offset - self._at
        if start < 0 or start + size > len(self._data):
            self._data = self._file.pread(max(size, _PIECE), offset)
            self._at, start = offset, 0
        return memoryview(self._data)[start : start + size]


def scan(
    file: File, header: wal.FileHeader, *, synced: int = 0
) -> Iterator[Entry | Damage | TornTail | Unused]:
    """The file's entries without its marks, and its faults where they are.

    `synced` is the offset up to which the file is known to have been synced.
    """
    window = _Window(file)
    offset = header.size
    while offset < window.size:
        first = offset == header.size
        body = _body_at(window, offset, wal.NO_SECRET if first else header.secret)
        if body is None:
            resume = _resume_offset(window, header.secret, offset, synced)
            if resume is None:
                unused = window.bytes(offset, len(wal.END)) == wal.END
                yield Unused(offset) if unused else _torn(window, offset, header.secret)
                return
            yield Damage(offset, resume - offset)
            offset = resume
            continue
        if body[0] != wal.MARK:
            yield Entry(body[0], offset + wal.PREFIX.size, body)
        offset += wal.PREFIX.size + len(body)


def _body_at(window: _Window, offset: int, secret: bytes) -> memoryview | None:
    prefix = window.bytes(offset, wal.PREFIX.size)
    if len(prefix) < wal.PREFIX.size:
        return None
    length, crc = wal.PREFIX.unpack(prefix)
    if length == 0 or offset + wal.PREFIX.size + length > window.size:
        return None
    body = window.bytes(offset + wal.PREFIX.size, length)
    return body if len(body) == length and wal.seal_fits(body, crc, secret) else None


def _torn(window: _Window, offset: int, secret: bytes) -> TornTail:
    prefix = window.bytes(offset, wal.PREFIX.size)
    followed = False
    if len(prefix) == wal.PREFIX.size:
        behind = offset + wal.PREFIX.size + wal.PREFIX.unpack(prefix)[0]
        followed = _body_at(window, behind, secret) is not None
    return TornTail(offset, window.size - offset, followed)


def _resume_offset(window: _Window, secret: bytes, bad: int, synced: int) -> int | None:
    """Where reading continues behind `bad`, None if nothing there is known to be synced."""
    first: int | None = None
    for offset, claimed in _marks(window, secret, bad + 1):
        if first is None:
            first = offset
        if max(claimed, synced) > bad:
            return first
    return window.size if synced > bad else None


def _marks(window: _Window, secret: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Offsets of whole marks from `start` on, each with the offset that it says was synced."""
    pattern = bytes((wal.MARK,)) + secret
    at = start
    while at < window.size:
        piece = window.bytes(at, min(_PIECE, window.size - at))
        found = bytes(piece).find(pattern)
        if found < 0:
            at += max(len(piece) - len(pattern) + 1, 1)
            continue
        offset = at + found - wal.PREFIX.size
        body = _body_at(window, offset, secret) if offset >= start else None
        if body is not None and len(body) == wal.MARK_BODY.size:
            _, _, own, synced = wal.MARK_BODY.unpack(body)
            if own == offset:
                yield offset, synced
        at += found + 1


def read_header(file: File) -> wal.FileHeader:
    """The file's header. Raises `Damaged`."""
    head = file.pread(wal.HEADER.size, 0)
    if len(head) < wal.HEADER.size:
        raise Damaged("not a journal file: it has no header")
    _, _, length, *_ = wal.HEADER.unpack(head)
    return wal.decode_header(file.pread(min(length, 1 << 16), 0))


def salvage_header(file: File, ulid: str) -> wal.FileHeader | None:
    """Rebuilds the damaged header of file `ulid`; None if that is impossible.

    The `state` behind it has file, secret, node and position, and begins where a header with
    a node name of that length ends.
    """
    window = _Window(file)
    for offset in range(wal.HEADER.size, min(_LONGEST_HEADER, window.size)):
        body = _body_at(window, offset, wal.NO_SECRET)
        if body is not None and body[0] == wal.STATE:
            return _header_before(ulid, offset, body)
    return None


def _header_before(ulid: str, offset: int, body: memoryview) -> wal.FileHeader | None:
    try:
        state = orjson.loads(body[1:])
        node, first_pos, name = str(state["node"]), int(state["pos"]), state["files"][-1]
        header = wal.FileHeader(ulid, bytes.fromhex(state["secret"]), first_pos, node, offset)
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    fits = len(wal.encode_header(file=ulid, secret=header.secret, first_pos=0, node=node))
    return header if name == ulid and fits == offset else None
