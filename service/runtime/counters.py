"""Counters that are raised at the events, and wrappers that count.

`service.metrics` reads the counters at a scrape. The wrappers of an object store, a syncer and an
append have the interface of the wrapped one.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal, TypeAlias, TypeVar

from service.ingest.batch import AppendReceipt, IncomingBatch
from service.runtime.health import StateWatch
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import NotFound, OutcomeUnknown, PreconditionFailed
from tailrace.logstore.filesystem import File, Syncer
from tailrace.logstore.objects.store import Body, Listing, ObjectInfo, ObjectPart, ObjectStore

SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
LINES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5)


class Distribution:
    """A histogram with upper bounds; an observation is one search in a dozen numbers."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def add(self, other: Distribution) -> None:
        """Adds all observations of another histogram with the same bounds."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    def __copy__(self) -> Distribution:
        made = Distribution(self._bounds)
        made.add(self)
        return made

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds with cumulative counts, in the form of Prometheus."""
        total = 0
        found = []
        for bound, count in zip((*self._bounds, float("inf")), self.counts, strict=True):
            total += count
            found.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        return found


class Throughput:
    """Bytes per second over the last minute; times are monotonic seconds."""

    SECONDS = 60.0

    def __init__(self) -> None:
        self._recent: deque[tuple[float, int]] = deque()
        self._bytes = 0

    def add(self, now: float, size: int) -> None:
        """Counts bytes at the time `now`."""
        self._recent.append((now, size))
        self._bytes += size
        self._forget(now)

    def per_second(self, now: float) -> float:
        """The mean of the last minute."""
        self._forget(now)
        return self._bytes / self.SECONDS

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] <= now - self.SECONDS:
            self._bytes -= self._recent.popleft()[1]


RequestSeconds: TypeAlias = dict[tuple[str, str, str], Distribution]
"""Times of requests by method, pattern of the route, and status."""


@dataclass(slots=True)
class HttpCounters:
    """Counters of the HTTP API. All except `connections` and `readers` only grow."""

    connections: int = 0
    connections_refused: int = 0
    access_refused: Counter[str] = field(default_factory=Counter)
    connections_timed_out: int = 0
    append_requests: int = 0
    append_refused: int = 0
    shed: int = 0
    close_requests: int = 0
    body_bytes: int = 0
    replaced: int = 0
    door_records: Counter[str] = field(default_factory=Counter)
    door_repeats: Counter[str] = field(default_factory=Counter)
    door_refused: Counter[str] = field(default_factory=Counter)
    disconnects: int = 0
    readers: int = 0
    stream_events: int = 0
    stream_bytes: int = 0
    stored: int = 0
    not_stored: int = 0
    append_seconds: Distribution = field(default_factory=Distribution)
    batch_lines: Distribution = field(default_factory=lambda: Distribution(LINES))
    request_seconds: RequestSeconds = field(default_factory=dict)


Outcome: TypeAlias = Literal["done", "refused", "failed", "unknown", "left"]
"""Of a call of the store: `refused` is an answer (a condition, nothing there), `failed` is
none, `unknown` may have happened, `left` was given up by whoever called."""

WRITES = ("put", "compose")
READS = ("get", "stream")


@dataclass(slots=True)
class StoreCounters:
    """Counters of the metered store, by operation.

    `sent` are bytes of bodies passed to calls, also to failed ones; `composed` are bytes that the
    store copied within itself. `running` are calls without an answer yet. `s3_requests` is the S3
    store's own count of requests by its operation; one call may make several.
    """

    requests: dict[tuple[str, str], int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    composed: dict[str, int] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, Distribution] = field(default_factory=dict)
    write_throughput: Throughput = field(default_factory=Throughput)
    s3_requests: Mapping[str, int] = field(default_factory=dict)

    def calls(self, *operations: str) -> int:
        """Calls that have ended, of some operations or of all."""
        chosen = [n for (name, _), n in self.requests.items() if name in operations]
        return sum(chosen if operations else self.requests.values())

    def done(self, *operations: str) -> int:
        """Calls of these operations that succeeded."""
        return sum([self.requests.get((name, "done"), 0) for name in operations])

    @property
    def errors(self) -> int:
        """Calls that the store did not answer."""
        wrong = ("failed", "unknown")
        return sum([n for (_, outcome), n in self.requests.items() if outcome in wrong])

    def all_seconds(self) -> Distribution:
        """The time of all calls together."""
        total = Distribution()
        for seconds in self.seconds.values():
            total.add(seconds)
        return total


@dataclass(slots=True)
class SyncCounters:
    """Counters of the metered syncer. `begun` includes hanging syncs, the histogram does not."""

    seconds: Distribution = field(default_factory=Distribution)
    begun: dict[object, float] = field(default_factory=dict)

    def waiting_seconds(self, now: float) -> float:
        """The age of the oldest running sync in seconds; 0 without one."""
        return max([now - start for start in self.begun.values()], default=0.0)


T = TypeVar("T")


class MeteredSyncer:
    """Times each sync, and remembers the start of running ones."""

    def __init__(self, inner: Syncer, clock: Clock, counters: SyncCounters) -> None:
        self._inner = inner
        self._now = clock.monotonic
        self._counters = counters

    async def sync(self, file: File, size: int = 0, /) -> None:
        begun, this = self._counters.begun, object()
        start = begun[this] = self._now()
        try:
            await self._inner.sync(file, size)
        finally:
            del begun[this]
        self._counters.seconds.observe(self._now() - start)

    def close(self) -> None:
        self._inner.close()


class MeteredStore:
    """Counts calls by operation and outcome, and their bytes and time. `watch` sees whole objects.

    A call of `put`, `get`, `head`, `compose` or `delete` counts once, however many requests the
    inner store makes for it. So does a whole `list` or `stream`; its time is not counted, since it
    depends on the reader.
    """

    def __init__(
        self,
        inner: ObjectStore,
        clock: Clock,
        counters: StoreCounters,
        watch: StateWatch | None = None,
    ) -> None:
        self._inner = inner
        self._now = clock.monotonic
        self._counters = counters
        self._watch = watch

    async def put(
        self,
        key: str,
        body: Body,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        self._sent("put", len(body))
        call = self._inner.put(key, body, if_absent=if_absent, if_match=if_match, metadata=metadata)
        return await self._timed("put", call)

    async def get(
        self, key: str, *, offset: int = 0, size: int | None = None, if_match: str | None = None
    ) -> tuple[ObjectInfo, bytes]:
        call = self._inner.get(key, offset=offset, size=size, if_match=if_match)
        info, data = await self._timed("get", call)
        _add(self._counters.received, "get", len(data))
        if self._watch is not None and not offset and size is None:
            self._watch.saw(key, data)
        return info, data

    async def stream(
        self, key: str, *, offset: int = 0, size: int | None = None, if_match: str | None = None
    ) -> AsyncIterator[bytes]:
        with self._counted("stream"):
            async for piece in self._inner.stream(key, offset=offset, size=size, if_match=if_match):
                _add(self._counters.received, "stream", len(piece))
                yield piece

    async def head(self, key: str) -> ObjectInfo:
        return await self._timed("head", self._inner.head(key))

    async def compose(
        self,
        key: str,
        parts: Sequence[ObjectPart | bytes],
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        own = sum([len(part) for part in parts if not isinstance(part, ObjectPart)])
        self._sent("compose", own)
        call = self._inner.compose(
            key, parts, if_absent=if_absent, if_match=if_match, metadata=metadata
        )
        info = await self._timed("compose", call)
        _add(self._counters.composed, "compose", info.size - own)
        return info

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        return self._listed(self._inner.list(prefix, after=after))

    def listed(self, prefix: str, *, after: str = "") -> Listing:
        with self._counted("list"):
            yield from self._inner.listed(prefix, after=after)

    def folders(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        return self._listed(self._inner.folders(prefix, after=after))

    async def delete(self, keys: Sequence[str]) -> None:
        await self._timed("delete", self._inner.delete(keys))

    async def sweep(self, before_ms: int) -> int:
        return await self._timed("sweep", self._inner.sweep(before_ms))

    def uri(self, key: str) -> str:
        return self._inner.uri(key)

    async def _listed(self, found: AsyncIterator[T]) -> AsyncGenerator[T]:
        with self._counted("list"):
            async for item in found:
                yield item

    async def _timed(self, operation: str, call: Awaitable[T]) -> T:
        start = self._now()
        running = self._counters.running
        _add(running, operation, 1)
        try:
            with self._counted(operation):
                return await call
        finally:
            running[operation] -= 1
            seconds = self._counters.seconds.setdefault(operation, Distribution())
            seconds.observe(self._now() - start)

    @contextmanager
    def _counted(self, operation: str) -> Generator[None]:
        outcome: Outcome = "done"
        try:
            yield
        except BaseException as error:
            outcome = outcome_of(error)
            raise
        finally:
            _add(self._counters.requests, (operation, outcome), 1)

    def _sent(self, operation: str, size: int) -> None:
        _add(self._counters.sent, operation, size)
        self._counters.write_throughput.add(self._now(), size)


K = TypeVar("K")


def outcome_of(error: BaseException) -> Outcome:
    """The outcome of a call that raised. A reader that stops early counts as a success."""
    if isinstance(error, GeneratorExit):
        return "done"
    if isinstance(error, asyncio.CancelledError):
        return "left"
    if isinstance(error, NotFound | PreconditionFailed):
        return "refused"
    return "unknown" if isinstance(error, OutcomeUnknown) else "failed"


_adding = Lock()  # the event loop and listing threads add


def _add(counts: dict[K, int], key: K, number: int) -> None:
    with _adding:
        counts[key] = counts.get(key, 0) + number


def metered_append(
    append: Callable[[IncomingBatch], Awaitable[AppendReceipt]],
    clock: Clock,
    counters: HttpCounters,
) -> Callable[[IncomingBatch], Awaitable[AppendReceipt]]:
    """Wraps `append`: counts stored and refused batches, and the time of each."""
    now = clock.monotonic

    async def counted(batch: IncomingBatch) -> AppendReceipt:
        start = now()
        try:
            receipt = await append(batch)
        except Exception:
            counters.not_stored += 1
            raise
        counters.append_seconds.observe(now() - start)
        counters.batch_lines.observe(receipt.records)
        counters.stored += 1
        return receipt

    return counted
