"""Flushes runs: confirmed lines become chunks, then the manifest is swapped; trims for deletions.

    select ──► chunk's text ──► chunk's index ──► manifest (chunk and writer's position)

A flush that is killed is repeated from the manifest: lines that were swapped in are left out, and a
chunk that no manifest names is swept after a day. Of two flushers one swap wins; the other selects
again.

The flusher brings confirmed lines into their runs' chunks in the background:

    confirmed(segment) ──► pending (per run: position, bytes, since)
                              │  5 MiB, 2 minutes, or a close
                              ▼
                    at most `parallel` flushes at once ──► watermark

Eight runs with small new texts share a place: they wait for the store and need little memory. A run
that fails waits for its back-off without a place among the `parallel` ones, and delays no other
run. But it does hold back the watermark, so that no line is forgotten.

Trimming replaces a chunk with lines from both sides of a deletion by one without deleted lines. A
node that does not know of a deletion yet flushes lines from before and after it into one chunk,
merges such chunks, or closes the run. The lines after the deletion must stay. So the node that
brings the deletion into the manifest writes that part of the chunk again: the store composes its
text, and its index is built from the blocks that stay. No manifest names the new chunk until the
swap.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from service.doors.settings import door_of
from service.run_log.backlog import Backlog, ConfirmedSegment, Deletions
from service.run_log.chunks import (
    Chunks,
    ChunkWriter,
    Moved,
    NewBatches,
    above,
    goes_on,
    in_range,
    indexed_chunk,
    left_out,
    moved_together,
    select_new,
)
from service.run_log.contracts import FlushProgress, PendingRuns, RunEvents, RunLocks, UnflushedPin
from service.runtime.health import Heartbeat, Ongoing
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import Indexes, Rows, RunKey, lowest_and_highest
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import (
    Damaged,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
    TailraceError,
    Unavailable,
)
from tailrace.logstore.objects.store import ObjectPart, ObjectStore
from tailrace.logstore.runs.chunk_index import Blocks
from tailrace.logstore.runs.manifest import (
    INLINE_BYTES,
    MOST_COPIES,
    Chunk,
    Manifest,
    Manifests,
    Versioned,
)
from tailrace.logstore.runs.report import raise_watermark, read_watermark

_TRIES = 8


class Trimmer:
    """Brings deletions into manifests."""

    def __init__(self, store: ObjectStore, manifests: Manifests, chunks: Chunks) -> None:
        self._store = store
        self._manifests = manifests
        self._chunks = chunks

    async def swap(self, key: RunKey, t: int) -> tuple[Versioned, Manifest | None]:
        """Brings the deletion into the manifest; returns the newest manifest and the replaced one.

        The second is None if another node was first. Raises `Unavailable`, `OutcomeUnknown`.
        """
        replaced: Manifest | None = None

        async def decide(newest: Manifest | None) -> Manifest | None:
            nonlocal replaced
            manifest = newest or Manifest(key)
            if manifest.generation >= t:
                return None
            replaced = manifest
            return await self.through(manifest, t)

        for _ in range(_TRIES):
            try:
                return await self._manifests.update_by(key, decide), replaced
            except Moved as error:  # merged or closed while its chunks were read
                moved = error
        raise StoreUnavailable(f"the chunks of {key.fqn}/{key.run} change all the time: {moved}")

    async def through(self, manifest: Manifest, t: int) -> Manifest:
        """Returns `manifest.deleted_through(t)`, with lines above `t` of chunks that straddle it.

        Raises `Moved`, `StoreUnavailable`, `OutcomeUnknown`.
        """
        if manifest.generation >= t:
            return manifest
        straddling = manifest.straddling(t)
        if not straddling:
            return manifest.deleted_through(t)
        rests = {chunk.id: await self._rest(manifest, chunk, t) for chunk in straddling}
        chunks = tuple([rests.get(chunk.id, chunk) for chunk in manifest.chunks])
        # It is not as it was closed any more, even if no chunk changes: `logs.txt` is another text.
        fixed = sum([chunk.lines for chunk in chunks[: manifest.fixed_chunks]])
        reopened = replace(
            manifest,
            state="open",
            asking=(),
            closing=None,
            partial=None,
            chunks=chunks,
            fixed=fixed,
        )
        return reopened.deleted_through(t)

    async def _rest(self, manifest: Manifest, chunk: Chunk, t: int) -> Chunk:
        """Writes a new chunk of the lines above `t`."""
        key = manifest.key
        whole, writers = await self._blocks(key, chunk)
        kept = whole[above(whole, t)]
        stretches = list(_stretches(kept))
        parts: list[ObjectPart | bytes]
        if chunk.text is not None:
            parts = [chunk.text[low:high] for low, high in stretches]
        else:
            where = await self._part(manifest, chunk)
            parts = [replace(where, offset=low, size=high - low) for low, high in stretches]
        chunk_id = self._manifests.fresh_id()
        rest, index = indexed_chunk(chunk_id, moved_together(kept), writers)
        try:
            info = await self._store.compose(self._chunks.text_key(key, rest), parts)
        except (NotFound, PreconditionFailed) as error:
            raise Moved(str(error)) from error
        if info.size != rest.bytes:
            raise Moved(f"chunk {chunk.id} of {key} is cut")
        await self._store.put(self._chunks.index_key(key, rest), index)
        return rest

    async def _blocks(self, key: RunKey, chunk: Chunk) -> tuple[Blocks, list[str]]:
        parts: list[Blocks] = []
        writers: list[str] = []
        for number in range(len((await self._chunks.directory(key, chunk)).entries)):
            blocks, names = await self._chunks.piece(key, chunk, number)
            writers += [name for name in names if name not in writers]
            part = blocks.copy()
            part["writer"] = np.array([writers.index(name) for name in names])[blocks["writer"]]
            parts.append(part)
        return np.concatenate(parts), writers

    async def _part(self, manifest: Manifest, chunk: Chunk) -> ObjectPart:
        """Returns the chunk's text, as it is in the store now. Raises `Moved`."""
        where = self._chunks.text_key(manifest.key, chunk)
        if chunk.kind == "chunk":
            return ObjectPart(where)
        try:
            there = await self._store.head(where)
        except NotFound as error:
            raise Moved(str(error)) from error
        if not goes_on(chunk, there):
            raise Moved(f"{where} is another text than the manifest names")
        return ObjectPart(where, if_match=there.etag)


def _stretches(blocks: Blocks) -> Iterator[tuple[int, int]]:
    """Yields the byte ranges of adjacent blocks in the text."""
    starts = blocks["offset"].astype(np.int64)
    ends = starts + blocks["size"].astype(np.int64)
    breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
    lows, highs = [0, *breaks.tolist()], [*breaks.tolist(), len(blocks)]
    for low, high in zip(lows, highs, strict=True):
        yield int(starts[low]), int(ends[high - 1])


_LAST = 1.75
"""How much larger the last chunk of a flush may be: with 8 MiB, it leaves none below 6 MiB,
which S3 would not copy into longer texts but have sent again (its limit is 5 MiB)."""


SealFirst = Callable[[Manifest], Awaitable[Manifest]]
"""Takes the first manifest of a run; returns the one that is put, which may name `logs.txt`."""


async def leave_open(manifest: Manifest) -> Manifest:
    """Seals nothing: a `SealFirst` for a flush that no close has asked for."""
    return manifest


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
        """`alone`: no other node exists, so that lines have their final place at once."""
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

    async def flush(
        self, key: RunKey, pin: UnflushedPin, low: int, end: int, seal: SealFirst = leave_open
    ) -> Manifest:
        """Flushes all new lines of the run below position `end`; none of them is below `low`.

        `seal` may close a run whose first manifest has all its lines. Raises `Unavailable`,
        `OutcomeUnknown`, `Damaged`.
        """
        segments = self._backlog.now()
        # A presumed manifest that is older, or missing, only covers fewer lines.
        presume = self._manifests.recent if self._backlog.inherited else self._manifests.presumed
        seen = await presume(key)
        sources = await self._backlog.sources(key, pin, segments, seen.manifest, low, end)
        for source in sources:
            only = seal if len(sources) == 1 else leave_open
            seen = await self._flush_source(key, source, seen, only)
        return seen.manifest

    async def _flush_source(
        self, key: RunKey, source: NewBatches, seen: Versioned, seal: SealFirst
    ) -> Versioned:
        made: _Made | None = None
        while True:
            more = False

            async def decide(newest: Manifest | None) -> Manifest | None:
                nonlocal made, more
                if newest is not None and newest.generation > self._deletions.horizon(key):
                    # The other node did not notify this one: it may be dead by now.
                    self._deletions.note(*key, newest.generation)
                horizon = self._deletions.horizon(key)
                manifest = await self._trimmer.through(newest or Manifest(key), horizon)
                due = in_range(source, key, manifest.dealt_with(source.node))
                part, more = self._first(source.batches.rows, due)
                kept = await self._select_new(key, source, part, manifest)
                while newest is None and more and len(kept) == 0:
                    # All of it is deleted, and no manifest exists to say that it is dealt with.
                    due = due[len(part) :]
                    part, more = self._first(source.batches.rows, due)
                    kept = await self._select_new(key, source, part, manifest)
                if len(part) == 0 or (len(kept) == 0 and newest is None):
                    return None
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
                wanted = self._with(manifest, source, part, made)
                return wanted if more or newest is not None else await seal(wanted)

            seen = await self._manifests.update_by(key, decide, seen=seen)
            if made is not None:
                self.chunks_written += 1
                self.bytes_written += made.chunk.bytes
            made = None
            if not more:
                return seen

    def _first(self, rows: Rows, due: Indexes) -> tuple[Indexes, bool]:
        """Returns as many of the rows as make one chunk, and whether more are left."""
        ends = np.cumsum(rows["size"][due])
        if len(ends) and int(ends[-1]) <= self._chunk_bytes * _LAST:
            return due, False
        count = max(int(np.searchsorted(ends, self._chunk_bytes, "right")), 1)
        return due[:count], count < len(due)

    async def _select_new(
        self, key: RunKey, source: NewBatches, part: Indexes, manifest: Manifest
    ) -> Indexes:
        """Returns the rows of `part` that are in no chunk and not deleted. Raises `Unavailable`."""
        if len(part) == 0:  # no chunk needs to be read for it
            return part
        horizon = self._deletions.horizon(key)
        for tries in range(_TRIES):
            try:
                return (await select_new([source], [part], manifest, self._chunks, horizon))[0]
            except Moved as error:
                moved = error
                if tries:  # not a swap between two reads: an object is gone
                    await self._repair(key)
                # Merged meanwhile: the texts are the same in the newer manifest. A stale manifest
                # costs the swap, and the flush then selects again.
                newer = (await self._manifests.get(key)).manifest
                manifest = await self._trimmer.through(newer, horizon)
        raise StoreUnavailable(f"the chunks of {key.fqn}/{key.run} change all the time: {moved}")

    def _with(
        self, manifest: Manifest, source: NewBatches, part: Indexes, made: _Made | None
    ) -> Manifest:
        """Returns the manifest after the rows of `part` are flushed."""
        last = source.batches.rows[part[-1]]
        position = int(last["pos"]) + int(last["records"])
        writers = {**manifest.writers, source.node: position}
        if made is None:
            return replace(manifest, writers=writers)
        least, most = lowest_and_highest(source.batches.rows[made.rows])
        first_ms = ulids.time_ms(least)
        changed = replace(
            manifest,
            door=_door(manifest, source, made.rows),
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
        # A deleted run has no closes, so that a new beginning opens it.
        return changed if changed.settled() else replace(changed, state=changed.state_of_close())


def _door(manifest: Manifest, source: NewBatches, rows: Indexes) -> str:
    """Returns the door by which all lines of the run came, with those of the new rows."""
    numbers = np.unique(source.batches.rows["connector"][rows]).tolist()
    doors = {door_of(source.batches.connectors[number]) for number in numbers}
    door = doors.pop() if len(doors) == 1 else ""
    return door if not manifest.chunks or manifest.door == door else ""


# --- The flusher --------------------------------------------------------------------------------


_LOOK_SECONDS = 0.5
_UNKNOWN_BYTES_PER_ROW = 100
_SHARES = 8  # of a place: a small run takes one, any other all of them


class Flusher:
    """The flusher of one node; publishes the manifest after each flush to `events`."""

    def __init__(
        self,
        node: str,
        parents: list[str],
        store: ObjectStore,
        clock: Clock,
        progress: FlushProgress,
        *,
        parallel: int,
        watermark_seconds: float,
        pin: Callable[[], UnflushedPin],
        backlog: Backlog,
        run_flush: RunFlush,
        locks: RunLocks,
        fresh_id: Callable[[], str],
        events: RunEvents,
    ) -> None:
        self._node = node
        self._parents = parents
        self._store = store
        self._clock = clock
        self._parallel = parallel
        self._watermark_seconds = watermark_seconds
        self._pin = pin
        self._backlog = backlog
        self._run_flush = run_flush
        self._locks = locks
        self._fresh_id = fresh_id
        self._events = events
        self._progress = progress
        self._pending = progress.pending
        self._wake = asyncio.Event()
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._trying: dict[RunKey, int] = {}
        self._due: deque[RunKey] = deque()
        self._look_due = float("-inf")
        self._mark_due = 0.0
        self._barriers: dict[RunKey, int] = {}
        self.heartbeat = Heartbeat(clock)
        self.ongoing = Ongoing(clock, "the flush of a run into the store does not end")
        self.flushes = 0
        self.failures = 0
        self.last_error: str | None = None

    @property
    def pending(self) -> PendingRuns:
        """Returns the runs with lines that wait to be flushed."""
        return self._pending

    def lacks(self, key: RunKey, end: int) -> bool:
        """Returns true if some of the run's lines here below `end` are in no chunk yet."""
        return end > self._progress.confirmed_pos or self._pending.get(key) is not None

    def follows(self, key: RunKey, pos: int) -> bool:
        """Returns true if this node has synced lines of the run at or above `pos`."""
        with self._pin() as pin:
            return len(pin.batches(run=key, start=pos).rows) > 0

    def holds(self, key: RunKey) -> bool:
        """Returns true if this node has lines of the run that are in no chunk yet."""
        if self._pending.get(key) is not None:
            return True
        return self.follows(key, self._progress.confirmed_pos)

    def lacking(self) -> list[tuple[RunKey, int]]:
        """Returns runs with lines here in no chunk yet, and one past the last of those lines."""
        with self._pin() as pin:
            batches = pin.batches(start=self._progress.confirmed_pos)
            ends = np.zeros(len(batches.runs), np.int64)
            ends[batches.rows["run"]] = batches.rows["pos"] + 1  # of each run the last one stays
        found = dict.fromkeys(self._pending.waiting(), 0)
        found |= {batches.runs[n]: int(ends[n]) for n in np.flatnonzero(ends).tolist()}
        return list(found.items())

    # --- new lines -----------------------------------------------------------------

    async def start(self) -> None:
        """Finds in store and journal the lines that wait. Raises `StoreUnavailable`."""
        mark = await read_watermark(self._store, self._node)
        segments = await self._backlog.find(self._node)
        parents = []
        for parent in self._parents:
            parents += await self._backlog.find(parent)
        self._backlog.inherited = []
        now = self._clock.monotonic()
        with self._pin() as pin:
            known = {segment.seq: segment for segment in self._backlog.own}
            self._backlog.own = [
                known.get(s.seq, s) for s in segments if s.end <= pin.confirmed_pos
            ]
            start = max(mark.pos, pin.first_pos)
            self._pending.add_batches(pin.batches(start=start, end=pin.confirmed_pos), now)
            self._progress.confirmed_pos = max(self._progress.confirmed_pos, pin.confirmed_pos)
            released = [s for s in self._backlog.own if s.first < pin.first_pos]
        for segment in released:
            await self._add_segment(segment, now)
        await self.inherit(parents)
        self._progress.started()

    async def inherit(self, segments: list[ConfirmedSegment]) -> None:
        """Flushes segments of another node too. Raises `StoreUnavailable`."""
        await self._backlog.inherit(segments)
        for segment in segments:
            await self._add_segment(segment, self._clock.monotonic())
        self._look()

    async def _add_segment(self, segment: ConfirmedSegment, now: float) -> None:
        for run in await self._backlog.runs_of(segment):
            # Lines of other nodes hold back no position of this one.
            first = run.first if segment.node == self._node else self._progress.confirmed_pos
            self._pending.add(run.key, first, run.rows * _UNKNOWN_BYTES_PER_ROW, now)

    def confirmed(self, seq: int, first: int, end: int) -> None:
        """Notes that a segment of this node is in the store."""
        if end <= self._progress.confirmed_pos:
            return
        self._backlog.own.append(ConfirmedSegment(self._node, seq, first, end))
        with self._pin() as pin:
            start = max(self._progress.confirmed_pos, first)
            batches = pin.batches(start=start, end=end)
            self._pending.add_batches(batches, self._clock.monotonic())
        self._progress.confirmed_pos = end
        self._look()

    def hold_at(self, key: RunKey, pos: int) -> None:
        """Until `let_go`, no chunk of the run holds lines from both sides of `pos`."""
        self._barriers[key] = pos

    def let_go(self, key: RunKey) -> None:
        """Ends `hold_at`."""
        self._barriers.pop(key, None)

    # --- flushes -------------------------------------------------------------------

    async def run(self) -> None:
        """Flushes runs that are due, until stopped."""
        while not self._stopping:
            self.heartbeat.turn()
            self._begin_due()
            await self.raise_marks()
            self._wake.clear()
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                self._look()

    def _look(self) -> None:
        """Triggers a check of all waiting runs, which the end of a flush alone does not."""
        self._look_due = float("-inf")
        self._wake.set()

    def _begin_due(self) -> None:
        now = self._clock.monotonic()
        if now >= self._look_due:
            self._due = deque(self._pending.due(now))
            self._look_due = now + _LOOK_SECONDS
        free = self._parallel * _SHARES - sum(self._trying.values())
        while self._due and (shares := self._shares(self._due[0])) <= free:
            key = self._due.popleft()
            # A run that is being closed or deleted waits for that without a place.
            due = key not in self._trying and self._pending.is_due(key, now)
            if due and not self._locks.held(key):
                self._begin(key, shares)
                free -= shares

    def _begin(self, key: RunKey, shares: int) -> None:
        self._trying[key] = shares
        task = asyncio.get_running_loop().create_task(self._try(key))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _shares(self, key: RunKey) -> int:
        waiting = self._pending.get(key)
        return 1 if waiting is None or waiting.bytes <= INLINE_BYTES else _SHARES

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._wake.set()

    async def _try(self, key: RunKey) -> None:
        # Counted in `flush`; the run waits its back-off.
        try:
            with contextlib.suppress(TailraceError):
                await self.flush(key)
        finally:
            del self._trying[key]

    async def flush(
        self, key: RunKey, *, end: int | None = None, seal: SealFirst = leave_open
    ) -> Manifest | None:
        """Flushes everything confirmed of the run, below `end` if given. Raises `TailraceError`.

        `seal` may close a run that is small and has no manifest; the run's lock is held then.
        """
        await self._progress.until_started()
        async with self._locks.of(key):
            confirmed = self._progress.confirmed_pos
            limit = confirmed if end is None else min(end, confirmed)
            waiting = self._pending.get(key)
            if waiting is None:
                return None
            waiting.flushing, taken = True, waiting.bytes
            inherited = [s for s in self._backlog.inherited if key in s.waiting]
            try:
                with self.ongoing.piece():
                    manifest = await self._flush_through(key, limit, seal)
            except BaseException as error:
                self._failed(key, error)
                raise
            for segment in inherited:
                segment.waiting.discard(key)
            if limit < self._progress.confirmed_pos and end is not None:
                taken = 0 if self._news_above(key, limit) else taken
            self._pending.done(key, taken, limit, self._clock.monotonic())
            self.flushes += 1
            self.heartbeat.success()
            self.last_error = None
        try:
            await self._events.flushed(manifest)
        except TailraceError as error:  # merging and publishing come again with the next flush
            self.last_error = f"{key.fqn}/{key.run}: after the flush: {error}"
        return manifest

    async def _flush_through(self, key: RunKey, limit: int, seal: SealFirst) -> Manifest:
        """Flushes in two chunks if a close lies between."""
        with self._pin() as pin:
            low = self._progress.first_unflushed(key)
            barrier = self._barriers.get(key)
            if barrier is not None and barrier < limit:
                await self._run_flush.flush(key, pin, low, barrier)
            return await self._run_flush.flush(key, pin, low, limit, seal)

    def _news_above(self, key: RunKey, limit: int) -> bool:
        """Returns true if more lines may exist, also if the journal has released some of them."""
        with self._pin() as pin:
            if pin.first_pos > limit:
                return True
            return len(pin.batches(run=key, start=limit, end=self._progress.confirmed_pos).rows) > 0

    def _failed(self, key: RunKey, error: BaseException) -> None:
        self._pending.failed(key, self._clock.monotonic())
        if isinstance(error, Exception):
            self.failures += 1
            self.last_error = f"{key.fqn}/{key.run}: {error}"

    async def drain(self) -> None:
        """Flushes everything confirmed, once. Raises the first `TailraceError` after trying all."""
        failures: list[TailraceError] = []
        waiting = iter(self._pending.waiting())
        places = asyncio.Semaphore(self._parallel)

        async def work() -> None:
            for key in waiting:
                small = self._shares(key) == 1
                try:
                    async with contextlib.nullcontext() if small else places:
                        await self.flush(key)
                except TailraceError as error:
                    failures.append(error)

        await asyncio.gather(*[work() for _ in range(self._parallel * _SHARES)])
        await self.raise_marks(force=True)
        if failures:
            raise failures[0]

    async def stop(self) -> None:
        """Ends running flushes; the next start repeats them."""
        self._stopping = True
        self._wake.set()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- watermarks ----------------------------------------------------------------

    async def raise_marks(self, *, force: bool = False) -> None:
        """Raises the watermarks in the store, every `mark_seconds`."""
        now = self._clock.monotonic()
        if now < self._mark_due and not force:
            return
        low = self._progress.flushed_pos
        done = [segment for segment in self._backlog.own if segment.end <= low]
        try:
            if done:
                await self._raise(done[-1])
                self._backlog.own = [s for s in self._backlog.own if s.end > done[-1].end]
            for segment in self._backlog.done():
                await self._raise(segment)
                self._backlog.drop(segment)
        except (Unavailable, OutcomeUnknown, NotFound, Damaged) as error:
            # A damaged one is derived again (`service/shipping/watermarks.py`), and raised then.
            self.last_error = f"the watermark: {error}"
            if force:
                raise
        self._mark_due = now + self._watermark_seconds

    async def _raise(self, segment: ConfirmedSegment) -> None:
        await raise_watermark(
            self._store, segment.node, fresh_id=self._fresh_id, seq=segment.seq, pos=segment.end
        )
