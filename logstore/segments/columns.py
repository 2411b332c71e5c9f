"""Makes Arrow record batches of `schema.SCHEMA` from batches, without a loop over lines in Python.

Rows come in order of (ULID, fqn, run): batches are sorted, and only where batches share an
id are their records sorted, too. Memory is that of one slice at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.ma
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from logstore.batch import Batches, Indexes, has_record_meta
from logstore.errors import TooLarge
from logstore.segments.carry import Carry
from logstore.segments.detection import Detection
from logstore.segments.schema import ATTRIBUTES, LEVELS, SCHEMA
from logstore.segments.slices import Limits, Slice, by_ulid, slices
from logstore.segments.spellings import NO_LEVEL
from logstore.segments.ulids import line_ulids

Ints = NDArray[np.int64]
_LEVELS = pa.array(LEVELS, pa.string())
_LARGEST = (1 << 31) - 1


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


def _record_batch(batches: Batches, piece: Slice, detection: Detection) -> pa.RecordBatch:
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


def _numbers(piece: Slice) -> Ints:
    """The number of each record within its batch."""
    starts = np.cumsum(piece.counts) - piece.counts
    numbers: Ints = np.arange(len(piece.ends)) + np.repeat(piece.firsts - starts, piece.counts)
    return numbers


def _row_order(rows: NDArray[np.void], piece: Slice, numbers: Ints) -> pa.Array:
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


def _messages(piece: Slice) -> pa.StringArray:
    """The texts without the newline behind each record."""
    count = len(piece.ends)
    if len(piece.text) > _LARGEST:
        raise TooLarge(f"a record of {len(piece.text)} bytes is more than 2 GiB")
    offsets = np.zeros(count + 1, dtype=np.int32)
    offsets[1:] = piece.ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(piece.text)]
    ended = pa.Array.from_buffers(pa.binary(), count, buffers)
    return pa.Array.from_buffers(pa.string(), count, pc.binary_slice(ended, 0, -1).buffers())


def _attributes(batches: Batches, piece: Slice) -> pa.Array:
    rows = batches.rows[piece.batches]
    if not rows["meta"].any():
        return pa.nulls(len(piece.ends), ATTRIBUTES)
    own = has_record_meta(rows).tolist()
    values: list[Sequence[tuple[str, str]] | None] = []
    places: list[Ints] = []
    known: dict[str, int] = {}
    batch = zip(piece.batches.tolist(), piece.counts.tolist(), piece.firsts.tolist(), strict=True)
    for (index, count, first), of_records in zip(batch, own, strict=True):
        meta = batches.meta(index) if of_records else None
        if meta is not None:
            places.append(np.arange(len(values), len(values) + count))
            values += [_items(given) for given in meta.attributes[first : first + count]]
            continue
        shared = _items(batches.constant_attributes(index))
        place = known.setdefault(repr(shared), len(values))
        if place == len(values):
            values.append(shared)
        places.append(np.full(count, place))
    return pa.array(values, ATTRIBUTES).take(pa.array(np.concatenate(places)))


def _items(attributes: Mapping[str, str] | None) -> list[tuple[str, str]] | None:
    return None if attributes is None else list(attributes.items())
