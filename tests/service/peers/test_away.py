"""A node that returns on its old journal after longer than deletions are remembered."""

from __future__ import annotations

import pytest

from service.peers.register import AwayTooLong
from tests.service.client_model import batches_in, downloaded
from tests.service.cluster import RUN
from tests.service.peers.worlds import LAZY, cluster
from tests.settings import settings_with
from tests.simulation.virtual_time import VirtualClock

DAY_MS = 86_400_000
KEPT = settings_with(LAZY, runs={"expiration_days": 10}, compaction={"away_days": 5})


@pytest.mark.parametrize("bulk", [False, True])
def test_lines_that_may_have_been_deleted_meanwhile_are_not_served(bulk: bool) -> None:
    world, _ = cluster(1)
    world.settings = KEPT

    async def first(clock: VirtualClock) -> None:
        node = await world.start(clock, "a")
        await world.clients.send(node, clock, RUN, durability="bulk" if bulk else "durable")

    async def refused(clock: VirtualClock) -> None:
        node = await world.start(clock, "a")
        if bulk:  # the store has it, and knows what became of it
            assert (await node.close_run(RUN)) in ("closed", "closing")
            return
        error = await node.failed
        assert isinstance(error, AwayTooLong)
        assert "15 days" in str(error)
        assert not [call for call in world.lines["a"].calls if call[1].startswith("segments/")]

    async def served(clock: VirtualClock) -> None:
        node = await world.start(clock, "a")
        await clock.sleep(10.0)  # a reader waits for a node that starts, but not for so long
        assert len(batches_in(await downloaded(node, RUN))) == 1

    world.play(first)
    world.now_ms += 16 * DAY_MS
    world.play(refused)
    if not bulk:
        world.settings = settings_with(KEPT, compaction={"away_days": 50})
        world.play(served)


def test_a_node_that_was_away_for_less_serves_its_journal() -> None:
    world, _ = cluster(2)
    world.settings = KEPT

    async def first(clock: VirtualClock) -> None:
        await world.clients.send(await world.start(clock, "a"), clock, RUN)

    async def then(clock: VirtualClock) -> None:
        node = await world.start(clock, "a")
        await clock.sleep(10.0)  # a reader waits for a node that starts, but not for so long
        assert len(batches_in(await downloaded(node, RUN))) == 1

    world.play(first)
    world.now_ms += 9 * DAY_MS
    world.play(then)
