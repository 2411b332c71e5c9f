"""Several drivers share nodes: each node one driver's, none forgotten, whoever is killed."""

from __future__ import annotations

import asyncio

import pytest

from compactor.assignment import Assignment
from tailrace.coordination.partitions import Status, ruled_out
from tailrace.logstore.errors import PreconditionFailed, StoreUnavailable
from tests.compactor.drivers import LIMITS, PATIENCE_SECONDS, SOURCE, Drivers, play
from tests.simulation.faulty_store import Fault, Schedule

NODES = ["a", "b", "c", "d"]


def test_one_driver_has_all_and_gives_all_back() -> None:
    async def scenario(drivers: Drivers) -> None:
        async with drivers.joined("x") as assignment:
            assert await assignment.claim(NODES, NODES) == NODES
            settled = [assignment.settled]
            assert await assignment.claim(NODES, ["b", "c"]) == ["b", "c"]
            assert [*settled, assignment.settled] == [False, True]
            assignment.check(NODES)
            entries = await drivers.seen()
            assert list(entries) == [f"compact/{node}" for node in NODES]
            assert all(entry.held and entry.owner for entry in entries.values())
        entries = await drivers.seen()
        assert {entry.status for entry in entries.values()} == {Status.CLOSED}
        async with drivers.joined("y") as assignment:
            assert await assignment.claim(NODES, NODES) == NODES, "free at once"

    play(scenario)


def test_what_another_driver_holds_is_left_to_it() -> None:
    async def scenario(drivers: Drivers) -> None:
        async with drivers.joined("x") as first, drivers.joined("y") as second:
            assert await first.claim(NODES, NODES) == NODES
            assert await second.claim(NODES, NODES) == []
            with pytest.raises(PreconditionFailed, match="compact/a"):
                second.check(["a"])
            first.check(NODES)

    play(scenario)


def test_nodes_are_handed_over_between_batches_until_each_has_its_part() -> None:
    async def scenario(drivers: Drivers) -> None:
        async with drivers.joined("x") as first, drivers.joined("y") as second:
            await first.claim(NODES, NODES)
            mine: list[str] = []
            for _ in range(40):  # of both, a batch takes five seconds
                mine = await first.claim(NODES, NODES)
                first.check(mine)
                theirs = await second.claim(NODES, NODES)
                second.check(theirs)
                assert not set(mine) & set(theirs)
                await drivers.clock.sleep(5)
            assert sorted(mine + theirs) == NODES
            assert (len(mine), len(theirs)) == (2, 2)

    play(scenario)


@pytest.mark.parametrize("nodes", [["a", "b"], ["a", "b", "c"], NODES])
def test_one_that_comes_when_all_is_taken_waits_for_its_part(nodes: list[str]) -> None:
    async def scenario(drivers: Drivers) -> None:
        async with drivers.joined("x") as first, drivers.joined("y") as second:
            assert await first.claim(nodes, nodes) == nodes

            async def work() -> None:
                while True:  # a batch takes twenty seconds
                    await drivers.clock.sleep(20)
                    await first.claim(nodes, nodes)

            working = asyncio.create_task(work())
            start = drivers.clock.monotonic()
            while not (theirs := await second.claim(nodes, nodes)):
                assert await second.wait(), "it is owed some"
            assert drivers.clock.monotonic() - start <= 60, "a beat and a batch"
            await drivers.clock.sleep(100)
            working.cancel()
            mine, theirs = await first.claim(nodes, nodes), await second.claim(nodes, nodes)
            assert sorted(mine + theirs) == nodes
            assert abs(len(mine) - len(theirs)) <= 1

    play(scenario)


def test_one_that_is_owed_nothing_does_not_wait() -> None:
    async def scenario(drivers: Drivers) -> None:
        async with drivers.joined("x") as first, drivers.joined("y") as second:
            assert await second.wait() is False, "it has not asked"
            assert await first.claim(["a"], ["a"]) == ["a"]
            assert await second.claim(["a"], ["a"]) == []
            assert await second.wait() is False

    play(scenario)


async def waited(drivers: Drivers, assignment: Assignment) -> float:
    """For how long it waits in vain."""
    start = drivers.clock.monotonic()
    while not await assignment.claim(NODES, NODES) and await assignment.wait():
        pass
    return drivers.clock.monotonic() - start


def test_the_dead_and_the_stubborn_are_not_waited_for_without_end() -> None:
    async def scenario(drivers: Drivers) -> None:
        await drivers.killed("x", NODES)
        async with drivers.joined("y") as assignment:
            assert 50 <= await waited(drivers, assignment) <= 80, "until it counts as gone"
            await drivers.clock.sleep(LIMITS.lease_seconds)
            assert await assignment.claim(NODES, NODES) == NODES
        async with drivers.joined("x") as stubborn, drivers.joined("y") as assignment:
            assert await stubborn.claim(NODES, NODES) == NODES
            assert 0 <= await waited(drivers, assignment) - PATIENCE_SECONDS <= 5

    play(scenario)


def test_leases_are_kept_however_long_a_batch_takes() -> None:
    async def scenario(drivers: Drivers) -> None:
        async with drivers.joined("x") as assignment:
            await assignment.claim(NODES, NODES)
            await drivers.clock.sleep(5 * LIMITS.lease_seconds)
            assignment.check(NODES)

    play(scenario)


def test_nodes_of_a_killed_driver_are_taken_over_when_its_time_is_over() -> None:
    async def scenario(drivers: Drivers) -> None:
        await drivers.killed("x", NODES)
        async with drivers.joined("y") as assignment:
            await drivers.clock.sleep(LIMITS.lease_seconds - 1)
            assert await assignment.claim(NODES, NODES) == []
            await drivers.clock.sleep(4)
            assert await assignment.claim(NODES, NODES) == NODES

    play(scenario)


def test_a_driver_that_starts_again_as_who_it_was_need_not_wait() -> None:
    async def scenario(drivers: Drivers) -> None:
        await drivers.killed("x", NODES, configured=True)
        await drivers.clock.sleep(1)
        async with drivers.driver("x", configured=True).joined() as assignment:
            assert await assignment.claim(NODES, NODES) == NODES

    play(scenario)


def test_a_driver_that_was_suspended_learns_that_its_nodes_are_anothers() -> None:
    async def scenario(drivers: Drivers) -> None:
        zombie = await drivers.forsaken("x", NODES)
        zombie.check(NODES)
        await drivers.clock.sleep(LIMITS.lease_seconds + 3)
        async with drivers.joined("y") as assignment:
            assert await assignment.claim(NODES, NODES) == NODES
            with pytest.raises(PreconditionFailed):
                zombie.check(["a"])
            assert await zombie.claim(NODES, NODES) == []

    play(scenario)


def test_a_lease_that_somebody_deleted_counts_not_found_and_stops_the_driver() -> None:
    async def scenario(drivers: Drivers) -> None:
        async with drivers.joined("x") as assignment:
            await assignment.claim(NODES, NODES)
            partitions = drivers.leases("operator")
            gone = await partitions.get(SOURCE, "compact/b")
            assert gone is not None
            await partitions.delete(gone)
            await drivers.clock.sleep(LIMITS.lease_seconds / 3 + 60)
            with pytest.raises(PreconditionFailed, match="compact/b"):
                assignment.check(NODES)
            assignment.check(["a", "c", "d"])
            assert drivers.made[0].counters[SOURCE].not_found == 1
            assert await assignment.claim(NODES, NODES) == NODES, "made anew"

    play(scenario)


def test_a_node_that_an_operator_failed_is_an_alarm_until_it_is_reset() -> None:
    async def scenario(drivers: Drivers) -> None:
        async with drivers.joined("x") as assignment:
            await assignment.claim(NODES, NODES)
        partitions = drivers.leases("operator")
        one = await partitions.get(SOURCE, "compact/b")
        assert one is not None
        bad = await partitions.change(one, ruled_out(one, "poison", drivers.clock.now_ms()))
        async with drivers.joined("x") as assignment:
            assert await assignment.claim(NODES, NODES) == ["a", "c", "d"]
            assert list(assignment.barred) == ["compact/b is FAILED and waits to be reset: poison"]
            await partitions.delete(bad)
            assert await assignment.claim(NODES, NODES) == NODES
            assert list(assignment.barred) == []

    play(scenario)


def test_the_lease_of_a_node_without_segments_goes() -> None:
    async def scenario(drivers: Drivers) -> None:
        async with drivers.joined("x") as assignment:
            await assignment.claim(NODES, NODES)
        async with drivers.joined("x") as assignment:
            assert await assignment.claim(["a", "c"], ["c"]) == ["c"]
        assert list(await drivers.seen()) == ["compact/a", "compact/c"]

    play(scenario)


def test_a_store_that_is_away_is_an_error_and_never_no_work() -> None:
    async def scenario(drivers: Drivers) -> None:
        async with drivers.joined("x") as assignment:
            drivers.store.schedule = Schedule(dict.fromkeys(range(1, 100), Fault.UNAVAILABLE))
            with pytest.raises(StoreUnavailable):
                await assignment.claim(NODES, NODES)
            drivers.store.schedule = Schedule.none()
            assert await assignment.claim(NODES, NODES) == NODES
            drivers.store.schedule = Schedule(dict.fromkeys(range(1, 1000), Fault.UNAVAILABLE))
        # It ended all the same: what could not be given back runs out.
        drivers.store.schedule = Schedule.none()
        assert all(entry.held for entry in (await drivers.seen()).values())

    play(scenario)


def test_one_driver_costs_few_requests_of_the_store() -> None:
    async def scenario(drivers: Drivers) -> None:
        many = [f"node-{i:02}" for i in range(20)]
        counts = []
        for _ in range(3):
            before = len(drivers.store.calls)
            async with drivers.joined("x") as assignment:
                assert await assignment.claim(many, many) == many
                for _ in range(10):
                    assert await assignment.claim(many, many) == many
            requests = [c for c in drivers.store.calls[before:] if not c.startswith("list item")]
            counts.append(len(requests))
        assert max(counts) <= 25, counts
        before = len(drivers.store.calls)
        async with drivers.joined("x"):
            await drivers.clock.sleep(3600)
        assert drivers.store.calls[before:] == [], "nothing to do, nothing leased"

    play(scenario)
