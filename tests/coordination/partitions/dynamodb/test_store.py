"""Partitions in a table of DynamoDB fulfil the contract of all stores."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from coordination.partitions.dynamodb.store import DynamoPartitions
from coordination.storetime import StoreTime
from tests.contracts.partition_store import PartitionStoreContract
from tests.coordination.partitions.dynamodb.tables import settings_of, standing
from tests.dynamodb import DynamoDb
from tests.moved_clock import MovedClock

pytestmark = [pytest.mark.anyio, pytest.mark.dynamodb]


class TestDynamoDb(PartitionStoreContract):
    MANY = 240
    clock: MovedClock

    @pytest.fixture
    async def store(self, dynamodb: DynamoDb) -> AsyncIterator[DynamoPartitions]:
        self.clock = MovedClock()
        time = StoreTime(self.clock, None)
        async with standing(settings_of(dynamodb), clock=self.clock, time=time) as store:
            yield store

    async def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
