"""Pieces of a chunk's index: up to 4,096 blocks, column by column, compressed.

Nothing in a piece depends on where it stands: offsets and lines are sums of sizes from a
base that the directory gives, writers are named in the piece. So indexes are merged by
copying pieces. Decompressed (zstd), little-endian:

    u32 blocks · u16 writers · per writer: u16 length, name in UTF-8 · columns

Columns in order: ULID time in ms and `pos` as differences from the block before, ULID
bits 79-64, ULID bits 63-0, digest, size, lines, records, writer, first. Each is laid out
byte plane by byte plane (all lowest bytes first), which leaves planes of zeros to zstd.
A batch of one line takes about 20 bytes, most of them the random ULID and the digest.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import zstandard
from numpy.typing import NDArray

from logstore.errors import Damaged
from logstore.runs.blocks import BLOCK, Blocks

PIECE_BLOCKS = 4096
_HEAD = struct.Struct("<IH")
_NAME = struct.Struct("<H")
_LEVEL = 3
_MAX_BYTES = 1 << 24
_COLUMNS = ("<u8", "<u8", "<u2", "<u8", "<u8", "<u8", "<u4", "<u4", "<u2", "<u1")


def encode_piece(blocks: Blocks, writers: Sequence[str]) -> bytes:
    """The bytes of a piece."""
    used, numbers = np.unique(blocks["writer"], return_inverse=True)
    names = [writers[number].encode() for number in used.tolist()]
    time = blocks["ulid_hi"] >> np.uint64(16)
    columns = (
        np.diff(time, prepend=np.uint64(0)),
        np.diff(blocks["pos"], prepend=np.uint64(0)),
        blocks["ulid_hi"] & np.uint64(0xFFFF),
        blocks["ulid_lo"],
        blocks["digest"],
        blocks["size"],
        blocks["lines"],
        blocks["records"],
        numbers,
        blocks["first"],
    )
    parts = [_HEAD.pack(len(blocks), len(names))]
    parts += [_NAME.pack(len(name)) + name for name in names]
    parts += [_planes(c, kind) for c, kind in zip(columns, _COLUMNS, strict=True)]
    return zstandard.ZstdCompressor(level=_LEVEL).compress(b"".join(parts))


def decode_piece(body: bytes, *, first_byte: int, first_line: int) -> tuple[Blocks, list[str]]:
    """The blocks, and the writers that they index. Raises `Damaged`."""
    try:
        data = zstandard.ZstdDecompressor().decompress(body, max_output_size=_MAX_BYTES)
        count, names, at = _names(data)
        columns: list[NDArray[np.generic]] = []
        for kind in _COLUMNS:
            width = np.dtype(kind).itemsize
            columns.append(_column(data, at, count, kind))
            at += width * count
    except (zstandard.ZstdError, struct.error, ValueError) as error:
        raise Damaged(f"not a piece of a chunk's index: {error}") from error
    return _blocks(columns, count, first_byte, first_line), names


def _names(data: bytes) -> tuple[int, list[str], int]:
    count, writers = _HEAD.unpack_from(data)
    at = _HEAD.size
    names = []
    for _ in range(writers):
        (length,) = _NAME.unpack_from(data, at)
        at += _NAME.size
        names.append(data[at : at + length].decode())
        at += length
    return count, names, at


def _blocks(
    columns: Sequence[NDArray[np.generic]], count: int, first_byte: int, first_line: int
) -> Blocks:
    time, pos, high, low, digest, size, lines, records, writer, first = columns
    blocks = np.zeros(count, BLOCK)
    blocks["ulid_hi"] = np.cumsum(time, dtype=np.uint64) << np.uint64(16)
    blocks["ulid_hi"] |= high.astype(np.uint64)
    blocks["pos"] = np.cumsum(pos, dtype=np.uint64)
    blocks["ulid_lo"], blocks["digest"], blocks["size"] = low, digest, size
    blocks["lines"], blocks["records"] = lines, records
    blocks["writer"], blocks["first"] = writer, first
    blocks["offset"] = np.cumsum(blocks["size"]) - blocks["size"] + np.uint64(first_byte)
    ends = np.cumsum(blocks["lines"], dtype=np.uint64)
    blocks["line"] = ends - blocks["lines"] + np.uint64(first_line)
    return blocks


def _planes(column: NDArray[np.generic], kind: str) -> bytes:
    values = np.ascontiguousarray(column.astype(kind))
    return values.view(np.uint8).reshape(len(values), -1).T.tobytes()


def _column(data: bytes, at: int, count: int, kind: str) -> NDArray[np.generic]:
    width = np.dtype(kind).itemsize
    planes = np.frombuffer(data, np.uint8, width * count, at).reshape(width, count)
    return np.ascontiguousarray(planes.T).view(kind).reshape(count)
