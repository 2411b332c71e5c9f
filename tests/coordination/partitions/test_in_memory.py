"""Partitions in the memory of one process fulfil the contract of all stores."""

from __future__ import annotations

from random import Random

import pytest

from tailrace.coordination.memory_store import InMemoryPartitions
from tests.contracts.partition_store import PartitionStoreContract
from tests.simulation.clocks import ManualClock


class TestInMemory(PartitionStoreContract):
    clock: ManualClock

    @pytest.fixture
    def store(self) -> InMemoryPartitions:
        self.clock = ManualClock()
        return InMemoryPartitions(self.clock, Random(7))

    async def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
