"""Results as bytes: ndjson, text, Parquet; about a MiB at a time, whatever the result's size.

    ndjson    {"ulid","ts","fqn","run_id","level","connector_id","pos","message","attributes"}
              … and last {"stats": {…}}, or {"error": {…}} if the search broke off
    text      the messages, each with a newline
    parquet   the columns of contracts section 2; the stats stand in the file's metadata
              under `tailrace.stats`

ndjson without a `stats` record is partial. The other two have no place for an error
once they have begun: the connection is cut instead.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, Final, Protocol

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.query.hot import SCHEMA

_PIECE_BYTES: Final = 1 << 20
_LARGEST_GROUP_BYTES: Final = 8 << 20


class Output(Protocol):
    """Encodes one result; `media_type` is its Content-Type."""

    media_type: str

    def records(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """The batch, in bounded pieces; some formats hold records back."""
        ...

    def end(self, stats: dict[str, Any], /) -> bytes:
        """What stands behind the last record."""
        ...

    def error(self, problem: dict[str, Any], /) -> bytes | None:
        """What tells the reader of a break; None if the format cannot."""
        ...


class Ndjson:
    """One JSON object per line."""

    media_type = "application/x-ndjson"

    def records(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        for part in pieces(batch):
            yield b"".join([_line(record) for record in _objects(part)])

    def end(self, stats: dict[str, Any]) -> bytes:
        return _line({"stats": stats})

    def error(self, problem: dict[str, Any]) -> bytes | None:
        return _line({"error": problem})


class Text:
    """Messages only."""

    media_type = "text/plain; charset=utf-8"

    def records(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        for part in pieces(batch):
            yield "\n".join([*_values(part.column("message")), ""]).encode()

    def end(self, _: dict[str, Any], /) -> bytes:
        return b""

    def error(self, _: dict[str, Any], /) -> bytes | None:
        return None


class Parquet:
    """One Parquet file, its row groups written as they fill."""

    media_type = "application/vnd.apache.parquet"

    def __init__(self) -> None:
        self._sink = _Drain()
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"), SCHEMA, compression="zstd"
        )
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0

    def records(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        for part in pieces(batch):
            self._held.append(part.cast(SCHEMA))
            self._held_bytes += part.get_total_buffer_size()
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
            self._writer.write_table(pa.Table.from_batches(self._held, SCHEMA))
        self._held, self._held_bytes = [], 0
        return self._sink.drain()


class _Drain(io.RawIOBase):
    """A file that gives out what was written to it."""

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
        """All since the last call."""
        drained, self._pieces = b"".join(self._pieces), []
        return drained


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in slices of about a MiB of messages, at least one record each."""
    if batch.num_rows == 0:
        return
    sizes = pc.fill_null(pc.binary_length(batch.column("message")), 0)
    numbers = pc.divide(pc.cumulative_sum(sizes.cast(pa.int64())), _PIECE_BYTES).to_pylist()
    start = 0
    for row in range(1, batch.num_rows):
        if numbers[row] != numbers[row - 1]:
            yield batch.slice(start, row - start)
            start = row
    yield batch.slice(start)


def _objects(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    times = _values(_times(batch.column("ts")))
    names = ("ulid", "fqn", "run_id", "level", "connector_id", "pos", "message")
    columns = [_values(batch.column(name)) for name in names]
    attributes = _attributes(batch.column("attributes"))
    for record in zip(times, attributes, *columns, strict=True):
        ts, attribute, ulid, fqn, run, level, connector, pos, message = record
        yield {
            "ulid": ulid,
            "ts": ts,
            "fqn": fqn,
            "run_id": run,
            "level": level,
            "connector_id": connector,
            "pos": pos,
            "message": message,
            "attributes": attribute,
        }


def _times(column: pa.Array) -> pa.Array:
    """RFC 3339 with six digits. Twenty times as fast as `strftime`."""
    spaced = column.cast(pa.timestamp("us")).cast(pa.string())
    return pc.binary_join_element_wise(pc.binary_replace_slice(spaced, 10, 11, "T"), "Z", "")


def _values(column: pa.Array) -> list[Any]:
    """Strings or numbers as Python has them; several times as fast as `to_pylist`."""
    return list(column.to_numpy(zero_copy_only=False).tolist())


def _attributes(column: pa.Array) -> list[dict[str, str] | None]:
    if column.null_count == len(column):
        return [None] * len(column)
    return [None if items is None else dict(items) for items in column.to_pylist()]


def _line(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
