"""`PartitionStore` over an object store.

A source has a fixed number of shards, each an object (`shard.py`). Processes that change one
shard at the same time lose races, so there should be several times as many shards as workers.
Changes that one process makes to one shard at the same time become one write.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, count
from typing import Final

from coordination.object_store.acquire import OrderedAcquire, RandomAcquire
from coordination.object_store.cache import Cache
from coordination.object_store.directory import ShardDirectory, each, written
from coordination.object_store.operations import Make, Purge, Remove, Replace, Take
from coordination.object_store.pages import Pages
from coordination.object_store.shard import Stored, fresh_row
from coordination.object_store.source import MAX_SHARDS, Source, make_source, read_source
from coordination.object_store.writer import ShardWriter, WriterContext
from coordination.partitions.partition import (
    NewPartition,
    Partition,
    Status,
    check_changed,
    check_new,
)
from coordination.partitions.store import Acquired, Page
from coordination.partitions.transitions import Claim
from coordination.storetime import StoreTime
from logstore import keys
from logstore import ulid as ulids
from logstore.clock import Clock, Entropy
from logstore.errors import Damaged, InvalidInput, NotFound, StoreUnavailable
from logstore.names import decode
from logstore.objects.store import ObjectStore

SHARDS: Final = 64
CACHE_BYTES: Final = 64 << 20
_SOURCES: Final = 1024
_MADE_AT_ONCE: Final = 4


class _Opened:
    """A source that exists."""

    def __init__(self, context: WriterContext, source: Source) -> None:
        self.directory = ShardDirectory(context, source)
        self.random = RandomAcquire(self.directory, context.clock)
        self.ordered = OrderedAcquire(self.directory, context)
        self.places = 0


@dataclass(frozen=True, slots=True)
class _Birth:
    """The partitions to make in one shard, with consecutive versions from `version` on."""

    writer: ShardWriter
    now_ms: int
    version: int
    items: Sequence[tuple[int, NewPartition]]
    """Each with its place."""

    def rows(self) -> list[tuple[str, Stored]]:
        """The keys and rows of the new partitions.

        They take several times as much memory, so they are made only when needed.
        """
        versions = ulids.encode_many(self.version, len(self.items))
        return [
            (one.key, fresh_row(one, version, self.now_ms, place))
            for version, (place, one) in zip(versions, self.items, strict=True)
        ]


class ObjectPartitions:
    """`PartitionStore` over `store`. The caller closes `store` and owns its clock, `time`.

    `shards` is the number of objects of a source that is made here; `cache_bytes` is the limit of
    memory for decoded shards.
    """

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        time: StoreTime,
        *,
        shards: int = SHARDS,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        if not 0 < shards <= MAX_SHARDS:
            raise InvalidInput(f"a source has 1 to {MAX_SHARDS} shards", field="shards")
        cache = Cache(cache_bytes)
        self._context = WriterContext(store, clock, entropy, cache, count())
        self._pages = Pages(cache)
        self._time = time
        self._shards = shards
        self._sources: OrderedDict[str, _Opened] = OrderedDict()

    @property
    def time(self) -> StoreTime:
        return self._time

    async def start(self) -> None:
        """Makes one request, so that the store's time becomes known."""
        async for _ in self._context.store.folders(keys.PARTITIONS):
            break

    async def close(self) -> None:
        writers = [one for opened in self._sources.values() for one in opened.directory.writers]
        await asyncio.gather(*[writer.settle() for writer in writers])

    async def create(self, source: str, new: Sequence[NewPartition]) -> list[str]:
        for one in new:
            check_new(source, one)
        if not new:
            return []
        moment = next(self._context.moments)
        opened = await self._made(source)
        births = self._births(opened, new)
        if len(births) > 1:
            await opened.directory.refresh()  # saves a read of each shard that we know

        async def make(birth: _Birth) -> list[str]:
            return await birth.writer.submit(Make(birth.rows()), moment)

        made = set(chain.from_iterable(written(await each(make, births, _MADE_AT_ONCE))))
        return [key for key in dict.fromkeys([one.key for one in new]) if key in made]

    async def get(self, source: str, key: str) -> Partition | None:
        moment = next(self._context.moments)
        opened = await self._opened(source)
        if opened is None:
            return None
        return (await opened.directory.writer_of(key).look(moment)).shard.get(key)

    async def acquire(
        self,
        source: str,
        claim: Claim,
        count: int,
        *,
        only: str | None = None,
        random: bool = True,
    ) -> Acquired:
        opened = await self._opened(source)
        if opened is None or count < 1:
            return Acquired([])
        if only is not None:
            return await opened.directory.writer_of(only).submit(Take(claim, 1, [only]))
        way = opened.random if random else opened.ordered
        return await way.acquire(claim, count)

    async def change(self, old: Partition, wanted: Partition) -> Partition:
        check_changed(wanted.progress, wanted.priority)
        return await (await self._writer_of(old)).submit(Replace(old, wanted))

    async def delete(self, old: Partition) -> None:
        await (await self._writer_of(old)).submit(Remove(old))

    async def page(
        self,
        source: str,
        *,
        status: Status | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> Page:
        opened = await self._opened(source)
        if opened is None:
            return Page([], None)
        return await self._pages.page(opened.directory, status, after, limit)

    async def counts(self, source: str) -> Mapping[Status, int]:
        opened = await self._opened(source)
        totals: dict[Status, int] = {}
        for summary in [] if opened is None else await opened.directory.summaries():
            for status, number in summary.counts.items():
                totals[status] = totals.get(status, 0) + number
        return totals

    async def sources(self) -> list[str]:
        found = []
        for folder in [name async for name in self._context.store.folders(keys.PARTITIONS)]:
            try:
                opened = await self._at(f"{keys.PARTITIONS}{folder}/")
                if opened is not None and not await opened.directory.is_empty():
                    found.append(opened.directory.source.name)
            except Damaged:  # whoever asks for its partitions hears of it
                if (name := decode(folder)) is None:
                    raise
                found.append(name)
        return sorted(found)

    async def purge(self, source: str, ended_before_ms: int) -> int:
        opened = await self._opened(source)
        if opened is None:
            return 0
        summaries = await opened.directory.summaries()
        over = [
            writer
            for writer, summary in zip(opened.directory.writers, summaries, strict=True)
            if summary.ended_ms < ended_before_ms
        ]

        async def purged(writer: ShardWriter) -> int:
            return await writer.submit(Purge(ended_before_ms))

        return sum(written(await each(purged, over)))

    # --- sources ---------------------------------------------------------------------

    async def _writer_of(self, one: Partition) -> ShardWriter:
        opened = await self._opened(one.source)
        if opened is None:
            raise NotFound(f"there is no source {one.source!r}")
        return opened.directory.writer_of(one.key)

    async def _opened(self, source: str) -> _Opened | None:
        return await self._at(keys.partitions_of(source))

    async def _at(self, prefix: str) -> _Opened | None:
        """The source below `prefix`; None if it does not exist."""
        if prefix not in self._sources:
            found = await read_source(self._context.store, f"{prefix}source.json")
            return None if found is None else self._keep(prefix, found)
        self._sources.move_to_end(prefix)
        return self._sources[prefix]

    async def _made(self, source: str) -> _Opened:
        opened = await self._opened(source)
        if opened is not None:
            return opened
        wanted = Source(source, self._shards, self._now_ms())
        made = await make_source(self._context.store, keys.partition_source(source), wanted)
        return self._keep(keys.partitions_of(source), made)

    def _now_ms(self) -> int:
        # The earliest that it can be: what is made now may be taken now, by every claim.
        if not self._time.known:
            raise StoreUnavailable("what time it is in the store is not known yet")
        return self._time.at_least_ms()

    def _births(self, opened: _Opened, new: Sequence[NewPartition]) -> list[_Birth]:
        now_ms = self._now_ms()
        first = ulids.fresh(self._context.clock, self._context.entropy) - len(new)
        by_writer: dict[ShardWriter, list[tuple[int, NewPartition]]] = {}
        # Places go on from call to call: several may come in one millisecond.
        for item in enumerate(new, opened.places):
            by_writer.setdefault(opened.directory.writer_of(item[1].key), []).append(item)
        opened.places += len(new)
        versions = accumulate(map(len, by_writer.values()), initial=first)
        return [
            _Birth(writer, now_ms, version, items)
            for (writer, items), version in zip(by_writer.items(), versions, strict=False)
        ]

    def _keep(self, prefix: str, source: Source) -> _Opened:
        # Two calls may come here for one source: one of them made it already.
        opened = self._sources.setdefault(prefix, _Opened(self._context, source))
        self._sources.move_to_end(prefix)
        if len(self._sources) > _SOURCES:
            _, oldest = self._sources.popitem(last=False)
            oldest.directory.forget()
        return opened
