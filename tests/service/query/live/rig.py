"""A node whose journal is drained while live searches read it, and what readers were given."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from service.http.live_query import events
from service.query.engine import QueryEngine
from service.query.live_cursor import MatchedRecords, StreamCursor
from service.query.live_search import LiveMatches, LiveReader, SearchStart, Silent
from service.query.live_sources import Gap, LiveLimits, LivePeers
from service.query.request import QueryRequest, RecordKey
from tailrace.logstore import ulid
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.segments.detect import Carry
from tests.batches import Entry
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
    """What readers with one cursor after another were given.

    Of the piece in which `most` are reached, the rest is not taken, as by a client that left.
    """

    most: int | None = None
    keys: list[RecordKey] = field(default_factory=list)
    late: list[RecordKey] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    silent: list[tuple[str, ...]] = field(default_factory=list)
    cursor: StreamCursor | None = None

    def take(self, piece: MatchedRecords | Gap | Silent | StreamCursor | None) -> None:
        if isinstance(piece, Silent):
            self.silent.append(piece.nodes)
        elif isinstance(piece, StreamCursor):
            self.cursor = piece
        elif isinstance(piece, Gap):
            self.gaps.append(piece.reason)
            self.cursor = piece.cursor
        elif piece is not None:
            keys = RecordKey.of(piece.batch)
            if self.most is not None:
                keys = keys[: max(self.most - len(self.keys), 0)]
            if keys:
                self.cursor = StreamCursor.decode(_ids(piece)[len(keys) - 1])
            self.keys += keys
            self.late += keys if piece.late is not None else []


def _ids(piece: MatchedRecords) -> list[str]:
    """What a client is told to go on with behind each record."""
    ids = [line[4:] for line in events(piece).splitlines() if line.startswith(b"id: ")]
    return [text.decode() for text in ids]


@dataclass
class Node:
    """A node whose live end can be made anew, as after a crash."""

    world: World
    engine: QueryEngine
    shipped: Shipped
    clock: SetTime
    limits: LiveLimits = LIMITS
    others: LivePeers | None = None
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
        start: SearchStart | None = None,
    ) -> None:
        """A reader that goes on at the cursor until it has seen enough."""
        given = (
            SearchStart(after=seen.cursor) if seen.cursor is not None else start or SearchStart()
        )
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
