"""The same partitions, opened in any process: in a folder, a bucket, a table."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import SystemRandom
from unittest.mock import patch

from tailrace.coordination.lease import StoreTime
from tailrace.coordination.object_store.store import ObjectPartitions
from tailrace.coordination.partitions import PartitionStore
from tailrace.coordination.settings import DynamoDbSettings
from tailrace.logstore.clock import Clock, SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.objects.store import newest_date_of
from tests.coordination.dynamodb.tables import standing
from tests.servers.dynamodb import ACCESS_KEY, SECRET_KEY
from tests.servers.minio import Bucket
from tests.simulation.clocks import ShiftedClock

KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


class FastClock(SystemClock):
    """Ten seconds pass in one, in all processes of the machine alike."""

    SPEED = 10

    def now_ms(self) -> int:
        return super().now_ms() * self.SPEED

    def monotonic(self) -> float:
        return super().monotonic() * self.SPEED

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.SPEED)


@asynccontextmanager
async def in_folder(folder: str, _: int) -> AsyncIterator[tuple[PartitionStore, Clock]]:
    clock = FastClock()
    objects = LocalStore(folder, Disk(), SystemClock(), SystemRandom())
    time = StoreTime(clock, None)
    yield ObjectPartitions(objects, SystemClock(), SystemRandom(), time, shards=3), clock


@asynccontextmanager
async def in_bucket(bucket: Bucket, skew_ms: int) -> AsyncIterator[tuple[PartitionStore, Clock]]:
    clock = ShiftedClock(skew_ms)
    async with bucket.open() as objects:
        time = StoreTime(clock, newest_date_of(objects))
        yield ObjectPartitions(objects, clock, SystemRandom(), time, shards=3), clock


@asynccontextmanager
async def in_table(
    settings: DynamoDbSettings, skew_ms: int
) -> AsyncIterator[tuple[PartitionStore, Clock]]:
    clock = ShiftedClock(skew_ms)
    with patch.dict(os.environ, KEYS):  # it checks none, but botocore wants one to sign with
        async with standing(settings, clock=clock) as store:
            yield store, clock
