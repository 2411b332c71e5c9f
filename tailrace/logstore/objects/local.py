"""The object store in a folder: plain files that Spark, DuckDB and people read directly.

`LocalStore` makes an `ObjectStore` of the blocking operations of `LocalFiles`. Small puts that come
while others are made wait for one another and are made as a group, because a disk syncs many files
in about the time of one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, repeat
from typing import Protocol, TypeVar

from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import TailraceError
from tailrace.logstore.filesystem import FileSystem
from tailrace.logstore.objects.local_files import Condition, LocalFiles, Put
from tailrace.logstore.objects.store import Body, Listing, ObjectInfo, ObjectPart

T = TypeVar("T")

_threads = ThreadPoolExecutor(16, thread_name_prefix="store folder")
_LIST_COUNTS = (8, 64, 256)  # who wants the first ones only waits for few


class Runner(Protocol):
    """Makes a blocking call from a coroutine."""

    async def __call__(self, work: Callable[[], T], /) -> T:
        """Returns or raises what `work` does."""
        ...


async def in_thread(work: Callable[[], T], /) -> T:
    """A runner for a real disk: calls run in a thread of their own pool.

    A folder that hangs holds these threads, and no others.
    """
    return await asyncio.get_running_loop().run_in_executor(_threads, work)


async def inline(work: Callable[[], T], /) -> T:
    """A runner for a simulated disk: calls run in place, in the same order in every run."""
    return work()


_GROUPS = 2
_MOST_PUTS = 16
_SMALL_BYTES = 64 << 10
"""A body of more is written alone: its own bytes take longer than its syncs."""


class _PutQueue:
    """The small puts of one event loop: at most two threads make them, a group at a time each."""

    def __init__(self, call: Runner, files: LocalFiles) -> None:
        self.loop = asyncio.get_running_loop()
        self._call = call
        self._files = files
        self._waiting: deque[tuple[Put, asyncio.Future[ObjectInfo | None]]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._working = 0

    async def put(self, put: Put) -> ObjectInfo:
        """As `ObjectStore.put`."""
        if self._working < _GROUPS:
            self._working += 1
            try:
                made = await self._call(partial(self._files.put, put, wait=False))
            finally:
                self._working -= 1
                self._go_on()
        else:
            future = self.loop.create_future()
            self._waiting.append((put, future))
            made = await future
        if made is None:  # its lock is another writer's: waiting for that takes no place
            made = await self._call(partial(self._files.put, put))
        assert made is not None
        return made

    def _go_on(self) -> None:
        if self._waiting and self._working < _GROUPS:
            self._working += 1
            task = self.loop.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        try:
            while self._waiting:
                count = min(len(self._waiting), _MOST_PUTS)
                taken = [self._waiting.popleft() for _ in range(count)]
                await self._make([(put, future) for put, future in taken if not future.done()])
        finally:
            self._working -= 1

    async def _make(self, group: Sequence[tuple[Put, asyncio.Future[ObjectInfo | None]]]) -> None:
        outcomes: Sequence[ObjectInfo | TailraceError | None]
        try:
            outcomes = await self._call(partial(self._files.put_all, [put for put, _ in group]))
        except TailraceError as error:  # the folder cannot be made
            outcomes = [error] * len(group)
        except BaseException as error:
            for _, future in group:
                if isinstance(error, asyncio.CancelledError):
                    future.cancel()
                elif not future.done():
                    future.set_exception(error)
            raise
        for (_, future), outcome in zip(group, outcomes, strict=True):
            if future.done():
                continue
            if isinstance(outcome, TailraceError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


class LocalStore:
    """`ObjectStore` below `root`. Makes the folder; raises `StoreUnavailable` if it cannot.

    With `made=False` it has not made the folder yet: `open` does, or the first operation.
    """

    def __init__(
        self,
        root: str,
        fs: FileSystem,
        clock: Clock,
        entropy: Entropy,
        *,
        run: Runner = in_thread,
        made: bool = True,
    ) -> None:
        self._files = LocalFiles(root, fs, clock, entropy)
        self._run = run
        self._puts: _PutQueue | None = None
        if made:
            self._files.make()

    async def open(self, seconds: float) -> None:
        """Makes the folder.

        If that takes more than `seconds`, returns; the next operations wait for the folder.
        """
        making = asyncio.ensure_future(self._run(self._files.make))
        making.add_done_callback(lambda done: done.cancelled() or done.exception())
        done, _ = await asyncio.wait({making}, timeout=seconds)
        if done:
            making.result()

    async def put(
        self,
        key: str,
        body: Body,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        put = Put(key, body, Condition(if_absent, if_match), metadata or {})
        if len(body) <= _SMALL_BYTES:
            return await self._queue().put(put)
        made = await self._call(partial(self._files.put, put))
        assert made is not None
        return made

    async def get(
        self, key: str, *, offset: int = 0, size: int | None = None, if_match: str | None = None
    ) -> tuple[ObjectInfo, bytes]:
        return await self._call(partial(self._files.read, key, offset, size, if_match))

    async def stream(
        self, key: str, *, offset: int = 0, size: int | None = None, if_match: str | None = None
    ) -> AsyncIterator[bytes]:
        source = await self._call(partial(self._files.open, key, offset, size, if_match))
        try:
            while piece := await self._run(source.next_piece):
                yield piece
        finally:
            source.close()

    async def head(self, key: str) -> ObjectInfo:
        return await self._call(partial(self._files.head, key))

    async def compose(
        self,
        key: str,
        parts: Sequence[ObjectPart | bytes],
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        condition = Condition(if_absent, if_match)
        given = [part for part in parts if isinstance(part, bytes)]
        if len(given) == len(parts) and sum(map(len, given)) <= _SMALL_BYTES:
            put = Put(key, b"".join(given), condition, metadata or {})
            return await self._queue().put(put)
        return await self._call(partial(self._files.compose, key, parts, condition, metadata or {}))

    async def list(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        async for infos in self._taken(self._files.objects(prefix, after)):
            for info in infos:
                yield info

    def listed(self, prefix: str, *, after: str = "") -> Listing:
        return self._files.listed(prefix, after)

    async def folders(self, prefix: str, *, after: str = "") -> AsyncIterator[str]:
        async for names in self._taken(self._files.folders(prefix, after)):
            for name in names:
                yield name

    async def delete(self, keys: Sequence[str]) -> None:
        await self._call(partial(self._files.delete, keys))

    async def sweep(self, before_ms: int) -> int:
        return await self._call(partial(self._files.sweep, before_ms))

    def uri(self, key: str) -> str:
        return self._files.paths.object(key)

    def _queue(self) -> _PutQueue:
        if self._puts is None or self._puts.loop is not asyncio.get_running_loop():
            self._puts = _PutQueue(self._call, self._files)
        return self._puts

    async def _call(self, work: Callable[[], T]) -> T:
        return await self._run(partial(self._files.after_make, work))

    async def _taken(self, items: Iterator[T]) -> AsyncIterator[Sequence[T]]:
        """All of them, some with each call."""
        for count in chain(_LIST_COUNTS, repeat(_LIST_COUNTS[-1])):
            taken = await self._call(partial(self._files.take, items, count))
            yield taken
            if len(taken) < count:
                return
