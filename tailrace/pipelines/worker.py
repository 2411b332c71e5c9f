"""An appender at work: reads segments, orders their events, gives them on, saves checkpoints.

    lease ──► checkpoint ──► appender.start ──► read waiting events again ──┐
                                                                            ▼
      ┌────────── failure: a pause, then from the last checkpoint ◄── read, give, checkpoint ──►
      stop

Each appender of a pipeline has an `AppenderWorker`, so one that fails or hangs holds up no other.
Of all nodes, the one that is furthest behind is read first. An event is given on when all nodes
have sent an event that is `event_delay_ms` later; the worker does not wait for a node that has sent
nothing for `idle_node_ms`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa

from tailrace.coordination.groups import PipelineReplay
from tailrace.coordination.leases import Lease
from tailrace.coordination.pipelines import Checkpoint, Redelivery, encode
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import LeaseLost, NotFound, OutcomeUnknown, TailraceError, Unavailable
from tailrace.logstore.filesystem import FileSystem
from tailrace.logstore.objects.config import StoreSettings
from tailrace.logstore.retry import Backoff
from tailrace.pipelines.appenders.contract import (
    AppenderContext,
    Deletable,
    Flushable,
    PipelineAppender,
)
from tailrace.pipelines.definition import AppenderConfig, PipelineConfig, state_of_letters
from tailrace.pipelines.events import Deleted, EventBuffer, kept, parted
from tailrace.pipelines.letters import DeadLetters
from tailrace.pipelines.progress import (
    AppenderProgress,
    Delay,
    begun,
    delay_of,
    is_due,
    rewound,
    split,
)
from tailrace.pipelines.reader import PartCounts, PartReader
from tailrace.pipelines.sources.segments import SegmentSource
from tailrace.pipelines.sources.table import TableSource
from tailrace.pipelines.waiting import BUFFER_BYTES, OwnThread, TurnLimiter, pieces, wait_or_stop

# Further calls of an appender: deletions, and the passing of time.


class Hooks:
    """Calls `deleted` and `flush` of one appender, if it has them, in its thread."""

    def __init__(
        self, thread: OwnThread, source: SegmentSource, appender: PipelineAppender
    ) -> None:
        self._thread = thread
        self._source = source
        self._appender = appender
        self._notified: Deleted | None = None

    async def deletions(self) -> None:
        """Passes on the deletions if they differ from the last ones. Raises as `deleted`."""
        known = self._source.deleted
        if isinstance(self._appender, Deletable) and known is not self._notified:
            await self._thread.run(self._appender.deleted, known)
            self._notified = known

    async def flush(self) -> bool:
        """Lets it do what is due; True: a checkpoint has to be saved. Raises as `flush`."""
        if not isinstance(self._appender, Flushable):
            return False
        return bool(await self._thread.run(self._appender.flush))


log = logging.getLogger("tailrace.pipelines")

_POLL_SECONDS: Final = 0.5
_DELETIONS_SECONDS: Final = 1.0
_SOON_MS: Final = 1000
"""So soon a checkpoint is saved that has dead letters, or that some were sent again."""


class AppenderWorker:
    """Works on one part of one appender as long as it has its lease."""

    def __init__(
        self,
        pipeline: PipelineConfig,
        appender: AppenderConfig,
        part: int,
        lease: Lease,
        source: SegmentSource,
        table: TableSource,
        *,
        clock: Clock,
        fs: FileSystem,
        on_disabled: Callable[[str, str], Awaitable[None]],
        on_failing: Callable[[str, str | None], Awaitable[None]],
        instance: str = "",
        store: StoreSettings | None = None,
        counts: PartCounts | None = None,
        gate: TurnLimiter | None = None,
        buffer_share: Callable[[], int] = lambda: BUFFER_BYTES,
    ) -> None:
        self.counts = PartCounts() if counts is None else counts
        self.delay = Delay()
        """Of those events that were given last."""
        self.checkpoint_ms = 0
        self.progress: AppenderProgress | None = None
        """Where it is between two checkpoints; None while it is stopped or waits."""
        self.disabled = False
        """Whether its dead-letter file takes its events; may be changed at any time."""
        self.redeliver = ""
        """The last time that its dead letters were to be sent again; may be changed as well."""
        self._gate = gate or TurnLimiter()
        self._buffer_share = buffer_share
        self._on_disabled = on_disabled
        self._on_failing = on_failing
        self._said_refused = ""
        self._stored_failure = True  # perhaps of an earlier process
        self._in_a_row = 0
        self.lease = lease
        self.pipeline, self.appender = pipeline.name, appender.name
        self.labels: tuple[str, ...] = (pipeline.name, appender.name, str(part))
        self.failure: str | None = None
        self.settings = pipeline.settings
        self._appender = appender
        self._part = part
        self.source = source
        self._deleted: Deleted = {}  # covers nothing of what the appender is given
        self._table = table
        self.asked: PipelineReplay | None = None
        """The last replay that was asked for; may be changed at any time."""
        self.clock = clock
        self._fs = fs
        self._instance = instance
        self._store = store
        self._thread = OwnThread(self.name)
        self._reader = PartReader(
            pipeline,
            appender,
            part,
            source,
            table,
            clock=clock,
            thread=self._thread,
            counts=self.counts,
            patiently=self._patiently,
        )
        self._stopping = asyncio.Event()
        self._pauses = Backoff(self.settings.retry_ms, self.settings.most_retry_ms)

    @property
    def name(self) -> str:
        """Pipeline, appender and part."""
        return f"{self.settings.name}/{self._appender.name}/{self._part}"

    @property
    def buffer_limit(self) -> int:
        """Bytes of events that may wait for it now."""
        return self._buffer_share()

    def stop(self) -> None:
        """Makes `run` save a checkpoint and return."""
        self._stopping.set()

    async def run(self) -> None:
        """Works until it is stopped or the lease is lost, and gives the lease back."""
        try:
            while self._may_go_on:
                try:
                    await self._live()
                except (LeaseLost, NotFound) as error:
                    log.warning("%s: %s", self.name, error)
                    return
                except Exception as error:  # noqa: BLE001 -- an appender may raise anything
                    await self._failed(error)
        finally:
            self._thread.close()
            with suppress(TailraceError):  # what the store does not hear of runs out
                await self.lease.give_up()

    async def _failed(self, error: Exception) -> None:
        if isinstance(error, Unavailable) and not self._may_go_on:
            return  # it waited for the store until it was stopped
        self.counts.failures += 1
        said = f"{type(error).__name__}: {error}"
        if said != self.failure:
            hint = error.hint if isinstance(error, TailraceError) else ""
            log.error(
                "%s failed, and tries again: %s%s", self.name, said, f" ({hint})" if hint else ""
            )
            await self._on_failing(self.lease.key, said)
            self._stored_failure = True
        self.failure = said
        self._in_a_row += 1
        threshold = self.settings.error_threshold
        if threshold and self._in_a_row >= threshold and not self.disabled:
            await self._disable(f"it failed {self._in_a_row} times in a row: {said}")
            return
        await wait_or_stop(self.clock, self._pauses.next() / 1000, self._stopping)

    async def _disable(self, reason: str) -> None:
        """Its events go to the dead-letter file from here on."""
        try:
            await self._on_disabled(self._appender.name, reason)
        except TailraceError as error:
            self._say_unavailable(error)
            return
        self.disabled, self._in_a_row = True, 0
        log.error("%s is disabled: %s", self.name, reason)

    async def _live(self) -> None:
        """From the last checkpoint to a stop, or a change of who takes the events."""
        checkpoint, dead = begun(self.lease.partition, self.asked), self.disabled
        self.checkpoint_ms = checkpoint.saved_ms
        self._letters = self._dead_letters(checkpoint)
        if dead and not self.settings.dead_letter_dir:
            await wait_or_stop(self.clock, _POLL_SECONDS, self._stopping)
            return
        if self.asked is not None and is_due(checkpoint, self.asked):
            checkpoint = await rewound(checkpoint, self.asked, self.source, self._table)
            await self.lease.save(encode(checkpoint))
            self.counts.checkpoints += 1
            log.info("%s continues at %s", self.name, self.asked.low or "what comes")
        appender = self._appender.make_dead_letter(self.settings) if dead else self._appender.make()
        state = checkpoint.dead_letter if dead else checkpoint.appender
        started, cancelled = [appender], False
        try:
            await self._thread.run(appender.start, self._context(dead=dead), state)
            copy = None
            if checkpoint.replay is not None and not dead:
                copy = self._appender.make()
                started.append(copy)
                context = self._context(dead=False, replay=checkpoint.replayed)
                await self._thread.run(copy.start, context, checkpoint.replay.appender)
            progress = await self._begin(checkpoint, appender, copy, dead=dead)
            hooks = Hooks(self._thread, self.source, appender)
            while self._same(progress, dead=dead):
                if not await self._turn(progress, hooks):
                    await wait_or_stop(self.clock, _POLL_SECONDS, self._stopping)
            if self.lease.valid():
                await self._save(progress)
        except asyncio.CancelledError:  # the appender hangs, and the process ends
            cancelled = True
            raise
        finally:
            self.progress = None
            if not cancelled:
                for stop in (*[one.stop for one in started], self._letters.stop):
                    await self._thread.run(stop)

    @property
    def _may_go_on(self) -> bool:
        return not self._stopping.is_set() and self.lease.valid()

    def _same(self, progress: AppenderProgress, *, dead: bool) -> bool:
        """Whether it may go on as it began."""
        over = progress.begun.replay is not None and progress.replay is None
        other = over or is_due(progress.begun, self.asked) or self.disabled is not dead
        return self._may_go_on and not other

    def _dead_letters(self, checkpoint: Checkpoint) -> DeadLetters:
        state = state_of_letters(self.settings, checkpoint.dead_letter)
        make = partial(self._appender.make_shelf, self.settings)
        return DeadLetters(make, self._context(dead=True), state)

    def _context(self, *, dead: bool, replay: str = "") -> AppenderContext:
        return AppenderContext(
            self.settings.name,
            f"{self._appender.name}.dead" if dead else self._appender.name,
            self._part,
            self.settings.parts,
            self._fs,
            self.clock,
            self.lease.valid,
            self._instance,
            self._store,
            lambda: self._deleted,
            replay,
            self.counts.own,
            *(() if dead else (self._letters.refuse,)),
        )

    async def _begin(
        self,
        checkpoint: Checkpoint,
        appender: PipelineAppender,
        copy: PipelineAppender | None,
        *,
        dead: bool,
    ) -> AppenderProgress:
        """Restores the state of the checkpoint: the events that waited then wait again."""
        now = self.clock.monotonic()
        progress = AppenderProgress(
            *(checkpoint, appender, dead, dict(checkpoint.nodes)),
            EventBuffer(checkpoint.frontier),
            checkpoint.replay,
            copy,
            saved_at=now,
            redelivery=checkpoint.redelivery,
        )
        self.progress = progress
        if not dead:
            await self._thread.run(self._letters.start)
        await self._patiently(self.source.refresh)
        await self._reader.read_again(progress, self._gate)
        if self.lease.progress is None:
            progress.enter(self.source.nodes, self.settings.start)
            await self._save(progress)
        return progress

    # --- a turn --------------------------------------------------------------------------

    async def _turn(self, progress: AppenderProgress, hooks: Hooks) -> bool:
        """Reads a segment if there is one, gives on what may go; whether something was done."""
        async with self._gate.turn():
            try:
                await self.source.refresh()
                found = not progress.buffer.more and await self._reader.read(progress)
            except Unavailable as error:
                self._say_unavailable(error)
                found = False
            await hooks.deletions()
            given = await self._give(progress)
            again = not progress.dead and await self._redeliver(progress)
        self._count(progress)
        progress.changed |= await hooks.flush()
        await self._keep_refused(progress)
        interval = self.settings.checkpoint_interval_ms
        if progress.urgent:
            interval = min(_SOON_MS, interval)
        due = self.clock.monotonic() - progress.saved_at
        if progress.changed and due * 1000 >= interval:
            await self._save(progress)
        return found or given or again

    async def _give(self, progress: AppenderProgress) -> bool:
        """Gives the appender what no node can send anything before any more; whether it did.

        That is some megabytes, and more only as long as more waits than fits.
        """
        buffer, given = progress.buffer, False
        until = progress.until(self.source.nodes, self.settings, self.clock.monotonic())
        most = self.buffer_limit
        while not given or (buffer.size > most and self._may_go_on):
            events = await self._thread.run(buffer.take, until)
            if events.num_rows == 0:
                events = await self._thread.run(buffer.force, most)
            if events.num_rows == 0:
                break
            given = progress.changed = True
            await self._give_on(progress, events)
        return given

    async def _give_on(self, progress: AppenderProgress, events: pa.Table) -> None:
        """Gives the appender those that were not deleted."""
        left, deleted = await self._not_deleted(events, dead=progress.dead)
        self.counts.deleted += deleted
        progress.deleted += deleted
        if left.num_rows:
            await self._append(progress, left)

    async def _not_deleted(self, events: pa.Table, *, dead: bool) -> tuple[pa.Table, int]:
        """The events that may be given, and how many a deletion covers now; the lease is valid.

        Those of which nobody knows that become dead letters, unless all events do.
        """
        fresh = self.clock.monotonic() - _DELETIONS_SECONDS
        await self._patiently(lambda: self.source.refresh(fresh))
        self._deleted = self.source.deleted
        left = kept(events, self._deleted)
        deleted = events.num_rows - left.num_rows
        unreadable = {} if dead else self.source.segments.unreadable
        for owner, reason in unreadable.items():
            left, theirs = parted(left, owner)
            if theirs.num_rows:
                self._letters.refuse(theirs, reason)
        if left.num_rows and not self.lease.valid():
            raise LeaseLost(f"the lease of {self.name} is over")
        return left, deleted

    def _count(self, progress: AppenderProgress) -> None:
        """Adds what the buffer counted since the last call."""
        now, before = progress.buffer.counts, progress.counted
        self.counts.late += now.late - before.late
        self.counts.forced += now.forced - before.forced
        self.counts.copies += now.copies - before.copies
        self.counts.clamped += now.clamped - before.clamped
        progress.counted = replace(now)

    async def _append(self, progress: AppenderProgress, events: pa.Table) -> None:
        again, new = split(events)
        for piece in pieces(again):
            await self._thread.run((progress.copy or progress.appender).append, piece)
        for piece in pieces(new):
            await self._thread.run(progress.appender.append, piece)
        progress.given += events.num_rows
        progress.again += again.num_rows
        self.counts.given += events.num_rows
        self.counts.again += again.num_rows
        self.counts.dead_letters += events.num_rows if progress.dead else 0
        self.delay = delay_of(events, self.clock.now_ms())

    # --- dead letters --------------------------------------------------------------------

    async def _keep_refused(self, progress: AppenderProgress) -> int:
        """Makes dead letters of refused events; returns how many of these had been sent again."""
        found = await self._thread.run(self._letters.keep)
        if not found.events:
            return 0
        self.counts.refused += found.events - found.again
        progress.refused += found.events - found.again
        progress.changed = progress.urgent = True
        if found.reason != self._said_refused:
            self._said_refused = found.reason
            log.error("%s: refused events became dead letters: %s", self.name, found.reason)
        return int(found.again)

    async def _redeliver(self, progress: AppenderProgress) -> bool:
        """Sends some dead letters again, if an operator asked for it; returns whether it did."""
        at = progress.redelivery
        if at is None or at.done:
            if not self.redeliver or (at is not None and self.redeliver <= at.id):
                return False
            at = Redelivery(self.redeliver, await self._thread.run(self._letters.end))
            return await self._redelivered(progress, at)  # nobody goes back behind the end
        events, after = await self._thread.run(self._letters.following, at)
        if events is None:
            if await self._redelivered(progress, at):  # nothing of it is sent once more
                await self._thread.run(self._letters.remove, at)
                progress.redelivery, progress.changed = replace(at, done=True), True
                progress.urgent = True
                log.info("%s: dead letters: %d sent, %d refused", self.name, at.sent, at.refused)
            return True
        left, deleted = await self._not_deleted(events, dead=False)
        for piece in pieces(left):
            await self._thread.run(progress.appender.append, piece)
        await self._thread.run(progress.appender.sync)  # all that it refuses is refused by now
        again = await self._keep_refused(progress)
        lines = after.row - (at.row if after.file == at.file else 0)
        sent = lines - deleted - again
        self.counts.redelivered += sent
        progress.redelivered += sent
        progress.redelivery = replace(
            after, sent=at.sent + sent, refused=at.refused + again, deleted=at.deleted + deleted
        )
        progress.changed = progress.urgent = True
        return True

    async def _redelivered(self, progress: AppenderProgress, at: Redelivery) -> bool:
        """Saves how far it is; whether that is certain."""
        progress.redelivery, progress.changed = at, True
        await self._save(progress)
        return not progress.changed

    # --- checkpoints ---------------------------------------------------------------------

    async def _save(self, progress: AppenderProgress) -> None:
        """Saves a checkpoint. If the store refuses it, the next one is tried later."""
        if progress.buffer.late_wait:
            await self._give(progress)
        state = await self._thread.run(progress.appender.sync)
        copy = None if progress.replay is None else progress.copy
        copied = None if copy is None else await self._thread.run(copy.sync)
        letters = None
        if not progress.dead:
            await self._keep_refused(progress)
            letters = await self._thread.run(self._letters.sync)
        checkpoint = progress.checkpoint(state, copied, letters, self.clock.now_ms())
        progress.saved_at = self.clock.monotonic()
        try:
            await self.lease.save(encode(checkpoint))
        except (Unavailable, OutcomeUnknown) as error:
            self._say_unavailable(error)
            return
        progress.nodes, progress.changed = dict(checkpoint.nodes), False
        progress.urgent = False
        if progress.replay is not None and checkpoint.replay is None:
            log.info("%s has replayed all events", self.name)
        progress.replay = checkpoint.replay
        self.counts.checkpoints += 1
        self.checkpoint_ms = checkpoint.saved_ms
        await self._thread.run(progress.appender.saved)
        if copy is not None:
            await self._thread.run(copy.saved)
        await self._thread.run(self._letters.saved)
        if progress.given:
            await self._works()

    async def _works(self) -> None:
        """Something was given, and is in a saved checkpoint."""
        self._in_a_row = 0
        self._pauses.reset()
        if self.failure is not None:
            done = "'s dead-letter file takes its events" if self.disabled else " works again"
            log.info("%s%s", self.name, done)
            self.failure = None
        if self._stored_failure:
            await self._on_failing(self.lease.key, None)
            self._stored_failure = False

    # --- waiting -------------------------------------------------------------------------

    async def _patiently(self, call: Callable[[], Any]) -> Any:
        """Returns the result of the call, once the store answers."""
        while True:
            try:
                return await call()
            except Unavailable as error:
                if self._stopping.is_set() or not self.lease.valid():
                    raise
                self._say_unavailable(error)
                await wait_or_stop(self.clock, _POLL_SECONDS, self._stopping)

    def _say_unavailable(self, error: TailraceError) -> None:
        said = f"the store does not answer: {error}"
        if said != self.failure:
            log.warning("%s waits: %s", self.name, said)
        self.failure = said
