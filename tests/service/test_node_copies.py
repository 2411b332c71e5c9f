"""Data folders that were cloned, or restored from an older copy, go on against one store.

Both copies hold the same incarnation, the same unshipped lines and the same next segment
number. Whoever finds that out forks. Nothing that the copies held or took afterwards is
lost or doubled, also when segments race and when they were consumed and are gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from logstore import keys
from logstore.batch import RunKey
from logstore.objects.store import ObjectStore
from logstore.runs.textmark import raise_text_mark, read_text_mark
from service.node import Node
from tests.backing import open_store
from tests.powercut import PowerCutFileSystem
from tests.seeds import seeds
from tests.service.client_model import Clients
from tests.service.node_story import check_end, check_reads, sweeping_life
from tests.service.simulated_node import DATA, START_MS, Life
from tests.service.store_checks import check_shipped, view_of
from tests.virtual_time import VirtualClock, simulate

CLONE = "/clone"
COMMON = RunKey("service.pipeline", "common")
OTHER = RunKey("service.pipeline", "other")
MINE = RunKey("service.pipeline", "of-the-original")
YOURS = RunKey("service.pipeline", "of-the-clone")
DAY_MS = 86_400_000

Step = Callable[[VirtualClock], Awaitable[None]]


class Copies:
    """A disk with a store and data folders, over several processes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = Random(f"copies {seed}")
        self.fs = PowerCutFileSystem()
        self.clients = Clients(seed)
        self.marks: dict[str, int] = {}
        self.lives = 0
        self.now_ms = START_MS

    def play(self, step: Step) -> None:
        """One stretch of time, at whose end every process is killed."""

        async def go(clock: VirtualClock) -> int:
            await step(clock)
            return clock.now_ms()

        self.now_ms = simulate(go, start_ms=self.now_ms) + 1000
        self.fs.end_processes()

    def life(self, clock: VirtualClock, data: str = DATA) -> Life:
        self.lives += 1
        return Life(
            self.fs,
            clock,
            seed=self.seed * 100 + self.lives,
            data=data,
            table_mark=lambda node: self.marks.get(node, 0),
        )

    def store(self, clock: VirtualClock) -> ObjectStore:
        return open_store(self.fs, clock, self.dice)

    async def write(self, node: Node, clock: VirtualClock, key: RunKey, count: int) -> None:
        """Sends batches, some with pauses in which segments are cut."""
        for _ in range(count):
            await self.clients.send(node, clock, key, named=self.dice.random() < 0.5)
            await clock.sleep(self.dice.choice([0.0, 0.3, 1.5]))

    def copy(self, source: str, target: str) -> None:
        """Copies a folder, file by file."""
        self.fs.make_folders(target)
        for name, is_folder in list(self.fs.scan(source)):
            if is_folder:
                self.copy(f"{source}/{name}", f"{target}/{name}")
                continue
            file = self.fs.open(f"{source}/{name}", "read")
            made = self.fs.open(f"{target}/{name}", "create")
            made.write([file.pread(file.size(), 0)])
            made.sync()
        self.fs.sync_folder(target)

    def remove(self, folder: str) -> None:
        """Removes a folder with all that is in it."""
        for name, is_folder in list(self.fs.scan(folder)):
            if is_folder:
                self.remove(f"{folder}/{name}")
            else:
                self.fs.unlink(f"{folder}/{name}")
        self.fs.remove_folder(folder)

    def before(self) -> None:
        """Lines that are shipped, lines that are not, then kill -9."""

        async def step(clock: VirtualClock) -> None:
            node = self.life(clock).node
            await node.start()
            await self.write(node, clock, COMMON, 4)
            await clock.sleep(self.dice.choice([0.0, 1.0, 5.0]))
            await self.write(node, clock, COMMON, 2)
            await self.clients.send(node, clock, OTHER)

        self.play(step)

    async def live(self, clock: VirtualClock, data: str, key: RunKey, count: int) -> Node:
        """A process that writes and stops gracefully."""
        node = self.life(clock, data).node
        await node.start()
        await self.write(node, clock, key, count)
        await clock.sleep(self.dice.choice([5.0, 30.0]))
        await self.write(node, clock, key, 1)
        await node.stop()
        assert not node.failed.done()
        return node

    def end_well(self, *folders: str, kept: bool = True) -> None:
        """Closes everything at every node, sweeps, and checks; `kept`: so are all segments."""

        async def close(clock: VirtualClock) -> None:
            for folder in (*folders, DATA):
                node = self.life(clock, folder).node
                await node.start()
                for key in self.clients.runs():
                    assert await node.close_run(key) == "closed"
                await check_reads(node, self.clients)
                assert node.problems() == []
                await node.stop()

        async def sweep(clock: VirtualClock) -> None:
            await sweeping_life(self.life(clock), self.clients)
            if kept:
                await check_end(self.fs, clock, self.clients, forks=True)

        self.play(close)
        self.now_ms += 2 * DAY_MS
        self.play(sweep)

    async def consume(self, clock: VirtualClock, node: str) -> None:
        """What the compactor does with the segments that the texts have: the table has
        them too, and after the grace they are gone."""
        store = self.store(clock)
        view = await view_of(store)
        mark = await read_text_mark(store, node)
        assert mark.seq > 0
        self.marks[node] = mark.seq
        gone = [s.seq for s in view.segments[node] if s.seq <= mark.seq]
        await raise_text_mark(store, node, fresh_id=lambda: "0" * 26, low=max(gone) + 1)
        await store.delete([keys.segment(node, seq) for seq in gone])


@pytest.mark.parametrize("seed", seeds(12))
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


@pytest.mark.parametrize("seed", seeds(6))
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


@pytest.mark.parametrize("seed", seeds(6))
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


@pytest.mark.parametrize("seed", seeds(6))
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


@pytest.mark.parametrize("seed", seeds(6))
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
