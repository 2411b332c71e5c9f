"""Several nodes on one store, in leaping time, each with a way to the store that can fail.

`Cluster.play` is a stretch of time with some processes, at whose end every one is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from service.ingest.batch import Durability
from service.node import Node
from service.peers.rpc import Network
from service.settings import Settings
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import OutcomeUnknown, StoreUnavailable
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.report import read_watermark
from tests.service.client_model import PatientClients, downloaded, paged
from tests.service.simulated_network import SimulatedTransport, Switchboard
from tests.service.simulated_node import SMALL, START_MS, TUNING, Life
from tests.service.store_checks import check_marks, check_numbers, view_of
from tests.settings import settings_with
from tests.simulation.backing import open_store
from tests.simulation.faulty_store import WRITES, FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

T = TypeVar("T")
RUN = RunKey("service.pipeline", "run")
OTHER = RunKey("service.pipeline", "other")
LEASE = 20.0
QUICK = settings_with(
    SMALL,
    coordination={"lease_seconds": LEASE},
    runs={"cleanup_interval_minutes": 5.0 / 60, "stream_timeout_minutes": 1.0},
)
QUICK_TUNING = replace(TUNING, takeover_seconds=3.0)


class Line(FaultyStore):
    """The way from one node to the store: it is slow, and can be cut.

    From call `dies_at` on nothing is answered any more: to all others the node is dead.
    """

    def __init__(self, inner: ObjectStore, dice: Random) -> None:
        super().__init__(inner, Schedule.none())
        self.cut = False
        self.dies_at: int | None = None
        self._dice = dice

    async def _step(self, name: str, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await asyncio.sleep(self._dice.choice([0.0, 0.01, 0.05, 0.4]))
        if self.dies_at is not None and len(self.calls) >= self.dies_at:
            await asyncio.Event().wait()
        if self.cut:
            raise StoreUnavailable("cut off")
        result = await super()._step(name, key, work)
        await asyncio.sleep(self._dice.choice([0.0, 0.01, 0.05, 0.4]))
        if self.cut:
            raise OutcomeUnknown("cut off") if name in WRITES else StoreUnavailable("cut off")
        return result


class Cluster:
    """Nodes with a folder and a line each, and one store."""

    def __init__(self, seed: int, settings: Settings = QUICK) -> None:
        self.seed = seed
        self.settings = settings
        self.dice = Random(f"cluster {seed}")
        self.fs = PowerCutFileSystem()
        self.clients = PatientClients(seed)
        self.lines: dict[str, Line] = {}
        self.lives = 0
        self.now_ms = START_MS
        self.switchboard: Switchboard | None = None
        """Without it, nodes have no way to each other."""

    def play(self, step: Callable[[VirtualClock], Awaitable[None]]) -> None:
        """A stretch of time, at whose end every process is killed."""

        async def go(clock: VirtualClock) -> int:
            await step(clock)
            return clock.now_ms()

        self.now_ms = simulate(go, start_ms=self.now_ms) + 1000
        self.fs.end_processes()
        if self.switchboard is not None:
            self.switchboard.kill(*self.switchboard.nodes)

    async def start(self, clock: VirtualClock, name: str) -> Node:
        self.lives += 1
        dice = Random(f"{self.seed} {self.lives}")
        line = self.lines[name] = Line(open_store(self.fs, clock, dice), dice)
        seed = self.seed * 1000 + self.lives
        life = Life(
            self.fs,
            clock,
            seed=seed,
            data=f"/{name}",
            name=name,
            settings=self.settings,
            tuning=QUICK_TUNING,
            store=line,
            network=self._network(f"{name}-{self.lives}"),
        )
        if self.switchboard is not None:
            self.switchboard.connect(f"{name}-{self.lives}", life.node)
        await life.node.start()
        return life.node

    def _network(self, url: str) -> Network | None:
        board = self.switchboard
        return None if board is None else Network(url, SimulatedTransport(board, url))

    async def write(self, node: Node, clock: VirtualClock, key: RunKey, count: int) -> None:
        for _ in range(count):
            durability: Durability = self.dice.choice(("durable", "bulk"))
            await self.clients.send(node, clock, key, durability=durability)
            await clock.sleep(self.dice.choice([0.0, 0.3, 1.5]))

    async def check_store(self, clock: VirtualClock) -> None:
        view = await view_of(open_store(self.fs, clock, Random(0)))
        check_numbers(view)
        check_marks(view, self.clients)
        check_chunks_once(view.texts, self.clients)

    def shipped(self, key: RunKey, text: bytes) -> None:
        """All `bulk` lines are there, once, whatever their order."""
        self.clients.check(key, text, where="text", ordered=False)


def check_chunks_once(texts: dict[RunKey, bytes], clients: PatientClients) -> None:
    for key, text in texts.items():
        lines = text.splitlines()
        assert len(lines) == len(set(lines)), f"lines twice in {key.run}"


async def read_whole(node: Node, key: RunKey) -> bytes:
    text = await downloaded(node, key)
    assert await paged(node, key, 3) == text
    return text


async def until_no_news(store: ObjectStore, node: str, clock: VirtualClock) -> None:
    """Until all segments of the node are below its watermark."""
    for _ in range(300):
        mark = await read_watermark(store, node)
        after = keys.segment(node, mark.seq)
        left = [i.key async for i in store.list(keys.segments_of(node), after=after)]
        if not left:
            return
        await clock.sleep(1.0)
    raise AssertionError(f"{left} stay behind")
