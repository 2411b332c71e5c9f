"""Reads a journal file back after any crash or disk fault.

Entries are read one after another. After a bad one, reading continues at the next whole entry:
where the bad entry says that it ends, if one is there, or else at the first offset that holds
one. The bad range is one of three:

- *Damage*, if the range is known to have been synced, or if nobody can tell. It is known if the
  caller or a later mark says so. Nobody can tell if a whole entry follows in a file whose
  writes do not begin with marks (an older program wrote it).
- *Torn*, if no mark says so: writes that no sync covered when the power went. The disk may have
  kept later pages of them, so whole entries may follow.
- *Unused* space, if an end was written there and no mark says more.

A whole entry has a checksum that includes the file's secret, a body that makes sense, and, if
it is a batch, a position that can stand there. So no text of a batch is taken for an entry.

A file is read in pieces; only one entry has to fit in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

from logstore.batch import digest
from logstore.errors import Damaged
from logstore.filesystem import File
from service.journal import format as wal

_PIECE = 1 << 20
_LONGEST_HEADER = 1 << 13
# Entries without lines hold two names at most, in JSON.
_LONGEST_CONTROL = 1 << 20
_CONTROLS = (wal.CUT, wal.CLOSE, wal.TOMBSTONE, wal.CONFIRM, wal.OPEN, wal.FINISH)
# For one bad place: a text that is full of almost-entries must not hold up a start.
_CHECKED_BYTES = 1 << 30
_CANDIDATE_BYTES = 256
_POS_AT = wal.PREFIX.size + 20
_KIND_AT = wal.PREFIX.size


@dataclass(frozen=True, slots=True)
class Entry:
    """A whole entry; `offset` is where its body begins in the file."""

    kind: int
    offset: int
    body: memoryview


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of bytes that cannot be read, and that had been synced as far as anybody knows."""

    offset: int
    size: int
    reason: str = "entries fail their checksum"


@dataclass(frozen=True, slots=True)
class Torn:
    """A range of bytes that cannot be read, and that no sync is known to have covered.

    Whole entries follow it if it is `followed`; otherwise it reaches to the end of the file.
    """

    offset: int
    size: int
    followed: bool


@dataclass(frozen=True, slots=True)
class Passed:
    """A mark: the next line has position `pos`."""

    pos: int


@dataclass(frozen=True, slots=True)
class Unused:
    """Where the entries end; the bytes after it are no entry of this file's present life."""

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
) -> Iterator[Entry | Passed | Damage | Torn | Unused]:
    """The file's entries, and its faults where they are.

    `synced` is the offset up to which the file is known to have been synced. Nothing follows
    an `Unused`, or a `Torn` that is not followed.
    """
    window = _Window(file)
    offset = header.size
    # A file gets its name when header and state are synced.
    synced = max(synced, offset + 1)
    state: memoryview | None = None
    batch, batch_end = None, offset
    while offset < window.size:
        first = offset == header.size
        body = _body_at(window, offset, wal.NO_SECRET if first else header.secret)
        if body is None:
            next_pos = header.first_pos if batch is None else _end_pos(batch)
            search = _Search(window, header.secret, offset, next_pos, batch_end)
            known = search.claimed() or synced > offset
            if not known and window.bytes(offset, len(wal.END)) == wal.END:
                yield Unused(offset)
                return
            resume = search.next_whole()
            size = (window.size if resume is None else resume) - offset
            if known or (resume is not None and not _has_write_marks(state)):
                yield Damage(offset, size)
            else:
                yield Torn(offset, size, followed=resume is not None)
            if resume is None:
                return
            offset = resume
            continue
        if body[0] == wal.STATE and first:
            state = body
        elif body[0] == wal.BATCH:
            batch, batch_end = body, offset + wal.PREFIX.size + len(body)
        if body[0] != wal.MARK:
            yield Entry(body[0], offset + wal.PREFIX.size, body)
        elif (pos := _mark_pos(body, header.secret, offset)) is not None:
            yield Passed(pos)
        offset += wal.PREFIX.size + len(body)


def _mark_pos(body: memoryview, secret: bytes, offset: int) -> int | None:
    mark = wal.decode_mark(body)
    return mark.pos if mark is not None and (mark.secret, mark.offset) == (secret, offset) else None


def _has_write_marks(state: memoryview | None) -> bool:
    """Whether each write to the file begins with a mark, as far as its state can be read."""
    if state is None:
        return False
    try:
        return bool(orjson.loads(state[1:]).get(wal.WRITE_MARKS, False))
    except (ValueError, AttributeError):
        return False


def _end_pos(batch: memoryview) -> int:
    if len(batch) < wal.BATCH_HEAD.size:
        return 0
    _, _, _, _, _, records, _, _, pos, _, _ = wal.BATCH_HEAD.unpack_from(batch)
    return int(pos + records)


def _body_at(window: _Window, offset: int, secret: bytes) -> memoryview | None:
    prefix = window.bytes(offset, wal.PREFIX.size)
    if len(prefix) < wal.PREFIX.size:
        return None
    length, crc = wal.PREFIX.unpack(prefix)
    if length == 0 or offset + wal.PREFIX.size + length > window.size:
        return None
    body = window.bytes(offset + wal.PREFIX.size, length)
    return body if len(body) == length and wal.seal_fits(body, crc, secret) else None


class _Search:
    """Searches for what follows a bad entry at `bad`.

    The last batch before it ended at `batch_end`, and `next_pos` was the next position then.
    """

    def __init__(
        self, window: _Window, secret: bytes, bad: int, next_pos: int, batch_end: int
    ) -> None:
        self._window = window
        self._secret = secret
        self._bad = bad
        self._next_pos = next_pos
        self._batch_end = batch_end
        self._mark: int | None = None
        self._left = _CHECKED_BYTES

    def claimed(self) -> bool:
        """Whether a later mark says that the bad entry had been synced."""
        for offset, synced in _marks(self._window, self._secret, self._bad + 1):
            if self._mark is None:
                self._mark = offset
            if synced > self._bad:
                return True
        return False

    def next_whole(self) -> int | None:
        """The offset of the next whole entry, None if none follows. Call `claimed` before."""
        announced = self._announced()
        if announced is not None and self._whole(announced):
            return announced
        end = self._window.size if self._mark is None else self._mark
        for offset in self._candidates(self._bad + 1, end):
            self._left -= _CANDIDATE_BYTES
            if self._whole(offset):
                return offset
            if self._left < 0:
                break
        return self._mark

    def _announced(self) -> int | None:
        """Where the bad entry ends: by its length, or by that with the one bit that turned.

        It is that bit if the checksum is right with it.
        """
        prefix, at = self._window.bytes(self._bad, wal.PREFIX.size), self._bad + wal.PREFIX.size
        if len(prefix) < wal.PREFIX.size:
            return None
        length, crc = wal.PREFIX.unpack(prefix)
        for bit in range(32):
            other = length ^ 1 << bit
            if 0 < other <= self._window.size - at:
                body = self._window.bytes(at, other)
                self._left -= other
                if wal.seal_fits(body, crc, self._secret):
                    return at + int(other)
        return at + int(length)

    def _whole(self, offset: int) -> bool:
        if not self._plausible(offset):
            return False
        length, _ = wal.PREFIX.unpack(self._window.bytes(offset, wal.PREFIX.size))
        self._left -= length
        body = _body_at(self._window, offset, self._secret)
        if body is None:
            return False
        if body[0] == wal.BATCH:
            return _is_batch(body)
        return body[0] == wal.MARK or _is_object(body[1:])

    def _plausible(self, offset: int) -> bool:
        """Whether an entry that begins so may stand there, before its checksum is computed."""
        window, at = self._window, offset + wal.PREFIX.size
        head = window.bytes(offset, wal.PREFIX.size + wal.BATCH_HEAD.size)
        if len(head) <= wal.PREFIX.size:
            return False
        length, _ = wal.PREFIX.unpack_from(head)
        kind = head[_KIND_AT]
        if length == 0 or at + length > window.size:
            return False
        if kind == wal.MARK:
            # Its secret has 64 bits, and no text has it.
            mark = wal.decode_mark(window.bytes(at, min(length, wal.MARK_BODY.size)))
            return mark is not None and (mark.secret, mark.offset) == (self._secret, offset)
        if kind in _CONTROLS:
            return 2 < length <= _LONGEST_CONTROL and head[_KIND_AT + 1] == ord("{")
        if kind != wal.BATCH or length < wal.BATCH_HEAD.size or len(head) < wal.BATCH_HEAD.size:
            return False
        _, _, fqn, run, connector, _, _, meta, pos, _, _ = wal.BATCH_HEAD.unpack_from(
            head, wal.PREFIX.size
        )
        # n bytes hold at most n lines.
        return bool(
            self._next_pos <= pos <= self._next_pos + offset - self._batch_end
            and wal.BATCH_HEAD.size + fqn + run + connector + meta <= length
        )

    def _candidates(self, start: int, end: int) -> Iterator[int]:
        """Offsets where an entry may begin, by the first bytes of one."""
        overlap = wal.PREFIX.size + wal.BATCH_HEAD.size
        for at in range(start, end, _PIECE):
            piece = np.frombuffer(self._window.bytes(at, _PIECE + overlap), np.uint8)
            yield from (at + found for found in self._begins(piece, at).tolist())

    def _begins(self, piece: NDArray[np.uint8], at: int) -> NDArray[np.int64]:
        count = min(len(piece) - wal.PREFIX.size - 1, _PIECE)
        if count <= 0:
            return np.empty(0, np.int64)
        kinds = piece[_KIND_AT : _KIND_AT + count]
        longest = min(self._window.size >> 24, 255)
        right = (kinds >= wal.BATCH) & (kinds <= wal.FINISH) & (piece[3 : 3 + count] <= longest)
        found = np.flatnonzero(right)
        kinds = kinds[found]
        objects = (kinds != wal.BATCH) & (kinds != wal.MARK)
        objects &= piece[found + _KIND_AT + 1] == ord("{")
        batches = (kinds == wal.BATCH) & (found + _POS_AT + 8 <= len(piece))
        places = np.where(batches, found, 0)[:, None] + _POS_AT + np.arange(8)
        places = np.minimum(places, len(piece) - 1)
        pos = np.ascontiguousarray(piece[places]).view("<u8")[:, 0]
        highest = self._next_pos + at + found - self._batch_end
        batches &= (pos >= self._next_pos) & (pos <= highest.astype(np.uint64))
        begins: NDArray[np.int64] = found[objects | batches]
        return begins


def _is_batch(body: memoryview) -> bool:
    try:
        batch = wal.decode_batch(body)
    except Damaged:
        return False
    return digest(body[batch.text_at : batch.text_at + batch.text_size]) == batch.digest


def _is_object(data: memoryview) -> bool:
    try:
        return isinstance(orjson.loads(data), dict)
    except ValueError:
        return False


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
        mark = None if body is None else wal.decode_mark(body)
        if mark is not None and mark.offset == offset:
            yield offset, mark.synced
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
