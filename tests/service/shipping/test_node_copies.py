"""Data folders that were cloned, or restored from an older copy, go on against one store.

Both copies hold the same incarnation, the same unshipped lines and the same next segment
number. Whoever finds that out forks. Nothing that the copies held or took afterwards is
lost or doubled, also when segments race and when they were consumed and are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import orjson
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


@pytest.mark.parametrize("earlier", [False, True])
def test_a_fork_knows_at_each_start_which_files_it_took_over(earlier: bool) -> None:
    """Also one that an `earlier` version made, which did not write them down."""
    copies = Copies(1)
    copies.before()
    copies.copy(DATA, CLONE)

    forks: list[Node] = []

    async def start(clock: VirtualClock) -> None:
        if not forks:
            await copies.live(clock, DATA, MINE, 3)
        forks.append(copies.life(clock, CLONE).node)
        await forks[-1].start()
        while not forks[0].forks or not forks[-1].ready:
            await clock.sleep(0.1)
        await copies.clients.send(forks[-1], clock, YOURS)

    copies.play(start)
    if earlier:
        write_over(copies, f"{CLONE}/node.json", without=("files", "shared"))
    copies.play(start)
    before, after = [fork.identity for fork in forks]
    assert before.parents
    assert before.files
    assert after.node == before.node
    if earlier:  # and its own ones, which no cursor has under the parent's name
        assert set(after.files) > set(before.files)
    else:
        assert after == before
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


def write_over(copies: Copies, path: str, *, without: Sequence[str]) -> None:
    """As a version wrote it that did not know some members yet."""
    file = copies.fs.open(path, "read")
    kept = orjson.loads(file.pread(file.size(), 0))
    file.close()
    for name in without:
        del kept[name]
    copies.fs.unlink(path)
    file = copies.fs.open(path, "create")
    file.write([orjson.dumps(kept)])
    file.close()
