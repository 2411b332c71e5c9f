"""Data folders that were cloned, or restored from an older copy, go on against one store.

Both copies hold the same incarnation, the same unshipped lines and the same next segment
number. Whoever finds that out forks. Nothing that the copies held or took afterwards is
lost or doubled, also when segments race and when they were consumed and are gone.
"""

from __future__ import annotations

import asyncio

import pytest

from service.node import Node
from tests.seeds import seeds, some
from tests.service.shipping.copies import CLONE, MINE, OTHER, YOURS, Copies
from tests.service.simulated_node import DATA
from tests.service.store_checks import check_shipped, view_of
from tests.simulation.virtual_time import VirtualClock


@pytest.mark.parametrize("seed", some(seeds(12), 3, "node copies"))
def test_a_clone_and_its_original_go_on_at_once(seed: int) -> None:
    copies = Copies(seed)
    copies.before()
    copies.copy(DATA, CLONE)
    nodes: list[Node] = []

    async def both(clock: VirtualClock) -> None:
        nodes.extend(
            await asyncio.gather(
                copies.live(clock, DATA, MINE, 3), copies.live(clock, CLONE, YOURS, 4)
            )
        )

    copies.play(both)
    assert [node.forks for node in nodes] in ([0, 1], [1, 0])
    copies.end_well(CLONE)


@pytest.mark.parametrize("seed", some(seeds(6), 3, "node copies"))
def test_a_clone_starts_after_its_original_went_on(seed: int) -> None:
    copies = Copies(seed)
    copies.before()
    copies.copy(DATA, CLONE)

    async def one_after_another(clock: VirtualClock) -> None:
        await copies.live(clock, DATA, MINE, 3)
        clone = await copies.live(clock, CLONE, YOURS, 3)
        assert clone.forks == 1

    copies.play(one_after_another)
    copies.end_well(CLONE)


@pytest.mark.parametrize("seed", some(seeds(6), 3, "node copies"))
def test_what_the_original_shipped_was_consumed_and_is_gone(seed: int) -> None:
    """Only the marks of table and texts tell the clone that its numbers are taken."""
    copies = Copies(seed)
    copies.before()
    copies.copy(DATA, CLONE)

    async def go(clock: VirtualClock) -> None:
        original = await copies.live(clock, DATA, MINE, 3)
        await copies.consume(clock, original.identity.node)
        clone = await copies.live(clock, CLONE, YOURS, 3)
        assert clone.forks == 1
        view = await view_of(copies.store(clock))
        assert original.identity.node not in view.segments, "the clone went on under the name"

    copies.play(go)
    copies.end_well(CLONE, kept=False)


@pytest.mark.parametrize("seed", some(seeds(6), 3, "node copies"))
def test_an_older_copy_is_restored_over_a_newer_folder(seed: int) -> None:
    copies = Copies(seed)
    copies.before()
    copies.copy(DATA, CLONE)

    async def newer(clock: VirtualClock) -> None:
        await copies.live(clock, DATA, MINE, 5)

    async def older(clock: VirtualClock) -> None:
        node = await copies.live(clock, DATA, YOURS, 3)
        assert node.forks == 1
        check_shipped(await view_of(copies.store(clock)), copies.clients, once=False)

    copies.play(newer)
    copies.remove(DATA)
    copies.copy(CLONE, DATA)
    copies.play(older)
    copies.end_well()


@pytest.mark.parametrize("seed", some(seeds(6), 3, "node copies"))
def test_a_copy_of_a_copy(seed: int) -> None:
    """Forks fork again, and know all that their parents left."""
    copies = Copies(seed)
    copies.before()
    copies.copy(DATA, CLONE)
    copies.copy(DATA, "/third")

    async def go(clock: VirtualClock) -> None:
        await asyncio.gather(copies.live(clock, DATA, MINE, 3), copies.live(clock, CLONE, YOURS, 3))
        third = await copies.live(clock, "/third", OTHER, 2)
        assert third.forks == 1

    copies.play(go)
    copies.copy("/third", "/fourth")

    async def again(clock: VirtualClock) -> None:
        await asyncio.gather(
            copies.live(clock, "/third", YOURS, 2), copies.live(clock, "/fourth", MINE, 2)
        )

    copies.play(again)
    copies.end_well(CLONE, "/third", "/fourth")
