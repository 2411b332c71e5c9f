"""The age of a loop's last turn, and that the node's loops turn, rest and hang as they say."""

from __future__ import annotations

from service.runtime.health import Heartbeat
from tests.simulation.virtual_time import VirtualClock, simulate


def test_ages_are_counted_from_the_last_turn_and_the_last_success() -> None:
    async def scenario(clock: VirtualClock) -> None:
        heart = Heartbeat(clock)
        await clock.sleep(10)
        assert (heart.age_seconds, heart.success_age_seconds) == (10, 10)
        heart.turn()
        await clock.sleep(5)
        assert (heart.age_seconds, heart.success_age_seconds) == (5, 15)
        heart.success()
        await clock.sleep(1)
        assert (heart.age_seconds, heart.success_age_seconds) == (6, 1)

    simulate(scenario, start_ms=0)


def test_a_loop_at_rest_is_alive_until_it_turns_and_hangs() -> None:
    async def scenario(clock: VirtualClock) -> None:
        heart = Heartbeat(clock)
        heart.rest()
        await clock.sleep(1000)
        assert heart.age_seconds == 0
        heart.turn()
        await clock.sleep(1000)
        assert heart.age_seconds == 1000

    simulate(scenario, start_ms=0)
