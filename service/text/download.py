"""Downloading: the whole text of a run as a stream of bytes, in constant memory.

The end is fixed with the first piece. What is in chunks is streamed from the store; what
is behind them is read in steps, each on a snapshot of its own, so that a slow reader
does not keep the journal's files. Bytes keep their place while lines move.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from logstore.batch import RunKey
from logstore.errors import NotFound, StoreUnavailable
from logstore.runs.manifest import Manifest
from service.text.chunks import Chunks, Moved
from service.text.snapshot import Place, Snapshot, Stretch
from service.text.snapshots import Snapshots

_STEP_BYTES = 1 << 20
_TRIES = 8


@dataclass(slots=True)
class _Progress:
    """Where the download stands; `end` and `generation` are fixed by the first snapshot."""

    offset: int
    end: int | None
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class _Step:
    """What comes next: bytes, or the rest of a chunk, or nothing."""

    piece: bytes
    manifest: Manifest
    chunks: Chunks
    place: Place | None


async def download(
    snapshots: Snapshots, key: RunKey, offset: int, size: int | None
) -> AsyncIterator[bytes]:
    """Bytes from `offset` on. Raises `NotFound`, `StoreUnavailable`, `Damaged`."""
    at = _Progress(offset, None if size is None else offset + size)
    tries = 0
    while tries < _TRIES:
        before = at.offset
        step = await snapshots.with_one(key, partial(_next, at))
        if step.piece:
            at.offset += len(step.piece)
            yield step.piece
        elif step.place is None:
            return
        else:
            async for part in _chunk(step, step.place, at):
                at.offset += len(part)
                yield part
        tries = 0 if at.offset > before else tries + 1
        if tries > 1:
            await snapshots.mend(key)
    raise StoreUnavailable(f"the text of {key.fqn}/{key.run} is not where its manifest says")


async def _next(at: _Progress, snapshot: Snapshot) -> _Step:
    manifest, key = snapshot.manifest, snapshot.manifest.key
    if at.generation is None:
        if not snapshot.exists:
            raise NotFound(f"no run {key.run!r} of {key.fqn!r}")
        at.generation = manifest.generation
        at.end = snapshot.size if at.end is None else min(at.end, snapshot.size)
    if manifest.generation != at.generation:
        raise NotFound(f"the run {key.run!r} of {key.fqn!r} was deleted meanwhile")
    piece, place = b"", None
    end = min(at.end or 0, snapshot.size)
    if at.offset < min(end, snapshot.chunk_bytes):
        place = place_of_byte(snapshot, at.offset)
    elif at.offset < end:
        piece = _hot(snapshot, at.offset, min(end - at.offset, _STEP_BYTES))
    return _Step(piece, manifest, snapshot.chunks, place)


async def _chunk(step: _Step, place: Place, at: _Progress) -> AsyncIterator[bytes]:
    """The rest of one chunk; ends early if it moves meanwhile."""
    low = at.offset - place.byte
    high = min((at.end or 0) - place.byte, place.chunk.bytes)
    with suppress(Moved):
        async for part in step.chunks.stream(step.manifest, place.chunk, low, high - low):
            yield part


def place_of_byte(snapshot: Snapshot, byte: int) -> Place:
    """The chunk that holds the byte."""
    return snapshot.places[bisect_right(snapshot.places, byte, key=lambda p: p.byte) - 1]


def _hot(snapshot: Snapshot, offset: int, size: int) -> bytes:
    """Up to `size` bytes behind the chunks; at least one batch is read."""
    stretch: Stretch = next(s for s in snapshot.stretches if offset < s.end_byte)
    first = int(np.searchsorted(stretch.byte_ends, offset, "right"))
    last = int(np.searchsorted(stretch.byte_ends, offset + size, "left")) + 1
    begin = int(stretch.byte_ends[first]) - int(stretch.rows["size"][first])
    text = snapshot.stretch_text(stretch, first, last)
    return text[offset - begin : offset - begin + size]
