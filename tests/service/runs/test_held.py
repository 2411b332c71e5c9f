"""What a node holds for others: who waits for news of it hears when the node stops."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import Conflict
from tests.service.runs.world import World

RUN = RunKey("service.pipeline", "run-1")


async def test_a_stop_ends_the_waiting_for_changes() -> None:
    held = World().run_logs.held
    waiting = asyncio.create_task(held.changed_since([(RUN, 0)], seconds=1e9))
    await asyncio.sleep(0)  # it is waiting now
    held.stop()
    with pytest.raises(Conflict, match="stopped"):
        await waiting
    with pytest.raises(Conflict, match="stopped"):
        await held.changed_since([(RUN, 0)], seconds=1e9)
