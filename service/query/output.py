"""Results as bytes: ndjson, text, Parquet; piece by piece, whatever the result's size.

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
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.query.hot import SCHEMA
from service.query.ndjson import characters, lines

# What is made of a piece stays below the size from which memory comes from the system, page
# by page, each time (decision 015): that cost more than the encoding.
_PIECE_BYTES: Final = 256 << 10
_RECORD_BYTES: Final = 128  # what a record counts for beside its message
_LARGEST_GROUP_BYTES: Final = 8 << 20


class Output(Protocol):
    """Encodes one result; `media_type` is its Content-Type."""

    media_type: str
    columns: Sequence[str] | None
    """What `records` looks at; None is all."""

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
    columns: Sequence[str] | None = None

    def records(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        for part in pieces(batch):
            yield lines(part)

    def end(self, stats: dict[str, Any]) -> bytes:
        return _line({"stats": stats})

    def error(self, problem: dict[str, Any]) -> bytes | None:
        return _line({"error": problem})


class Text:
    """Messages only."""

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
    """One Parquet file, its row groups written as they fill."""

    media_type = "application/vnd.apache.parquet"
    columns: Sequence[str] | None = None

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
    """The batch in slices of about `_PIECE_BYTES`, at least one record each."""
    if batch.num_rows == 0:
        return
    sizes = pc.fill_null(pc.binary_length(batch.column("message")), 0).to_numpy()
    numbers = np.cumsum(sizes + np.int64(_RECORD_BYTES)) // _PIECE_BYTES
    start = 0
    for end in [*(np.flatnonzero(np.diff(numbers)) + 1).tolist(), batch.num_rows]:
        yield batch.slice(start, end - start)
        start = end


def _line(value: dict[str, Any]) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
