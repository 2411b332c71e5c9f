"""Wrappers that count: an object store, a syncer, an append, each as its inner one."""

from __future__ import annotations

import asyncio
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
from threading import Lock
from typing import TypeVar

from logstore.clock import Clock
from logstore.errors import NotFound, OutcomeUnknown, PreconditionFailed
from logstore.filesystem import File
from logstore.objects.store import Body, Listing, ObjectInfo, ObjectStore, Part
from logstore.syncer import Syncer
from service.ingest.batch import IncomingBatch, Receipt
from service.runtime.counters import (
    Distribution,
    HttpCounters,
    Outcome,
    StoreCounters,
    SyncCounters,
)
from service.runtime.state_watch import StateWatch

T = TypeVar("T")


class MeteredSyncer:
    """Times each sync, and remembers when those under way began."""

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

    A call of `put`, `get`, `head`, `compose` or `delete` is one, however many requests the
    inner store makes of it; so is a whole `list` or `stream`, whose time is not counted,
    since it is that of whoever reads it.
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
        parts: Sequence[Part | bytes],
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        own = sum([len(part) for part in parts if not isinstance(part, Part)])
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
    """How a call ended that raised. A reader who stops in the middle had what it wanted."""
    if isinstance(error, GeneratorExit):
        return "done"
    if isinstance(error, asyncio.CancelledError):
        return "left"
    if isinstance(error, NotFound | PreconditionFailed):
        return "refused"
    return "unknown" if isinstance(error, OutcomeUnknown) else "failed"


_adding = Lock()  # of the event loop, and of threads that list


def _add(counts: dict[K, int], key: K, number: int) -> None:
    with _adding:
        counts[key] = counts.get(key, 0) + number


def metered_append(
    append: Callable[[IncomingBatch], Awaitable[Receipt]], clock: Clock, counters: HttpCounters
) -> Callable[[IncomingBatch], Awaitable[Receipt]]:
    """`append` that counts what it stored, what it did not, and how long it took."""
    now = clock.monotonic

    async def counted(batch: IncomingBatch) -> Receipt:
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
