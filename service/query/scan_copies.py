r"""Keeps uncompressed copies of table files on the local disk, so that searches scan them faster.

A scan spends most of its time on decompression: the copy of a file is scanned in a third of the
time, and on S3 without a request. It has the same rows in the same row groups, so ranges of row
numbers and skip indexes hold for both. It takes six to seven times the space of its file. The
kernel keeps in memory the parts that searches use, and gives that memory to others at any time.

A file is copied once searches have read as many bytes of it as it has. So copying never costs more
than a small multiple of the reads that led to it, and one search over everything copies nothing.
Before each row group the copying waits while searches run, two seconds at most. All copies together
have a budget. A copy that was used lately does not make room for another: files that displace each
other in turn would be copied for each search.

A copy is removed once no search has used it for an hour, and within a minute after its file has
left the newest version of the table, so deleted lines do not stay. A copy is optional. If one
cannot be made or read, searches read the file itself.

Single rows of a copy are read in place (`CopyRows`), because to decode a row group takes 4 ms
however few of its rows are needed. Each row group of a copy has one page of messages, which are
contiguous at its end. A second file next to the copy has the end of each message, and all other
columns as records of the same width, so a record is read by the number of its row.

    row group | ends, 4 bytes a row | records, 49 bytes a row                   | part filter
    ...       |                     | ULID, time, position, numbers of its names | 512 KiB at most

The layout of Parquet's writer is not taken on trust: while the second file is made, the messages in
the copy are compared with those of Parquet's reader. If the layout differs, the second file is not
made.

The part filter tells in which parts of a row group a text may be, so that the other parts are not
read. The messages of a row group are cut, between two of them, into `PARTS` parts. The filter has
for each slot a number of 16 bits, one for each part: set if an n-gram of six bytes of the part's
messages has that slot. A part may have a text only if its bit is set in the slots of all of the
text's n-grams. That is a bit-sliced Bloom filter with one hash, as in BitFunnel: an answer for all
parts takes two bytes for each n-gram of the text, read in place in a file. A text of fewer than six
bytes may be in any part. In doubt a part is read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from io import FileIO
from itertools import pairwise
from pathlib import Path
from threading import Event, Lock
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from service.query.footers import ATTRIBUTES, MESSAGE, NAMES, NO_NAME, MatchedLines, ReadCounts
from service.query.page_checks import Identity, identity_of
from service.runtime.free_disk import spare_bytes
from service.runtime.process import low_priority_threads
from tailrace.logstore import keys
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.clock import Clock
from tailrace.logstore.colours import is_coloured
from tailrace.logstore.errors import Damaged, TailraceError
from tailrace.logstore.objects.store import ObjectStore, is_remote
from tailrace.logstore.segments.file_format import CARRIED, parse
from tailrace.logstore.table.line_map import LINE
from tailrace.logstore.table.schema import RECORD_SCHEMA
from tailrace.logstore.table.skip_index import ranges, taken_slots
from tailrace.logstore.table.snapshot import TableFile

# --- The part filter ----------------------------------------------------------------------------


PARTS: Final = 16
ALL_PARTS: Final = (1 << PARTS) - 1
_MASK: Final = np.dtype("<u2")
_GRAM: Final = 6
_LONGEST_TEXT: Final = 32  # bytes; more of a text excludes hardly any more parts
_FEWEST_BITS: Final = 8
_MOST_BITS: Final = 18


def bits_of(size: int) -> int:
    """Returns how many bits of a hash are a slot, for `size` bytes of messages.

    A part of `size / 16` bytes of logs then sets a fifth to a third of the slots.
    """
    return min(max((size // PARTS * 3 // 4).bit_length(), _FEWEST_BITS), _MOST_BITS)


def part_filter(texts: Sequence[bytes]) -> bytes:
    """Returns the filter of a row group; `texts` has the contiguous messages of each part."""
    bits = bits_of(sum(map(len, texts)))
    masks: NDArray[np.uint16] = np.zeros(1 << bits, _MASK)
    for part, text in enumerate(texts):
        masks |= taken_slots(text, _GRAM, bits).astype(_MASK) << np.uint16(part)
    return masks.tobytes()


def filter_bytes(size: int) -> int:
    """Returns the size of the filter of so many bytes of messages."""
    return _MASK.itemsize << bits_of(size)


def parts_with(file: FileIO, at: int, size: int, needed: Sequence[Sequence[bytes]]) -> int:
    """Returns the parts that may have one text of each group, as bits, by the filter at `at`.

    The row group has `size` bytes of messages. Raises `OSError`.
    """
    found, bits = ALL_PARTS, bits_of(size)
    for texts in needed:
        of_one = 0
        for text in texts:
            of_one |= _parts_with(file, at, _slots(text[:_LONGEST_TEXT], bits))
        found &= of_one
        if not found:
            break
    return found


def _parts_with(file: FileIO, at: int, slots: Sequence[int]) -> int:
    found = ALL_PARTS
    for slot in slots:
        mask = os.pread(file.fileno(), _MASK.itemsize, at + _MASK.itemsize * slot)
        if len(mask) < _MASK.itemsize:
            raise OSError(f"a copy of a table file is cut off at {at}")
        found &= int.from_bytes(mask, "little")
        if not found:
            break
    return found


@lru_cache(maxsize=256)
def _slots(text: bytes, bits: int) -> Sequence[int]:
    """Returns the slots of the text's n-grams; of a long text only those of its beginning."""
    slots: list[int] = np.flatnonzero(taken_slots(text, _GRAM, bits)).tolist()
    return slots


_END: Final = np.dtype("<u4")
BYTES_A_ROW: Final = _END.itemsize + LINE.itemsize
"""In the second file of a copy, which also has a part filter for each row group."""
_ULID_WIDTH: Final = 26
_WORTH_A_LOOK: Final = 1 << 16  # bytes of messages from which on a filter is read
_COLUMNS: Final = ["ulid", "ts", "pos", *NAMES, CARRIED, MESSAGE]


class _CopiedGroup(NamedTuple):
    """The places of a row group's values: messages in the copy, the others in the second file.

    `runs` are neighbouring rows of one run: where their messages begin, and the numbers of its
    names. `parts` are bytes of messages in each part of the part filter.
    """

    rows: int
    messages: int
    size: int
    runs: Sequence[tuple[int, int, int]]
    parts: NDArray[np.int64]
    ends: int
    coloured: bool = False

    @property
    def records(self) -> int:
        return self.ends + self.rows * _END.itemsize

    @property
    def filter(self) -> int:
        return self.records + self.rows * LINE.itemsize


class CopyRows:
    """The rows of one copy, whose second file is at `path`. Thread-safe."""

    def __init__(
        self, copy: str, path: str, groups: Sequence[_CopiedGroup], names: Sequence[str]
    ) -> None:
        self.path = path
        self._copy = copy
        self._groups = groups
        self._names = dict(enumerate(names))
        self.coloured = frozenset(n for n, group in enumerate(groups) if group.coloured)

    def spans(
        self, number: int, fqn: str | None, run: str | None, needed: Sequence[Sequence[bytes]]
    ) -> list[tuple[int, int]]:
        """Returns the spans of a row group's messages in the copy that may match, and their size.

        A match has one text of each group in `needed`. The spans cover the messages of a pipeline
        or run and those between them, or all messages. Raises `OSError`.
        """
        group, (low, high) = self._groups[number], self._span(number, fqn, run)
        if high - low < _WORTH_A_LOOK:
            return [(group.messages + low, high - low)] if low < high else []
        with open(self.path, "rb", buffering=0) as beside:
            parts = parts_with(beside, group.filter, group.size, needed)
        wanted = np.array([parts >> part & 1 for part in range(PARTS)], np.bool_)
        found = [
            (max(low, first), min(high, last + 1)) for first, last in ranges(group.parts, wanted)
        ]
        return [(group.messages + begin, end - begin) for begin, end in found if begin < end]

    def _span(self, number: int, fqn: str | None, run: str | None) -> tuple[int, int]:
        """Returns begin and end of the pipeline's or run's messages among the row group's."""
        group, names = self._groups[number], self._names
        ends = [*(begin for begin, _, _ in group.runs[1:]), group.size]
        wanted = [
            (begin, end)
            for (begin, of_fqn, of_run), end in zip(group.runs, ends, strict=True)
            if fqn in (None, names[of_fqn]) and run in (None, names[of_run])
        ]
        return (wanted[0][0], wanted[-1][1]) if wanted else (0, 0)

    def at(self, number: int, places: Sequence[int]) -> MatchedLines:
        """Returns the rows of a row group whose messages are at these places of the copy, in order.

        Raises `OSError` if a file is gone, cut off or overwritten.
        """
        group, width = self._groups[number], LINE.itemsize
        with (
            open(self._copy, "rb", buffering=0) as copy,
            open(self.path, "rb", buffering=0) as beside,
        ):
            ends = memoryview(_read(beside, group.ends, group.rows * _END.itemsize)).cast("I")
            rows = sorted({bisect_right(ends, place - group.messages) for place in places})
            if rows and rows[-1] >= len(ends):
                raise OSError(f"{self.path} is not as it was written")
            records = b"".join([_read(beside, group.records + row * width, width) for row in rows])
            bounds = [(ends[row - 1] if row else 0, ends[row]) for row in rows]
            texts = [_read(copy, group.messages + first, end - first) for first, end in bounds]
        return MatchedLines(self._names, rows, np.frombuffer(records, LINE), texts)


def write_rows(copy: str, path: str, give_way: Callable[[], None]) -> CopyRows | None:
    """Makes the second file of a copy. Returns None if the copy's layout is not the expected one.

    `give_way` is called before each row group. Raises `OSError`, `pa.ArrowException`.
    """
    groups: list[_CopiedGroup] = []
    names: dict[str, int] = {}
    with (
        pq.ParquetFile(copy, read_dictionary=NAMES) as file,
        open(copy, "rb", buffering=0) as raw,
        Path(path).open("xb") as beside,
    ):
        metadata, number_of = file.metadata, file.schema_arrow.names.index(MESSAGE)
        if any(file.schema_arrow.field(name).type != _type(name) for name in ("ts", "pos")):
            return None
        for number in range(metadata.num_row_groups):
            give_way()
            read = file.read_row_group(number, columns=_COLUMNS, use_threads=False)
            messages = _whole(read.column(MESSAGE))
            data = _data(messages)
            begin = _begin(raw, metadata.row_group(number).column(number_of), data)
            records = _records(read, names)
            if messages.null_count or begin is None or records is None or len(names) > NO_NAME:
                return None
            bounds = _bounds(messages) - _bounds(messages)[0]
            runs, size = _runs(records, bounds), int(bounds[-1])
            cuts = _cuts(bounds)
            parts, coloured = np.diff(cuts), is_coloured(data)
            groups.append(
                _CopiedGroup(read.num_rows, begin, size, runs, parts, beside.tell(), coloured)
            )
            beside.write(bounds[1:].astype(_END).tobytes())
            beside.write(records.tobytes())
            beside.write(part_filter([data[low:end] for low, end in pairwise(cuts)]))
    return CopyRows(copy, path, groups, list(names))


def _begin(raw: FileIO, chunk: Any, data: bytes) -> int | None:
    """Returns where the messages begin in the file, if all are at the end of their pages."""
    begin = int(chunk.data_page_offset + chunk.total_compressed_size) - len(data)
    if begin < 0 or os.pread(raw.fileno(), len(data), begin) != data:
        return None
    return begin


def _records(read: pa.Table, names: dict[str, int]) -> NDArray[np.void] | None:
    """Returns all columns but the messages, if they have values; adds new names to `names`."""
    ulids, times, positions = (_whole(read.column(name)) for name in ("ulid", "ts", "pos"))
    if any(column.null_count for column in (ulids, times, positions)):
        return None
    if not np.all(np.diff(_bounds(ulids)) == _ULID_WIDTH):
        return None
    records = np.empty(read.num_rows, LINE)
    characters = np.frombuffer(_data(ulids), np.uint8).reshape(-1, _ULID_WIDTH)
    records["hi"], batch, number = parse(characters)
    records["lo"] = batch | number.astype(np.uint64)
    records["ts"] = times.cast(pa.int64()).to_numpy()
    records["pos"] = positions.to_numpy()
    records["carried"] = _whole(read.column(CARRIED)).fill_null(False).to_numpy(False)
    for name in NAMES:
        records[name] = _codes(read.column(name), names)
    return records


def _runs(records: NDArray[Any], begins: NDArray[Any]) -> Sequence[tuple[int, int, int]]:
    """Returns where the messages of each run begin, and the numbers of its names."""
    names = records[["fqn", "run_id"]]
    firsts = np.flatnonzero(np.r_[True, names[1:] != names[:-1]])[: len(names)].tolist()
    return [(int(begins[first]), *names[first].tolist()) for first in firsts]


def _cuts(bounds: NDArray[Any]) -> NDArray[np.int64]:
    """Returns where parts of similar size begin, each with a message, and where the last ends."""
    aims = np.arange(PARTS + 1) * int(bounds[-1]) // PARTS
    cuts: NDArray[np.int64] = bounds[np.searchsorted(bounds, aims)].astype(np.int64)
    return cuts


def _codes(column: pa.ChunkedArray, names: dict[str, int]) -> NDArray[np.int64]:
    """Returns the number of each row's name; adds new names to `names`."""
    column = _whole(column)
    numbers = [names.setdefault(name, len(names)) for name in column.dictionary.to_pylist()]
    known: NDArray[np.int64] = np.array([*numbers, NO_NAME], np.int64)
    codes: NDArray[np.int64] = known[column.indices.fill_null(len(numbers)).to_numpy()]
    return codes


def _whole(column: pa.ChunkedArray) -> Any:
    return pa.concat_arrays(column.unify_dictionaries().chunks or [pa.array([], column.type)])


def _data(strings: pa.StringArray) -> bytes:
    """Returns the bytes of all strings, concatenated."""
    data, bounds = strings.buffers()[2], _bounds(strings)
    return b"" if data is None else memoryview(data)[bounds[0] : bounds[-1]].tobytes()


def _bounds(strings: pa.StringArray) -> NDArray[Any]:
    """Returns where each string begins in the bytes of all, and where the last ends."""
    found: NDArray[np.int32] = np.frombuffer(strings.buffers()[1], np.int32)
    bounds: NDArray[Any] = found[strings.offset :][: len(strings) + 1]
    return bounds


def _type(name: str) -> pa.DataType:
    return RECORD_SCHEMA.field(name).type


def _read(file: FileIO, at: int, size: int) -> bytes:
    data = os.pread(file.fileno(), size, at)
    if len(data) < size:
        raise OSError(f"a copy of a table file is cut off at {at + len(data)}")
    return data


# --- Copies -------------------------------------------------------------------------------------


log = logging.getLogger(__name__)
_USED_LATELY_SECONDS: Final = 600.0
_IDLE_SECONDS: Final = 3600.0
_LOOK_SECONDS: Final = 60.0
_AGAIN_AFTER: Final = 8  # reads of this many times its size until a failed copy is tried again
_FETCHED_BYTES: Final = 32 << 20  # in a request
_GIVES_WAY_SECONDS: Final = 2.0  # before each row group: so under any load a copy is made
ENCODING: Final[dict[str, Any]] = {  # the quickest to scan (decision 085)
    "compression": "none",
    "use_dictionary": NAMES,
    "column_encoding": {"message": "DELTA_LENGTH_BYTE_ARRAY"},
    "write_statistics": ["ulid", "ts", "fqn", "run_id", "pos", "level"],
    "store_schema": False,
    "data_page_size": 1 << 30,  # a page for each column of a row group
    "max_rows_per_page": 1 << 30,
    "write_page_checksum": True,
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ScanCopy:
    """A finished copy. It is `bare` if it has no attributes, since no line of its file has any.

    `size` is the size of all of its files. `rows` reads single rows; None if the layout does not
    allow it. `written` are the identities of its files when they were written.
    """

    path: str
    size: int
    bare: bool
    rows: CopyRows | None
    written: Sequence[Identity]

    def is_intact(self) -> bool:
        """Returns true if its files have not changed since."""
        try:
            return self.written == _written(self.path, self.rows)
        except OSError:
            return False


class ScanCopies:
    """Makes copies in `folder` and returns them to searches. Made in its event loop.

    The copies have at most `most_bytes` in total, and a tenth of the disk stays free. `current`
    returns the paths of the table's newest files; it blocks, and may raise `StoreUnavailable`.
    `quiet` is set while no search runs.
    """

    def __init__(
        self,
        store: ObjectStore,
        current: Callable[[], Collection[str]],
        clock: Clock,
        folder: str,
        quiet: Event,
        *,
        most_bytes: int,
    ) -> None:
        self.made = self.failed = 0
        self.folder = folder
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._current = current
        self._clock = clock
        self._quiet = quiet
        self._most_bytes = most_bytes
        self._changing = Lock()
        self._copies: BoundedCache[str, ScanCopy] = BoundedCache()
        self._used: dict[str, float] = {}
        self._read = ReadCounts()
        self._wanted: dict[str, TableFile] = {}
        self._number = 0
        self._thread = low_priority_threads(1, "copies")
        self._copying: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def bytes(self) -> int:
        """Returns the size of all copies."""
        with self._changing:
            return sum(copy.size for copy in self._copies.values())

    def of(self, file: TableFile) -> ScanCopy | None:
        """Returns the copy of a file, if it has one. May be called from any thread."""
        with self._changing:
            copy = self._copies.get(file.path)
            if copy is None:
                return None
            self._used[file.path] = self._clock.monotonic()
        if copy.is_intact():
            return copy
        self.forget(file.path)
        return None

    def note_read(self, file: TableFile, size: float) -> None:
        """Counts bytes that a search reads of a file itself. May be called from any thread."""
        with self._changing:
            read = self._read.add(file.path, size)
        if read >= file.size and self._most_bytes > 0:
            self._loop.call_soon_threadsafe(self._want, file)

    def paths(self) -> list[str]:
        """Returns the paths of files that have a copy. May be called from any thread."""
        with self._changing:
            return list(self._copies)

    def forget(self, path: str) -> None:
        """Removes the copy of the file with this path. May be called from any thread."""
        with self._changing:
            copy = self._copies.pop(path)
            self._used.pop(path, None)
        if copy is not None:
            _remove(copy.path)
            _remove(_beside(copy.path))

    def close(self) -> None:
        """Ends the work and removes all copies. Waits for a row group that is being copied."""
        self._most_bytes = 0
        self._quiet.set()
        for task in (self._copying, self._watching):
            if task is not None:
                task.cancel()
        self._thread.shutdown(wait=True, cancel_futures=True)
        with self._changing:
            self._copies.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _want(self, file: TableFile) -> None:
        if self._most_bytes == 0:  # it was closed meanwhile
            return
        self._wanted[file.path] = file
        if self._copying is None or self._copying.done():
            self._copying = asyncio.ensure_future(self._copy_wanted())

    async def _copy_wanted(self) -> None:
        while self._wanted:
            path, file = self._wanted.popitem()
            if path in self._copies:
                continue
            made = await self._made(file)
            with self._changing:
                self._read.reset(path, 0.0 if made else -float(_AGAIN_AFTER * file.size))
            # Other files may wait for long, so from the first copy on `_watch` checks whether the
            # files of copies are still in the table.
            if self._copies and (self._watching is None or self._watching.done()):
                self._watching = asyncio.ensure_future(self._watch())

    async def _made(self, file: TableFile) -> bool:
        """Returns true if the file has a copy now. Its errors are no errors of any search."""
        self._number += 1
        target = f"{self.folder}/{self._number}.parquet"
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            copy = await self._copy(file, target) if self._make_room(file.size) else None
        except (TailraceError, OSError, pa.ArrowException) as error:
            self.failed += 1
            log.info("%s of the table gets no copy to scan: %s", file.path, error)
            return False
        if copy is None:
            return False
        with self._changing:
            self._copies.put(file.path, copy)
            self._used[file.path] = self._clock.monotonic()
        self.made += 1
        return True

    async def _copy(self, file: TableFile, target: str) -> ScanCopy | None:
        """Makes the copy; None if it does not fit."""
        if not is_remote(file.uri):
            return await self._in_thread(lambda: self._encode(file.uri, target, file.rows))
        fetched = f"{target}.fetched"
        try:
            for offset in range(0, file.size, _FETCHED_BYTES):
                size = min(_FETCHED_BYTES, file.size - offset)
                key = f"{keys.TABLE}/{file.path}"
                _, body = await self._store.get(key, offset=offset, size=size)
                await self._in_thread(lambda body=body: _append(fetched, body))  # type: ignore[misc]
            return await self._in_thread(lambda: self._encode(fetched, target, file.rows))
        finally:
            _remove(fetched)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._thread, work)

    def _encode(self, source: str, target: str, rows: int) -> ScanCopy | None:
        """Writes the copy, row group by row group, as long as it fits. Blocks."""
        copy = None
        try:
            with pq.ParquetFile(source, page_checksum_verification=True) as file:
                if file.metadata.num_rows != rows:
                    raise Damaged(f"it has {file.metadata.num_rows} rows of {rows}")
                groups = range(file.num_row_groups)
                sizes = [file.metadata.row_group(group).total_byte_size for group in groups]
                size = sum(sizes) + sum(map(filter_bytes, sizes)) + rows * BYTES_A_ROW
                schema, bare = file.schema_arrow, all(_is_bare(file, group) for group in groups)
                if bare:
                    schema = schema.remove(schema.get_field_index(ATTRIBUTES))
                if CARRIED not in schema.names:  # so that every copy has the column
                    schema = schema.append(RECORD_SCHEMA.field(CARRIED))
                with pq.ParquetWriter(target, schema, **ENCODING) as writer:
                    for group in groups:
                        self._give_way()
                        if not self._make_room(size):
                            return None
                        read = file.read_row_group(group, columns=schema.names, use_threads=False)
                        if CARRIED not in read.column_names:
                            nulls = pa.nulls(read.num_rows, pa.bool_())
                            read = read.append_column(RECORD_SCHEMA.field(CARRIED), nulls)
                        read = read.select(schema.names)
                        writer.write_table(read, row_group_size=max(read.num_rows, 1))
            beside = write_rows(target, _beside(target), self._give_way)
            if beside is None:
                _remove(_beside(target))
            size = os.path.getsize(target) + (os.path.getsize(beside.path) if beside else 0)
            copy = ScanCopy(target, size, bare, beside, _written(target, beside))
            return copy
        finally:
            if copy is None:
                _remove(target)
                _remove(_beside(target))

    def _give_way(self) -> None:
        """Leaves the processors to searches that run. Blocks."""
        self._quiet.wait(_GIVES_WAY_SECONDS)

    def _make_room(self, size: int) -> bool:
        """Returns true if `size` bytes fit. Removes copies that were not used lately for them."""
        before = self._clock.monotonic() - _USED_LATELY_SECONDS
        while self.bytes + size > self._most_bytes:
            with self._changing:
                old = [path for path in self._copies if self._used[path] < before][:1]
            if not old:
                return False
            self.forget(*old)
        return size <= spare_bytes(self.folder)

    async def _watch(self) -> None:
        """Removes unused copies, and copies of files that the table does not have any more."""
        while self._copies:
            await self._clock.sleep(_LOOK_SECONDS)
            try:
                current = await asyncio.to_thread(self._current)
            except TailraceError as error:  # the next pass is in a minute
                log.info("copies of table files are not compared with the table: %s", error)
                continue
            before = self._clock.monotonic() - _IDLE_SECONDS
            with self._changing:
                used = dict(self._used)
            for path, last in used.items():
                if path not in current or last < before:
                    self.forget(path)


def _is_bare(file: pq.ParquetFile, group: int) -> bool:
    """Returns true if no line of the row group has attributes."""
    read = file.read_row_group(group, columns=[ATTRIBUTES], use_threads=False)
    return bool(read.column(0).null_count == read.num_rows)


def _written(path: str, rows: CopyRows | None) -> list[Identity]:
    """Returns the identities of a copy's files. Raises `OSError`."""
    return [identity_of(one) for one in (path, *([rows.path] if rows else []))]


def _beside(copy: str) -> str:
    return f"{copy}.rows"


def _append(path: str, body: bytes) -> None:
    with Path(path).open("ab") as file:
        file.write(body)


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.remove(path)
