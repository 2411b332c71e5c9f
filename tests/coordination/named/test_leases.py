"""Leases: one holder at a time by the store's clock, whatever answers were lost and clocks say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

import orjson
import pytest

from tailrace.coordination.lease import StoreTime
from tailrace.coordination.named_leases import (
    LeaseName,
    NamedLease,
    NamedLeases,
    decode_lease,
    encode_lease,
    sweep_lease,
    text_lease,
)
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import Damaged, OutcomeUnknown, StoreUnavailable
from tailrace.logstore.objects.local import LocalStore, inline
from tailrace.logstore.objects.store import DateSample, ObjectStore
from tailrace.logstore.state import decode_checked
from tests.seeds import seeds
from tests.simulation.clocks import MachineClock
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule
from tests.simulation.powercut import EPOCH_NS, PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

T = TypeVar("T")
NAME = text_lease("node-B")
START_MS = 1_750_000_000_000
TIMEOUT = 60.0


def open_store(clock: Clock, seed: int = 0) -> LocalStore:
    return LocalStore("/store", PowerCutFileSystem(), clock, Random(seed), run=inline)


def of(
    store: ObjectStore, clock: Clock, node: str, seed: int = 0, time: StoreTime | None = None
) -> NamedLeases:
    return NamedLeases(
        store,
        clock,
        Random(f"{node} {seed}"),
        time or StoreTime(clock, None),
        node=node,
        timeout_seconds=TIMEOUT,
    )


async def taken(leases: NamedLeases, name: LeaseName = NAME) -> NamedLease:
    held = await leases.acquire(name)
    assert held is not None
    return held


def test_one_holds_it_until_it_lets_go() -> None:
    async def scenario(clock: VirtualClock) -> None:
        store = open_store(clock)
        a, b = of(store, clock, "node-A"), of(store, clock, "node-B")
        held = await taken(a)
        assert await b.acquire(NAME) is None
        assert await b.held_by(NAME) == "node-A"
        await a.release(held)
        assert not held.valid()
        assert await a.held_by(NAME) is None
        assert (await taken(b)).epoch > held.epoch

    simulate(scenario, start_ms=START_MS)


def test_who_goes_silent_loses_it_and_cannot_write_it_back() -> None:
    async def scenario(clock: VirtualClock) -> None:
        store = open_store(clock)
        a, b = of(store, clock, "node-A"), of(store, clock, "node-B")
        held = await taken(a)
        await clock.sleep(TIMEOUT - 2.1)
        assert held.valid()
        await clock.sleep(0.2)
        assert not held.valid(), "a holder stops before its time is over"
        await clock.sleep(2.0)
        assert await b.acquire(NAME) is None, "a taker waits until it is over for sure"
        await clock.sleep(2.0)
        second = await taken(b)
        assert second.epoch > held.epoch
        assert not await a.renew(held)
        assert second.valid()
        assert await a.acquire(NAME) is None
        await a.release(held)
        assert await a.held_by(NAME) == "node-B"

    simulate(scenario, start_ms=START_MS)


def test_a_heartbeat_keeps_it() -> None:
    async def scenario(clock: VirtualClock) -> None:
        store = open_store(clock)
        a, b = of(store, clock, "node-A"), of(store, clock, "node-B")
        held = await taken(a)
        beats = asyncio.create_task(a.run())
        await clock.sleep(TIMEOUT * 5)
        assert held.valid()
        assert await b.acquire(NAME) is None
        await a.stop()
        assert await b.acquire(NAME) is not None
        beats.cancel()

    simulate(scenario, start_ms=START_MS)


def test_a_node_that_starts_again_need_not_wait_for_its_earlier_life() -> None:
    async def scenario(clock: VirtualClock) -> None:
        store = open_store(clock)
        first = await taken(of(store, clock, "node-A", seed=1))
        again = await taken(of(store, clock, "node-A", seed=2))
        assert again.epoch > first.epoch

    simulate(scenario, start_ms=START_MS)


async def _flip(store: ObjectStore, key: str) -> None:
    """Another owner, in valid JSON."""
    body = (await store.get(key))[1]
    await store.put(key, body.replace(b'"node-A/', b'"node-C/'))


@pytest.mark.parametrize("emptied", [False, True])
def test_a_damaged_lease_is_nobodys_until_its_time_is_over(emptied: bool) -> None:
    async def scenario(clock: VirtualClock) -> None:
        store = open_store(clock)
        a, b = of(store, clock, "node-A"), of(store, clock, "node-B")
        held = await taken(a)
        await (store.put(NAME.key, b"") if emptied else _flip(store, NAME.key))
        for who in (a, b):
            with pytest.raises(Damaged, match=NAME.key) as raised:
                await who.acquire(NAME)
            assert "tailrace verify --repair" in raised.value.hint
        with pytest.raises(Damaged):
            await a.renew(held)
        await clock.sleep(TIMEOUT + 1.5)
        assert not held.valid()
        with pytest.raises(Damaged):
            await b.acquire(NAME)
        await clock.sleep(1.0)
        second = await taken(b)
        assert second.epoch > held.epoch
        assert await a.acquire(NAME) is None
        assert await a.held_by(NAME) == "node-B"

    simulate(scenario, start_ms=EPOCH_NS // 1_000_000)


def test_epochs_rise_also_when_nothing_of_it_was_kept() -> None:
    async def scenario(clock: VirtualClock) -> None:
        store = open_store(clock)
        a, b = of(store, clock, "node-A"), of(store, clock, "node-B")
        name = sweep_lease(RunKey("a/b", "c"))
        held = await taken(a, name)
        await clock.sleep(1.0)
        await a.release(held, forget=True)
        assert [info.key async for info in store.list("coordination/")] == []
        assert (await taken(b, name)).epoch > held.epoch

    simulate(scenario, start_ms=START_MS)


def test_clear_removes_what_nobody_holds_and_leaves_the_rest() -> None:
    """A held lease that was removed would let a second node work on the same run."""

    async def scenario(clock: VirtualClock) -> None:
        store = open_store(clock)
        a, b = of(store, clock, "node-A"), of(store, clock, "node-B")
        expired, released, kept = (sweep_lease(RunKey("a/b", run)) for run in "erk")
        source = kept.source
        await taken(a, expired)
        await clock.sleep(2 * TIMEOUT)
        await a.release(await taken(a, released))
        held = await taken(a, kept)
        await b.clear(source)
        assert [info.key async for info in store.list("coordination/")] == [kept.key]
        assert held.valid()
        assert await b.acquire(kept) is None

    simulate(scenario, start_ms=START_MS)


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE])
def test_lost_answers(fault: Fault) -> None:
    async def scenario(clock: VirtualClock) -> None:
        disk = open_store(clock)
        for step in range(1, 8):
            await disk.delete([NAME.key])
            store = FaultyStore(disk, Schedule({step: fault}))
            a, b = of(store, clock, "node-A", seed=step), of(disk, clock, "node-B", seed=step)
            try:
                held = await taken(a)
                assert await a.renew(held)
                assert await b.acquire(NAME) is None
                await a.release(held)
            except (OutcomeUnknown, StoreUnavailable):
                await clock.sleep(TIMEOUT + 5)
            assert await b.acquire(NAME) is not None

    simulate(scenario, start_ms=START_MS)


def test_a_store_that_is_away_takes_the_lease_from_nobody_before_its_time() -> None:
    async def scenario(clock: VirtualClock) -> None:
        store = FaultyStore(open_store(clock), Schedule.none())
        a = of(store, clock, "node-A")
        held = await taken(a)
        store.schedule = Schedule(dict.fromkeys(range(1, 1000), Fault.UNAVAILABLE))
        await a.renew_all()
        assert held.valid()
        assert a.last_error is not None
        await clock.sleep(TIMEOUT)
        assert not held.valid()

    simulate(scenario, start_ms=START_MS)


class DatedStore(FaultyStore):
    """A store with a clock of its own in whole seconds, and slow to answer."""

    def __init__(self, inner: ObjectStore, true: VirtualClock, machine: Clock, dice: Random):
        super().__init__(inner, Schedule.none())
        self._true, self._machine, self._dice = true, machine, dice
        self.newest: DateSample | None = None

    async def _step(self, name: str, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        sent = self._machine.monotonic()
        await self._true.sleep(self._dice.choice([0.01, 0.3, 0.9, 3.0]))
        date = self._true.now_ms() // 1000 * 1000
        try:
            return await super()._step(name, key, work)
        finally:
            await self._true.sleep(self._dice.choice([0.01, 0.3, 0.9, 3.0]))
            arrived = self._machine.monotonic()
            self.newest = DateSample(date, sent, arrived, self._machine.now_ms())


@pytest.mark.parametrize("seed", seeds(20))
def test_never_two_holders_whatever_the_machines_clocks_say(seed: int) -> None:
    async def scenario(true: VirtualClock) -> None:
        dice = Random(seed)
        disk = open_store(true, seed)
        holders: list[set[str]] = [set()]
        count = 0

        async def live(node: str) -> None:
            nonlocal count
            machine = MachineClock(true, dice.randint(-(10**8), 10**8), dice.random() * 1e6)
            store = DatedStore(disk, true, machine, dice)
            leases = of(store, machine, node, seed, StoreTime(machine, lambda: store.newest))
            for _ in range(60):
                held = await leases.acquire(NAME)
                if held is None:
                    await true.sleep(dice.random() * 20)
                    continue
                count += 1
                silent = dice.random() < 0.5
                end = true.now_ms() + dice.randint(0, 100_000)
                while held.valid() and true.now_ms() < end:
                    assert not holders[0] - {node}, f"{holders[0]} and {node}"
                    holders[0].add(node)
                    await true.sleep(0.5)
                    if not held.valid():
                        holders[0].discard(node)
                    if not silent and dice.random() < 0.05:
                        await leases.renew(held)
                holders[0].discard(node)
                if not silent:
                    await leases.release(held)
                await true.sleep(dice.random() * 5)

        await asyncio.gather(*[live(f"node-{name}") for name in "ABC"])
        assert count > 5

    simulate(scenario, start_ms=START_MS)


def test_bytes_survive_and_unknown_keys_too() -> None:
    body = orjson.dumps(
        {
            "source_identifier": "text",
            "partition_key": "node-B",
            "status": "ASSIGNED",
            "owner": "node-A/X",
            "epoch": 7,
            "owner_timeout": 5,
            "created_at": 3,
            "version": "V",
            "progress_state": {"a": 1},
        }
    )
    assert decode_checked(encode_lease(decode_lease(NAME, body))) == orjson.loads(body)
    for wrong in (b"", b"[]", b"{}", b'{"owner":1}'):
        with pytest.raises(Damaged):
            decode_lease(NAME, wrong)
