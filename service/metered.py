"""Wrappers that count: an object store and a syncer, each keeping its inner one's contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import TypeVar

from logstore.clock import Clock
from logstore.errors import NotFound, PreconditionFailed
from logstore.filesystem import File
from logstore.objects.store import Body, ObjectInfo, ObjectStore, Part
from logstore.syncer import Syncer
from service.counters import Durations, StoreCounters

T = TypeVar("T")


class MeteredSyncer:
    """Times each sync."""

    def __init__(self, inner: Syncer, clock: Clock, seconds: Durations) -> None:
        self._inner = inner
        self._now = clock.monotonic
        self._seconds = seconds

    async def sync(self, file: File) -> None:
        start = self._now()
        await self._inner.sync(file)
        self._seconds.observe(self._now() - start)

    def close(self) -> None:
        self._inner.close()


class MeteredStore:
    """Counts calls, failures, bytes and time by operation.

    That a condition or a look-up failed is an answer, not a failure of the store.
    """

    def __init__(self, inner: ObjectStore, clock: Clock, counters: StoreCounters) -> None:
        self._inner = inner
        self._now = clock.monotonic
        self._counters = counters

    async def put(
        self,
        key: str,
        body: Body,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        call = self._inner.put(key, body, if_absent=if_absent, if_match=if_match, metadata=metadata)
        info = await self._timed("put", call)
        self._add_bytes("put", len(body))
        return info

    async def get(
        self, key: str, *, offset: int = 0, size: int | None = None, if_match: str | None = None
    ) -> tuple[ObjectInfo, bytes]:
        call = self._inner.get(key, offset=offset, size=size, if_match=if_match)
        info, data = await self._timed("get", call)
        self._add_bytes("get", len(data))
        return info, data

    async def stream(
        self, key: str, *, offset: int = 0, size: int | None = None, if_match: str | None = None
    ) -> AsyncIterator[bytes]:
        self._add("stream")
        async for piece in self._inner.stream(key, offset=offset, size=size, if_match=if_match):
            self._add_bytes("stream", len(piece))
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
        call = self._inner.compose(
            key, parts, if_absent=if_absent, if_match=if_match, metadata=metadata
        )
        return await self._timed("compose", call)

    def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        self._add("list")
        return self._inner.list(prefix, after=after)

    def folders(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        self._add("list")
        return self._inner.folders(prefix, after=after)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._timed("delete", self._inner.delete(keys))

    def uri(self, key: str) -> str:
        return self._inner.uri(key)

    async def _timed(self, operation: str, call: Awaitable[T]) -> T:
        self._add(operation)
        start = self._now()
        try:
            return await call
        except (NotFound, PreconditionFailed):
            raise
        except Exception:
            failures = self._counters.failures
            failures[operation] = failures.get(operation, 0) + 1
            raise
        finally:
            seconds = self._counters.seconds.setdefault(operation, Durations())
            seconds.observe(self._now() - start)

    def _add(self, operation: str) -> None:
        requests = self._counters.requests
        requests[operation] = requests.get(operation, 0) + 1

    def _add_bytes(self, operation: str, size: int) -> None:
        sizes = self._counters.bytes
        sizes[operation] = sizes.get(operation, 0) + size
