"""Batches in memory: the double of the journal view and of stored segments.

`make_batches` takes entries (run, batch ULID, text[, connector[, meta]]) in order of
`pos` and counts records and lines as the journal does: without metadata, or with a mapping of
attributes that all lines have, a record is a line; else it is one entry of `RecordMeta.ends`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from tailrace.logstore.batch import (
    BATCH,
    CONSTANT_ATTRIBUTES,
    Indexes,
    RecordMeta,
    Rows,
    RunKey,
    digest,
)
from tailrace.logstore.segments.file_format import times_ms

Entry: TypeAlias = (
    "tuple[RunKey, int, bytes]"
    " | tuple[RunKey, int, bytes, str | None]"
    " | tuple[RunKey, int, bytes, str | None, RecordMeta | Mapping[str, str] | None]"
)


@dataclass(frozen=True, slots=True)
class MemoryBatches:
    """An implementation of `tailrace.logstore.batch.Batches` over bytes held in memory."""

    node: str
    rows: Rows
    runs: Sequence[RunKey]
    connectors: Sequence[str | None]
    content: bytes
    metas: Mapping[int, RecordMeta | Mapping[str, str]] = field(default_factory=dict)

    def text(self, indexes: Indexes) -> bytes:
        """The texts of the rows at `indexes`, one after another, in that order."""
        chosen = self.rows[indexes]
        starts = chosen["offset"].tolist()
        sizes = chosen["size"].tolist()
        pieces = zip(starts, sizes, strict=True)
        return b"".join([self.content[start : start + size] for start, size in pieces])

    def slice(self, index: int, low: int, high: int) -> bytes:
        """The bytes of one row's text from `low` to before `high`."""
        return self.text(np.array([index]))[low:high]

    def meta(self, index: int) -> RecordMeta | None:
        """The record metadata of one row."""
        found = self.metas.get(int(self.rows["offset"][index]))
        return found if isinstance(found, RecordMeta) else None

    def constant_attributes(self, index: int) -> Mapping[str, str] | None:
        """The attributes of all records of one row."""
        found = self.metas.get(int(self.rows["offset"][index]))
        return None if isinstance(found, RecordMeta) else found

    def part(self, start: int, end: int) -> MemoryBatches:
        """The batches whose first `pos` is in [start, end)."""
        pos = self.rows["pos"]
        kept = self.rows[(pos >= start) & (pos < end)]
        return MemoryBatches(self.node, kept, self.runs, self.connectors, self.content, self.metas)

    def within(self, low: int, high: int) -> MemoryBatches:
        """The batches whose ULIDs are of these milliseconds, inclusive."""
        times = times_ms(self.rows)
        kept = self.rows[(times >= low) & (times <= high)]
        return MemoryBatches(self.node, kept, self.runs, self.connectors, self.content, self.metas)

    def of(self, key: RunKey) -> MemoryBatches:
        """The batches of one run."""
        wanted = [i for i, run in enumerate(self.runs) if run == key]
        kept = self.rows[np.isin(self.rows["run"], wanted)]
        return MemoryBatches(self.node, kept, self.runs, self.connectors, self.content, self.metas)


def make_batches(node: str, entries: Sequence[Entry], first_pos: int = 0) -> MemoryBatches:
    """The entries as batches of `node`, their records numbered from `first_pos`."""
    rows = np.zeros(len(entries), dtype=BATCH)
    runs: dict[RunKey, int] = {}
    connectors: dict[str | None, int] = {}
    metas: dict[int, RecordMeta | Mapping[str, str]] = {}
    content = bytearray()
    pos = first_pos
    for row, entry in zip(rows, entries, strict=True):
        key, ulid, text = entry[:3]
        connector: str | None = entry[3] if len(entry) > 3 else None
        meta = entry[4] if len(entry) > 4 else None
        lines = text.count(b"\n")
        records = len(meta.ends) if isinstance(meta, RecordMeta) else lines
        if meta is not None:
            metas[len(content)] = meta
        row["offset"], row["pos"], row["size"] = len(content), pos, len(text)
        row["ulid_hi"], row["ulid_lo"] = ulid >> 64, ulid & (1 << 64) - 1
        row["digest"], row["records"], row["lines"] = digest(text), records, lines
        row["run"] = runs.setdefault(key, len(runs))
        row["connector"] = connectors.setdefault(connector, len(connectors))
        row["meta"] = 0 if meta is None else 1
        row["flags"] = CONSTANT_ATTRIBUTES if isinstance(meta, Mapping) else 0
        content += text
        pos += records
    return MemoryBatches(node, rows, list(runs), list(connectors), bytes(content), metas)
