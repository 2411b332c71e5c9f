"""A live search over a journal that is drained, against a plain list of what was acknowledged."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from logstore import ulid
from logstore.clock import SystemClock
from logstore.errors import InvalidCursor, InvalidInput, Unavailable
from logstore.search.conditions import Condition, Contains
from logstore.search.conditions import Matches as MatchesPattern
from logstore.segments.carry import Carry
from service.query.cursor import RecordKey
from service.query.engine import QueryEngine
from service.query.live.cursor import StreamCursor, behind_all
from service.query.live.elsewhere import OtherNodes
from service.query.live.followed import LiveLimits
from service.query.live.matches import LiveMatches
from service.query.live.reader import LiveReader, Silent, Start
from service.query.live.reorder import Matches
from service.query.live.storage import Gap, missed
from service.query.request import QueryRequest
from service.query.view import Outdated
from tests.batches import Entry
from tests.seeds import seeds, some
from tests.service.query.shipped import Shipped
from tests.service.query.world import NOW_MS, RUNS, WORDS, World, engine_of, lake_in

ALL = QueryRequest(descending=False)
WINDOW_MS = 2_000
LIMITS = LiveLimits(look_seconds=0.002)
SMALL = replace(LIMITS, ring_bytes=2_000, waiting_bytes=3_000, behind_bytes=100)


@dataclass
class SetTime(SystemClock):
    """The machine's clock for waiting, and a time of day that is set."""

    ms: int = NOW_MS

    def now_ms(self) -> int:
        return self.ms


@dataclass
class Seen:
    """What readers with one cursor after another were given."""

    keys: list[RecordKey] = field(default_factory=list)
    late: list[RecordKey] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    silent: list[tuple[str, ...]] = field(default_factory=list)
    cursor: StreamCursor | None = None

    def take(self, piece: Matches | Gap | Silent | StreamCursor | None) -> None:
        if isinstance(piece, Silent):
            self.silent.append(piece.nodes)
        elif isinstance(piece, StreamCursor):
            self.cursor = piece
        elif isinstance(piece, Gap):
            self.gaps.append(piece.reason)
            self.cursor = piece.cursor
        elif piece is not None:
            rows = piece.batch.to_pylist()
            keys = [RecordKey(row["ulid"], row["fqn"], row["run_id"]) for row in rows]
            self.keys += keys
            self.late += keys if piece.late is not None else []
            self.cursor = piece.after


@dataclass
class Node:
    """A node whose live end can be made anew, as after a crash."""

    world: World
    engine: QueryEngine
    shipped: Shipped
    clock: SetTime
    limits: LiveLimits = LIMITS
    others: OtherNodes | None = None
    live: LiveMatches = field(init=False)
    _news: list[asyncio.Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.live = LiveMatches(
            self.engine,
            replace(self.world.sources(), pin=self.shipped.pin),
            pin=self.shipped.pin,
            carry=Carry,
            wake=self._wake,
            limits=self.limits,
            others=self.others,
        )

    def _wake(self) -> None:
        for event in self._news:
            event.set()

    def waiting(self) -> Callable[[], asyncio.Future[Literal["news", "heartbeat", "gone"]]]:
        event = asyncio.Event()
        self._news.append(event)

        async def wait() -> Literal["news", "heartbeat", "gone"]:
            event.clear()
            await event.wait()
            return "news"

        return lambda: asyncio.ensure_future(wait())

    async def read(
        self,
        seen: Seen,
        until: Callable[[], bool],
        request: QueryRequest = ALL,
        start: Start | None = None,
    ) -> None:
        """A reader that goes on at the cursor until it has seen enough."""
        given = Start(after=seen.cursor) if seen.cursor is not None else start or Start()
        reader = LiveReader(self.live, request, WINDOW_MS, given)
        try:
            await reader.open()
            seen.cursor = reader.cursor
            async with aclosing(reader.follow(self.waiting())) as pieces, asyncio.timeout(60):
                while not until():
                    step = asyncio.ensure_future(anext(pieces))
                    while not step.done() and not until():
                        await asyncio.wait({step}, timeout=0.01)
                    if not step.done():
                        step.cancel()
                        await asyncio.wait({step})
                        break
                    seen.take(step.result())
        finally:
            reader.close()

    async def level(self, seen: Seen, wanted: int, request: QueryRequest = ALL) -> None:
        """Reads until so many were seen."""
        await self.read(seen, lambda: len(seen.keys) >= wanted, request)


@asynccontextmanager
async def node_in(root: Path, limits: LiveLimits = LIMITS) -> AsyncIterator[Node]:
    world, clock = lake_in(root), SetTime()
    shipped = Shipped(world)
    sources = replace(world.sources(), pin=shipped.pin)
    async with engine_of(world, clock, sources=sources) as engine:
        node = Node(world, engine, shipped, clock, limits)
        try:
            yield node
        finally:
            await node.live.close()
    await shipped.journal.close()


def batch(dice: random.Random, at_ms: int) -> Entry:
    text = "".join(f"{dice.choice(WORDS)} {dice.randrange(50)}\n" for _ in range(3))
    return dice.choice(RUNS), ulid.lowest_at(at_ms) | dice.getrandbits(55) << 25, text.encode()


def enough(seen: Seen, count: int, stop: asyncio.Event) -> bool:
    return stop.is_set() or len(seen.keys) >= count


async def move(node: Node, step: str) -> None:
    if step == "flush":
        await node.shipped.flush()
    elif node.shipped.seq > node.shipped.mark:
        await node.shipped.merge()


@pytest.mark.parametrize("seed", some(seeds(6), 3, "live"))
async def test_readers_that_come_and_go_get_each_record_once(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    conditions: list[Condition | None] = [None, Contains("e"), MatchesPattern("fail|slow")]
    request = replace(ALL, condition=dice.choice(conditions))
    small = dice.random() < 0.5
    limits = SMALL if small else LIMITS
    async with node_in(tmp_path, limits) as node:
        seen = Seen()
        await node.read(seen, lambda: True, request)
        for _ in range(12):
            reading = None
            if dice.random() < 0.8:
                stop_at = len(seen.keys) + dice.randrange(30)
                stop = asyncio.Event()
                reading = asyncio.ensure_future(
                    node.read(
                        seen,
                        partial(enough, seen, stop_at, stop),
                        request,
                    )
                )
            for _ in range(dice.randrange(1, 8)):
                node.clock.ms += dice.randrange(1_500)
                at = node.clock.ms + dice.choice([0, 0, -300, -1_500, -30_000, 4_000])
                await node.shipped.append([batch(dice, at) for _ in range(dice.randrange(1, 4))])
                await asyncio.sleep(dice.random() * 0.02)
                if dice.random() < 0.4:
                    await move(node, dice.choice(["flush", "merge"]))
            if reading is not None:
                stop.set()
                await reading
            if dice.random() < 0.3:
                await node.live.close()
                node.start()
        node.clock.ms += 60_000
        expected = set(node.world.expected(request))
        await node.level(seen, len(expected), request)
        assert set(seen.keys) == expected
        assert len(seen.keys) == len(expected)
        assert seen.gaps == []
        late = set(seen.late)
        on_time = [key for key in seen.keys if key not in late]
        assert on_time == sorted(on_time)
        assert len(on_time) > 5


@pytest.mark.usefixtures("every_store")
async def test_a_late_record_is_marked_and_not_lost(tmp_path: Path) -> None:
    dice = random.Random(1)
    async with node_in(tmp_path) as node:
        seen = Seen()
        await node.shipped.append([batch(dice, NOW_MS)])
        await node.read(seen, lambda: True, start=Start(low=ulid.lowest_at(NOW_MS - 1000)))
        node.clock.ms += 10_000
        await node.level(seen, 3)
        assert seen.late == []
        await node.shipped.append([batch(dice, NOW_MS - 100)])
        await node.shipped.flush()
        await node.shipped.merge()
        await node.level(seen, 6)
        assert len(seen.late) == 3


@pytest.mark.usefixtures("every_store")
async def test_records_of_segments_that_are_gone_are_a_gap(tmp_path: Path) -> None:
    dice = random.Random(1)
    async with node_in(tmp_path) as node:
        seen = Seen()
        await node.read(seen, lambda: True)
        await node.shipped.append([batch(dice, NOW_MS - 60_000), batch(dice, NOW_MS)])
        await node.shipped.flush()
        await node.shipped.merge()
        await node.shipped.remove()
        node.clock.ms += 10_000
        await node.read(seen, lambda: len(seen.keys) >= 3 and bool(seen.gaps))
        assert len(seen.keys) == 3, "those that came in time are there"
        assert seen.keys == sorted(seen.keys)


async def test_a_cursor_of_another_node_is_a_gap(tmp_path: Path) -> None:
    async with node_in(tmp_path) as node:
        seen = Seen(cursor=StreamCursor({"elsewhere": 7}, behind_all(ulid.lowest_at(NOW_MS))))
        await node.read(seen, lambda: bool(seen.gaps))
        assert "node-01" in seen.gaps[0]


async def test_it_begins_at_a_time_or_with_the_newest(tmp_path: Path) -> None:
    dice = random.Random(1)
    async with node_in(tmp_path) as node:
        await node.shipped.append([batch(dice, NOW_MS - 9_000 + n * 1_000) for n in range(6)])
        ordered = sorted(node.world.records)
        since, newest = Seen(), Seen()
        start = Start(low=ulid.lowest_at(NOW_MS - 6_500))
        await node.read(since, lambda: len(since.keys) >= 9, start=start)
        assert since.keys == ordered[-9:]
        await node.read(newest, lambda: len(newest.keys) >= 2, start=Start(tail=2))
        assert newest.keys == ordered[-2:]


async def test_a_record_ahead_of_the_clock_waits_for_its_time(tmp_path: Path) -> None:
    dice = random.Random(1)
    async with node_in(tmp_path) as node:
        seen, ahead = Seen(), batch(dice, NOW_MS + 20_000)
        await node.read(seen, lambda: True)
        await node.shipped.append([ahead])
        node.clock.ms += 5_000
        await node.shipped.append([batch(dice, node.clock.ms)])
        node.clock.ms += WINDOW_MS + 1
        await node.level(seen, 3)
        assert ulid.encode(ahead[1]) not in [key.ulid for key in seen.keys]
        node.clock.ms = NOW_MS + 20_000 + WINDOW_MS + 1
        await node.level(seen, 6)
        assert seen.keys == sorted(node.world.records)
        assert seen.late == []


async def test_a_moment_holds_nothing_that_came_later(tmp_path: Path) -> None:
    dice = random.Random(1)
    async with node_in(tmp_path) as node:
        await node.shipped.append([batch(dice, NOW_MS)])
        expected = sorted(node.world.records)
        followed = node.live.follow(ALL, WINDOW_MS)
        moment = await node.live.moment(followed)
        later = behind_all(ulid.lowest_at(NOW_MS + 60_000))
        moment = replace(moment, cursor=replace(moment.cursor, last=later))
        start = replace(moment.cursor, last=behind_all(1))
        sources = replace(node.world.sources(), pin=node.shipped.pin)

        async def found() -> list[RecordKey]:
            seen = Seen()
            async for piece in missed(node.engine, sources, ALL, moment, start):
                seen.take(piece)
            return seen.keys

        await node.shipped.append([batch(dice, NOW_MS + 1)])
        await node.shipped.flush()
        assert await found() == expected
        await node.shipped.merge()
        with pytest.raises(Outdated):
            await found()
        moment.pin.release()
        with pytest.raises(Outdated):
            await found()
        node.live.leave(followed)


async def test_readers_of_a_search_share_its_work(tmp_path: Path) -> None:
    dice = random.Random(1)
    async with node_in(tmp_path) as node:
        several = [Seen() for _ in range(3)]
        pieces: list[list[Matches]] = [[], [], []]

        async def follow(number: int) -> None:
            reader = LiveReader(node.live, ALL, WINDOW_MS, Start())
            try:
                await reader.open()
                async with aclosing(reader.follow(node.waiting())) as found:
                    async for piece in found:
                        assert isinstance(piece, Matches)
                        several[number].take(piece)
                        pieces[number].append(piece)
                        if len(several[number].keys) == 3:
                            return
            finally:
                reader.close()

        readers = [asyncio.ensure_future(follow(n)) for n in range(3)]
        await asyncio.sleep(0.1)
        await node.shipped.append([batch(dice, NOW_MS)])
        node.clock.ms += 5_000
        await asyncio.gather(*readers)
        assert len(node.live.__dict__["_followed"]) == 0
        assert all(found is pieces[0][n] for some in pieces for n, found in enumerate(some))


async def test_more_searches_than_may_be_are_refused(tmp_path: Path) -> None:
    async with node_in(tmp_path, replace(LIMITS, most_searches=1)) as node:
        first = LiveReader(node.live, ALL, WINDOW_MS, Start())
        same = LiveReader(node.live, ALL, WINDOW_MS, Start())
        with pytest.raises(Unavailable, match="1 different searches"):
            LiveReader(node.live, replace(ALL, fqn="other"), WINDOW_MS, Start())
        first.close()
        same.close()


async def test_what_cannot_be_searched_is_said_before_it_begins(tmp_path: Path) -> None:
    async with node_in(tmp_path) as node:
        wrong = replace(ALL, condition=MatchesPattern("(?=look)"))
        reader = LiveReader(node.live, wrong, WINDOW_MS, Start())
        with pytest.raises(InvalidInput, match="not a regular expression"):
            await reader.open()
        reader.close()
        far = StreamCursor({}, behind_all(ulid.lowest_at(NOW_MS + 10**9)))
        reader = LiveReader(node.live, ALL, WINDOW_MS, Start(after=far))
        with pytest.raises(InvalidCursor, match="time to come"):
            await reader.open()
        reader.close()


@pytest.mark.parametrize(
    "text", ["", "q1.abc", "t1.e30", "t1.W10.01M8433041K1V7HVDT6E000000", "t1.e30.x"]
)
def test_what_is_no_cursor(text: str) -> None:
    with pytest.raises(InvalidCursor, match=re.escape("not a cursor of a live search")):
        StreamCursor.decode(text)


def test_cursors_are_read_as_they_were_written() -> None:
    for last in (behind_all(5), RecordKey(ulid.encode(7), "späße.a", "run/1")):
        cursor = StreamCursor({"node-01": 3, "b": 0}, last)
        assert StreamCursor.decode(cursor.encode()) == cursor
