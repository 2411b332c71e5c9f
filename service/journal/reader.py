"""Reads what the journal holds: pins, and the batches of a pin.

A pin is the unflushed part of the node at one moment: everything that was synced by then. Its files
are not deleted while it is held. So a reader that first pins and then lists the store misses
nothing.

Entries are checked before their lines leave the journal for good (`JournalPin.damaged`). A disk may
return other bytes than were synced, and a segment gets new checksums, which would certify the wrong
bytes. Each entry is therefore compared with its CRC32C and with its row, in one pass over the bytes
of the file and without work per line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from service.journal import file as indexes
from service.journal import format as wal
from service.journal.file import JournalFile, JournalFileIndex
from tailrace.logstore.batch import BATCH, CONSTANT_ATTRIBUTES, Indexes, RecordMeta, Rows, RunKey
from tailrace.logstore.position import Position

_SPAN_BYTES = 512 << 10  # a block that the allocator keeps, and that fits the CPU's cache
_GAP_BYTES = 4096

Ints = NDArray[np.int64]
T = TypeVar("T")
_CHECKED_BYTES = 1 << 20
_HEAD = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("names", "<u2", 3),
        ("records", "<u4"),
        ("lines", "<u4"),
        ("meta", "<u4"),
        ("pos", "<u8"),
        ("digest", "<u8"),
        ("ulid_hi", ">u8"),
        ("ulid_lo", ">u8"),
    ]
)
_SAME = ("records", "lines", "meta", "pos", "digest", "ulid_hi", "ulid_lo", "flags")


class Readable(Protocol):
    """A file with the texts of batches."""

    @property
    def path(self) -> str:
        """The file's path."""
        ...

    def read(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer only at the end of the file."""
        ...


class JournalBatches:
    """Rows of one or more journal files as one `Batches`."""

    def __init__(
        self,
        node: str,
        rows: Rows,
        files: Sequence[Readable],
        file_of: NDArray[np.int32],
        runs: Sequence[RunKey],
        connectors: Sequence[str | None],
    ) -> None:
        self.node = node
        self.rows = rows
        self.runs = runs
        self.connectors = connectors
        self._files = files
        self._file_of = file_of

    def places(self) -> tuple[list[str], NDArray[np.int32]]:
        """Returns the paths of the files that hold texts, and the index of the file of each row."""
        used, file_of = np.unique(self._file_of, return_inverse=True)
        return [self._files[number].path for number in used], file_of.astype(np.int32)

    def text(self, indexes: Indexes) -> bytes:
        sizes = self.rows["size"][indexes].astype(np.int64)
        starts = self.rows["offset"][indexes].astype(np.int64)
        spans = self._spans(self._file_of[indexes], starts, starts + sizes)
        if len(spans) == 1:
            return spans[0].read()
        # Filled piece by piece and returned without another copy: it may take megabytes.
        whole, end = BytesIO(bytes(int(sizes.sum()))), 0
        with whole.getbuffer() as target:
            for span in spans:
                piece = span.read()
                target[end : end + len(piece)] = piece
                end += len(piece)
        return whole.getvalue()[:end]  # less than all of it if a file was cut

    def slice(self, index: int, low: int, high: int) -> bytes:
        row = self.rows[index]
        size = min(high, int(row["size"])) - low
        if size <= 0:
            return b""
        file: Readable = self._files[self._file_of[index]]
        return file.read(size, int(row["offset"]) + low)

    def meta(self, index: int) -> RecordMeta | None:
        row = self.rows[index]
        if not row["meta"] or row["flags"] & CONSTANT_ATTRIBUTES:
            return None
        return wal.decode_meta(self._meta(index))

    def constant_attributes(self, index: int) -> Mapping[str, str] | None:
        if not self.rows["flags"][index] & CONSTANT_ATTRIBUTES:
            return None
        return wal.decode_attributes(self._meta(index))

    def _meta(self, index: int) -> bytes:
        row = self.rows[index]
        file: Readable = self._files[self._file_of[index]]
        return file.read(int(row["meta"]), int(row["offset"]) + int(row["size"]))

    def _spans(self, files: NDArray[np.int32], starts: Ints, stops: Ints) -> list[_Span]:
        """Groups the texts at these offsets into ranges that one read of a file fetches."""
        if len(starts) == 0:
            return []
        apart = starts[1:] - stops[:-1]
        breaks = (files[1:] != files[:-1]) | (apart < 0) | (apart > _GAP_BYTES)
        edges = [*(np.flatnonzero(breaks) + 1).tolist(), len(starts)]
        at, begin, end = files.tolist(), starts.tolist(), stops.tolist()
        spans, low = [], 0
        for edge in edges:
            while low < edge:
                high = edge
                if end[edge - 1] - begin[low] > _SPAN_BYTES:
                    step = np.searchsorted(stops[low:edge], begin[low] + _SPAN_BYTES, "right")
                    high = low + max(int(step), 1)
                spans.append(_Span(self._files[at[low]], begin[low:high], end[low:high]))
                low = high
        return spans


class _Span(NamedTuple):
    """Texts in one file that one read fetches, together with the bytes between them."""

    file: Readable
    starts: Sequence[int]
    stops: Sequence[int]

    def read(self) -> bytes:
        """The texts, one after another."""
        first = self.starts[0]
        data = self.file.read(self.stops[-1] - first, first)
        if len(self.starts) == 1:
            return data
        view, cuts = memoryview(data), zip(self.starts, self.stops, strict=True)
        return b"".join([view[start - first : stop - first] for start, stop in cuts])


class JournalPin:
    """The unflushed part of the node at one moment; a context manager.

    `first_pos` is the lowest position that the journal still holds. All lines below
    `confirmed_pos` are in confirmed segments, of which `confirmed_seq` is the last. `end_pos` is
    one past the last line that was synced when the pin was taken: later lines are never shown.
    """

    def __init__(
        self,
        node: str,
        files: Sequence[JournalFile],
        *,
        first_pos: int,
        confirmed_pos: int,
        confirmed_seq: int,
        end_pos: int,
    ) -> None:
        self.node = node
        self.first_pos = first_pos
        self.confirmed_pos = confirmed_pos
        self.confirmed_seq = confirmed_seq
        self.end_pos = end_pos
        self._files = files
        for file in files:
            file.pin()
        self._held = True

    @property
    def files(self) -> list[str]:
        """The ULIDs of the journal files that it holds."""
        return [file.ulid for file in self._files]

    def batches(
        self,
        *,
        run: RunKey | None = None,
        start: int = 0,
        end: int | None = None,
        times: tuple[int, int] | None = None,
    ) -> JournalBatches:
        """Batches whose first position is in [`start`, `end`), of one run or of all.

        With `times` only those whose ULIDs lie between these milliseconds, both inclusive.
        """
        low = max(start, self.first_pos)
        high = self.end_pos if end is None else min(end, self.end_pos)
        found: dict[int, list[Rows]] = {}  # by the number of the file
        for number, file in enumerate(self._files):
            if file.first_pos < high and file.end_pos > low:
                blocks = indexes.select(file.index.within(times), low, high)
                if kept := _chosen(file, blocks, run):
                    found[number] = kept
        sizes = [sum(map(len, blocks)) for blocks in found.values()]
        # Filled file by file: a search of all runs may have to copy many rows.
        rows, names, first = np.empty(sum(sizes), BATCH), _Names(run), 0
        for (number, blocks), size in zip(found.items(), sizes, strict=True):
            part = np.concatenate(blocks, out=rows[first : first + size])
            names.translate(part, self._files[number].index)
            first += size
        file_of = np.repeat(np.array(list(found), np.int32), sizes)
        return JournalBatches(self.node, rows, self._files, file_of, names.runs, names.connectors)

    def damaged(self, start: int, end: int) -> list[tuple[JournalFile, Rows]]:
        """Damaged batches that begin in [`start`, `end`), by file.

        Reads all of them. Raises `JournalFailed`, `NodeNotReady`.
        """
        found = []
        for file in self._files:
            blocks = indexes.select(file.index.blocks(), max(start, self.first_pos), end)
            found += [(file, _damaged_rows(file, block)) for block in blocks]
        return [(file, rows) for file, rows in found if len(rows)]

    def position(self, pos: int) -> Position:
        """The position of a line, for cursors."""
        holder = ""
        for file in self._files:
            if file.first_pos > pos:
                break
            holder = file.ulid
        return Position(holder, pos)

    def again(self) -> JournalPin:
        """Returns another pin of the same moment, released separately. This pin must be held."""
        return JournalPin(
            self.node,
            self._files,
            first_pos=self.first_pos,
            confirmed_pos=self.confirmed_pos,
            confirmed_seq=self.confirmed_seq,
            end_pos=self.end_pos,
        )

    @property
    def held(self) -> bool:
        """Whether it has not been released yet."""
        return self._held

    def release(self) -> None:
        """Unpins the files."""
        if self._held:
            self._held = False
            for file in self._files:
                file.unpin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _chosen(file: JournalFile, blocks: Sequence[Rows], run: RunKey | None) -> list[Rows]:
    """The rows of the file's `blocks` that are not damaged, of one run or of all."""
    if run is not None:
        wanted = file.index.number(run)
        blocks = [] if wanted is None else [rows[rows["run"] == wanted] for rows in blocks]
    if file.damaged:
        damaged = list(file.damaged)
        blocks = [rows[~np.isin(rows["offset"], damaged)] for rows in blocks]
    return [rows for rows in blocks if len(rows)]


class _Names:
    """Runs and connectors of several files under one numbering."""

    def __init__(self, run: RunKey | None) -> None:
        self._wanted = run
        self.runs: list[RunKey] = [] if run is None else [run]
        self.connectors: list[str | None] = [None]
        self._run_numbers = {key: number for number, key in enumerate(self.runs)}
        self._connector_numbers: dict[str | None, int] = {None: 0}

    def translate(self, rows: Rows, index: JournalFileIndex) -> None:
        """Replaces the numbering of a file by this one, in rows of the wanted run or all rows."""
        if self._wanted is not None:
            rows["run"] = 0
        else:
            rows["run"] = _table(index.runs, self.runs, self._run_numbers)[rows["run"]]
        connectors = _table(index.connectors, self.connectors, self._connector_numbers)
        rows["connector"] = connectors[rows["connector"]]


def _table(names: Sequence[T], known: list[T], numbers: dict[T, int]) -> NDArray[np.uint32]:
    for name in names:
        if name not in numbers:
            numbers[name] = len(known)
            known.append(name)
    return np.array([numbers[name] for name in names], np.uint32)


def _damaged_rows(file: JournalFile, rows: Rows) -> Rows:
    """Returns the `rows` of the file, in order, whose entries differ from what was written."""
    if len(rows) == 0:
        return rows
    index = file.index
    runs = [len(key.fqn.encode()) + len(key.run.encode()) for key in index.runs]
    connectors = [len((name or "").encode()) for name in index.connectors]
    names = np.array(runs)[rows["run"]] + np.array(connectors)[rows["connector"]]
    texts = rows["offset"].astype(np.int64)
    starts = texts - names - wal.BATCH_HEAD.size - wal.PREFIX.size
    stops = texts + rows["size"].astype(np.int64) + rows["meta"]
    whole = np.zeros(len(rows), np.bool_)
    low = 0
    while low < len(rows):
        high = max(int(np.searchsorted(stops, starts[low] + _CHECKED_BYTES, "right")), low + 1)
        whole[low:high] = _whole(file, rows[low:high], starts[low:high], stops[low:high])
        low = high
    return rows[~whole]


def _whole(file: JournalFile, rows: Rows, starts: Ints, stops: Ints) -> NDArray[np.bool_]:
    first, size = int(starts[0]), int(stops[-1] - starts[0])
    data = file.read(size, first).ljust(size, b"\0")  # less if the file was cut
    begins = starts - first
    every = np.frombuffer(data, np.uint8)
    prefixes = every[begins[:, None] + np.arange(wal.PREFIX.size)].view("<u4")
    bodies = begins + wal.PREFIX.size
    heads = every[bodies[:, None] + np.arange(_HEAD.itemsize)].view(_HEAD)[:, 0]
    pairs = zip(bodies.tolist(), (stops - first).tolist(), strict=True)
    seals = wal.seals([data[low:high] for low, high in pairs], file.secret)
    found: NDArray[np.bool_] = (prefixes[:, 0] == stops - starts - wal.PREFIX.size) & (
        prefixes[:, 1] == np.array(seals, np.uint32)
    )
    for name in _SAME:
        found &= heads[name] == rows[name]
    return found
