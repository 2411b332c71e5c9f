"""Segments that cannot be ingested, of every kind."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tailrace.logstore.segments import file_format


def newer(body: bytes) -> bytes:
    """The segment with a seal of a kind that this program does not know, itself intact."""
    changed = bytearray(body)
    start = file_format.footer_start(memoryview(changed)) - file_format.SIZE
    head = b"TRSEAL99" + bytes(changed[start + 8 : start + 24])
    changed[start : start + file_format.SIZE] = head + xxhash.xxh3_64_intdigest(head).to_bytes(
        8, "little"
    )
    return bytes(changed)


def _truncated(body: bytes, dice: Random) -> bytes:
    return body[: dice.randrange(1, len(body))]


def _flipped(body: bytes, dice: Random) -> bytes:
    changed = bytearray(body)
    changed[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _foreign(_body: bytes, _dice: Random) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"message": ["not one of ours"]}), sink)
    return sink.getvalue()


def _empty(_body: bytes, _dice: Random) -> bytes:
    return b""


def _no_parquet(_body: bytes, dice: Random) -> bytes:
    return dice.randbytes(dice.randrange(1, 300))


CORRUPTED: Final[Mapping[str, Callable[[bytes, Random], bytes]]] = {
    "truncated": _truncated,
    "flipped": _flipped,
    "foreign schema": _foreign,
    "empty": _empty,
    "no Parquet": _no_parquet,
}
