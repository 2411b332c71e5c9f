"""What structured records carry beside their text: the bytes behind a batch entry's text."""

from __future__ import annotations

import orjson

from logstore.batch import RecordMeta


def encode_meta(meta: RecordMeta | None) -> bytes:
    """JSON columns; nothing for a batch of plain lines."""
    if meta is None:
        return b""
    return orjson.dumps([meta.ends, meta.ts, meta.levels, meta.attributes])


def decode_meta(data: bytes) -> RecordMeta:
    """The columns again."""
    ends, ts, levels, attributes = orjson.loads(data)
    return RecordMeta(ends, ts, levels, attributes)
