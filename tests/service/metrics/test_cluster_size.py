"""The number of nodes that a node knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from service.metrics.aliases import OKLOG
from service.node import Node
from tests.service.cluster import Cluster
from tests.service.simulated_network import Switchboard
from tests.simulation.virtual_time import VirtualClock

(SIZE,) = [metric for metric in OKLOG if metric.name == "tailrace_cluster_size"]


def test_the_size_of_the_cluster_rises_and_falls() -> None:
    world = Cluster(1)
    world.switchboard = Switchboard(1)

    def size(node: Node) -> Any:
        return SIZE.read(cast("Any", SimpleNamespace(node=node)))

    async def go(clock: VirtualClock) -> None:
        first = await world.start(clock, "a")
        await clock.sleep(1.0)
        assert size(first) == 1
        second = await world.start(clock, "b")
        await clock.sleep(30.0)
        assert (size(first), size(second)) == (2, 2)
        await second.stop()
        await clock.sleep(30.0)
        assert size(first) == 1

    world.play(go)
