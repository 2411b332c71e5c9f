"""Live searches over two nodes: one store, a journal each, and a way between them that can be cut.

Readers go from node to node with their cursors. Batches are sent again to the other node.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from service.peers import rpc
from service.peers.register import Peers, Register
from service.peers.remote_feeds import JournalAnswers, RecordFeeds
from service.peers.remote_lines import RecordsOfOthers, answer_records
from service.peers.rpc import Network, NodeAddress, PeerRefused, PeerSilent
from service.query.live_cursor import StreamCursor
from service.query.live_search import LiveReader, SearchStart
from service.query.live_sources import LiveLimits, stored_ends
from service.query.sources import SearchSources
from tailrace.logstore import ulid
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import Conflict, TailraceError
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import record_batches
from tests.batches import Entry
from tests.seeds import seeds, some
from tests.service.query.live.rig import (
    ALL,
    LIMITS,
    SMALL,
    WINDOW_MS,
    Node,
    Seen,
    SetTime,
    batch,
    enough,
)
from tests.service.query.shipped import Shipped
from tests.service.query.world import NOW_MS, World, engine_of, lake_in

NAMES = ("a-01J00000000000000000000001", "b-01J00000000000000000000002")


@dataclass
class Way:
    """The way from one node to the others, which may be `cut`."""

    nodes: dict[str, tuple[Shipped, JournalAnswers]]
    cut: set[str] = field(default_factory=set)

    async def ask(self, address: NodeAddress, verb: str, body: bytes, seconds: float) -> bytes:
        if address.url in self.cut:
            await asyncio.sleep(0.001)
            raise PeerSilent(f"{address.node} is cut off after {seconds} s")
        shipped, journals = self.nodes[address.url]
        message = rpc.decode(body)
        try:
            if verb == "journal":
                answer = await journals.answer(message)
            elif verb == "records":
                answer = await answer_records(
                    shipped.pin, lambda batches: record_batches(batches, Carry()), message
                )
            else:
                answer = rpc.encode({})
        except TailraceError as error:
            raise PeerRefused(str(error)) from error
        if address.url in self.cut:
            raise PeerSilent(f"{address.node} was cut off")
        return answer

    async def close(self) -> None:
        return None


class Quick(SystemClock):
    """Pauses are short."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))

    def monotonic(self) -> float:
        return super().monotonic() * 100


class Standing(SystemClock):
    """Its time stands still; it counts who sleeps."""

    def __init__(self) -> None:
        self.sleeps = 0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        assert self.sleeps < 10, "it waits on"


@dataclass
class Both:
    """The two nodes. What is in the store can be listed for the feeds while that is `listed`."""

    world: World
    clock: SetTime
    nodes: list[Node]
    ways: list[Way]
    registers: list[Register]
    listed: asyncio.Event

    async def stored_ends(self, sources: SearchSources) -> Mapping[str, int]:
        await self.listed.wait()
        return await stored_ends(sources)

    def cut(self) -> None:
        for way in self.ways:
            way.cut |= way.nodes.keys()

    def heal(self) -> None:
        for way in self.ways:
            way.cut.clear()

    async def append(self, number: int, entries: list[Entry]) -> None:
        await self.nodes[number].shipped.append(entries)

    async def move(self, number: int, step: str) -> None:
        shipped = self.nodes[number].shipped
        if step == "flush":
            if shipped.journal.next_pos > shipped.journal.state.confirmed.end:
                await shipped.flush()
        elif shipped.seq > shipped.mark:
            await shipped.merge()


async def looked_at_all(both: Both) -> None:
    """Waits until the first node, of which somebody reads, has looked at all that was appended.

    What it looks at after the window is late, and these clocks jump over windows.
    """
    ends = {node.shipped.node: node.shipped.journal.next_pos for node in both.nodes}
    now = Seen()
    while now.cursor is None or now.cursor.seen != ends:
        now.cursor = None
        await both.nodes[0].read(now, lambda: True)
        await asyncio.sleep(0)  # a search that others follow is read without a pause


@asynccontextmanager
async def both_in(root: Path, limits: LiveLimits = LIMITS) -> AsyncIterator[Both]:
    world, clock = lake_in(root), SetTime()
    table: dict[str, tuple[Shipped, JournalAnswers]] = {}
    both = Both(world, clock, [], [], registers := [], asyncio.Event())
    both.listed.set()
    async with AsyncExitStack() as stack:
        for name in NAMES:
            shipped = Shipped(world, name)
            stack.push_async_callback(shipped.journal.close)
            table[name] = shipped, JournalAnswers(shipped.pin, Carry, Quick())
            way = Way(table)
            register = Register(world.store, SystemClock(), random.Random(name), Network(name, way))
            await register.publish(name)
            registers.append(register)
            peers = Peers(register, timeout_seconds=1.0)
            sources = replace(world.sources(), pin=shipped.pin, others=RecordsOfOthers(peers))
            engine = await stack.enter_async_context(
                engine_of(World(root / name, store=world.store), clock, sources=sources)
            )
            feeds = RecordFeeds(
                peers,
                Quick(),
                partial(both.stored_ends, sources),
                without_store=lambda: not both.listed.is_set(),
            )
            node = Node(world, engine, shipped, clock, limits, feeds)
            both.nodes.append(node)
            both.ways.append(way)
        for register in registers:
            await register.look()
        try:
            yield both
        finally:
            for node in both.nodes:
                await node.live.close()


async def test_a_reader_gets_what_the_other_node_has_just_taken(tmp_path: Path) -> None:
    dice = random.Random(1)
    async with both_in(tmp_path) as both:
        seen = Seen()
        await both.append(1, [batch(dice, NOW_MS - 60_000)])
        await both.nodes[0].read(seen, lambda: True)
        reading = asyncio.ensure_future(both.nodes[0].level(seen, 6))
        await both.append(1, [batch(dice, NOW_MS)])
        await both.append(0, [batch(dice, NOW_MS + 1)])
        await looked_at_all(both)
        both.clock.ms += 10_000
        await reading
        assert seen.keys == sorted(both.world.records)[3:]
        assert (seen.late, seen.gaps, seen.silent) == ([], [], [])


async def test_lines_come_without_the_store_that_came_before_the_reader_followed(
    tmp_path: Path,
) -> None:
    dice, seen = random.Random(7), Seen()
    async with both_in(tmp_path) as both:
        both.listed.clear()
        node = both.nodes[0]
        reader = LiveReader(node.live, ALL, WINDOW_MS, SearchStart())
        await reader.open()
        await both.append(1, [batch(dice, NOW_MS)])
        await looked_at_all(both)
        both.clock.ms += 10_000
        await node.read(Seen(), lambda: True)
        async with aclosing(reader.follow(node.waiting())) as pieces, asyncio.timeout(60):
            while len(seen.keys) < 3:
                seen.take(await anext(pieces))
        reader.close()
        assert seen.keys == sorted(both.world.records)
        assert (seen.late, seen.gaps, seen.silent) == ([], [], [])


async def test_a_silent_node_is_named_and_its_records_come_once_it_answers(tmp_path: Path) -> None:
    dice = random.Random(2)
    async with both_in(tmp_path) as both:
        a, b = both.nodes
        seen = Seen()
        await a.read(seen, lambda: True)
        await both.append(1, [batch(dice, NOW_MS + n) for n in range(2)])
        both.clock.ms += 2_001  # one of both is due
        await b.level(seen, 3)
        both.cut()
        await a.read(seen, lambda: bool(seen.silent))
        both.clock.ms += 10_000
        await both.append(0, [batch(dice, NOW_MS + 9_000)])
        await a.read(seen, lambda: len(seen.keys) >= 6)
        assert {*seen.silent} == {(NAMES[1],)}
        text = seen.cursor.encode() if seen.cursor else ""
        assert StreamCursor.decode(text) == seen.cursor
        assert seen.cursor is not None
        assert NAMES[1] in seen.cursor.given
        both.heal()
        await a.level(seen, 9)
        assert sorted(seen.keys) == sorted(both.world.records)
        assert len(seen.late) == 3
        assert seen.gaps == []


@asynccontextmanager
async def followed(node: Node, seen: Seen) -> AsyncIterator[None]:
    """Somebody reads of the node all the time, so its live end does not begin again."""
    stop = asyncio.Event()
    reading = asyncio.ensure_future(node.read(seen, stop.is_set))
    await node.read(Seen(), lambda: True)
    try:
        yield
    finally:
        stop.set()
        await reading


@pytest.mark.parametrize("removed", [False, True])
async def test_segments_of_a_silent_node_that_nobody_knows_of_yet_are_not_read(
    tmp_path: Path, removed: bool
) -> None:
    """Neither its first one, nor one whose predecessors are in the table only."""
    dice = random.Random(5)
    async with both_in(tmp_path) as both:
        a, b = both.nodes
        seen, other = Seen(), Seen()
        if removed:
            await both.append(0, [batch(dice, NOW_MS - 60_000)])
            for step in (a.shipped.flush, a.shipped.merge, a.shipped.remove):
                await step()
        await b.read(seen, lambda: True)
        async with followed(b, other):
            both.listed.clear()
            both.cut()
            await both.append(0, [batch(dice, NOW_MS)])
            await a.shipped.flush()
            known = set(both.world.records)
            await both.append(1, [batch(dice, NOW_MS + 1)])
            both.clock.ms += 10_000
            while len(other.keys) < 3:
                await asyncio.sleep(0.01)
            await b.level(seen, 3)  # from storage
            assert set(seen.keys) == set(both.world.records) - known
            both.listed.set()
            both.heal()
            await b.level(seen, 6)
        assert len(seen.keys) == len(set(seen.keys)) == 6
        assert len(seen.late) == 3


async def test_what_a_node_brought_into_segments_as_it_left_is_given(tmp_path: Path) -> None:
    dice = random.Random(6)
    async with both_in(tmp_path) as both:
        a, b = both.nodes
        seen = Seen()
        await b.read(seen, lambda: True)
        async with followed(b, Seen()):
            both.cut()
            await b.read(seen, lambda: bool(seen.silent))
            both.listed.clear()
            await both.append(0, [batch(dice, NOW_MS)])
            await a.shipped.flush()
            await both.registers[0].withdraw()
            await both.registers[1].look()
            both.listed.set()
            both.clock.ms += 10_000
            await b.level(seen, 3)
        assert sorted(seen.keys) == sorted(both.world.records)


async def test_a_node_that_stops_lets_nobody_wait_for_its_records(tmp_path: Path) -> None:
    shipped = Shipped(lake_in(tmp_path), NAMES[0])
    clock = Standing()
    answers = JournalAnswers(shipped.pin, Carry, clock, lambda: clock.sleeps >= 3)
    message = rpc.decode(rpc.encode({"start": 0, "seconds": 2}))
    try:
        with pytest.raises(Conflict, match="has stopped"):
            await answers.answer(message)
    finally:
        await shipped.journal.close()
    assert clock.sleeps == 3


async def test_a_late_batch_that_both_nodes_have_is_given_once(tmp_path: Path) -> None:
    dice = random.Random(3)
    async with both_in(tmp_path) as both:
        seen, one = Seen(), batch(dice, NOW_MS)
        await both.nodes[0].read(seen, lambda: True)
        await both.append(0, [one])
        both.clock.ms += 10_000
        await both.nodes[0].level(seen, 3)
        await both.append(1, [one, batch(dice, NOW_MS + 9_500)])
        both.clock.ms += 10_000
        await both.nodes[1].level(seen, 6)
        await both.append(0, [batch(dice, NOW_MS + 19_000)])
        both.clock.ms += 10_000
        await both.nodes[0].level(seen, 9)
        assert seen.keys == sorted(both.world.records)
        assert seen.late == []


@pytest.mark.parametrize("seed", some(seeds(5), 2, "live over nodes"))
async def test_readers_that_change_nodes_get_each_record_once(tmp_path: Path, seed: int) -> None:
    """With ways that are cut, or batches of which both nodes have a copy.

    While a node is silent, nobody can know of what only its journal has that it is a copy.
    """
    dice = random.Random(f"live over nodes {seed}")
    cuts = seed % 2 == 0
    async with both_in(tmp_path, SMALL if dice.random() < 0.3 else LIMITS) as both:
        seen = Seen()
        await both.nodes[0].read(seen, lambda: True)
        for _ in range(14):
            node = dice.choice(both.nodes)
            seen.most, stop = len(seen.keys) + dice.randrange(30), asyncio.Event()
            until = partial(enough, seen, seen.most, stop)
            reading = asyncio.ensure_future(node.read(seen, until))
            for _ in range(dice.randrange(1, 6)):
                both.clock.ms += dice.randrange(1_500)
                at = both.clock.ms + dice.choice([0, 0, -300, -1_500, -30_000, 4_000])
                entries = [batch(dice, at) for _ in range(dice.randrange(1, 3))]
                first = dice.randrange(2)
                await both.append(first, entries)
                if not cuts and dice.random() < 0.3:  # the answer was lost
                    await asyncio.sleep(dice.choice([0, 0.02]))
                    await both.append(1 - first, entries)
                await asyncio.sleep(dice.random() * 0.02)
                if dice.random() < 0.3:
                    await both.move(dice.randrange(2), dice.choice(["flush", "merge"]))
            stop.set()
            await reading
            dice.choice([both.heal, both.heal, both.cut if cuts else both.heal])()
        both.heal()
        both.clock.ms += 60_000
        seen.most = None
        expected = set(both.world.expected(ALL))
        await both.nodes[dice.randrange(2)].level(seen, len(expected))
        missing = sorted(expected - set(seen.keys))
        assert not missing
        assert len(seen.keys) == len(expected)
        late = set(seen.late)
        on_time = [key for key in seen.keys if key not in late]
        assert on_time == sorted(on_time)


async def test_it_begins_with_the_newest_of_both(tmp_path: Path) -> None:
    dice = random.Random(4)
    async with both_in(tmp_path) as both:
        for n in range(6):
            await both.append(n % 2, [batch(dice, NOW_MS - 9_000 + n * 1_000)])
        ordered, newest, since = sorted(both.world.records), Seen(), Seen()
        await both.nodes[0].read(newest, lambda: len(newest.keys) >= 5, start=SearchStart(tail=5))
        assert newest.keys == ordered[-5:]
        start = SearchStart(low=ulid.lowest_at(NOW_MS - 6_500))
        await both.nodes[1].read(since, lambda: len(since.keys) >= 9, start=start)
        assert since.keys == ordered[-9:]
