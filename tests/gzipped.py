"""Bytes as gzip packs them, the same at any time.

Where pytest-xdist spreads a run, each process collects the tests by itself, and all must
find the same parameters: a time in them would make two tests of one.
"""

from __future__ import annotations

import gzip


def gzipped(data: bytes, level: int = 9) -> bytes:
    """One member, whose header has no time."""
    return gzip.compress(data, level, mtime=0)
