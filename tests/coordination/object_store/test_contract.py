"""Partitions in a folder, on a real S3 server, and on one that misbehaves: the contract of all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from coordination.object_store.store import ObjectPartitions
from coordination.storetime import StoreTime
from logstore.clock import SystemClock
from logstore.disk import Disk
from logstore.objects.local import LocalStore
from logstore.objects.store import ObjectStore
from tests.contracts.partition_store import PartitionStoreContract
from tests.faults.schedule import Schedule, evenly
from tests.faults.thread import fault_proxy
from tests.moved_clock import MovedClock
from tests.servers import Bucket, Minio

pytestmark = pytest.mark.anyio


class OnObjects(PartitionStoreContract):
    """Leases go by a clock that tests move; pauses between tries are real."""

    SHARDS = 5
    clock: MovedClock

    @asynccontextmanager
    async def opened(self, objects: ObjectStore) -> AsyncIterator[ObjectPartitions]:
        self.clock = MovedClock()
        store = ObjectPartitions(
            objects,
            SystemClock(),
            Random(7),
            StoreTime(self.clock, None),
            shards=self.SHARDS,
        )
        await store.start()
        yield store
        await store.close()

    async def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)


class TestInAFolder(OnObjects):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ObjectPartitions]:
        objects = LocalStore(str(tmp_path), Disk(), SystemClock(), Random(8))
        async with self.opened(objects) as store:
            yield store
