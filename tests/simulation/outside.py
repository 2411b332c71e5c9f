"""A store that lives in real time, asked from a world whose time leaps, or from any loop.

    with Outside() as outside:
        store = OutsideStore(lambda: S3Store(…), outside, clock)

`Outside` is a thread with an event loop of real time: sockets, time-outs and back-off of a
real client run there. While a call is under way there, leaping time stands still, so a call
takes no simulated time, however long it takes. Tests that count calls at one moment, or
order them by time, need a simulated disk; all others may stand on a real server.

Times of objects are the asking world's: what the server says of the hour at which it was
written means nothing where days pass in a second.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from tailrace.logstore.clock import Clock, SystemClock
from tailrace.logstore.objects.store import Body, Listing, ObjectInfo, ObjectPart, ObjectStore
from tests.simulation.virtual_time import VirtualLoop

T = TypeVar("T")


class Outside:
    """The thread; a context that starts and ends it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """From a thread without a loop: what `work` gives."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """From a loop: what `work` gives. Cancelled with whoever waits for it."""
        loop = asyncio.get_running_loop()
        with loop.standing_still() if isinstance(loop, VirtualLoop) else nullcontext():
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.run(_end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_all() -> None:
    """What somebody left under way."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


class OutsideStore:
    """`ObjectStore` over `inner`, which is only ever used in the loop of `outside`.

    `written` holds when, by `clock`, keys were written; worlds that share objects share it.
    """

    def __init__(
        self,
        inner: ObjectStore,
        outside: Outside,
        clock: Clock,
        written: dict[str, int] | None = None,
    ) -> None:
        self._inner = inner
        self._outside = outside
        self._clock = clock
        self._written = {} if written is None else written

    async def put(
        self,
        key: str,
        body: Body,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        # Bytes that are still changed by whoever gave them must not change on the way.
        work = self._inner.put(
            key, bytes(body), if_absent=if_absent, if_match=if_match, metadata=metadata
        )
        return await self._write(key, work)

    async def get(
        self, key: str, *, offset: int = 0, size: int | None = None, if_match: str | None = None
    ) -> tuple[ObjectInfo, bytes]:
        work = self._inner.get(key, offset=offset, size=size, if_match=if_match)
        info, body = await self._outside.call(work)
        return self._dated(info), body

    async def stream(
        self, key: str, *, offset: int = 0, size: int | None = None, if_match: str | None = None
    ) -> AsyncIterator[bytes]:
        pieces = self._inner.stream(key, offset=offset, size=size, if_match=if_match)
        async for piece in self._each(pieces):
            yield piece

    async def head(self, key: str) -> ObjectInfo:
        return self._dated(await self._outside.call(self._inner.head(key)))

    async def compose(
        self,
        key: str,
        parts: Sequence[ObjectPart | bytes],
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        work = self._inner.compose(
            key, parts, if_absent=if_absent, if_match=if_match, metadata=metadata
        )
        return await self._write(key, work)

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in self._each(self._inner.list(prefix, after=after)):
            yield self._dated(info)

    def listed(self, prefix: str, *, after: str = "") -> Listing:
        return self._inner.listed(prefix, after=after)

    async def folders(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        async for name in self._each(self._inner.folders(prefix, after=after)):
            yield name

    async def delete(self, keys: Sequence[str]) -> None:
        await self._outside.call(self._inner.delete(keys))

    async def sweep(self, before_ms: int) -> int:
        ago = self._clock.now_ms() - before_ms
        return await self._outside.call(self._inner.sweep(SystemClock().now_ms() - ago))

    def uri(self, key: str) -> str:
        return self._inner.uri(key)

    async def _write(self, key: str, work: Coroutine[Any, Any, ObjectInfo]) -> ObjectInfo:
        # Also if nobody hears how it went: it may have been written at about this time.
        self._written.setdefault(key, self._clock.now_ms())
        info = await self._outside.call(work)
        self._written[key] = self._clock.now_ms()
        return self._dated(info)

    def _dated(self, info: ObjectInfo) -> ObjectInfo:
        return replace(info, modified_ms=self._written.get(info.key, info.modified_ms))

    async def _each(self, items: AsyncIterator[T]) -> AsyncIterator[T]:
        try:
            while True:
                found = await self._outside.call(_next(items))
                if not found:
                    return
                yield found[0]
        finally:
            await self._outside.call(_close(items))


async def _next(items: AsyncIterator[T]) -> tuple[T] | None:
    """`StopAsyncIteration` cannot pass through a future."""
    try:
        return (await anext(items),)
    except StopAsyncIteration:
        return None


async def _close(items: AsyncIterator[T]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        await close()
