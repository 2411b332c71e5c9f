"""A live search over a journal that is drained, against a plain list of what was acknowledged."""

from __future__ import annotations

import asyncio
import random
import re
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from service.query.live_cursor import MatchedRecords, StreamCursor, behind_all
from service.query.live_search import LiveReader, SearchStart
from service.query.live_sources import missed
from service.query.request import RecordKey
from service.query.sources import Outdated
from tailrace.logstore import ulid
from tailrace.logstore.errors import InvalidCursor, InvalidInput, Unavailable
from tailrace.logstore.search.conditions import Condition, Contains
from tailrace.logstore.search.conditions import Matches as MatchesPattern
from tests.seeds import seeds, some
from tests.service.query.live.rig import (
    ALL,
    LIMITS,
    SMALL,
    WINDOW_MS,
    Seen,
    batch,
    enough,
    move,
    node_in,
)
from tests.service.query.world import NOW_MS
from tests.waiting import until


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
                seen.most = len(seen.keys) + dice.randrange(30)
                stop = asyncio.Event()
                until = partial(enough, seen, seen.most, stop)
                reading = asyncio.ensure_future(node.read(seen, until, request))
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
        seen.most = None
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
        await node.read(seen, lambda: True, start=SearchStart(low=ulid.lowest_at(NOW_MS - 1000)))
        node.clock.ms += 10_000
        await node.level(seen, 3)
        assert seen.late == []
        await node.shipped.append([batch(dice, NOW_MS - 100)])
        await node.shipped.flush()
        await node.shipped.merge()
        await node.level(seen, 6)
        assert len(seen.late) == 3


async def test_a_client_that_left_within_a_batch_gets_the_rest_of_it(tmp_path: Path) -> None:
    dice = random.Random(1)
    async with node_in(tmp_path) as node:
        seen = Seen()
        await node.read(seen, lambda: True)
        await node.shipped.append([batch(dice, NOW_MS - 60_000)])
        for most in (1, 2):
            seen.most = most
            await node.level(seen, most)
        seen.most = None
        await node.shipped.append([batch(dice, NOW_MS - 90_000)])
        await node.level(seen, 6)
        assert sorted(seen.keys) == sorted(node.world.records)
        assert seen.late == seen.keys


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
        start = SearchStart(low=ulid.lowest_at(NOW_MS - 6_500))
        await node.read(since, lambda: len(since.keys) >= 9, start=start)
        assert since.keys == ordered[-9:]
        await node.read(newest, lambda: len(newest.keys) >= 2, start=SearchStart(tail=2))
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
        pieces: list[list[MatchedRecords]] = [[], [], []]
        at_the_end: set[int] = set()  # those that are through with storage

        async def follow(number: int) -> None:
            reader, wait = LiveReader(node.live, ALL, WINDOW_MS, SearchStart()), node.waiting()

            def waiting() -> asyncio.Future[Literal["news", "heartbeat", "gone"]]:
                at_the_end.add(number)
                return wait()

            try:
                await reader.open()
                async with aclosing(reader.follow(waiting)) as found:
                    async for piece in found:
                        assert isinstance(piece, MatchedRecords)
                        several[number].take(piece)
                        pieces[number].append(piece)
                        if len(several[number].keys) == 3:
                            return
            finally:
                reader.close()

        readers = [asyncio.ensure_future(follow(n)) for n in range(3)]
        await until(lambda: len(at_the_end) == 3)
        await node.shipped.append([batch(dice, NOW_MS)])
        node.clock.ms += 5_000
        await asyncio.gather(*readers)
        assert len(node.live.__dict__["_followed"]) == 0
        assert all(found is pieces[0][n] for some in pieces for n, found in enumerate(some))


async def test_more_searches_than_may_be_are_refused(tmp_path: Path) -> None:
    async with node_in(tmp_path, replace(LIMITS, most_searches=1)) as node:
        first = LiveReader(node.live, ALL, WINDOW_MS, SearchStart())
        same = LiveReader(node.live, ALL, WINDOW_MS, SearchStart())
        with pytest.raises(Unavailable, match="1 different searches"):
            LiveReader(node.live, replace(ALL, fqn="other"), WINDOW_MS, SearchStart())
        first.close()
        same.close()


async def test_what_cannot_be_searched_is_said_before_it_begins(tmp_path: Path) -> None:
    async with node_in(tmp_path) as node:
        wrong = replace(ALL, condition=MatchesPattern("(?=look)"))
        reader = LiveReader(node.live, wrong, WINDOW_MS, SearchStart())
        with pytest.raises(InvalidInput, match="not a regular expression"):
            await reader.open()
        reader.close()
        far = StreamCursor({}, behind_all(ulid.lowest_at(NOW_MS + 10**9)))
        reader = LiveReader(node.live, ALL, WINDOW_MS, SearchStart(after=far))
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
