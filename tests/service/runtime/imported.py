"""Prints, as JSON, what a node imports once it has started.

Run it as `python -m tests.service.runtime.imported`.
"""

from __future__ import annotations

import json
import sys

import service.main  # noqa: F401 -- all that a program which serves has imported
from tests.service.client_model import Clients
from tests.service.node_simulation import NAMED, check_reads
from tests.service.simulated_node import START_MS, Life
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate


async def _scenario(clock: VirtualClock) -> list[str]:
    clients = Clients(0)
    node = Life(PowerCutFileSystem(), clock).node
    await node.start()
    before = set(sys.modules)
    for _ in range(5):
        await clients.send(node, clock, NAMED, durability="bulk")
        await clock.sleep(2.0)
    await check_reads(node, clients)
    await clients.close(node, NAMED)
    await check_reads(node, clients)
    await clients.delete(node, NAMED)
    await node.stop()
    return sorted(set(sys.modules) - before)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(simulate(_scenario, start_ms=START_MS)))
