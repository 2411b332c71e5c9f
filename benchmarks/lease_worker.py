"""A worker of `benchmarks.leases`, in a process of its own, and what it tells of itself.

It takes partitions, writes a line `key epoch` for each into its own file, which stands for
the work, and completes them; until all of the source are completed. Its counts are
in a second file, rewritten now and then, since workers may be killed at any moment.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import IO

import orjson

from service.runtime.counters import MeteredStore, StoreCounters
from tailrace.coordination.dynamodb.requests import DynamoRequests
from tailrace.coordination.dynamodb.store import open_dynamodb
from tailrace.coordination.lease import MARGIN_MS, StoreTime
from tailrace.coordination.object_store.store import SHARDS, ObjectPartitions
from tailrace.coordination.partitions import (
    Claim,
    NewPartition,
    Partition,
    PartitionStore,
    Status,
    completed,
)
from tailrace.coordination.settings import DynamoDbSettings
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import NotFound, PreconditionFailed, Unavailable
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.objects.store import newest_date_of, requests_of
from tests.servers.minio import Bucket

SOURCE = "bench|leases|object"
_TELL_SECONDS = 0.3


@dataclass(frozen=True)
class Place:
    """Where the partitions are: a folder, a bucket, or a table. It is sent to processes."""

    folder: str | None = None
    bucket: Bucket | None = None
    table: DynamoDbSettings | None = None
    shards: int = SHARDS


@dataclass
class Traffic:
    """What a process asked of the store so far."""

    counters: StoreCounters = field(default_factory=StoreCounters)
    wire: Callable[[], Mapping[str, int]] = dict
    table: DynamoRequests | None = None

    def numbers(self) -> dict[str, int]:
        """Writes, reads and listings, writes that were refused, and requests on the wire."""
        found = dict.fromkeys(["put", "get", "list", "refused"], 0)
        for (operation, outcome), number in self.counters.requests.items():
            found[operation] = found.get(operation, 0) + number
            if (operation, outcome) == ("put", "refused"):
                found["refused"] += number
        for operation, number in ({} if self.table is None else self.table.made).items():
            read = operation.startswith(("get", "batch_get", "query", "describe"))
            found["get" if read else "put"] += number
        found["refused"] += 0 if self.table is None else self.table.refused
        found["sent"] = sum(self.counters.sent.values())
        found["wire"] = sum(self.wire().values())
        return found


@asynccontextmanager
async def opened(place: Place, traffic: Traffic) -> AsyncIterator[PartitionStore]:
    """The store, with everything counted."""
    async with _opened(place, traffic) as store:
        await store.start()
        yield store
        await store.close()


@asynccontextmanager
async def _opened(place: Place, traffic: Traffic) -> AsyncIterator[PartitionStore]:
    clock, dice = SystemClock(), system_entropy()
    if place.table is not None:
        async with open_dynamodb(place.table, clock, dice) as table:
            traffic.table = table.requests
            yield table
        return
    async with AsyncExitStack() as stack:
        if place.bucket is not None:
            objects = await stack.enter_async_context(place.bucket.open())
        else:
            assert place.folder is not None
            objects = LocalStore(place.folder, Disk(), clock, dice)
        traffic.wire = partial(requests_of, objects)
        yield ObjectPartitions(
            MeteredStore(objects, clock, traffic.counters),
            clock,
            dice,
            StoreTime(clock, newest_date_of(objects)),
            shards=place.shards,
        )


@dataclass(frozen=True)
class Job:
    """What a worker is told."""

    place: Place
    folder: str
    name: str
    total: int
    batch: int
    lease_ms: int
    work_seconds: float


class Worker:
    """One life of a worker."""

    def __init__(self, job: Job, store: PartitionStore, traffic: Traffic) -> None:
        self._job = job
        self._store = store
        self._traffic = traffic
        self._began = self._told = time.time()
        self._dice = Random()
        self.acquired = self.acquires = self.late = 0

    async def run(self, lines: IO[bytes]) -> None:
        """Until all partitions are completed."""
        while True:
            try:
                if await self._turn(lines) or not await self._is_over():
                    continue
            except Unavailable:  # a server that is too busy: the next turn is another try
                continue
            break
        self._tell(last=True)

    async def _turn(self, lines: IO[bytes]) -> bool:
        """Whether there was work."""
        time_ = self._store.time
        claim = Claim(
            f"{self._job.name}/{os.getpid()}",
            self._job.lease_ms,
            time_.at_least_ms(),
            time_.at_most_ms(),
        )
        held = (await self._store.acquire(SOURCE, claim, self._job.batch)).partitions
        self.acquires += 1
        self.acquired += len(held)
        if self._job.work_seconds:
            await asyncio.sleep(self._job.work_seconds * len(held))
        if held:
            lines.write(b"".join([f"{one.key} {one.epoch}\n".encode() for one in held]))
            lines.flush()
        await asyncio.gather(*[self._complete(one) for one in held])
        if time.time() - self._told > _TELL_SECONDS:
            self._tell(last=False)
        return bool(held)

    async def _complete(self, held: Partition) -> None:
        now_ms = self._store.time.at_most_ms()
        if now_ms >= held.until_ms - MARGIN_MS:
            self.late += 1
            return
        try:
            await self._store.change(held, completed(held, now_ms))
        except (NotFound, PreconditionFailed):
            self.late += 1

    async def _is_over(self) -> bool:
        counts = await self._store.counts(SOURCE)
        if counts.get(Status.COMPLETED, 0) == self._job.total:
            return True
        await asyncio.sleep(self._dice.uniform(0.05, 0.2))
        return False

    def _tell(self, *, last: bool) -> None:
        self._told = time.time()
        told = {
            "acquired": self.acquired,
            "acquires": self.acquires,
            "late": self.late,
            "began": self._began,
            "ended": self._told,
            "last": last,
            **self._traffic.numbers(),
        }
        path = f"{self._job.folder}/{self._job.name}-{os.getpid()}.json"
        with open(f"{path}.new", "wb") as file:
            file.write(orjson.dumps(told))
        os.replace(f"{path}.new", path)


def work(job: Job) -> None:
    """A worker's process."""

    async def live() -> None:
        traffic = Traffic()
        async with opened(job.place, traffic) as store:
            with open(f"{job.folder}/{job.name}-{os.getpid()}.lines", "ab") as lines:
                await Worker(job, store, traffic).run(lines)

    asyncio.run(live())


async def supply(store: PartitionStore, count: int, chunk: int) -> int:
    """Makes partitions in chunks, as a supplier does; how many were made."""
    made = 0
    for start in range(0, count, chunk):
        new = [
            NewPartition(f"s3://bucket/objects/{number:09d}.ndjson.gz")
            for number in range(start, min(start + chunk, count))
        ]
        made += len(await store.create(SOURCE, new))
    return made
