"""The live end of runs: what was just synced, for whoever is watching.

The node publishes each synced batch of a watched run. What is published within a few
milliseconds becomes one `Tick`: framed once, shared by all readers. A
`Channel` keeps the newest ticks of a run in a bounded ring; readers pull, so a slow
one holds nobody up and costs no memory: when the ring has moved on it reads storage
until it is level again.

Why no line is lost or repeated: a reader takes a mark (the number of the next tick),
*then* reads storage until nothing is left beyond its cursor, then takes ticks from its
mark on. Lines are in storage before they are published, so what was published before
the mark was read; of what comes after the mark, ticks that the cursor has passed are
left out by their positions, and one that it has passed in part is read from storage. So
is one with an id no higher than the highest that was seen, once lines of other nodes
were: it may be a copy of a batch that a client sent there before.

A reader that waits for news is given a new tick where it waits, without its task being woken: it
`push`es what all readers share onto its connection. One that cannot take it (its client
reads slowly, its token is due to be asked about) is woken and goes on by itself.

The longer the list of readers, the longer a tick may gather: 1,000 readers of 1,000
lines/s then cost 10 writes a second each, not 1,000, and appends have most of the loop.
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

# What is new of a watched run: the batches that were synced within a few milliseconds.
#
# A tick is framed once for each form in which readers want it, and shared by all of them.


class Published(Protocol):
    """A batch that is synced; `pos` is its first record's, `meta` as the journal keeps it."""

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
        """Whether a reader with this cursor may have seen a batch of it, as another node's copy.

        A node knows its own batches again, so what was seen of it alone is not repeated.
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
        description="Live readers at once; the next one gets an error event. At most three"
        " quarters of all connections",
    )
    heartbeat_seconds: float = Field(
        default=25, gt=0, description="A silent stream sends a comment this often"
    )
    ring_bytes: Bytes = Field(
        default=2 * MIB,
        description="Newest frames kept per watched run; readers further back read storage",
    )
    coalesce_milliseconds: float = Field(
        default=4, ge=0, description="Lines that arrive within this time wake a reader once"
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
    """The place where one reader waits for news of its run.

    `push` sends what is new at once, on behalf of the reader that waits; False: it has to do so
    itself.
    """

    __slots__ = ("_wake", "_work", "channel", "gone", "push")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.gone = False
        self.push: Callable[[], bool] | None = None
        self._wake: asyncio.Future[Woken] | None = None
        self._work: asyncio.Future[Any] | None = None

    async def unless_left(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`; None, and the work is cancelled, once the reader is to end.

        A stop then does not wait for a store, another node or a client that takes its time.
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
        """Returns when there is news, a heartbeat is due, or the reader is to end."""
        if self.gone:
            return "gone"
        self._wake = asyncio.get_running_loop().create_future()
        return await self._wake

    def wake(self, why: Woken) -> None:
        """Ends the wait, if there is one."""
        wake = self._wake
        if wake is not None and not wake.done():
            wake.set_result(why)

    def news(self) -> None:
        """Gives the reader what is new, or wakes it."""
        wake = self._wake
        if wake is None or wake.done():
            return
        with suppress(Exception):  # the reader meets it again, in a task of its own
            if self.push is not None and self.push():
                return
        wake.set_result("news")

    def leave(self) -> None:
        """Ends the reader's wait for good: it went away, or the node stops."""
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
        """The number of the next tick: nothing published so far will be in it or later."""
        self._tick()
        return self._first + len(self._ticks)

    def take(self, next_tick: int, cursor: Cursor | None) -> TakenTicks:
        """The ticks from `next_tick` on that `cursor` has not passed."""
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
        """Adds a batch to the tick that is gathering; `position` is its last record's."""
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
        """Calls `end` in `seconds`, or `grace` after the last line that comes before that."""
        self.resume()
        self._finish = self._loop.call_later(seconds, end)
        self._finish_again = lambda: self.finish(grace, grace, end)

    @property
    def finishing(self) -> bool:
        """Whether an end has been set by `finish`."""
        return self._finish is not None

    def resume(self) -> None:
        """Takes `finish` back."""
        if self._finish is not None:
            self._finish.cancel()
            self._finish = None

    def miss(self) -> None:
        """Sends all readers to storage: lines came that are in no tick."""
        self._tick()
        self._first += len(self._ticks) + 1
        self._ticks.clear()
        self._bytes = 0
        self._wake_all("news")

    def wake_all(self) -> None:
        """Wakes all readers, since something beside the lines has changed."""
        self._wake_all("news")

    def end(self, reason: EndReason) -> None:
        """No more will be published here; readers finish with what there is."""
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
            watcher.news()

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
        """`shared`: whether others may come; cursors then name the newest batches."""
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
        """How many watch now."""
        return len(self._everyone)

    def watch(self, key: RunKey) -> Watcher:
        """Begins to watch a run; must be followed by `unwatch`."""
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
        """Publishes a synced batch of a watched run; `position` is its last record's."""
        channel = self.watched.get(key)
        if channel is not None:
            channel.publish(self.node, batch, position)

    def ended(self, key: RunKey, reason: EndReason = "runFinished") -> None:
        """The run was closed, abandoned or deleted: its streams complete.

        A later batch that reopens it finds a new channel.
        """
        channel = self.watched.pop(key, None)
        if channel is not None:
            channel.end(reason)

    def finish(self, key: RunKey, seconds: float, grace: float) -> None:
        """The run's client says that it is over: its streams complete after the last lines.

        That is in `seconds`, or `grace` seconds after a line that comes before.
        """
        channel = self.watched.get(key)
        if channel is not None:
            channel.finish(seconds, grace, lambda: self.ended(key))

    def finishing(self, key: RunKey) -> bool:
        """Whether `finish` was called and not taken back by `resume`."""
        channel = self.watched.get(key)
        return channel is not None and channel.finishing

    def resume(self, key: RunKey) -> None:
        """Takes `finish` back, since the run continues."""
        channel = self.watched.get(key)
        if channel is not None:
            channel.resume()

    def nudge(self, key: RunKey) -> None:
        """Wakes the readers of a run, since something beside its lines has changed."""
        channel = self.watched.get(key)
        if channel is not None:
            channel.wake_all()

    def missed(self, key: RunKey) -> None:
        """Lines of the run came to another node: its readers find them in storage."""
        channel = self.watched.get(key)
        if channel is not None:
            channel.miss()

    def missed_all(self) -> None:
        """The same of all runs that are watched."""
        for key in [key for key in self.watched if key != ALL_RUNS]:
            self.missed(key)

    def stop(self) -> None:
        """Ends all streams without `complete`, so that clients return to another node, or later."""
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
