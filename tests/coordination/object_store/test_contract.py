"""Partitions in a folder, and on a real S3 server behind a proxy: the contract of all.

The proxy passes most requests on as they are. Races of processes meet the server without it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

from tailrace.coordination.lease import StoreTime
from tailrace.coordination.object_store.store import ObjectPartitions
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.objects.s3.client import BlockingBucket, open_client
from tailrace.logstore.objects.s3.credentials import Credentials
from tailrace.logstore.objects.s3.keys import BucketPlace
from tailrace.logstore.objects.s3.store import S3Store
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.retry import Tries
from tests.contracts.partition_store import PartitionStoreContract
from tests.faults.schedule import Schedule, evenly
from tests.faults.thread import fault_proxy
from tests.servers.minio import Bucket, Minio
from tests.simulation.clocks import ManualClock


class OnObjects(PartitionStoreContract):
    """Leases go by a clock that tests move; pauses between tries are real."""

    SHARDS = 5
    clock: ManualClock

    @asynccontextmanager
    async def opened(self, objects: ObjectStore) -> AsyncIterator[ObjectPartitions]:
        self.clock = ManualClock()
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


@asynccontextmanager
async def places(bucket: Bucket) -> AsyncIterator[Callable[[], ObjectStore]]:
    """Gives an empty store each time, of one client: to open one takes longer than most tests."""
    settings, clock, number = bucket.settings.s3, SystemClock(), count()
    async with open_client(settings, Credentials(settings), clock) as client:
        yield lambda: S3Store(
            client,
            BucketPlace(bucket.name, f"{next(number)}"),
            clock,
            Random(9),
            blocking=BlockingBucket(settings, Credentials(settings), bucket.name),
            tries=Tries(5, 0.001),
            uploads_by_prefix=False,
        )


@pytest.mark.minio
@pytest.mark.asyncio(loop_scope="class")
class TestThroughFaults(OnObjects):
    """A sixth of all requests fail, are done without an answer, or are done twice.

    All tests run in one event loop, so that they share a client.
    """

    SHARDS = 2

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def fresh(cls, minio: Minio) -> AsyncIterator[Callable[[], ObjectStore]]:
        schedule = Schedule(3, evenly(0.16), delay_seconds=0.001)
        with fault_proxy(minio.endpoint_url, schedule) as url:
            async with places(minio.bucket().through(url)) as made:
                yield made
        # A process may run few of these tests: another then has the others.
        assert schedule.injected.total() > schedule.requests / 40 - 20

    @pytest_asyncio.fixture(loop_scope="class")
    async def on_faults(self, fresh: Callable[[], ObjectStore]) -> AsyncIterator[ObjectPartitions]:
        async with self.opened(fresh()) as store:
            yield store

    @pytest.fixture
    def store(self, on_faults: ObjectPartitions) -> ObjectPartitions:
        return on_faults
