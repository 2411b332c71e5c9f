"""Nodes that shed load: at most a third at once, never the last, and no outage comes of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest

from service.peers.shedding import SLOT_MS, Load, Shedding, decode_slots
from service.settings import NodesSettings
from tailrace.coordination.lease import StoreTime
from tailrace.logstore import keys
from tailrace.logstore.errors import Damaged, StoreUnavailable
from tailrace.logstore.objects.store import DateSample, ObjectStore
from tests.seeds import seeds
from tests.service.cluster import Line
from tests.simulation.backing import open_store
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

START_MS = 1_800_000_000_000
ROUNDS = 240


@dataclass
class Server:
    """A node of a model: batches wait in it, and it works off `power` of them a second."""

    name: str
    power: float
    world: World
    waiting: float = 0.0
    told: float = 0.0
    silent: bool = False
    skew_ms: int = 0
    shedding: Shedding = field(init=False)
    line: Line = field(init=False)

    @property
    def instance(self) -> str:
        return self.name

    def measured(self, _: float) -> float:
        return self.waiting / (self.power * 10)

    def loads(self) -> list[float]:
        return [s.told for s in self.world.servers if s is not self and not s.silent]

    async def report_load(self, load: float) -> None:
        if self.line.cut:
            raise StoreUnavailable("cut off")
        self.told = load


@dataclass
class World:
    """Some servers on one store, whose clock is right; theirs are not."""

    seed: int
    number: int
    servers: list[Server] = field(default_factory=list)

    def open(self, clock: VirtualClock) -> None:
        fs, dice = PowerCutFileSystem(), Random(self.seed)
        for number in range(self.number):
            server = Server(f"n{number}", 10.0, self)
            server.line = Line(open_store(fs, clock, Random(number)), dice)
            server.skew_ms = dice.randrange(-60_000, 60_000)
            self.servers.append(server)
            server.shedding = self.made(server, server.line, clock, dice)

    def made(
        self, server: Server, store: ObjectStore, clock: VirtualClock, dice: Random
    ) -> Shedding:
        def newest() -> DateSample:
            now = clock.monotonic()
            second = clock.now_ms() // 1000 * 1000
            return DateSample(second, now, now, clock.now_ms() + server.skew_ms)

        time = StoreTime(clock, newest)
        return Shedding(server, store, clock, dice, time, server.measured)

    @property
    def shedding(self) -> list[str]:
        return [server.name for server in self.servers if server.shedding.active]


@pytest.mark.parametrize("seed", seeds(6))
def test_shedding_cannot_become_an_outage(seed: int) -> None:
    """Producers send more than some servers can do, or all; servers lose the store meanwhile."""
    dice = Random(seed)
    world = World(seed, dice.choice([3, 4, 6, 7]))
    counts: Counter[str] = Counter()

    async def go(clock: VirtualClock) -> int:
        world.open(clock)
        tasks = [asyncio.create_task(server.shedding.run()) for server in world.servers]
        for second in range(ROUNDS):
            offered = world.number * 10 * (1.5 if 60 <= second < 180 else 0.6)
            if second % 20 == 0:
                for server in world.servers:
                    server.power = dice.choice([2.0, 10.0, 20.0])
                    server.line.cut = dice.random() < 0.2
            await clock.sleep(1.0)
            assert len(world.shedding) <= world.number // 3, world.shedding
            counts["shed"] += len(world.shedding)
            for _ in range(round(offered)):  # each tries at random until one takes it
                tries = dice.sample(world.servers, world.number)
                taker = next(s for s in tries if not s.shedding.active)
                taker.waiting += 1
            for server in world.servers:
                server.waiting = max(0.0, server.waiting - server.power)
        for server in world.servers:
            server.waiting, server.line.cut = 0.0, False
        await clock.sleep(30)
        assert world.shedding == []
        for task in tasks:
            task.cancel()
        return 0

    simulate(go, start_ms=START_MS)
    assert counts["shed"] > 0


def test_one_or_two_nodes_never_shed() -> None:
    async def go(clock: VirtualClock) -> int:
        for number in (1, 2):
            world = World(1, number)
            world.open(clock)
            world.servers[0].waiting = 1e9
            for _ in range(30):
                await clock.sleep(1)
                await world.servers[0].shedding.look(0)
            assert world.shedding == []
        return 0

    simulate(go, start_ms=START_MS)


def test_nobody_sheds_if_nobody_has_room_or_answers() -> None:
    async def go(clock: VirtualClock) -> int:
        world = World(2, 3)
        world.open(clock)
        first, second, third = world.servers
        first.waiting = 1e9
        second.told = third.told = 1.5
        await first.shedding.look(0)
        assert world.shedding == []
        third.told = 0.5
        await clock.sleep(6)
        await first.shedding.look(0)
        assert world.shedding == ["n0"]
        second.silent = third.silent = True
        await first.shedding.look(0)
        assert world.shedding == []
        return 0

    simulate(go, start_ms=START_MS)


def test_a_slot_ends_by_itself_when_the_store_is_away() -> None:
    async def go(clock: VirtualClock) -> int:
        world = World(3, 3)
        world.open(clock)
        first, second, _ = world.servers
        first.waiting = second.waiting = 1e9
        await first.shedding.look(0)
        await second.shedding.look(0)
        assert world.shedding == ["n0"]
        first.line.cut = True
        for _ in range(SLOT_MS // 1000 + 2):
            await clock.sleep(1)
            await first.shedding.look(0)
        assert world.shedding == []
        await clock.sleep(6)
        await second.shedding.look(0)
        assert world.shedding == ["n1"], "the slot is free"
        return 0

    simulate(go, start_ms=START_MS)


def test_the_load_is_the_largest_share_of_what_counts() -> None:
    values = {"fullness": 0.4, "lag": 60.0}
    settings = NodesSettings()

    def load(settings: NodesSettings) -> Load:
        return Load(
            settings, fullness=lambda: values["fullness"], lag_seconds=lambda: values["lag"]
        )

    assert load(settings)(0.0) == pytest.approx(0.5)
    values["lag"] = 240.0
    assert load(settings)(0.0) == pytest.approx(2.0)
    none = settings.model_copy(update={"shed_lag_seconds": 0.0, "shed_journal_share": 0.0})
    late = load(none)
    assert late(0.0) == 0.0
    for _ in range(20):
        last = late(1.0)
    assert last == pytest.approx(2.0, rel=0.01)


def test_damaged_slots_are_taken_for_empty() -> None:
    world = World(3, 3)

    async def go(clock: VirtualClock) -> list[str]:
        world.open(clock)
        await world.servers[0].line.put(keys.SHEDDING, b"{")
        world.servers[0].waiting = 1000.0
        runs = [asyncio.ensure_future(server.shedding.run()) for server in world.servers]
        await clock.sleep(10.0)
        shedding = world.shedding
        for run in runs:
            run.cancel()
        return shedding

    assert simulate(go, start_ms=START_MS) == ["n0"]


@pytest.mark.parametrize("body", [b"", b"[]", b'{"ulid": "x"}', b'{"ulid": "x", "until_ms": [1]}'])
def test_what_holds_no_slots(body: bytes) -> None:
    with pytest.raises(Damaged, match=keys.SHEDDING):
        decode_slots(body)
