"""Encodes batches as the bytes of a segment.

Rows are sorted by ULID, one slice of about 8 MiB of text is one row group, and the encoder holds
only one slice besides the finished bytes. Equal batches, numbers and carry give equal bytes.
`tailrace.logstore.segments.file_format` describes the layout.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.ma
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tailrace.logstore.batch import Batches, Indexes, Rows, RunKey, has_record_meta
from tailrace.logstore.colours import is_coloured
from tailrace.logstore.errors import TooLarge
from tailrace.logstore.segments import file_format
from tailrace.logstore.segments.detect import Carry, Detection
from tailrace.logstore.segments.file_format import (
    ATTRIBUTES,
    DICTIONARIES,
    ENCODINGS,
    LEVELS,
    SCHEMA,
    STATISTICS,
    Footer,
    SegmentRun,
    line_ulids,
)
from tailrace.logstore.segments.levels import NO_LEVEL
from tailrace.logstore.segments.slices import Limits, RecordSlice, by_ulid, slices

# Arrow record batches of `SCHEMA`, made without a loop over lines in Python.
#
# Rows come in order of (ULID, fqn, run): batches are sorted, and records are sorted only where
# batches share an id. Memory is that of one slice at a time.


Ints = NDArray[np.int64]
_LEVELS = pa.array(LEVELS, pa.string())
_LARGEST = (1 << 31) - 1
_VALUES = operator.methodcaller("values")


def record_batches(
    batches: Batches,
    carry: Carry,
    *,
    save: bool = False,
    limits: Limits | None = None,
    order: Indexes | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of the batches, in order of (ULID, fqn, run), exact duplicates once.

    With `order`, only the rows at these indexes, in this order; batches that share an id are
    adjacent in it. `carry` is the state of the writer's runs before these batches. It is updated
    only if `save` is set, and only once the last row was taken. Raises `Damaged` if a text does not
    match its batch.
    """
    order = by_ulid(batches.rows, batches.runs) if order is None else order
    detection = Detection(batches, order, carry)
    for piece in slices(batches, order, limits):
        yield _record_batch(batches, piece, detection)
    if save:
        detection.save()


def _record_batch(batches: Batches, piece: RecordSlice, detection: Detection) -> pa.RecordBatch:
    rows = batches.rows[piece.batches]
    numbers = _numbers(piece)
    times, levels, carried = detection.of(piece)
    pos = np.repeat(rows["pos"].astype(np.int64), piece.counts) + numbers
    runs, connectors = batches.runs, batches.connectors
    columns = [
        line_ulids(rows, piece.counts, numbers),
        pa.array(times, pa.timestamp("us", tz="UTC")),
        _names(rows["run"], lambda run: runs[run].fqn, piece.counts),
        _names(rows["run"], lambda run: runs[run].run, piece.counts),
        pa.array(pos),
        _levels(levels),
        _names(rows["connector"], lambda connector: connectors[connector], piece.counts),
        _messages(piece),
        _attributes(batches, piece),
        _marks(carried),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    return batch.take(_row_order(rows, piece, numbers)) if piece.shared else batch


def _numbers(piece: RecordSlice) -> Ints:
    """The number of each record within its batch."""
    starts = np.cumsum(piece.counts) - piece.counts
    numbers: Ints = np.arange(len(piece.ends)) + np.repeat(piece.firsts - starts, piece.counts)
    return numbers


def _row_order(rows: NDArray[np.void], piece: RecordSlice, numbers: Ints) -> pa.Array:
    """Where batches share an id: by id, record number, and the order of the batches."""
    new = np.ones(len(rows), dtype=np.int64)
    for part in range(1, len(rows)):
        new[part] = rows[["ulid_hi", "ulid_lo"]][part] != rows[["ulid_hi", "ulid_lo"]][part - 1]
    ids = np.repeat(np.cumsum(new), piece.counts)
    places = np.repeat(np.arange(len(rows)), piece.counts)
    return pa.array(np.lexsort((places, numbers, ids)))


def _names(
    indexes: NDArray[np.uint32], name: Callable[[int], str | None], counts: Ints
) -> pa.DictionaryArray:
    """A dictionary column of a value per batch, with only the names that occur."""
    used, inverse = np.unique(indexes, return_inverse=True)
    texts = [name(index) for index in used.tolist()]
    codes: dict[str, int] = {}
    code = [-1 if text is None else codes.setdefault(text, len(codes)) for text in texts]
    lines = np.repeat(np.array(code, dtype=np.int32)[inverse], counts)
    missing = lines < 0 if -1 in code else None
    return pa.DictionaryArray.from_arrays(
        pa.array(lines, mask=missing), pa.array(list(codes), pa.string())
    )


def _levels(levels: Ints) -> pa.DictionaryArray:
    missing = levels == NO_LEVEL
    codes = pa.array(levels.astype(np.int32), mask=missing if missing.any() else None)
    return pa.DictionaryArray.from_arrays(codes, _LEVELS)


def _marks(carried: NDArray[np.bool_]) -> pa.Array:
    """True, or null."""
    if not carried.any():
        return pa.nulls(len(carried), pa.bool_())
    return pa.array(carried, mask=~carried)


def _messages(piece: RecordSlice) -> pa.StringArray:
    """The texts without the newline after each record."""
    count = len(piece.ends)
    if len(piece.text) > _LARGEST:
        raise TooLarge(f"a record of {len(piece.text)} bytes is more than 2 GiB")
    offsets = np.zeros(count + 1, dtype=np.int32)
    offsets[1:] = piece.ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(piece.text)]
    ended = pa.Array.from_buffers(pa.binary(), count, buffers)
    return pa.Array.from_buffers(pa.string(), count, pc.binary_slice(ended, 0, -1).buffers())


def _attributes(batches: Batches, piece: RecordSlice) -> pa.Array:
    rows = batches.rows[piece.batches]
    if not rows["meta"].any():
        return pa.nulls(len(piece.ends), ATTRIBUTES)
    own = has_record_meta(rows).tolist()
    values: list[Mapping[str, str] | None] = []
    places: list[Ints] = []
    known: dict[str, int] = {}
    batch = zip(piece.batches.tolist(), piece.counts.tolist(), piece.firsts.tolist(), strict=True)
    for (index, count, first), of_records in zip(batch, own, strict=True):
        meta = batches.meta(index) if of_records else None
        if meta is not None:
            places.append(_add_values(values, meta.attributes[first : first + count]))
            continue
        shared = batches.constant_attributes(index)
        place = known.setdefault(repr(shared), len(values))
        if place == len(values):
            values.append(shared)
        places.append(np.full(count, place))
    taken, found = np.concatenate(places), _maps(values)
    whole = len(taken) == len(values) and bool((taken[1:] > taken[:-1]).all())
    return found if whole else found.take(pa.array(taken))


def _add_values(
    values: list[Mapping[str, str] | None], given: Sequence[Mapping[str, str] | None]
) -> Ints:
    """Adds attributes, those of neighbours once; returns where each record's are."""
    differ = map(operator.ne, given, itertools.chain((None,), given))
    new = np.fromiter(differ, np.bool_, len(given))
    new[:1] = True
    first = len(values)
    values += given if new.all() else itertools.compress(given, new.tolist())
    return np.cumsum(new) + (first - 1)


def _maps(values: Sequence[Mapping[str, str] | None]) -> pa.Array:
    """Returns attributes as a column, made of all keys and all values at once."""
    sizes = np.fromiter(
        (0 if each is None else len(each) for each in values), np.int32, len(values)
    )
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    there = [each for each in values if each]
    keys = pa.array(itertools.chain.from_iterable(there), pa.string())
    texts = pa.array(itertools.chain.from_iterable(map(_VALUES, there)), pa.string())
    missing = None
    if not sizes.all():
        missing = pa.array([each is None for each in values], pa.bool_())
    return pa.MapArray.from_arrays(offsets, keys, texts, ATTRIBUTES, mask=missing)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """An encoded segment. `text_bytes` is the size of its messages with newlines."""

    body: bytes
    footer: Footer
    text_bytes: int

    @property
    def rows(self) -> int:
        """The number of records."""
        return self.footer.rows

    @property
    def low(self) -> str:
        """The ULID of its first row, empty without rows."""
        return self.footer.low

    @property
    def high(self) -> str:
        """The ULID of its last row, empty without rows."""
        return self.footer.high


def encode_segment(
    batches: Batches,
    *,
    node: str,
    seq: int,
    carry: Carry,
    ranges: Sequence[tuple[int, int]] | None = None,
    limits: Limits | None = None,
    threads: bool = False,
) -> EncodedSegment:
    """Encodes the batches as segment `seq` of `node`.

    `ranges` are the journal's, as [first, end) of `pos`; without them, the one from the
    first to the last batch. `carry` is updated when all is encoded. With `threads`, the rows of
    a slice are made in one while another one writes those before it, which takes two slices of
    memory. Raises `Damaged` if a text does not match its batch.
    """
    sink = pa.BufferOutputStream()
    tally = _Tally()
    made = record_batches(batches, carry, save=True, limits=limits)
    with _parquet_writer(sink) as writer:
        for batch in _ahead(made) if threads else made:
            # Rows of a group go down in one piece: a group is what a reader takes at once.
            writer.write_table(pa.Table.from_batches([batch]), row_group_size=batch.num_rows)
            tally.add(batch)
        about = tally.footer(node, seq, _ranges(batches.rows) if ranges is None else ranges)
        writer.add_key_value_metadata(file_format.encode(about))
    return EncodedSegment(file_format.sealed(memoryview(sink.getvalue())), about, tally.text_bytes)


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """The items; while one is used, the next one is made in a thread."""
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:
        following = thread.submit(next, items, None)
        while (item := following.result()) is not None:
            following = thread.submit(next, items, None)
            yield item


def _parquet_writer(sink: pa.BufferOutputStream) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        sink,
        SCHEMA,
        compression="zstd",
        compression_level=1,
        use_dictionary=DICTIONARIES,
        column_encoding=ENCODINGS,
        write_statistics=STATISTICS,
        write_page_checksum=True,
        coerce_timestamps="us",
    )


def _ranges(rows: Rows) -> list[tuple[int, int]]:
    if len(rows) == 0:
        return []
    return [(int(rows["pos"].min()), int((rows["pos"] + rows["records"]).max()))]


class _Tally:
    """The numbers of the footer, gathered row group by row group."""

    def __init__(self) -> None:
        self.text_bytes = 0
        self._rows = 0
        self._low = self._high = ""
        self._checksums: list[str] = []
        self._runs: dict[RunKey, SegmentRun] = {}
        self._coloured = False

    def add(self, batch: pa.RecordBatch) -> None:
        """Counts a row group."""
        ulid = batch.column("ulid")
        self._low = self._low or ulid[0].as_py()
        self._high = ulid[-1].as_py()
        self._add_runs(batch)
        self._checksums.append(file_format.rows_checksum(batch))
        self._rows += batch.num_rows
        _, text = file_format.text_buffers(batch.column("message"))
        self.text_bytes += len(text) + batch.num_rows
        self._coloured = self._coloured or is_coloured(text.tobytes())

    def _add_runs(self, batch: pa.RecordBatch) -> None:
        fqn, run = batch.column("fqn"), batch.column("run_id")
        fqns, runs = fqn.dictionary.to_pylist(), run.dictionary.to_pylist()
        pair = fqn.indices.to_numpy().astype(np.int64) * len(runs) + run.indices.to_numpy()
        order = np.argsort(pair, kind="stable")
        heads = np.flatnonzero(np.diff(pair[order], prepend=-1))
        pos = batch.column("pos").to_numpy()[order]
        shares = zip(
            pair[order][heads].tolist(),
            np.diff(heads, append=len(pair)).tolist(),
            np.minimum.reduceat(pos, heads).tolist(),
            np.maximum.reduceat(pos, heads).tolist(),
            strict=True,
        )
        for code, rows, first, last in shares:
            key = RunKey(fqns[code // len(runs)], runs[code % len(runs)])
            self._add_run(SegmentRun(key, rows, first, last, (len(self._checksums),)))

    def _add_run(self, more: SegmentRun) -> None:
        known = self._runs.get(more.key)
        if known is not None:
            more = SegmentRun(
                more.key,
                known.rows + more.rows,
                min(known.first, more.first),
                max(known.last, more.last),
                known.groups + more.groups,
            )
        self._runs[more.key] = more

    def footer(self, node: str, seq: int, ranges: Sequence[tuple[int, int]]) -> Footer:
        """The footer of all row groups."""
        runs = tuple(sorted(self._runs.values(), key=lambda run: run.key))
        pairs = tuple((first, end) for first, end in ranges)
        checksums = tuple(self._checksums)
        return Footer(
            node=node,
            seq=seq,
            ranges=pairs,
            rows=self._rows,
            low=self._low,
            high=self._high,
            checksums=checksums,
            runs=runs,
            coloured=self._coloured,
        )
