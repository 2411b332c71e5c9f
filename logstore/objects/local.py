"""The object store in a folder: plain files that Spark, DuckDB and people read as they are.

`logstore.objects.local_files` has the operations on the disk, `logstore.objects.keypath` the
paths. Several processes of one machine may share the folder. A local store cannot hold both
an object `x` and objects below `x/`: the later put is a `Conflict`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, repeat
from typing import Protocol, TypeVar

from logstore.clock import Clock, Entropy
from logstore.filesystem import FileSystem
from logstore.objects.local_files import Condition, LocalFiles
from logstore.objects.store import Body, Listing, ObjectInfo, Part

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
        if made:
            self._files.make()

    async def open(self, seconds: float) -> None:
        """Makes the folder. One that hangs is left to the operations after so many seconds."""
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
        condition = Condition(if_absent, if_match)
        return await self._call(partial(self._files.put, key, body, condition, metadata or {}))

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
        parts: Sequence[Part | bytes],
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        condition = Condition(if_absent, if_match)
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

    async def _call(self, work: Callable[[], T]) -> T:
        return await self._run(partial(self._files.after_make, work))

    async def _taken(self, items: Iterator[T]) -> AsyncIterator[Sequence[T]]:
        """All of them, some with each call."""
        for count in chain(_LIST_COUNTS, repeat(_LIST_COUNTS[-1])):
            taken = await self._call(partial(self._files.take, items, count))
            yield taken
            if len(taken) < count:
                return
