"""Real nodes that shed load: what they tell each other in the register decides."""

from __future__ import annotations

from tests.service.cluster import QUICK, RUN, Cluster
from tests.service.simulated_network import Switchboard
from tests.settings import settings_with
from tests.simulation.virtual_time import VirtualClock

LATE = settings_with(
    QUICK,
    flush={"segment_seconds": 3600.0, "segment_bytes": 1 << 30},
    nodes={"shed_lag_seconds": 20.0, "shed_journal_share": 0.0, "shed_delay_seconds": 0.0},
)
"""A line that waits for its segment soon makes a node late; none is cut by itself."""


def test_a_late_node_sheds_while_others_tell_that_they_are_not() -> None:
    world = Cluster(1, LATE)
    world.switchboard = Switchboard(1)

    async def go(clock: VirtualClock) -> None:
        first, second, third = [await world.start(clock, name) for name in ("a", "b", "c")]
        await world.clients.send(first, clock, RUN)
        await clock.sleep(60)
        assert first.shedding.load >= 1
        assert [node.shedding.active for node in (first, second, third)] == [True, False, False]
        assert max(second.members.loads()) >= 1, "the register has it"
        for node in (second, third):
            await world.clients.send(node, clock, RUN)
        await clock.sleep(60)
        assert min(first.members.loads()) >= 1
        assert not any(node.shedding.active for node in (first, second, third)), "nobody has room"

    world.play(go)
