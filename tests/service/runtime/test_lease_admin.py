"""What the service knows of leases is opened at the first question, and again if that failed."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from coordination.admin.admin import Wanted
from coordination.settings import SourceCoordination
from logstore.errors import StoreUnavailable
from service.runtime.lease_admin import open_leases
from service.runtime.seams import Seams
from tests.simulation.backing import open_store
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule
from tests.simulation.powercut import DirectSyncer, PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate


def test_a_store_that_is_away_keeps_nothing_from_starting() -> None:
    async def scenario(clock: VirtualClock) -> None:
        fs = PowerCutFileSystem()
        store = FaultyStore(open_store(fs, clock, Random(0)), Schedule({1: Fault.UNAVAILABLE}))
        seams = Seams(store=store, fs=fs, clock=clock, entropy=Random(1), syncer=DirectSyncer)
        async with open_leases(SourceCoordination(), seams) as leases:
            assert store.calls == []
            with pytest.raises(StoreUnavailable):
                await leases()
            first, second = await asyncio.gather(leases(), leases())
            assert first is second
            assert (await first.page(Wanted())).entries == []

    simulate(scenario, start_ms=1_750_000_000_000)
