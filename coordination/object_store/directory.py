"""All shards of a source, and what one LIST tells about them.

A listing has every shard's ETag. A shard that did not change since it was read needs no
request, and a shard without an object has no partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from coordination.object_store.shard import Shard, shard_of
from coordination.object_store.source import Source
from coordination.object_store.summary import Summary
from coordination.object_store.writer import ShardWriter, WriterContext
from logstore import keys
from logstore.errors import OutcomeUnknown, StoreUnavailable

T = TypeVar("T")
U = TypeVar("U")

AT_ONCE: Final = 8
"""Requests that are under way at the same time, for one call."""


class ShardDirectory:
    """The shards of a source as this process knows them."""

    def __init__(self, context: WriterContext, source: Source) -> None:
        self.source = source
        self.writers = [
            ShardWriter(context, Shard(source.name, number, source.shards))
            for number in range(source.shards)
        ]
        self._context = context
        self._prefix = keys.partitions_of(source.name)

    def writer_of(self, key: str) -> ShardWriter:
        """The writer of the shard that holds a key."""
        return self.writers[shard_of(key, self.source.shards)]

    def forget(self) -> None:
        """Drops what is kept in memory."""
        for writer in self.writers:
            writer.forget()

    async def refresh(self) -> Sequence[str | None]:
        """Lists the shards' current ETags, None for a shard without an object.

        Raises `StoreUnavailable`.
        """
        began = next(self._context.moments)
        found = {info.key: info async for info in self._context.store.list(self._prefix)}
        newest = [found.get(writer.key) for writer in self.writers]
        for writer, info in zip(self.writers, newest, strict=True):
            writer.listed(info, began)
        return [None if info is None else info.etag for info in newest]

    async def summaries(self, ageing_ms: int | None = None) -> Sequence[Summary]:
        """The summaries of all shards, as of some time since the call.

        Raises `StoreUnavailable`, `Damaged`.
        """
        await self.refresh()

        async def known(writer: ShardWriter) -> Summary:
            while (found := writer.summary(ageing_ms)) is None:
                await writer.look()
            return found

        return good(await each(known, self.writers))

    async def is_empty(self) -> bool:
        """Whether the source has no partition; reads no more than it must.

        Raises `StoreUnavailable`, `Damaged`.
        """
        await self.refresh()
        known = [writer.summary() for writer in self.writers]
        if any(summary is not None and summary.counts for summary in known):
            return False
        for writer, summary in zip(self.writers, known, strict=True):
            if summary is None and (await writer.look()).shard.rows:
                return False
        return True


async def each(
    work: Callable[[T], Awaitable[U]], items: Iterable[T], at_once: int = AT_ONCE
) -> list[U | BaseException]:
    """Runs `work` on each item, some at a time; returns when all have ended. Raises nothing."""
    places = asyncio.Semaphore(at_once)

    async def one(item: T) -> U:
        async with places:
            return await work(item)

    return await asyncio.gather(*[one(item) for item in items], return_exceptions=True)


def good(results: Iterable[U | BaseException]) -> list[U]:
    """The results. Raises the first error, if there is one."""
    found = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        found.append(result)
    return found


def written(results: Sequence[U | BaseException]) -> list[U]:
    """As `good`, for writes that belong together.

    Raises `OutcomeUnknown` for `StoreUnavailable`, since other writes may have changed something.
    """
    try:
        return good(results)
    except StoreUnavailable as error:
        if all(isinstance(result, StoreUnavailable) for result in results):
            raise
        raise OutcomeUnknown(f"a part of it was written: {error}") from error
