"""Reads segments from their bytes and from the store, as row groups or as batches.

No function of this module returns rows that were not written. A whole body is first checked against
its seal, a footer that was fetched alone against the second half of the seal, and each row group
against its pages' CRCs and its checksum. A newer format raises `UnsupportedVersion`, every other
fault `Damaged`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from tailrace.logstore.batch import BATCH, Indexes, RecordMeta, Rows, RunKey
from tailrace.logstore.errors import Damaged
from tailrace.logstore.objects.store import Body, ObjectStore
from tailrace.logstore.parquet import SparseFile
from tailrace.logstore.segments import file_format
from tailrace.logstore.segments.file_format import (
    CARRIED,
    LINE_CHARACTERS,
    SCHEMA,
    SCHEMAS,
    Footer,
    parse,
)

_TAIL = 64 << 10  # holds the footer of most segments


@dataclass(frozen=True)
class SegmentFile:
    """An opened segment: its footer, and its row groups as far as their bytes are there."""

    footer: Footer
    parquet: pq.ParquetFile

    def group(
        self, index: int, columns: list[str] | None = None, *, rows: int | None = None
    ) -> pa.Table:
        """A row group, verified by its checksum if its columns are read. Raises `Damaged`.

        With `rows` its columns are in chunks of that many rows, so that no buffer has to be
        enlarged repeatedly while it is read.
        """
        try:
            table = self._read(index, columns, rows)
        except (OSError, pa.ArrowException) as error:
            raise Damaged(f"row group {index} does not read: {error}") from error
        checked = columns is None or set(columns).issuperset(file_format.CHECKED)
        if checked and file_format.rows_checksum(table) != self.footer.checksums[index]:
            raise Damaged(f"the rows of row group {index} do not match their checksum")
        if CARRIED not in table.column_names and (columns is None or CARRIED in columns):
            return table.append_column(SCHEMA.field(CARRIED), pa.nulls(len(table), pa.bool_()))
        return table

    def _read(self, index: int, columns: list[str] | None, rows: int | None) -> pa.Table:
        if rows is None or self.parquet.metadata.row_group(index).num_rows == 0:
            return self.parquet.read_row_group(index, columns=columns, use_threads=False)
        chunks = self.parquet.iter_batches(rows, [index], columns, use_threads=False)
        return pa.Table.from_batches(chunks)

    def groups(self, indexes: Iterable[int] | None = None) -> Iterator[pa.Table]:
        """The row groups, one at a time."""
        chosen = range(len(self.footer.checksums)) if indexes is None else indexes
        return (self.group(index) for index in chosen)


def open_segment(body: Body) -> SegmentFile:
    """Opens a segment from its whole body. Raises `Damaged`, `UnsupportedVersion`."""
    file_format.check(memoryview(body))
    return _opened(pa.BufferReader(body))


def verify_segment(body: Body) -> Footer:
    """Reads every row of the body once. Raises `Damaged`, `UnsupportedVersion`."""
    segment = open_segment(body)
    rows = sum(table.num_rows for table in segment.groups())
    if rows != segment.footer.rows:
        raise Damaged(f"{rows} rows where the footer says {segment.footer.rows}")
    return segment.footer


async def read_footer(store: ObjectStore, key: str, *, size: int | None = None) -> Footer:
    """The footer of a stored segment, in one or two requests; one more without its `size`.

    Raises `NotFound`, `StoreUnavailable`, `Damaged`, `UnsupportedVersion`.
    """
    return (await fetch_statistics(store, key, size=size)).footer


async def fetch_statistics(store: ObjectStore, key: str, *, size: int | None = None) -> SegmentFile:
    """A stored segment without its row groups: footer and statistics. Raises as `read_footer`."""
    known = (await store.head(key)).size if size is None else size
    return _opened(await _tail(store, key, known))


async def fetch_segment(store: ObjectStore, key: str, *, run: RunKey | None = None) -> SegmentFile:
    """A stored segment; with `run`, only the row groups that hold rows of it are fetched.

    Raises `NotFound`, `StoreUnavailable`, `Damaged`, `UnsupportedVersion`.
    """
    if run is None:
        return open_segment((await store.get(key))[1])
    size = (await store.head(key)).size
    sparse = await _tail(store, key, size)
    segment = _opened(sparse)
    share = segment.footer.run(run)
    for start, end in _byte_ranges(segment, () if share is None else share.groups):
        sparse.add(start, (await store.get(key, offset=start, size=end - start))[1])
    return segment


class StoredSegment:
    """A segment in the store, of which only the footer is held."""

    def __init__(self, store: ObjectStore, key: str, size: int, tail: SparseFile) -> None:
        self._store = store
        self._key = key
        self._size = size
        self._tail = tail
        self.footer = _opened(tail).footer

    async def check(self) -> None:
        """Reads the segment once, in pieces. Raises `Damaged` unless every byte is as written."""
        cut, digest = file_format.pages(memoryview(self._tail.first()[1]), self._size)
        seen = xxhash.xxh3_64()
        async for piece in self._store.stream(self._key, size=cut):
            seen.update(piece)
        if seen.intdigest() != digest:
            raise Damaged(f"the pages of {self._key} do not match its seal")

    async def group(self, index: int) -> SegmentFile:
        """The segment with the bytes of one row group. Raises as `fetch_segment`."""
        sparse = SparseFile(self._size, *self._tail.first())
        segment = _opened(sparse)
        for start, end in _byte_ranges(segment, [index]):
            sparse.add(start, (await self._store.get(self._key, offset=start, size=end - start))[1])
        return segment


async def stored_segment(store: ObjectStore, key: str, size: int) -> StoredSegment:
    """A stored segment for reading row group by row group. Raises as `read_footer`."""
    return StoredSegment(store, key, size, await _tail(store, key, size))


async def _tail(store: ObjectStore, key: str, size: int) -> SparseFile:
    """The footer and its seal, checked."""
    start = max(size - _TAIL, 0)
    tail = (await store.get(key, offset=start))[1]
    if len(tail) < 12:
        raise Damaged(f"{key} has {size} bytes, too few for a segment")
    need = int.from_bytes(tail[-8:-4], "little") + 8 + file_format.SIZE
    if need > len(tail) and tail[-4:] == b"PAR1" and need <= size:
        tail = (await store.get(key, offset=size - need))[1]
    file_format.check_tail(memoryview(tail))
    return SparseFile(size, size - len(tail), tail)


def _opened(source: pa.NativeFile | SparseFile) -> SegmentFile:
    try:
        parquet = pq.ParquetFile(source, page_checksum_verification=True)
        footer = file_format.decode_footer(parquet.metadata.metadata)
        _check_shape(parquet, footer)
    except (OSError, pa.ArrowException) as error:
        raise Damaged(f"not a segment: {error}") from error
    return SegmentFile(footer, parquet)


def _check_shape(parquet: pq.ParquetFile, footer: Footer) -> None:
    """Raises `Damaged` unless schema, row groups and footer belong together."""
    if not parquet.schema_arrow.equals(SCHEMAS[footer.version], check_metadata=False):
        raise Damaged("the columns are not those of a segment")
    if parquet.num_row_groups != len(footer.checksums) or parquet.metadata.num_rows != footer.rows:
        raise Damaged("the footer speaks of other row groups than there are")


def _byte_ranges(segment: SegmentFile, groups: Iterable[int]) -> list[tuple[int, int]]:
    """The ranges of the row groups in the object; neighbours are one range."""
    ranges: list[tuple[int, int]] = []
    for index in groups:
        start, end = _byte_range(segment.parquet.metadata.row_group(index))
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        ranges.append((start, end))
    return ranges


def _byte_range(group: pq.RowGroupMetaData) -> tuple[int, int]:
    chunks = [group.column(index) for index in range(group.num_columns)]
    starts = [c.dictionary_page_offset or c.data_page_offset for c in chunks]
    ends = [start + c.total_compressed_size for start, c in zip(starts, chunks, strict=True)]
    return min(starts), max(ends)


# A row group, divided into stretches: consecutive rows of one batch.
#
# Mostly a stretch is a batch. A large batch has one in each of several row groups, and batches that
# share an id alternate row by row.


STRETCH: Final = np.dtype(
    [
        ("run", "<u4"),  # indexes into `NameNumbers`
        ("connector", "<u4"),
        ("hi", "<u8"),  # the batch's ULID, upper and lower 64 bits
        ("lo", "<u8"),
        ("pos", "<u8"),  # of the batch's first record, wherever that stands
        ("group", "<u4"),
        ("row", "<u4"),  # the first row in the row group
        ("offset", "<u8"),  # in the row group's text, bytes
        ("size", "<u8"),
        ("records", "<u4"),
        ("lines", "<u4"),
        ("meta", "<u4"),  # records with attributes or newlines
    ]
)
Stretches = NDArray[np.void]
Ints = NDArray[np.int64]


class NameNumbers:
    """Numbers for the runs and connectors of all row groups, in order of appearance."""

    def __init__(self) -> None:
        self.runs: list[RunKey] = []
        self.connectors: list[str | None] = []
        self._numbers: dict[RunKey | str | None, int] = {}

    def run(self, key: RunKey) -> int:
        """The number of a run."""
        return self._number(key, self.runs)

    def connector(self, name: str | None) -> int:
        """The number of a connector."""
        return self._number(name, self.connectors)

    def _number(self, name: RunKey | str | None, names: list[RunKey] | list[str | None]) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(names)
            names.append(name)  # type: ignore[arg-type]
        return number


class SegmentRowGroup:
    """The rows of a row group (of one run, if it is given) and their text."""

    def __init__(self, table: pa.Table, run: RunKey | None = None) -> None:
        if run is not None:
            ours = pc.and_(pc.equal(table["fqn"], run.fqn), pc.equal(table["run_id"], run.run))
            table = table.filter(ours)
        self._table = table.combine_chunks()
        self._messages = self._column("message")
        bounds = np.zeros(table.num_rows + 1, dtype=np.int64)
        bounds[1:] = np.cumsum(pc.binary_length(self._messages).to_numpy().astype(np.int64) + 1)
        self._bounds = bounds
        self.text = _joined(self._messages)

    def stretches(self, group: int, names: NameNumbers) -> Stretches:
        """The stretches in order of row; `group` is the number that they get."""
        count = self._table.num_rows
        if count == 0:
            return np.empty(0, dtype=STRETCH)
        ulids = self._ulids()
        runs, connectors = self._runs(names), self._connectors(names)
        heads = np.flatnonzero(_changes(ulids, runs))
        high, low, number = parse(ulids[heads])
        part = np.zeros(len(heads), dtype=STRETCH)
        part["run"], part["connector"] = runs[heads], connectors[heads]
        part["hi"], part["lo"], part["group"], part["row"] = high, low, group, heads
        part["pos"] = self._column("pos").to_numpy()[heads] - number
        ends = np.append(heads[1:], count)
        part["offset"], part["records"] = self._bounds[heads], ends - heads
        part["size"] = self._bounds[ends] - self._bounds[heads]
        newlines = self._newlines()
        part["lines"] = part["records"] + np.add.reduceat(newlines, heads)
        part["meta"] = np.add.reduceat((newlines > 0) | self._has_attributes(), heads)
        return part

    def add_meta(self, stretch: np.void, meta: RecordMeta) -> None:
        """Appends what the records of a stretch carry to the lists of `meta`."""
        row, count = int(stretch["row"]), int(stretch["records"])
        bounds = self._bounds[row : row + count + 1]
        behind = meta.ends[-1] if meta.ends else 0
        rows = self._table.slice(row, count)
        times = rows["ts"].cast(pa.int64()).to_pylist()
        values = [None if a is None else dict(a) for a in rows["attributes"].to_pylist()]
        for have, more in (
            (meta.ends, (bounds[1:] - bounds[0] + behind).tolist()),
            (meta.ts, times),
            (meta.levels, rows["level"].to_pylist()),
            (meta.attributes, values),
        ):
            assert isinstance(have, list)
            have.extend(more)

    def _column(self, name: str) -> pa.Array:
        column = self._table[name]
        return column.chunk(0) if column.num_chunks else pa.array([], column.type)

    def _ulids(self) -> NDArray[np.uint8]:
        column = self._column("ulid")
        if not pc.all(pc.equal(pc.binary_length(column), 26)).as_py():
            raise Damaged("a ULID of the segment has not 26 characters")
        data = np.frombuffer(column.buffers()[2], dtype=np.uint8)
        return data[column.offset * 26 : (column.offset + len(column)) * 26].reshape(-1, 26)

    def _runs(self, names: NameNumbers) -> Ints:
        fqn, run = self._column("fqn"), self._column("run_id")
        fqns, runs = fqn.dictionary.to_pylist(), run.dictionary.to_pylist()
        pair = fqn.indices.to_numpy().astype(np.int64) * len(runs) + run.indices.to_numpy()
        used, inverse = np.unique(pair, return_inverse=True)
        keys = [RunKey(fqns[code // len(runs)], runs[code % len(runs)]) for code in used.tolist()]
        return np.array([names.run(key) for key in keys], dtype=np.int64)[inverse]

    def _connectors(self, names: NameNumbers) -> Ints:
        column = self._column("connector_id")
        code = pc.fill_null(column.indices, -1).to_numpy()
        used, inverse = np.unique(code, return_inverse=True)
        texts = column.dictionary.to_pylist()
        numbers = [names.connector(None if c < 0 else texts[c]) for c in used.tolist()]
        return np.array(numbers, dtype=np.int64)[inverse]

    def _newlines(self) -> Ints:
        count: Ints = pc.count_substring(self._messages, "\n").to_numpy().astype(np.int64)
        return count

    def _has_attributes(self) -> NDArray[np.bool_]:
        valid = self._column("attributes").is_valid().to_numpy(zero_copy_only=False)
        return np.asarray(valid, dtype=np.bool_)


def _changes(ulids: NDArray[np.uint8], runs: Ints) -> NDArray[np.bool_]:
    """Which rows belong to another batch than the row before them."""
    batch = np.ascontiguousarray(ulids[:, :-LINE_CHARACTERS])
    change = np.ones(len(runs), dtype=np.bool_)
    change[1:] = (batch[1:] != batch[:-1]).any(axis=1) | (runs[1:] != runs[:-1])
    return change


def _joined(messages: pa.StringArray) -> memoryview:
    """Each message and a newline, as one text."""
    if len(messages) == 0:
        return memoryview(b"")
    lists = pa.ListArray.from_arrays(pa.array([0, len(messages)], pa.int32()), messages)
    joined = pc.binary_join(lists, "\n")[0].as_buffer()
    return memoryview(b"".join((joined, b"\n")))


# A stored segment as batches, for flushing run logs and for readers of other nodes.
#
# The rows of a run with one batch ULID are one batch, in order of line number; batches are in order
# of `pos`. Text is each message and a newline, as in the journal, byte by byte. Only the columns of
# `BATCH` and the place of each batch are kept in memory. Texts are read again, one row group at a
# time; the last one is kept because batches of neighbouring `pos` are mostly in the same row group.


class SegmentBatches:
    """The batches of a segment, or of one run of it; an implementation of `Batches`.

    Reads every row group (of the run) once when it is made. Raises `Damaged`.
    """

    def __init__(self, segment: SegmentFile, run: RunKey | None = None) -> None:
        self.node = segment.footer.node
        self._segment = segment
        self._run = run
        self._names = NameNumbers()
        self._loaded: _Loaded | None = None
        self._stretches, self._bounds, self.rows = self._read()

    @property
    def runs(self) -> Sequence[RunKey]:
        """The run keys that the column `run` indexes."""
        return self._names.runs

    @property
    def connectors(self) -> Sequence[str | None]:
        """The connector names that the column `connector` indexes."""
        return self._names.connectors

    def text(self, indexes: Indexes) -> bytes:
        """The texts of the rows at `indexes`, one after another, in that order."""
        pieces: list[bytes | memoryview] = []
        for index in np.asarray(indexes).tolist():
            for stretch in self._of_batch(index):
                group = self._group(int(stretch["group"]))
                start = int(stretch["offset"])
                pieces.append(group.text[start : start + int(stretch["size"])])
        return b"".join(pieces)

    def slice(self, index: int, low: int, high: int) -> bytes:
        """The bytes of one row's text from `low` to before `high`."""
        pieces: list[bytes | memoryview] = []
        begin = 0
        for stretch in self._of_batch(index):
            size, start = int(stretch["size"]), int(stretch["offset"])
            first, last = max(low - begin, 0), min(high - begin, size)
            if first < last:
                group = self._group(int(stretch["group"]))
                pieces.append(group.text[start + first : start + last])
            begin += size
        return b"".join(pieces)

    def meta(self, index: int) -> RecordMeta | None:
        """The metadata of batches with newlines or attributes in their records; None for others."""
        if not self.rows["meta"][index]:
            return None
        meta = RecordMeta([], [], [], [])
        for stretch in self._of_batch(index):
            self._group(int(stretch["group"])).add_meta(stretch, meta)
        return meta

    def constant_attributes(self, index: int) -> Mapping[str, str] | None:  # noqa: ARG002
        """None: here each record has attributes of its own."""
        return None

    def _of_batch(self, index: int) -> Stretches:
        return self._stretches[self._bounds[index] : self._bounds[index + 1]]

    def _group(self, index: int) -> SegmentRowGroup:
        if self._loaded is None or self._loaded.index != index:
            self._loaded = _Loaded(index, SegmentRowGroup(self._segment.group(index), self._run))
        return self._loaded.group

    def _groups(self) -> Sequence[int]:
        if self._run is None:
            return range(len(self._segment.footer.checksums))
        share = self._segment.footer.run(self._run)
        return () if share is None else share.groups

    def _read(self) -> tuple[Stretches, Indexes, Rows]:
        """All stretches in order of their batch, where each batch's begin, and the rows."""
        parts, digests = [np.empty(0, dtype=STRETCH)], _Digests()
        for index in self._groups():
            part = self._group(index).stretches(index, self._names)
            digests.add(part, self._group(index).text)
            parts.append(part)
        stretches = np.concatenate(parts)
        order = np.lexsort(
            (np.arange(len(stretches)), stretches["lo"], stretches["hi"], stretches["run"])
        )
        stretches = stretches[order]
        heads = np.flatnonzero(_run_changes(stretches))
        rows = _rows(stretches, heads, digests)
        return _by_pos(stretches, heads, rows)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The row group that was read last."""

    index: int
    group: SegmentRowGroup


class _Digests:
    """The digest of each batch, of which one stretch comes after another."""

    def __init__(self) -> None:
        self._states: dict[tuple[int, int, int], xxhash.xxh3_64] = {}

    def add(self, stretches: Stretches, text: memoryview) -> None:
        """Takes the stretches of the next row group."""
        heads = stretches[["run", "hi", "lo", "offset", "size"]].tolist()
        for run, high, low, start, size in heads:
            state = self._states.get((run, high, low))
            if state is None:
                state = self._states[run, high, low] = xxhash.xxh3_64()
            state.update(text[start : start + size])

    def of(self, run: int, high: int, low: int) -> int:
        """The digest of a batch's whole text."""
        return int(self._states[run, high, low].intdigest())


def _run_changes(stretches: Stretches) -> NDArray[np.bool_]:
    """Which stretches belong to another batch than the one before them."""
    change = np.ones(len(stretches), dtype=np.bool_)
    for column in ("run", "hi", "lo"):
        part = stretches[column][1:] != stretches[column][:-1]
        change[1:] = part if column == "run" else change[1:] | part
    return change


def _rows(stretches: Stretches, heads: Indexes, digests: _Digests) -> Rows:
    """The columns of `BATCH` for the batches that begin at `heads`."""
    rows = np.zeros(len(heads), dtype=BATCH)
    if len(heads) == 0:
        return rows
    first = stretches[heads]
    names = {"ulid_hi": "hi", "ulid_lo": "lo", "run": "run", "connector": "connector"}
    for name, source in {**names, "offset": "offset", "pos": "pos"}.items():
        rows[name] = first[source]
    for name in ("size", "records", "lines", "meta"):
        rows[name] = np.add.reduceat(stretches[name], heads)
    keys = first[["run", "hi", "lo"]].tolist()
    rows["digest"] = [digests.of(*key) for key in keys]
    return rows


def _by_pos(stretches: Stretches, heads: Indexes, rows: Rows) -> tuple[Stretches, Indexes, Rows]:
    """All in order of `pos`, with the bounds of each batch's stretches."""
    order = np.argsort(rows["pos"], kind="stable")
    counts = np.diff(heads, append=len(stretches))
    bounds = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(counts[order])))
    places = np.repeat(heads[order] - bounds[:-1], counts[order]) + np.arange(len(stretches))
    return stretches[places], bounds, rows[order]
