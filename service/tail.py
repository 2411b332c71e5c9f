"""The live end of runs: sends just synced batches to the readers that watch them.

The node publishes each synced batch of a watched run. Batches that are published within a few
milliseconds become one `Tick`, which is framed once for each form that readers want and shared by
all readers. A `Channel` keeps the newest ticks of a run in a bounded ring. Readers pull, so a slow
reader delays no other and costs no memory: if the ring has moved on, it reads storage until it has
caught up.

No line is lost or repeated, for this reason: a reader takes a mark (the number of the next tick),
*then* reads storage until no lines are left beyond its cursor, then takes ticks from its mark on.
Lines are in storage before they are published, so the reader has read all lines published before
the mark. Of the later ticks, it skips those that its cursor has passed by their positions, and
reads a tick that the cursor has passed in part from storage. Once it has seen lines of other nodes,
it also reads a tick from storage if an id of it is not above the highest one seen: it may be a copy
of a batch that a client sent to another node before.

A waiting reader gets a new tick without waking its task: the tick is `push`ed onto its connection.
A reader that cannot take it (its client reads slowly, or its token must be checked again) is woken
and continues by itself.

The longer the list of readers, the longer a tick may gather: 1,000 readers of 1,000 lines/s then
cost 10 writes a second each, not 1,000, and appends have most of the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from pydantic import Field

from tailrace.logstore.batch import RunKey
from tailrace.logstore.position import MOST_NEWEST, Cursor, Position
from tailrace.logstore.settings import MIB, Bytes, Section
from tailrace.logstore.ulid import batch_of


class Published(Protocol):
    """A synced batch; `pos` is that of its first record, `meta` is encoded as in the journal."""

    @property
    def ulid(self) -> int: ...
    @property
    def pos(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def lines(self) -> int: ...
    @property
    def text(self) -> bytes: ...
    @property
    def meta(self) -> bytes: ...
    @property
    def connector(self) -> str | None: ...


class Tick:
    """Batches of a run published within one interval; `frames` caches them for readers."""

    __slots__ = ("batches", "frames", "last", "node", "size")

    def __init__(self, node: str, batches: Sequence[Published], last: Position) -> None:
        self.node = node
        self.batches = batches
        self.last = last
        self.size = sum([len(batch.text) + len(batch.meta) for batch in batches])
        self.frames: dict[Hashable, Any] = {}

    @property
    def first_pos(self) -> int:
        """The position of its first record."""
        return self.batches[0].pos

    @property
    def newest(self) -> tuple[int, ...]:
        """The ULIDs of the last records of its newest batches, for cursors."""
        return tuple([b.ulid + b.records - 1 for b in self.batches[-MOST_NEWEST:]])

    def may_repeat(self, cursor: Cursor) -> bool:
        """Whether a reader with this cursor may have seen another node's copy of a batch in it.

        A node recognises its own batches, so a reader that only saw lines of this node needs no
        check.
        """
        if not cursor.positions.keys() - {self.node}:
            return False
        highest = batch_of(max(cursor.last_records, default=0))
        return any(batch.ulid <= highest for batch in self.batches)

    @property
    def text(self) -> bytes:
        """The lines of all batches."""
        return b"".join([batch.text for batch in self.batches])


ALL_RUNS = RunKey("", "")
"""What those watch who look at all runs: they are woken, and nothing is published to them."""
EndReason = Literal["runFinished", "idleTimeout", "maxDuration", "maxBytes"]
Woken = Literal["news", "heartbeat", "gone"]
T = TypeVar("T")
_COALESCE_SECONDS_PER_READER = 0.0001
_MAX_COALESCE_SECONDS = 0.1


class SseSettings(Section):
    """Settings of the live tail."""

    max_readers: int = Field(
        default=2000,
        ge=1,
        description="Maximum number of live readers; the next one gets an error event. At most "
        "three quarters of all connections",
    )
    heartbeat_seconds: float = Field(
        default=25, gt=0, description="An idle stream sends a comment this often"
    )
    ring_bytes: Bytes = Field(
        default=2 * MIB,
        description="Memory for the newest lines of each watched run; readers that are further "
        "behind read from storage",
    )
    coalesce_milliseconds: float = Field(
        default=4, ge=0, description="Lines that arrive within this time reach a reader together"
    )

    @property
    def coalesce_seconds(self) -> float:
        """`coalesce_milliseconds` in seconds."""
        return self.coalesce_milliseconds / 1000


class TakenTicks(NamedTuple):
    """Ticks for a reader, the number of the next one, and whether it must read storage."""

    ticks: list[Tick]
    next_tick: int
    behind: bool


class Watcher:
    """Lets one reader wait for new lines of its run.

    `push` sends new ticks at once on behalf of the waiting reader. If it returns False, the reader
    has to send them itself.
    """

    __slots__ = ("_wake", "_work", "channel", "gone", "push")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.gone = False
        self.push: Callable[[], bool] | None = None
        self._wake: asyncio.Future[Woken] | None = None
        self._work: asyncio.Future[Any] | None = None

    async def unless_left(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Returns the result of `work`; cancels it and returns None once the reader has to end.

        So a stop does not wait for a slow store, node or client.
        """
        working = self._work = asyncio.ensure_future(work)
        if self.gone:
            working.cancel()
        try:
            await asyncio.wait({working})
        finally:
            self._work = None
            working.cancel()
        return None if working.cancelled() else working.result()

    async def wait(self) -> Woken:
        """Waits until new lines are available, a heartbeat is due, or the reader has to end."""
        if self.gone:
            return "gone"
        self._wake = asyncio.get_running_loop().create_future()
        return await self._wake

    def wake(self, why: Woken) -> None:
        """Ends the present wait, if any."""
        wake = self._wake
        if wake is not None and not wake.done():
            wake.set_result(why)

    def notify(self) -> None:
        """Pushes new ticks to the reader, or wakes it."""
        wake = self._wake
        if wake is None or wake.done():
            return
        with suppress(Exception):  # the reader gets the same error in its own task
            if self.push is not None and self.push():
                return
        wake.set_result("news")

    def leave(self) -> None:
        """Ends the reader's wait for good: it disconnected, or the node stops."""
        self.gone = True
        self.wake("gone")
        if self._work is not None:
            self._work.cancel()


class Channel:
    """The ring of one watched run."""

    def __init__(
        self,
        key: RunKey,
        settings: SseSettings,
        *,
        max_coalesce_seconds: float = _MAX_COALESCE_SECONDS,
    ) -> None:
        self.key = key
        self.watchers: set[Watcher] = set()
        self.ended: EndReason | None = None
        self._settings = settings
        self._max_coalesce_seconds = max_coalesce_seconds
        self._loop = asyncio.get_running_loop()
        self._ticks: deque[Tick] = deque()
        self._first = 0
        self._bytes = 0
        self._pending: list[Published] = []
        self._pending_last: tuple[str, Position] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_tick = float("-inf")
        self._finish: asyncio.TimerHandle | None = None
        self._finish_again: Callable[[], None] = self.resume

    def mark(self) -> int:
        """Returns the number of the next tick; all batches published so far are in earlier ones."""
        self._tick()
        return self._first + len(self._ticks)

    def take(self, next_tick: int, cursor: Cursor | None) -> TakenTicks:
        """Returns the ticks from `next_tick` on that `cursor` has not passed."""
        if next_tick < self._first:
            return TakenTicks([], next_tick, behind=True)
        ticks: list[Tick] = []
        end = self._first + len(self._ticks)
        for number in range(next_tick, end):
            tick = self._ticks[number - self._first]
            seen = -1 if cursor is None else cursor.seen(tick.node)
            if seen >= tick.last.pos:
                continue
            if seen >= tick.first_pos or (cursor is not None and tick.may_repeat(cursor)):
                return TakenTicks([], next_tick, behind=True)
            ticks.append(tick)
        return TakenTicks(ticks, end, behind=False)

    def publish(self, node: str, batch: Published, position: Position) -> None:
        """Adds a batch to the gathering tick; `position` is that of its last record."""
        if self._pending_last is not None and self._pending_last[0] != node:
            self._tick()
        self._pending.append(batch)
        self._pending_last = (node, position)
        if self._timer is None:
            wait = self._last_tick + self._interval() - self._loop.time()
            self._timer = self._loop.call_later(max(0.0, wait), self._tick)
        if self._finish is not None:
            self._finish_again()

    def finish(self, seconds: float, grace: float, end: Callable[[], None]) -> None:
        """Calls `end` in `seconds`, or `grace` seconds after the last line that arrives by then."""
        self.resume()
        self._finish = self._loop.call_later(seconds, end)
        self._finish_again = lambda: self.finish(grace, grace, end)

    @property
    def finishing(self) -> bool:
        """Whether an end has been set by `finish`."""
        return self._finish is not None

    def resume(self) -> None:
        """Cancels `finish`."""
        if self._finish is not None:
            self._finish.cancel()
            self._finish = None

    def miss(self) -> None:
        """Makes all readers read storage, since lines arrived that are in no tick."""
        self._tick()
        self._first += len(self._ticks) + 1
        self._ticks.clear()
        self._bytes = 0
        self._wake_all("news")

    def wake_all(self) -> None:
        """Wakes all readers, since something besides the lines has changed."""
        self._wake_all("news")

    def end(self, reason: EndReason) -> None:
        """Ends the channel; readers finish with the ticks it has."""
        self._tick()
        self.resume()
        self.ended = reason
        self._wake_all("news")

    def _interval(self) -> float:
        readers = len(self.watchers) * _COALESCE_SECONDS_PER_READER
        return min(self._settings.coalesce_seconds + readers, self._max_coalesce_seconds)

    def _tick(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pending_last is None:
            return
        node, last = self._pending_last
        self._keep(Tick(node, self._pending, last))
        self._pending = []
        self._pending_last = None
        self._last_tick = self._loop.time()
        for watcher in self.watchers:
            watcher.notify()

    def _keep(self, tick: Tick) -> None:
        self._ticks.append(tick)
        self._bytes += tick.size
        while self._bytes > self._settings.ring_bytes and self._ticks:
            self._bytes -= self._ticks.popleft().size
            self._first += 1

    def _wake_all(self, why: Woken) -> None:
        for watcher in self.watchers:
            watcher.wake(why)


class Tail:
    """The channels of all watched runs of a node."""

    def __init__(
        self, node: str, settings: SseSettings, shared: Callable[[], bool] = lambda: False
    ) -> None:
        """`shared`: other nodes may exist; cursors then name the newest batches."""
        self.node = node
        self.settings = settings
        self.watched: dict[RunKey, Channel] = {}
        self.stopped = False
        self.shared = shared
        self.changed: Callable[[], None] = lambda: None
        """Called when a run begins, or ceases, to be watched."""
        self._everyone: set[Watcher] = set()
        self._heartbeat: asyncio.TimerHandle | None = None

    @property
    def readers(self) -> int:
        """The present number of readers."""
        return len(self._everyone)

    def watch(self, key: RunKey) -> Watcher:
        """Begins to watch a run; call `unwatch` at the end."""
        channel = self.watched.get(key)
        if channel is None:
            channel = self.watched[key] = Channel(key, self.settings)
            self.changed()
        watcher = Watcher(channel)
        watcher.gone = self.stopped
        channel.watchers.add(watcher)
        self._everyone.add(watcher)
        if self._heartbeat is None:
            self._beat_later()
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        """Ends watching a run; its channel is removed with the last reader."""
        channel = watcher.channel
        channel.watchers.discard(watcher)
        self._everyone.discard(watcher)
        if not channel.watchers and self.watched.get(channel.key) is channel:
            channel.mark()  # leaves no timer behind
            channel.resume()
            del self.watched[channel.key]
            self.changed()
        if not self._everyone and self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None

    def publish(self, key: RunKey, batch: Published, position: Position) -> None:
        """Publishes a synced batch of a watched run; `position` is that of its last record."""
        channel = self.watched.get(key)
        if channel is not None:
            channel.publish(self.node, batch, position)

    def ended(self, key: RunKey, reason: EndReason = "runFinished") -> None:
        """Completes the streams of a run that was closed, abandoned or deleted.

        A later batch that reopens the run gets a new channel.
        """
        channel = self.watched.pop(key, None)
        if channel is not None:
            channel.end(reason)

    def finish(self, key: RunKey, seconds: float, grace: float) -> None:
        """Completes the streams of a run that its client reports as over, after its last lines.

        It completes them in `seconds`, or `grace` seconds after the last line that arrives by then.
        """
        channel = self.watched.get(key)
        if channel is not None:
            channel.finish(seconds, grace, lambda: self.ended(key))

    def finishing(self, key: RunKey) -> bool:
        """Whether `finish` was called and not cancelled by `resume`."""
        channel = self.watched.get(key)
        return channel is not None and channel.finishing

    def resume(self, key: RunKey) -> None:
        """Cancels `finish`, since the run continues."""
        channel = self.watched.get(key)
        if channel is not None:
            channel.resume()

    def nudge(self, key: RunKey) -> None:
        """Wakes the readers of a run, since something besides its lines has changed."""
        channel = self.watched.get(key)
        if channel is not None:
            channel.wake_all()

    def missed(self, key: RunKey) -> None:
        """Makes the readers of a run read storage, since another node received lines of it."""
        channel = self.watched.get(key)
        if channel is not None:
            channel.miss()

    def missed_all(self) -> None:
        """Does the same for all watched runs."""
        for key in [key for key in self.watched if key != ALL_RUNS]:
            self.missed(key)

    def stop(self) -> None:
        """Ends all streams without `complete`, so that clients reconnect, maybe to another node."""
        self.stopped = True
        for watcher in self._everyone:
            watcher.leave()

    def _beat_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._heartbeat = loop.call_later(self.settings.heartbeat_seconds, self._beat)

    def _beat(self) -> None:
        for watcher in self._everyone:
            watcher.wake("heartbeat")
        self._beat_later()
