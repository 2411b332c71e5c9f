"""Entries of the register: a node's stays until somebody lets it go, a reader's does not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from service.peers.register import READER, Register, entries, forget
from service.peers.rpc import Network, NodeAddress, PeerSilent
from tailrace.logstore import keys
from tailrace.logstore.errors import NodeNotReady
from tailrace.logstore.objects.local import LocalStore, inline
from tailrace.logstore.state import encode_checked
from tests.simulation.faulty_store import FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

START_MS = 1_780_000_000_000


class Nobody:
    """A network in which nobody answers."""

    async def ask(self, address: NodeAddress, verb: str, body: bytes, seconds: float) -> bytes:
        raise PeerSilent(f"{address.node} gives no answer to {verb}")

    async def close(self) -> None:
        """Nothing is open."""


def test_the_entry_of_a_dead_reader_goes_and_that_of_a_node_stays() -> None:
    async def scenario(clock: VirtualClock) -> None:
        store = LocalStore("/store", PowerCutFileSystem(), clock, random.Random(1), run=inline)

        def register(name: str) -> Register:
            return Register(store, clock, random.Random(name), Network(name, Nobody()))

        living, dead, node, looks = (register(name) for name in "ldnx")
        await living.publish("living", role=READER)
        await dead.publish("dead", role=READER)
        await node.publish("node")
        await looks.look()
        assert {entry.node for entry in looks.others.values()} == {"living", "dead", "node"}
        assert {entry.node for entry in looks.holders.values()} == {"node"}
        renewing = [asyncio.ensure_future(r.run(5.0)) for r in (living, looks)]
        await clock.sleep(600.0)
        assert {entry.node for entry in looks.others.values()} == {"living", "node"}
        assert [info.key async for info in store.list(keys.PEERS)] == sorted(
            keys.peer(name, r.instance) for name, r in (("living", living), ("node", node))
        )
        for task in renewing:
            task.cancel()

    simulate(scenario, start_ms=START_MS)


def test_who_finds_its_entry_gone_writes_it_again_and_knows_that_it_missed_something() -> None:
    async def scenario(clock: VirtualClock) -> None:
        store = LocalStore("/store", PowerCutFileSystem(), clock, random.Random(1), run=inline)
        own = Register(store, clock, random.Random("o"), Network("o", Nobody()))
        told: list[bool] = []
        own.on_removed = lambda: told.append(True)
        await own.publish("own")
        running = asyncio.ensure_future(own.run(5.0))
        await clock.sleep(60.0)
        assert told == []
        await store.delete([keys.peer("own", own.instance)])
        await clock.sleep(6.0)
        assert told == [True]
        assert [info.key async for info in store.list(keys.PEERS)] == [
            keys.peer("own", own.instance)
        ]
        running.cancel()

    simulate(scenario, start_ms=START_MS)


def test_a_damaged_entry_is_that_of_a_silent_node_until_its_process_writes_it_again() -> None:
    async def scenario(clock: VirtualClock) -> None:
        store = LocalStore("/store", PowerCutFileSystem(), clock, random.Random(1), run=inline)
        node, looks = (Register(store, clock, random.Random(n), Network(n, Nobody())) for n in "nx")
        await node.publish("node")
        key = keys.peer("node", node.instance)
        intact = (await store.get(key))[1]
        for changed in (b"", intact[:30], intact.replace(b'"role":""', b'"role":"query"')):
            await store.put(key, changed)
            await looks.look()
            (entry,) = looks.holders.values()
            assert (entry.node, entry.instance, entry.url) == ("node", node.instance, "")
        renewing = asyncio.ensure_future(node.run(5.0))
        await clock.sleep(70.0)
        await looks.look()
        assert [entry.url for entry in looks.holders.values()] == ["n"]
        renewing.cancel()

    simulate(scenario, start_ms=START_MS)


def test_an_entry_of_a_newer_version_makes_its_own_node_silent_and_no_other() -> None:
    async def scenario(clock: VirtualClock) -> None:
        store = LocalStore("/store", PowerCutFileSystem(), clock, random.Random(1), run=inline)
        own, other = (Register(store, clock, random.Random(n), Network(n, Nobody())) for n in "ox")
        await other.publish("other")
        newer = {"format": 99, "node": ["of", "another", "shape"]}
        await store.put(keys.peer("newer", "i" * 26), encode_checked(newer))
        await own.publish("own")
        assert {entry.node: entry.newer for entry in own.holders.values()} == {
            "other": False,
            "newer": True,
        }
        assert await own.twin("own") is None
        assert {entry.node for entry in (await entries(store)).values()} == {
            "own",
            "other",
            "newer",
        }

    simulate(scenario, start_ms=START_MS)


def test_an_object_that_no_version_writes_is_a_node_by_its_key_and_can_be_let_go() -> None:
    async def nobody(_: str) -> str | None:
        return None

    async def scenario(clock: VirtualClock) -> None:
        store = LocalStore("/store", PowerCutFileSystem(), clock, random.Random(1), run=inline)
        own = Register(store, clock, random.Random(1), Network("o", Nobody()))
        await own.publish("own")
        for name in ("ghost", "other.tmp"):
            await store.put(f"{keys.PEERS}{name}", b"")
        await own.look()
        assert {entry.node for entry in own.holders.values()} == {"ghost", "other.tmp"}
        await forget(
            *(store, "ghost"),
            held_by=nobody,
            prefix=keys.PREFIX,
            now_ms=clock.now_ms(),
            fresh_id=lambda: "01J00000000000000000000001",
        )
        await own.look()
        assert {entry.node for entry in own.holders.values()} == {"other.tmp"}

    simulate(scenario, start_ms=START_MS)


class SlowToDelete(LocalStore):
    """A store whose deletions are done long before they are answered."""

    clock: VirtualClock

    async def delete(self, keys: Sequence[str]) -> None:
        await super().delete(keys)
        await self.clock.sleep(3.0)


@pytest.mark.parametrize("meanwhile", ["look", "load", "join"])
def test_what_renews_an_entry_that_is_withdrawn_does_not_bring_it_back(meanwhile: str) -> None:
    async def scenario(clock: VirtualClock) -> None:
        store = SlowToDelete("/store", PowerCutFileSystem(), clock, random.Random(1), run=inline)
        store.clock = clock
        own = Register(store, clock, random.Random("o"), Network("o", Nobody()))
        await own.publish("own")
        withdrawing = asyncio.ensure_future(own.withdraw())
        await clock.sleep(1.0)
        assert [info.key async for info in store.list(keys.PEERS)] == []
        if meanwhile == "look":
            running = asyncio.ensure_future(own.run(0.2))
            await clock.sleep(10.0)
            running.cancel()
        elif meanwhile == "load":
            await own.report_load(1.0)
        else:
            with pytest.raises(NodeNotReady):
                await own.publish("own")
        await withdrawing
        assert own.own is None
        assert [info.key async for info in store.list(keys.PEERS)] == []

    simulate(scenario, start_ms=START_MS)


def test_a_node_that_starts_again_is_in_the_register_all_the_time() -> None:
    """Without an entry it would count as one that has left, and holds no line."""

    async def scenario(clock: VirtualClock) -> None:
        disk = LocalStore("/store", PowerCutFileSystem(), clock, random.Random(1), run=inline)
        earlier = Register(disk, clock, random.Random("e"), Network("e", Nobody()))
        await earlier.publish("node")
        store = FaultyStore(disk, Schedule.none())
        register = Register(store, clock, random.Random("n"), Network("n", Nobody()))
        assert await register.twin("node") is None
        await register.publish("node")
        changes = [call for call in store.calls if call.startswith(("put", "delete"))]
        old, new = (keys.peer("node", one.instance) for one in (earlier, register))
        assert [new in changes[0], old in changes[1]] == [True, True]
        assert [info.key async for info in disk.list(keys.PEERS)] == [new]

    simulate(scenario, start_ms=START_MS)
