"""What structured records carry beside their text: the bytes behind a batch entry's text.

JSON columns: `[ends, ts, levels, attributes]`, as in `RecordMeta`.
"""

from __future__ import annotations

import orjson

from logstore.batch import RecordMeta


class MetaColumns:
    """The columns as they grow: what was added is held encoded, not as objects."""

    def __init__(self) -> None:
        self._columns: tuple[list[bytes], ...] = ([], [], [], [])
        self.size = 0
        """Bytes of all columns so far."""

    def add(self, meta: RecordMeta) -> None:
        """Further records, at least one; `ends` are offsets in the whole batch's text."""
        given = (meta.ends, meta.ts, meta.levels, meta.attributes)
        for column, values in zip(self._columns, given, strict=True):
            piece = orjson.dumps(values)[1:-1]
            column.append(piece)
            self.size += len(piece) + 1

    def encoded(self) -> bytes:
        """The bytes of the entry."""
        return b"[%b]" % b",".join(b"[%b]" % b",".join(column) for column in self._columns)


def encode_meta(meta: RecordMeta | None) -> bytes:
    """The columns of all records at once; nothing for a batch of plain lines."""
    if meta is None:
        return b""
    return orjson.dumps([meta.ends, meta.ts, meta.levels, meta.attributes])


def decode_meta(data: bytes) -> RecordMeta:
    """The columns again."""
    ends, ts, levels, attributes = orjson.loads(data)
    return RecordMeta(ends, ts, levels, attributes)
