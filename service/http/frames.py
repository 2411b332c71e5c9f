"""What readers of a run are sent of a tick, and what its batches are as records and as a group."""

from __future__ import annotations

from typing import NamedTuple

from logstore.position import Cursor
from service.http.line_ids import Batch, Group
from service.journal.format import decode_attributes, decode_meta, flags_of
from service.runs.parts import RecordPart
from service.runs.source_pieces import OneSource
from service.ticks import Published, Tick


class Frame(NamedTuple):
    """What all readers at the place `before` are sent of a tick, and their place `after` it."""

    before: Cursor
    after: Cursor
    event: bytes
    chunk: bytes
    """The event as HTTP/1.1 frames it."""


def source_of(tick: Tick, before: Cursor) -> OneSource:
    """Where the tick's batches are, which follow the place `before`."""
    batches = [(b.ulid, b.pos, b.records, b.lines, 0, 0) for b in tick.batches]
    return OneSource(before, tick.node, tick.last.file, batches)


def group_of(source: OneSource) -> Group:
    """The batches as a group in which ids name records."""
    batches = tuple([Batch(*batch) for batch in source.batches])
    return Group(source.node, source.file, batches, source.begun)


def part_of(batch: Published) -> RecordPart:
    """The batch as a part of its run."""
    shared = decode_attributes(batch.meta) if flags_of(batch.meta) else None
    meta = decode_meta(batch.meta) if batch.meta and shared is None else None
    return RecordPart(
        batch.ulid,
        0,
        batch.pos,
        batch.records,
        batch.lines,
        batch.text,
        meta,
        batch.connector,
        shared,
    )
