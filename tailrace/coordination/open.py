"""Opens the store of partitions that the settings name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tailrace.coordination.lease import StoreTime
from tailrace.coordination.memory_store import InMemoryPartitions
from tailrace.coordination.object_store.store import ObjectPartitions
from tailrace.coordination.partitions import AGEING_MS, PartitionStore, expire_for_ever
from tailrace.coordination.settings import StoreChoice
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.objects.store import DateSample, ObjectStore


@asynccontextmanager
async def open_partitions(
    settings: StoreChoice,
    objects: ObjectStore,
    clock: Clock,
    entropy: Entropy,
    *,
    newest_date: Callable[[], DateSample | None] | None,
    ageing_ms: int = AGEING_MS,
    shards: int | None = None,
) -> AsyncIterator[PartitionStore]:
    """The store while the block runs, in the loop that runs the block; the caller starts it.

    `objects` is where `object_store` keeps partitions, and `newest_date` the newest `Date` of its
    answers, None for a folder. `ageing_ms` is that of the claimants. `shards` is the number of
    objects there of a source that this process makes; with None the settings decide. Sends nothing
    to a server. Raises `InvalidInput` for invalid settings.
    """
    if settings.dynamodb.table_name:
        from tailrace.coordination.dynamodb.store import open_dynamodb

        opening = open_dynamodb(settings.dynamodb, clock, entropy, ageing_ms=ageing_ms)
        async with opening as partitions:
            yield partitions
    elif settings.in_memory.enabled:
        yield InMemoryPartitions(clock, entropy)
    else:
        time = StoreTime(clock, newest_date)
        count = settings.object_store.shards if shards is None else shards
        kept = ObjectPartitions(objects, clock, entropy, time, shards=count)
        async with _expiring(kept, clock, settings.object_store.ttl_ms):
            yield kept


@asynccontextmanager
async def _expiring(
    partitions: PartitionStore, clock: Clock, ttl_ms: int | None
) -> AsyncIterator[None]:
    """Runs the expiry of an object store; DynamoDB removes expired items itself."""
    if ttl_ms is None:
        yield
        return
    expiring = asyncio.create_task(expire_for_ever(partitions, clock, ttl_ms))
    try:
        yield
    finally:
        expiring.cancel()
        await asyncio.wait([expiring])
