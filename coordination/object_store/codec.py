"""The encoding of a shard's JSON: plain if it is small, so that people can read it; else zstd.

A supplier writes large shards with each of its batches, and a worker with each acquisition.
Compression reduces them to about a tenth.
"""

from __future__ import annotations

from typing import Final

import zstandard

from logstore.errors import Damaged

PLAIN_BYTES: Final = 64 << 10
"""JSON up to this size stays as it is."""
COMPRESSION: Final = 12
"""By how much rows that were never taken shrink, measured; others less."""
_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_MAX_BYTES: Final = 1 << 30


def compressed(json: bytes) -> bytes:
    """Encodes JSON as the object's bytes."""
    if len(json) <= PLAIN_BYTES:
        return json
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(json)


def decompressed(where: str, body: bytes) -> bytes:
    """Decodes an object, which `where` names in errors. Raises `Damaged`."""
    if not body.startswith(_MAGIC):
        return body
    try:
        size = zstandard.frame_content_size(body)
        if not 0 <= size <= _MAX_BYTES:
            raise Damaged(f"{where} says that it holds {size} bytes")
        return zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError as error:
        raise Damaged(f"{where} cannot be decompressed: {error}") from error


def decompressed_bytes(body_bytes: int) -> int:
    """Estimates the size of the JSON in an object of that size; rather too high than too low."""
    return body_bytes * COMPRESSION
