"""Stores what doors receive, once: a request that is sent again is recognised by its bytes.

OTLP, Loki and most clients of `_bulk` send no id. If a reply is lost they send the same bytes
again. A batch is a repeat if the same client sent the same batch to the same run before: its text,
times, levels and attributes. The client is part of `connector`. A batch in which no record states a
time is never a repeat, since it may be a line that is logged again.

| the first batch was sent | it is recognised |
| --- | --- |
| to this node since its start | for `doors.repeat_seconds`, of `doors.repeats` batches |
| to this node before a restart | for `doors.repeat_seconds`, while the journal has it |
| to another node | never |

A repeat is acknowledged when the first batch is durable. If the first one was refused, the next one
is stored. Forgetting stores a repeat twice; it never loses a line.

Ids of documents (`_bulk`) are remembered in the same way, but in memory only.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

import xxhash

from service.doors.settings import DoorSettings
from service.ingest.batch import AppendReceipt, IncomingBatch
from service.runtime.concurrency import LoopTurns
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import NodeNotReady

T = TypeVar("T")
Append: TypeAlias = Callable[[IncomingBatch], Awaitable[AppendReceipt]]
FindBefore: TypeAlias = Callable[[IncomingBatch, int], Awaitable[AppendReceipt | None]]
_IDS_OF_A_BATCH: Final = 8
_AT_ONCE: Final = 64
"""Batches that begin between two looks at connections: a request has one for each of its runs."""


class Recent(Generic[T]):
    """Values by name, for some time and up to a number of them; the oldest go first."""

    def __init__(self, seconds: float, most: int, now: Callable[[], float]) -> None:
        self._seconds = seconds
        self._now = now
        self._held: BoundedCache[Hashable, tuple[float, T]] = BoundedCache(most)

    def get(self, name: Hashable) -> T | None:
        """Returns the value, unless it is too old."""
        self._forget()
        return self.peek(name)

    def peek(self, name: Hashable) -> T | None:
        """Returns the value, in any thread."""
        found = self._held.peek(name)
        fresh = found is not None and found[0] > self._now() - self._seconds
        return found[1] if found is not None and fresh else None

    def put(self, name: Hashable, value: T) -> None:
        """Keeps a value under a new name."""
        self._held.put(name, (self._now(), value))

    def drop(self, name: Hashable, value: T) -> None:
        """Forgets the value under the name, if it is this one."""
        found = self._held.peek(name)
        if found is not None and found[1] is value:
            self._held.pop(name)

    def _forget(self) -> None:
        limit = self._now() - self._seconds
        while len(self._held):
            since, _ = next(iter(self._held.values()))
            if since > limit:
                return
            self._held.pop_oldest()


Storing: TypeAlias = "asyncio.Task[AppendReceipt]"


class Known(NamedTuple):
    """A document with an id: the append that stores it, and the digest of its bytes."""

    storing: Storing
    digest: int


class Repeats:
    """Appends batches of doors, each once. `before` finds a batch from before the start."""

    def __init__(
        self, append: Append, before: FindBefore, clock: Clock, settings: DoorSettings
    ) -> None:
        self._append = append
        self._before = before
        self._clock = clock
        self._seconds = settings.repeat_seconds
        self._start = clock.monotonic()
        self._turns = LoopTurns(_AT_ONCE)
        self._batches: Recent[Storing] = Recent(
            settings.repeat_seconds, settings.repeats, clock.monotonic
        )
        self.ids: Recent[Known] = Recent(
            settings.repeat_seconds, settings.repeats * _IDS_OF_A_BATCH, clock.monotonic
        )
        """Documents that have an id."""

    def append(self, batch: IncomingBatch, *, timed: bool) -> Storing:
        """Begins to store a batch, or to wait for the one that it repeats.

        The receipt of a repeat says `duplicate`. A client that leaves does not end the task.
        """
        loop = asyncio.get_running_loop()
        if not timed or not self._seconds:
            return loop.create_task(self._store(batch, timed=False), name="append of a door")
        name = _digest(batch)
        known = self._batches.get(name)
        if known is not None and not failed(known):
            return loop.create_task(_again(known), name="repeat at a door")
        task = loop.create_task(self._store(batch, timed=True), name="append of a door")
        self._batches.put(name, task)
        task.add_done_callback(partial(self._forget, name))
        return task

    def _forget(self, name: Hashable, task: Storing) -> None:
        """Forgets a batch that was refused."""
        if failed(task):
            self._batches.drop(name, task)

    async def _store(self, batch: IncomingBatch, *, timed: bool) -> AppendReceipt:
        await self._turns.take()
        if timed and self._clock.monotonic() - self._start < self._seconds:
            since_ms = self._clock.now_ms() - round(self._seconds * 1000)
            before = await self._before(batch, since_ms)
            if before is not None:
                return before
        return await self._append(batch)


async def _again(known: Storing) -> AppendReceipt:
    first = await asyncio.shield(known)
    return AppendReceipt(first.ulid, first.records, True, first.durability, first.last)


def error_of(task: Storing) -> Exception | None:
    """Returns the error of an append that has ended."""
    try:
        task.result()
    except asyncio.CancelledError:
        return NodeNotReady("the node is stopping")
    except Exception as error:  # noqa: BLE001 -- every error is an outcome
        return error
    return None


def failed(task: Storing) -> bool:
    """Returns true if an append has ended and stored nothing."""
    return task.done() and error_of(task) is not None


def _digest(batch: IncomingBatch) -> bytes:
    """Returns a digest of the run, the sender and the content, in place of names of any length."""
    found = xxhash.xxh3_128(batch.text)
    found.update(b"%d\0" % len(batch.text))
    found.update(batch.meta)
    names = (batch.key.fqn, batch.key.run, batch.connector or "")
    named = b"".join(b"%d\0%b" % (len(name), name.encode()) for name in names)
    return hashlib.blake2b(named + found.digest(), digest_size=16).digest()
