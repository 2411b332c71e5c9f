"""A world of data folders that are cloned and restored, over one store.

`consume` stands for the compactor: it notes what the table holds from then on, raises the
mark and `low`, and removes the segments, as `compactor/cleanup.py` does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from random import Random

from service.node import Node
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.report import raise_watermark, read_watermark
from tests.service.client_model import PatientClients, batches_in
from tests.service.node_simulation import check_end, check_reads, sweeping_life
from tests.service.simulated_node import DATA, START_MS, Life
from tests.service.store_checks import Shipped, view_of
from tests.simulation.backing import open_store
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

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
        self.clients = PatientClients(seed)
        self.marks: dict[str, int] = {}
        self.table: set[tuple[RunKey, int]] = set()
        self.lives = 0
        self.now_ms = START_MS

    def play(self, step: Step) -> None:
        """One stretch of time, at whose end every process is killed."""

        async def go(clock: VirtualClock) -> int:
            await step(clock)
            return clock.now_ms()

        self.now_ms = simulate(go, start_ms=self.now_ms) + 1000
        self.fs.end_processes()

    def life(
        self, clock: VirtualClock, data: str = DATA, *, store: ObjectStore | None = None
    ) -> Life:
        self.lives += 1
        return Life(
            self.fs,
            clock,
            seed=self.seed * 100 + self.lives,
            data=data,
            store=store,
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
        mark = await read_watermark(store, node)
        assert mark.seq > 0
        before, self.marks[node] = self.marks.get(node, 0), mark.seq
        taken = [s for s in view.segments[node] if s.seq <= mark.seq]
        self.table |= _lines(s for s in taken if s.seq > before)
        gone = [s.seq for s in taken]
        await raise_watermark(store, node, fresh_id=lambda: "0" * 26, low=max(gone) + 1)
        await store.delete([keys.segment(node, seq) for seq in gone])

    async def check_taken(self, clock: VirtualClock) -> None:
        """All that is owed is in the table, or in a segment that it will still take."""
        view = await view_of(self.store(clock))
        found = set(self.table)
        for node, segments in view.segments.items():
            mark = self.marks.get(node, 0)
            found |= _lines(s for s in segments if s.seq > mark)
        for key in self.clients.runs():
            lost = {(key, number) for number in self.clients.owed(key)} - found
            assert not lost, f"in no segment that will be taken: {sorted(lost)}"


def _lines(segments: Iterable[Shipped]) -> set[tuple[RunKey, int]]:
    """Run and number of each batch."""
    return {(key, batches_in(text)[0]) for s in segments for key, _, _, text in s.batches}
