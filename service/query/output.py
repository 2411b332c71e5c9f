"""Encodes results as ndjson, text or Parquet, piece by piece, whatever the result's size.

    ndjson    {"ulid","ts","fqn","run_id","level","connector_id","pos","message","attributes"},
              and "carried": true in a line that continues the record before it
              … and last {"stats": {…}}, or {"error": {…}} if the search broke off
    text      the messages, each with a newline
    parquet   the columns of contracts section 2; the stats stand in the file's metadata
              under `tailrace.stats`

ndjson without a `stats` record is partial. The other two formats have no place for an error
once they have begun: the connection is cut instead.

Few records become objects that orjson writes one by one. Many become lines of JSON by column,
without a step of Python per record, and the bytes are the same. JSON escapes no character of a ULID
or a time.

The strings of a column are quoted together: each is followed by a DEL, and orjson gets one string.
orjson does not escape a DEL, so each DEL marks the end of a string. Only a column that contains a
DEL or a null is quoted string by string.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tailrace.logstore.table.schema import RECORD_SCHEMA

_DEL: Final = 0x7F
_FEW: Final = 64
"""Up to this many records are faster one by one: by column takes 0.3 ms even for few."""
_NAMES: Final = ("fqn", "run_id", "level", "connector_id")
_MEMBERS: Final = ("ulid", "ts", *_NAMES, "pos", "message", "attributes", "carried")


def lines(batch: pa.RecordBatch) -> bytes:
    """Encodes one line for each record."""
    if batch.num_rows <= _FEW:
        return b"".join(map(_line, _one_by_one(batch)))
    return _lines(batch, _names(batch))


def _lines(batch: pa.RecordBatch, names: pa.Array) -> bytes:
    """Encodes the lines of many records, with their `names` in JSON."""
    attributes = batch.column("attributes")
    bare = attributes.null_count == len(attributes)
    joined = _joined(
        '{"ulid":"',
        batch.column("ulid"),
        '","ts":"',
        _times(batch.column("ts")),
        names,
        batch.column("pos").cast(pa.string()),
        ',"message":',
        _quoted(batch.column("message")),
        ',"attributes":null' if bare else ',"attributes":',
        *([] if bare else [_objects(attributes)]),
        _ends(batch.column("carried")),
    )
    return bytes(characters(joined))


def _ends(carried: pa.Array) -> pa.Array | str:
    """Returns the end of each line."""
    if carried.null_count == len(carried):
        return "}\n"
    return pc.if_else(carried.is_valid(), ',"carried":true}\n', "}\n")


def _one_by_one(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yields each record as the object of its line."""
    columns = {name: batch.column(name) for name in _MEMBERS}
    columns["ts"] = _times(columns["ts"])
    for values in zip(*(column.to_pylist() for column in columns.values()), strict=True):
        found = dict(zip(_MEMBERS, values, strict=True))
        found["ts"] += "Z"
        if found["attributes"] is not None:
            found["attributes"] = dict(found["attributes"])
        if not found["carried"]:
            del found["carried"]
        yield found


def characters(strings: pa.StringArray) -> memoryview:
    """Returns the bytes of all strings, concatenated."""
    _, offsets, data = strings.buffers()
    if offsets is None or data is None or len(strings) == 0:
        return memoryview(b"")
    bounds = np.frombuffer(offsets, np.int32)
    return memoryview(data)[bounds[strings.offset] : bounds[strings.offset + len(strings)]]


def _times(column: pa.Array) -> pa.Array:
    """Formats RFC 3339 with six digits, without the Z. Twenty times as fast as `strftime`."""
    spaced = column.cast(pa.timestamp("us")).cast(pa.string())
    return pc.binary_replace_slice(spaced, 10, 11, "T")


def _names(batch: pa.RecordBatch) -> pa.Array:
    """Returns the JSON between time and number; made once for each kind, since records share it."""
    columns = [batch.column(name).dictionary_encode(null_encoding="encode") for name in _NAMES]
    codes = np.zeros(batch.num_rows, np.int64)
    for column in columns:
        codes = codes * len(column.dictionary) + column.indices.to_numpy()
    kinds = pa.array(codes).dictionary_encode()
    codes, texts = kinds.dictionary.to_numpy(), list[list[str | None]]()
    for column in reversed(columns):
        codes, numbers = np.divmod(codes, len(column.dictionary))
        texts.insert(0, column.dictionary.take(pa.array(numbers)).to_pylist())
    found = [dict(zip(_NAMES, kind, strict=True)) for kind in zip(*texts, strict=True)]
    members = [b'Z",%b,"pos":' % orjson.dumps(kind)[1:-1] for kind in found]
    return pa.array(members, pa.string()).take(kinds.indices)


def _objects(column: pa.Array) -> pa.Array:
    """Formats maps as JSON objects. If a key occurs twice the last value counts, as in a `dict`."""
    bounds = column.offsets.to_numpy()
    first, size = bounds[0], bounds[-1] - bounds[0]
    keys = column.keys.slice(first, size)
    if _doubled(keys, bounds - first):
        plain = [None if items is None else dict(items) for items in column.to_pylist()]
        return pa.array([orjson.dumps(value) for value in plain], pa.string())
    members = _joined(_quoted(keys), ":", _quoted(column.items.slice(first, size)))
    together = pa.ListArray.from_arrays(pa.array(bounds - first), members)
    objects = _joined("{", pc.binary_join(together, ","), "}")
    return pc.if_else(column.is_valid(), objects, "null")


def _doubled(keys: pa.Array, bounds: NDArray[np.int32]) -> bool:
    """Returns true if a map has a key twice."""
    coded = keys.dictionary_encode()
    maps = np.repeat(np.arange(len(bounds) - 1, dtype=np.int64), np.diff(bounds))
    pairs = maps * len(coded.dictionary) + coded.indices.to_numpy()
    return len(np.unique(pairs)) != len(pairs)


def _quoted(strings: pa.Array) -> pa.Array:
    """Quotes each string as JSON."""
    if strings.null_count == 0:
        together = characters(_joined(strings, chr(_DEL)))
        text = orjson.dumps(str(together, "utf-8"))
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _DEL)
        if len(ends) == len(strings):
            bounds = np.zeros(len(strings) + 1, np.int32)
            bounds[1:] = ends + np.arange(1, len(strings) + 1)
            quoted = text.replace(b"\x7f", b'""')
            buffers = [pa.py_buffer(bounds), pa.py_buffer(quoted)]
            return pa.StringArray.from_buffers(len(strings), *buffers)
    return pa.array(list(map(orjson.dumps, strings.to_pylist())), pa.string())


def _joined(*parts: pa.Array | str) -> pa.Array:
    """Concatenates the strings of each record; null if one is missing."""
    return pc.binary_join_element_wise(*parts, "", null_handling="replace", null_replacement="null")


# The result of a piece stays below the size from which memory comes from the system, page by page,
# each time (decision 015): that costs more than the encoding.
_PIECE_BYTES: Final = 256 << 10
_RECORD_BYTES: Final = 128  # estimate for a record without its message
_LARGEST_GROUP_BYTES: Final = 8 << 20


class ResultEncoder(Protocol):
    """Encodes one result; `media_type` is its Content-Type."""

    media_type: str
    columns: Sequence[str] | None
    """Returns the columns that `records` uses; None is all."""

    def records(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """Encodes the batch in bounded pieces; some formats hold records back."""
        ...

    def end(self, stats: dict[str, Any], /) -> bytes:
        """Returns the bytes after the last record."""
        ...

    def error(self, problem: dict[str, Any], /) -> bytes | None:
        """Returns the bytes that report a break; None if the format has no place for them."""
        ...


class Ndjson:
    """Encodes one JSON object per line."""

    media_type = "application/x-ndjson"
    columns: Sequence[str] | None = None

    def records(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        if batch.num_rows <= _FEW:
            yield from map(lines, pieces(batch))
            return
        names, first = _names(batch), 0  # of all pieces, which have mostly the same ones
        for part in pieces(batch):
            yield _lines(part, names.slice(first, part.num_rows))
            first += part.num_rows

    def end(self, stats: dict[str, Any]) -> bytes:
        return _line({"stats": stats})

    def error(self, problem: dict[str, Any]) -> bytes | None:
        return _line({"error": problem})


class Text:
    """Encodes messages only."""

    media_type = "text/plain; charset=utf-8"
    columns: Sequence[str] | None = ("message",)

    def records(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        for part in pieces(batch):
            yield bytes(characters(pc.binary_join_element_wise(part.column("message"), "\n", "")))

    def end(self, _: dict[str, Any], /) -> bytes:
        return b""

    def error(self, _: dict[str, Any], /) -> bytes | None:
        return None


class Parquet:
    """Encodes one Parquet file, and writes row groups as they fill."""

    media_type = "application/vnd.apache.parquet"
    columns: Sequence[str] | None = None

    def __init__(self) -> None:
        self._sink = _Drain()
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"), RECORD_SCHEMA, compression="zstd"
        )
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0

    def records(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        for part in pieces(batch):
            self._held.append(part.cast(RECORD_SCHEMA))
            self._held_bytes += part.nbytes
            if self._held_bytes >= _LARGEST_GROUP_BYTES:
                yield self._group()

    def end(self, stats: dict[str, Any]) -> bytes:
        group = self._group()
        self._writer.add_key_value_metadata({"tailrace.stats": orjson.dumps(stats).decode()})
        self._writer.close()
        return group + self._sink.drain()

    def error(self, _: dict[str, Any], /) -> bytes | None:
        return None

    def _group(self) -> bytes:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held, RECORD_SCHEMA))
        self._held, self._held_bytes = [], 0
        return self._sink.drain()


class _Drain(io.RawIOBase):
    """A file whose written bytes are taken out."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        return len(piece)

    def drain(self) -> bytes:
        """Returns all bytes since the last call."""
        drained, self._pieces = b"".join(self._pieces), []
        return drained


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields the batch in slices of about `_PIECE_BYTES`, at least one record each."""
    message = batch.column("message")
    if batch.num_rows == 0:
        return
    if message.nbytes + batch.num_rows * _RECORD_BYTES <= _PIECE_BYTES:
        yield batch
        return
    sizes = pc.fill_null(pc.binary_length(message), 0).to_numpy()
    numbers = np.cumsum(sizes + np.int64(_RECORD_BYTES)) // _PIECE_BYTES
    start = 0
    for end in [*(np.flatnonzero(np.diff(numbers)) + 1).tolist(), batch.num_rows]:
        yield batch.slice(start, end - start)
        start = end


def _line(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
