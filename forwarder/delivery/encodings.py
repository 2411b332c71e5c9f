"""Compression of bodies on their way: `Content-Encoding`. What is stored is the same without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

BodyEncoding = Literal["", "gzip", "zstd"]
_FROM_BYTES = 1 << 10
_GZIP_LEVEL = 1
_ZSTD_LEVEL = 1

Encode = Callable[[bytes], tuple[bytes, str]]


def encoder(name: BodyEncoding) -> Encode:
    """A function that gives a body as it is sent, and the name of its encoding."""
    if name == "gzip":
        from isal import igzip

        return lambda body: _if_worth(body, name, lambda: igzip.compress(body, _GZIP_LEVEL))
    if name == "zstd":
        import zstandard

        def zstd(body: bytes) -> bytes:
            # A compressor for each body: senders are several threads.
            return bytes(zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body))

        return lambda body: _if_worth(body, name, lambda: zstd(body))
    return lambda body: (body, "")


def _if_worth(body: bytes, name: str, compress: Callable[[], bytes]) -> tuple[bytes, str]:
    return (body, "") if len(body) < _FROM_BYTES else (compress(), name)
