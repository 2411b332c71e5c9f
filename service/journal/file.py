"""One journal file: its index in memory, its readers, and reading it back after a crash.

**Index.** The node keeps one row of `BATCH` for each batch of a file, and no texts. Rows are
appended to a small flat array and frozen into immutable blocks, so a reader uses the blocks without
a copy and copies at most one of them. When a file is full, its rows are written to `{ULID}.idx` and
mapped from that file: memory use does not grow with the pending part of the journal. The side file
is a cache. It is not synced, and each start writes it again from the journal. One thread appends
rows and other threads may read at the same time, because one assignment replaces the frozen blocks
and the growing tail together.

**Readers.** They pin and unpin a file from any thread. A file is given away when it is released and
unpinned; a new journal file may then overwrite it (`service.journal.files.Spares`). So a reader
must pin a file before it reads it. If the same process opens a folder again (a fork), each file
exists as two objects. An earlier reader may still hold the first object, so the second one is given
away only `after` it.

**Handles.** Files are opened for reading on demand, and `ReadHandles` keeps some of them open: a
journal of hundreds of files must not hold as many descriptors. If no descriptor is free, a read
closes handles that have no reader at the moment. A pinned file keeps its path, so a path never
changes its meaning while a handle is open. Handles are used from any thread.

**Scan.** `scan` reads the entries of a file one after another, after any crash or disk fault. After
a bad entry it continues at the next whole one: at the end that the bad entry announces, if a whole
entry begins there, or else at the first offset that holds one. The bad range is one of three:

- *Damage*, if it is known to have been synced, or if that cannot be determined. It is known if the
  caller or a later mark says so. It cannot be determined if a whole entry follows in a file of an
  older program, whose writes do not begin with marks.
- *Torn*, if no mark says so: writes that no sync covered when the power failed. The disk may have
  kept later pages of them, so whole entries may follow.
- *Unused* space, if an end was written there and no mark says more.

A whole entry has a checksum that includes the file's secret, a body that makes sense, and, if it is
a batch, a plausible position. So the text of a batch is never taken for an entry. A file is read in
pieces; only one entry has to fit in memory.
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

from service.journal import format as wal
from service.journal.format import translated
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import BATCH, Rows, RunKey, digest
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.errors import Damaged
from tailrace.logstore.filesystem import NO_DESCRIPTOR, File, FileSystem
from tailrace.logstore.segments.file_format import times_ms

BLOCK_ROWS = 4096
SUFFIX = ".idx"

_ROW = struct.Struct("<6Q6I")
_BLOCK_BYTES = BLOCK_ROWS * BATCH.itemsize
_LOW_BITS = (1 << 64) - 1


class JournalFileIndex:
    """The rows of one file, and the names that the rows refer to."""

    def __init__(self) -> None:
        self.runs: list[RunKey] = []
        self.connectors: list[str | None] = [None]
        self._run_numbers: dict[RunKey, int] = {}
        self._connector_numbers: dict[str | None, int] = {None: 0}
        self._held: tuple[list[Rows], bytearray] = ([], bytearray())
        self._times = (1 << 48, -1)  # of the earliest and the latest batch, in ms

    def number(self, key: RunKey) -> int | None:
        """The number of a run in the column `run`, None if it has no row."""
        return self._run_numbers.get(key)

    def __len__(self) -> int:
        blocks, tail = self._held
        return sum(len(block) for block in blocks) + len(tail) // BATCH.itemsize

    def add(
        self,
        key: RunKey,
        connector: str | None,
        *,
        offset: int,
        pos: int,
        ulid: int,
        digest: int,
        size: int,
        records: int,
        lines: int,
        meta: int,
        flags: int = 0,
    ) -> None:
        """Appends the row of a batch whose text is at `offset` of the file."""
        run = self._run_numbers.get(key)
        if run is None:
            # Listed first: a reader that sees the number finds the name.
            self.runs.append(key)
            run = self._run_numbers[key] = len(self.runs) - 1
        sender = self._connector_numbers.get(connector)
        if sender is None:
            self.connectors.append(connector)
            sender = self._connector_numbers[connector] = len(self.connectors) - 1
        high, low = ulid >> 64, ulid & _LOW_BITS
        time, (earliest, latest) = ulids.time_ms(ulid), self._times
        if not earliest <= time <= latest:
            self._times = (min(time, earliest), max(time, latest))
        blocks, tail = self._held
        tail += _ROW.pack(
            offset, pos, high, low, digest, size, records, lines, run, sender, meta, flags
        )
        if len(tail) >= _BLOCK_BYTES:
            self._held = ([*blocks, _rows(tail)], bytearray())

    def blocks(self) -> list[Rows]:
        """All rows in order, as immutable arrays."""
        blocks, tail = self._held
        return [*blocks, _rows(tail)] if tail else list(blocks)

    def within(self, times: tuple[int, int] | None) -> list[Rows]:
        """The rows of batches whose ULIDs lie in `times`, in order; ms, both ends inclusive."""
        if times is None:
            return self.blocks()
        low, high = times
        earliest, latest = self._times
        if earliest > high or latest < low:
            return []
        if low <= earliest and latest <= high:
            return self.blocks()
        return [_of_times(block, low, high) for block in self.blocks()]

    def spill(self, write: Callable[[Iterator[bytes]], None], load: Callable[[], Rows]) -> None:
        """Writes the rows to the side file and maps them from there. Raises `OSError`."""
        write(block.tobytes() for block in self.blocks())
        rows = load()
        pieces = [rows[i : i + BLOCK_ROWS] for i in range(0, len(rows), BLOCK_ROWS)]
        self._held = (pieces, bytearray())


def _of_times(rows: Rows, low: int, high: int) -> Rows:
    times = times_ms(rows)
    return rows[(times >= low) & (times <= high)]


def _rows(tail: bytearray) -> Rows:
    return np.frombuffer(bytes(tail), dtype=BATCH)


def select(blocks: Sequence[Rows], start: int, end: int) -> list[Rows]:
    """The rows with `start` <= pos < `end`; rows are in order of pos."""
    found = []
    for block in blocks:
        if len(block) == 0 or block["pos"][-1] < start or block["pos"][0] >= end:
            continue
        low = int(np.searchsorted(block["pos"], start, side="left"))
        high = int(np.searchsorted(block["pos"], end, side="left"))
        if high > low:
            found.append(block[low:high])
    return found


MOST = 32


class _Handle:
    """An open file and its number of readers. If it is `gone`, the last reader closes it."""

    __slots__ = ("file", "gone", "readers")

    def __init__(self, file: File) -> None:
        self.file = file
        self.readers = 0
        self.gone = False


class ReadHandles:
    """Keeps the `most` handles open that were used last."""

    def __init__(self, fs: FileSystem, most: int = MOST) -> None:
        self._fs = fs
        self._most = most
        self._lock = threading.Lock()
        self._open: BoundedCache[str, _Handle] = BoundedCache()

    def __len__(self) -> int:
        return len(self._open)

    def read(self, path: str, size: int, offset: int) -> bytes:
        """Reads as `File.pread`. Raises `NodeNotReady` without descriptors, or `JournalFailed`."""
        with translated(f"{path} could not be read"):
            handle = self._take(path)
            try:
                return handle.file.pread(size, offset)
            finally:
                self._give_back(handle)

    def drop(self, path: str) -> None:
        """Closes the handle of a file that is removed or must not be read any more."""
        with self._lock:
            handle = self._open.pop(path)
            if handle is not None:
                self._end(handle)

    def _take(self, path: str) -> _Handle:
        with self._lock:
            handle = self._open.get(path)
            if handle is None:
                opened = self._opened(path)
                self._close_idle(self._most - 1)
                handle = _Handle(opened)
                self._open.put(path, handle)
            handle.readers += 1
            return handle

    def _opened(self, path: str) -> File:
        try:
            return self._fs.open(path, "read")
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR or not self._close_idle(0):
                raise
        return self._fs.open(path, "read")

    def _give_back(self, handle: _Handle) -> None:
        with self._lock:
            handle.readers -= 1
            if handle.gone and handle.readers == 0:
                handle.file.close()

    def _close_idle(self, most: int) -> bool:
        """Closes unused handles, oldest first, down to `most`. Returns whether it closed any."""
        before = len(self._open)
        for path, handle in [one for one in self._open.items() if one[1].readers == 0]:
            if len(self._open) <= most:
                break
            self._open.pop(path)
            handle.file.close()
        return len(self._open) < before

    def _end(self, handle: _Handle) -> None:
        handle.gone = True
        if handle.readers == 0:
            handle.file.close()


class JournalFile:
    """A file of the journal. `end_pos` is one past its last `pos`.

    `size` is the offset where its entries end. `space` is the size on the disk in bytes, at least
    `size`.
    """

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        *,
        header: wal.FileHeader,
        size: int,
        space: int,
        handles: ReadHandles | None = None,
    ) -> None:
        self._fs = fs
        self._handles = ReadHandles(fs) if handles is None else handles
        self.path = path
        self.ulid = header.file
        self.secret = header.secret
        self.node = header.node
        self.first_pos = header.first_pos
        self.end_pos = header.first_pos
        self.size = size
        self.space = space
        self.index = JournalFileIndex()
        self.after: JournalFile | None = None
        self.damaged: frozenset[int] = frozenset()
        """Offsets of texts whose entries do not read any more: nobody is given them."""
        self.pins = 0
        self._closed = False
        self._give: Callable[[str, int], None] | None = None
        self._lock = threading.Lock()

    def read(self, size: int, offset: int) -> bytes:
        """Reads bytes of the file.

        Raises `JournalFailed` if the disk fails, `NodeNotReady` if no descriptor is free.
        """
        return self._handles.read(self.path, size, offset)

    def has_any(self, owners: Collection[tuple[str, str | None]]) -> bool:
        """Whether it has batches of one of these runs, or of a pipeline's runs."""
        return any(
            (key.fqn, key.run) in owners or (key.fqn, None) in owners for key in self.index.runs
        )

    def spill_index(self) -> None:
        """Moves the rows out of memory; for files that no longer grow.

        The side file is a cache: if the disk refuses it, the rows stay in memory.
        """
        if len(self.index):
            try:
                self.index.spill(self._write_rows, self._load_rows)
            except OSError:
                discard(self._fs, self._index_path)

    def release(self, give: Callable[[str, int], None]) -> None:
        """Passes path and size to `give` as soon as the file has no reader."""
        with self._lock:
            self._give = give
            gone = self.pins == 0
        if gone:
            self._go(give)

    def pin(self) -> None:
        """Begins one reader's hold."""
        with self._lock:
            self.pins += 1

    def unpin(self) -> None:
        """Ends one reader's hold."""
        with self._lock:
            self.pins -= 1
            gone = self.pins == 0
            give, closed = self._give, self._closed
        if gone and give is not None:
            self._go(give)
        elif gone and closed:
            self.close()

    def close(self) -> None:
        """Closes its read handle, if there is one."""
        self._closed = True
        self._handles.drop(self.path)

    @property
    def _index_path(self) -> str:
        return self.path.removesuffix(wal.SUFFIX) + SUFFIX

    def _write_rows(self, pieces: Iterator[bytes]) -> None:
        if self._fs.stat(self._index_path) is not None:
            self._fs.unlink(self._index_path)
        target = self._fs.open(self._index_path, "create")
        try:
            for piece in pieces:
                target.write([piece])
        finally:
            target.close()

    def _load_rows(self) -> Rows:
        source = self._fs.open(self._index_path, "read")
        try:
            if source.fileno() >= 0:
                return np.memmap(self._index_path, dtype=BATCH, mode="r")
            return np.frombuffer(source.pread(source.size(), 0), dtype=BATCH)
        finally:
            source.close()

    def _go(self, give: Callable[[str, int], None]) -> None:
        # Not synced: if a power cut brings the file back, it is released again.
        self.close()
        if self.after is not None:
            self.after.release(give)
            return
        discard(self._fs, self._index_path)
        give(self.path, self.size)


def back_from(pos: int, size: int, files: Sequence[JournalFile]) -> int:
    """Returns the lowest position from which whole `files` below `pos` have `size` bytes."""
    for file in reversed(files):
        if file.end_pos <= pos:
            size -= file.size
            if size < 0:
                return file.end_pos
    return files[0].first_pos


def discard(fs: FileSystem, path: str) -> None:
    """Removes a file that is not needed; if that fails, the next start releases it."""
    with contextlib.suppress(OSError):
        if fs.stat(path) is not None:
            fs.unlink(path)


_PIECE = 1 << 20
_LONGEST_HEADER = 1 << 13
# An entry without lines holds at most two names, as JSON.
_LONGEST_CONTROL = 1 << 20
_CONTROLS = (wal.CUT, wal.CLOSE, wal.TOMBSTONE, wal.CONFIRM, wal.OPEN, wal.FINISH)
# A limit for each bad entry: a text full of almost-entries must not delay a start.
_CHECKED_BYTES = 1 << 30
_CANDIDATE_BYTES = 256
_POS_AT = wal.PREFIX.size + 20
_KIND_AT = wal.PREFIX.size


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A whole entry; `offset` is where its body begins in the file."""

    kind: int
    offset: int
    body: memoryview


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of unreadable bytes that was synced, as far as is known."""

    offset: int
    size: int
    reason: str = "entries fail their checksum"


@dataclass(frozen=True, slots=True)
class Torn:
    """A range of unreadable bytes that no sync is known to have covered.

    If it is `followed`, whole entries follow; otherwise it reaches to the end of the file.
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
    """The end of the entries; later bytes are no entries of this file's present life."""

    offset: int


class _FileWindow:
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
) -> Iterator[JournalEntry | Passed | Damage | Torn | Unused]:
    """Yields the entries and the faults of the file in order.

    `synced` is the offset up to which the file is known to have been synced. Nothing follows
    an `Unused`, or a `Torn` that is not `followed`.
    """
    window = _FileWindow(file)
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
            yield JournalEntry(body[0], offset + wal.PREFIX.size, body)
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


def _body_at(window: _FileWindow, offset: int, secret: bytes) -> memoryview | None:
    prefix = window.bytes(offset, wal.PREFIX.size)
    if len(prefix) < wal.PREFIX.size:
        return None
    length, crc = wal.PREFIX.unpack(prefix)
    if length == 0 or offset + wal.PREFIX.size + length > window.size:
        return None
    body = window.bytes(offset + wal.PREFIX.size, length)
    return body if len(body) == length and wal.seal_fits(body, crc, secret) else None


class _Search:
    """Searches the whole entry that follows a bad entry at `bad`.

    `batch_end` is where the last batch before it ended, `next_pos` the next position then.
    """

    def __init__(
        self, window: _FileWindow, secret: bytes, bad: int, next_pos: int, batch_end: int
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
        """The offset of the next whole entry; None if none follows. Call `claimed` first."""
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
        """Returns the end of the bad entry, by its length or by its length with one bit flipped.

        The bit counts as flipped if the checksum is right with it.
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
        """Whether an entry with this beginning may stand there; a test before the checksum."""
        window, at = self._window, offset + wal.PREFIX.size
        head = window.bytes(offset, wal.PREFIX.size + wal.BATCH_HEAD.size)
        if len(head) <= wal.PREFIX.size:
            return False
        length, _ = wal.PREFIX.unpack_from(head)
        kind = head[_KIND_AT]
        if length == 0 or at + length > window.size:
            return False
        if kind == wal.MARK:
            # Its secret has 64 bits, and no text contains it.
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
        """Yields offsets where an entry may begin, judged by its first bytes."""
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


def _marks(window: _FileWindow, secret: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Yields offsets of whole marks from `start` on, each with the synced offset that it claims."""
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

    The `state` that follows it has file, secret, node and position, and begins at the end of a
    header with a node name of that length.
    """
    window = _FileWindow(file)
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
