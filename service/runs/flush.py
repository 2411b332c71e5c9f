"""Flushing one run: its confirmed lines become a chunk, then the manifest is swapped.

    select ──► chunk's text ──► chunk's index ──► manifest (chunk and writer's position)

A flush that is killed is repeated from the manifest: lines that were swapped in are left out,
and a chunk that no manifest names is swept after a day. Of two flushers one swap wins; the
other selects again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import numpy as np

from logstore import ulid as ulids
from logstore.batch import Indexes, Rows, RunKey, lowest_and_highest
from logstore.clock import Clock
from logstore.errors import StoreUnavailable
from logstore.runs.manifest import MOST_COPIES, Chunk, Manifest
from logstore.runs.manifests import Manifests, Versioned
from service.runs.backlog import Backlog
from service.runs.chunks import Chunks, ChunkWriter, Moved
from service.runs.deletions import Deletions
from service.runs.pin import Pin
from service.runs.selection import Source, in_range, left_out, news
from service.runs.trim import Trimmer

_TRIES = 8

_LAST = 1.75
"""How much larger the last chunk of a flush may be: with 8 MiB, it leaves none below 6 MiB,
which S3 would not copy into longer texts but have sent again (its limit is 5 MiB)."""


@dataclass(slots=True)
class _Made:
    """A chunk that was written, and its rows."""

    rows: Indexes
    chunk: Chunk


class RunFlush:
    """Brings the new lines of one run into chunks of about `chunk_bytes` each."""

    def __init__(
        self,
        manifests: Manifests,
        chunks: Chunks,
        writer: ChunkWriter,
        backlog: Backlog,
        deletions: Deletions,
        trimmer: Trimmer,
        clock: Clock,
        *,
        owner: str,
        alone: bool,
        chunk_bytes: int,
        inline_bytes: int,
        repair: Callable[[RunKey], Awaitable[bool]],
    ) -> None:
        """`alone`: there is no other node, so that lines have their final place at once."""
        self._manifests = manifests
        self._chunks = chunks
        self._writer = writer
        self._backlog = backlog
        self._deletions = deletions
        self._trimmer = trimmer
        self._clock = clock
        self._owner = owner
        self._alone = alone
        self._chunk_bytes = chunk_bytes
        self._inline_bytes = inline_bytes
        self._repair = repair
        self.chunks_written = 0
        self.bytes_written = 0
        self.left_out = 0

    async def flush(self, key: RunKey, pin: Pin, low: int, end: int) -> Manifest:
        """Flushes all new lines of the run below position `end`; there are none below `low`.

        Raises `Unavailable`, `OutcomeUnknown`, `Damaged`.
        """
        segments = self._backlog.now()
        # An older version, or none, has dealt with less.
        presume = self._manifests.recent if self._backlog.inherited else self._manifests.presumed
        seen = await presume(key)
        sources = await self._backlog.sources(key, pin, segments, seen.manifest, low, end)
        for source in sources:
            seen = await self._flush_source(key, source, seen)
        return seen.manifest

    async def _flush_source(self, key: RunKey, source: Source, seen: Versioned) -> Versioned:
        made: _Made | None = None
        while True:
            more = False

            async def decide(newest: Manifest | None) -> Manifest | None:
                nonlocal made, more
                if newest is not None and newest.generation > self._deletions.horizon(key):
                    # Nobody told this node: the other one may be dead by now.
                    self._deletions.note(*key, newest.generation)
                horizon = self._deletions.horizon(key)
                manifest = await self._trimmer.through(newest or Manifest(key), horizon)
                due = in_range(source, key, manifest.dealt_with(source.node))
                part, more = self._first(source.batches.rows, due)
                if len(part) == 0:
                    return None
                kept = await self._news(key, source, part, manifest)
                if len(kept) == 0 and newest is None:
                    return None  # all of it is deleted, and there is no run
                if len(kept) == 0:
                    made = None
                elif made is None or not np.array_equal(made.rows, kept):
                    chunk_id = self._manifests.fresh_id()
                    room = self._inline_bytes - manifest.inline_bytes
                    write = self._writer.write(key, chunk_id, source.batches, kept, room=room)
                    made = _Made(kept, await write)
                self.left_out += len(part) - len(kept)
                copies = left_out([source], [part], [kept], horizon)
                manifest = replace(manifest, copies=(*manifest.copies, *copies)[-MOST_COPIES:])
                return self._with(manifest, source, part, made)

            seen = await self._manifests.update_by(key, decide, seen=seen)
            if made is not None:
                self.chunks_written += 1
                self.bytes_written += made.chunk.bytes
            made = None
            if not more:
                return seen

    def _first(self, rows: Rows, due: Indexes) -> tuple[Indexes, bool]:
        """As many of the rows as make one chunk, and whether there are more."""
        ends = np.cumsum(rows["size"][due])
        if len(ends) and int(ends[-1]) <= self._chunk_bytes * _LAST:
            return due, False
        count = max(int(np.searchsorted(ends, self._chunk_bytes, "right")), 1)
        return due[:count], count < len(due)

    async def _news(
        self, key: RunKey, source: Source, part: Indexes, manifest: Manifest
    ) -> Indexes:
        horizon = self._deletions.horizon(key)
        for tries in range(_TRIES):
            try:
                return (await news([source], [part], manifest, self._chunks, horizon))[0]
            except Moved as error:
                moved = error
                if tries:  # not between two looks: something is gone
                    await self._repair(key)
                # Merged while we looked: the texts are the same in the newer manifest. A
                # stale one costs the swap, which then selects anew.
                newer = (await self._manifests.get(key)).manifest
                manifest = await self._trimmer.through(newer, horizon)
        raise StoreUnavailable(f"the chunks of {key.fqn}/{key.run} move all the time: {moved}")

    def _with(
        self, manifest: Manifest, source: Source, part: Indexes, made: _Made | None
    ) -> Manifest:
        """The manifest after the rows of `part` are flushed."""
        last = source.batches.rows[part[-1]]
        position = int(last["pos"]) + int(last["records"])
        writers = {**manifest.writers, source.node: position}
        if made is None:
            return replace(manifest, writers=writers)
        least, most = lowest_and_highest(source.batches.rows[made.rows])
        first_ms = ulids.time_ms(least)
        changed = replace(
            manifest,
            chunks=(*manifest.chunks, made.chunk),
            writers=writers,
            owner=self._owner,
            epoch=manifest.epoch + (manifest.owner != self._owner),
            first_ms=min(manifest.first_ms or first_ms, first_ms),
            last_ms=max(manifest.last_ms, ulids.time_ms(most)),
            flushed_ms=self._clock.now_ms(),
        )
        if self._alone and manifest.fixed_lines == manifest.lines and len(writers) == 1:
            changed = replace(changed, fixed=changed.lines)
        # A deleted run has no closes, so that what begins it anew opens it.
        return changed if changed.settled() else replace(changed, state=changed.state_of_close())
