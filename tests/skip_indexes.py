"""Skip indexes with another header, written by hand from `docs/reference/formats.md`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import xxhash


def with_header(body: bytes, change: Callable[[dict[str, Any]], dict[str, Any]]) -> bytes:
    """The index with what `change` makes of its header; sums and lengths are right."""
    end = 20 + int.from_bytes(body[16:20], "little")
    text = orjson.dumps(change(orjson.loads(body[20:end])))
    digest = xxhash.xxh3_64_intdigest(text)
    head = body[:8] + digest.to_bytes(8, "little") + len(text).to_bytes(4, "little") + text
    pages, at = b"", len(head)
    for size in sizes(orjson.loads(body[20:end])):
        bits = body[end + 8 : end + size]
        seed = (digest + at) % 2**64
        pages += xxhash.xxh3_64_intdigest(bits, seed).to_bytes(8, "little") + bits
        end, at = end + size, at + size
    assert end == len(body), "only indexes whose filters have one page"
    return head + pages


def sizes(header: dict[str, Any]) -> list[int]:
    """Bytes of each filter's page, of filters with one page, and of each map."""
    groups = len(header["rows"])
    pages = [8 + one["slots"] // 8 * groups for one in header["filters"] if one["slots"]]
    return [*pages, *filter(None, header["maps"])]
