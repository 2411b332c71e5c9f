"""What named leases count, by source; one whose object somebody deleted stops its worker."""

from __future__ import annotations

from random import Random

from tailrace.coordination.lease import StoreTime
from tailrace.coordination.leases import CoordinationCounters
from tailrace.coordination.named_leases import NamedLeases, sweep_lease, text_lease
from tailrace.logstore.batch import RunKey
from tailrace.logstore.objects.local import LocalStore, inline
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

START_MS = 1_750_000_000_000
TIMEOUT = 60.0
MINE = text_lease("node-A")
RUN = sweep_lease(RunKey("p", "r"))


def world(clock: VirtualClock) -> tuple[FaultyStore, NamedLeases, NamedLeases]:
    disk = LocalStore("/store", PowerCutFileSystem(), clock, Random(0), run=inline)
    store = FaultyStore(disk, Schedule.none())
    time = StoreTime(clock, None)
    a, b = [
        NamedLeases(store, clock, Random(name), time, node=name, timeout_seconds=TIMEOUT)
        for name in ("node-A", "node-B")
    ]
    return store, a, b


def test_each_source_has_its_own_counts() -> None:
    async def scenario(clock: VirtualClock) -> None:
        _, a, b = world(clock)
        held = await a.acquire(MINE)
        swept = await a.acquire(RUN)
        assert held is not None
        assert swept is not None
        assert await b.acquire(MINE) is None
        await clock.sleep(5)
        assert [clock.monotonic() - one.since for one in a.held] == [5, 5]
        await a.release(swept, forget=True)
        await a.release(held)
        assert list(a.held) == []
        assert a.counters["text"] == CoordinationCounters(acquired=1, given_up=1)
        assert a.counters["sweep"] == CoordinationCounters(acquired=1, deleted=1)
        assert b.counters["text"] == CoordinationCounters(none_acquired=1)

    simulate(scenario, start_ms=START_MS)


def test_a_lease_whose_object_somebody_deleted_is_not_found_and_stops_its_worker() -> None:
    async def scenario(clock: VirtualClock) -> None:
        store, a, _ = world(clock)
        held = await a.acquire(MINE)
        assert held is not None
        await store.delete([MINE.key])
        assert held.valid(), "until the next heartbeat"
        await a.renew_all()
        assert not held.valid()
        assert held.lost
        assert a.counters["text"] == CoordinationCounters(acquired=1, not_found=1)
        await a.renew_all()
        assert a.counters["text"].not_found == 1
        assert [info.key async for info in store.list("coordination/")] == []

    simulate(scenario, start_ms=START_MS)


def test_a_lease_that_another_has_is_not_owned() -> None:
    async def scenario(clock: VirtualClock) -> None:
        _, a, b = world(clock)
        held = await a.acquire(MINE)
        await clock.sleep(TIMEOUT + 3)
        assert await b.acquire(MINE) is not None
        await a.renew_all()
        assert held is not None
        assert held.lost
        assert a.counters["text"] == CoordinationCounters(acquired=1, not_owned=1)
        await a.release(held)
        assert a.counters["text"].given_up == 0

    simulate(scenario, start_ms=START_MS)


def test_a_heartbeat_that_the_store_refused() -> None:
    async def scenario(clock: VirtualClock) -> None:
        store, a, _ = world(clock)
        held = await a.acquire(MINE)
        store.schedule = Schedule(dict.fromkeys(range(1, 100), Fault.UNAVAILABLE))
        await a.renew_all()
        assert held is not None
        assert held.valid()
        assert a.counters["text"] == CoordinationCounters(acquired=1, renewal_errors=1)

    simulate(scenario, start_ms=START_MS)
