"""Looks for a marker in bytes, whatever they are packed in: as they are, gzip, zstd, Parquet."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pyarrow.parquet as pq


def holds(body: bytes, marker: bytes) -> bool:
    """Whether the bytes, or what they unpack to, have the marker."""
    return any(marker in text for text in _texts(body))


def _texts(body: bytes) -> Iterator[bytes]:
    yield body
    if body[:4] == b"PAR1":
        for column in pq.read_table(pa.BufferReader(body)).columns:
            yield "\n".join(map(str, column.to_pylist())).encode()
    elif body[:2] == b"\x1f\x8b":
        with suppress(OSError, EOFError, zlib.error):  # it only looks like one
            yield gzip.decompress(body)
    elif body[:4] == b"\x28\xb5\x2f\xfd":
        yield pa.CompressedInputStream(pa.BufferReader(body), "zstd").read()
