"""A node writes its own registration again, if that was damaged or taken away meanwhile."""

from __future__ import annotations

import pytest

from service.peers.register import decode_registration
from tailrace.logstore import keys
from tailrace.logstore.state import decode_checked
from tests.edited import flips
from tests.service.shipping.copies import MINE, Copies
from tests.service.simulated_node import DATA
from tests.simulation.virtual_time import VirtualClock


@pytest.mark.parametrize("damage", ["gone", "emptied", "cut", "flipped"])
def test_the_next_start_of_its_node_writes_it_again(damage: str) -> None:
    copies = Copies(5)
    copies.before()

    async def go(clock: VirtualClock) -> None:
        node = await copies.live(clock, DATA, MINE, 1)
        store, key = copies.store(clock), keys.node_registration(node.identity.node)
        body = (await store.get(key))[1]
        if damage == "gone":
            await store.delete([key])
        else:
            changed = {"emptied": b"", "cut": body[:40], "flipped": flips(body)[100]}[damage]
            await store.put(key, changed)
        node = await copies.live(clock, DATA, MINE, 1)
        again = (await store.get(key))[1]
        assert decode_registration(again).node == node.identity.node
        before, after = decode_checked(body), decode_checked(again)
        assert before | {"registered_ms": 0} == after | {"registered_ms": 0}
        assert after["registered_ms"] > before["registered_ms"]

    copies.play(go)
    copies.end_well()
