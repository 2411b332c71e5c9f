"""A node that stops while its entry in the register cannot go."""

from __future__ import annotations

import pytest

from tailrace.logstore import keys
from tests.service.cluster import RUN
from tests.service.peers.worlds import cluster
from tests.simulation.faulty_store import Fault, Schedule
from tests.simulation.virtual_time import VirtualClock


@pytest.mark.parametrize("cut", ["", "before the entry goes", "before the stop"])
def test_it_says_who_waits_for_it_and_what_to_do(
    cut: str, caplog: pytest.LogCaptureFixture
) -> None:
    world, _ = cluster(1)

    async def stopped(clock: VirtualClock) -> None:
        other = await world.start(clock, "a")
        node = await world.start(clock, "b")
        line = world.lines["b"]
        await clock.sleep(30.0)
        await world.clients.send(node, clock, RUN)
        if cut == "before the entry goes":
            line.schedule = Schedule(
                dict.fromkeys(range(1, 1000), Fault.UNAVAILABLE),
                applies=lambda call: call.startswith("delete") and keys.PEERS in call,
            )
        line.cut = cut == "before the stop"
        await node.stop()
        register = other.members.register
        assert register is not None
        await register.look()
        left = [entry.node for entry in register.others.values()]
        assert left == ([node.identity.node] if cut else [])

    world.play(stopped)
    why = "the store does not answer" if cut == "before the entry goes" else "not all that it holds"
    said = [one for one in caplog.messages if "stays in the register" in one]
    assert len(said) == bool(cut)
    assert all(f"stays in the register, as {why}" in one for one in said)
    assert all("`tailrace leases forget-node b" in one for one in said)
