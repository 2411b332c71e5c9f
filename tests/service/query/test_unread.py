"""Searches whose clients do not read make room for others, and lose nothing by it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from service.query.engine import RunningSearch
from service.query.request import QueryRequest, RecordKey, TimeRangeSizes
from service.query.search import Search
from service.query.text_scan import Prefilter
from tailrace.logstore import ulid
from tailrace.logstore.errors import LimitReached
from tailrace.logstore.search.conditions import Contains
from tests.service.query.test_limits import ALL, at_rest, big, endless
from tests.service.query.test_skipping import GROUP_ROWS, RARE, RUN, batch_at, put_in_table
from tests.service.query.world import HOUR_MS, NOW_MS, RUNS, World, engine_of, search
from tests.simulation.hand_clock import HandClock
from tests.waiting import until

ROWS = 40_000
HOURLY = TimeRangeSizes(first_bytes=1, largest_bytes=1)


def keys(batch: pa.RecordBatch) -> list[RecordKey]:
    columns = [batch.column(name).to_pylist() for name in ("ulid", "fqn", "run_id")]
    return [RecordKey(*key) for key in zip(*columns, strict=True)]


class Slow:
    """A client that takes a batch when it is told to."""

    def __init__(self, running: RunningSearch) -> None:
        self.running = running
        self.found: list[RecordKey] = []
        self._batches: AsyncGenerator[pa.RecordBatch] = running.batches()

    async def take(self) -> bool:
        batch = await anext(self._batches, None)
        self.found += keys(batch) if batch is not None else []
        return batch is not None

    async def close(self) -> None:
        await self._batches.aclose()
        await self.running.close()


@pytest.mark.parametrize(
    "request_",
    [
        ALL,
        replace(ALL, descending=False),
        replace(ALL, limit=30_000),
        replace(ALL, fqn=RUNS[0].fqn),
    ],
)
async def test_unread_searches_hold_up_nobody_and_go_on_where_they_were(
    tmp_path: Path, request_: QueryRequest
) -> None:
    clock, world = HandClock(), big(tmp_path, 40, 1_000)
    async with engine_of(world, clock, max_concurrent=2, max_waiting=2) as engine:
        whole, stats = await search(engine, request_)
        slow = [Slow(await engine.open(request_)) for _ in range(2)]
        for client in slow:
            assert await client.take()
        await clock.advance(0.2)
        more = True
        while more:
            # All slots are taken by who does not read, and yet it has its turn.
            found, _ = await search(engine, replace(ALL, limit=1))
            assert len(found) == 1
            more = all([await client.take() for client in slow])
            await clock.advance(0.2)
        for client in slow:
            assert client.found == whole
            after = client.running.stats()
            assert (after["matches"], after["next"]) == (stats["matches"], stats["next"])
            await client.close()
        assert engine.stopped == 0


async def test_without_others_an_unread_search_keeps_its_place(tmp_path: Path) -> None:
    clock, world = HandClock(), big(tmp_path, 40, 1_000)
    async with engine_of(world, clock, max_concurrent=1) as engine:
        client = Slow(await engine.open(ALL))
        assert await client.take()
        await clock.advance(1)
        assert engine.running == 1
        waiting = asyncio.ensure_future(search(engine, replace(ALL, limit=1)))
        assert len((await waiting)[0]) == 1
        assert engine.running == 0, "it stands aside, and has nothing to do"
        while await client.take():
            pass
        assert len(client.found) == len(set(client.found)) == ROWS
        await client.close()


async def test_the_next_batch_is_found_while_the_client_has_one(tmp_path: Path) -> None:
    async with engine_of(big(tmp_path, 40, 1_000)) as engine:
        client = Slow(await engine.open(ALL))
        assert await client.take()
        given = len(client.found)
        await at_rest(client.running)
        assert given < client.running.stats()["matches"] <= 2 * given
        await client.close()


def then_endless(root: Path) -> tuple[World, QueryRequest]:
    """A search that finds a batch, and then never another, nor its end."""
    world = endless(root)
    put_in_table(world, [batch_at(0, ["needle-in-a-haystack"])])
    return world, replace(ALL, condition=Contains("needle-in-a-haystack"), descending=False)


async def test_what_is_looked_for_ahead_holds_up_nobody(tmp_path: Path) -> None:
    clock, (world, asked) = HandClock(), then_endless(tmp_path)
    async with engine_of(world, clock, sizes=HOURLY, max_concurrent=1) as engine:
        client = Slow(await engine.open(asked))
        assert await client.take()
        await clock.advance(0.2)
        found, _ = await search(engine, replace(asked, high=ulid.lowest_at(NOW_MS - 1)))
        assert found == client.found
        more = asyncio.ensure_future(client.take())
        while not engine.running:
            await asyncio.sleep(0)
        await clock.advance(61)
        with pytest.raises(LimitReached, match="after 60 s"):
            await more
        await client.close()
        assert engine.stopped == 1


async def test_a_pause_ends_what_is_looked_for_ahead_between_two_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, looked = World(tmp_path), list[Any]()
    for hour, groups in ((0, 1), (1, 3)):
        at = ulid.lowest_at(NOW_MS - hour * HOUR_MS)
        put_in_table(world, [(RUN, at, b"needle-in-a-haystack\n" * groups * GROUP_ROWS)])
    await world.index()
    second, may_go_on, candidates = threading.Event(), threading.Event(), Prefilter.candidates

    def noting(self: Prefilter, *work: Any) -> Any:
        looked.append(work)
        if len(looked) == 2:
            second.set()
            may_go_on.wait(10)
        return candidates(self, *work)

    monkeypatch.setattr(Prefilter, "candidates", noting)
    async with engine_of(world, sizes=HOURLY, scan_copies_bytes=0) as engine:
        client = Slow(await engine.open(RARE))
        assert await client.take()
        await asyncio.to_thread(second.wait, 10)
        pausing = client.running.pause()
        may_go_on.set()
        await pausing
        assert len(looked) == 2
        while await client.take():
            pass
        assert client.found == world.expected(RARE)
        await client.close()


async def test_a_pause_behind_the_last_batch_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That batch was found, and then dropped, as the search did not come to its end."""
    request, loop = replace(ALL, limit=9_000), asyncio.get_running_loop()
    async with engine_of(big(tmp_path, 10, 1_000)) as engine:
        client = Slow(await engine.open(request))
        finished, paused = vars(Search)["finished"].fget, threading.Event()

        def pausing(self: Search) -> bool:
            found = bool(finished(self))
            if found and not paused.is_set():
                loop.call_soon_threadsafe(client.running.pause)
                database = client.running._database
                assert database is not None
                while database._stopped is None:
                    time.sleep(0.001)
                paused.set()
            return found

        monkeypatch.setattr(Search, "finished", property(pausing))
        assert await client.take()
        await until(paused.is_set)
        while await client.take():
            pass
        assert len(client.found) == len(set(client.found)) == 9_000
        assert client.found == (await search(engine, request))[0]
        await client.close()


async def test_a_client_that_leaves_ends_what_is_looked_for_ahead(tmp_path: Path) -> None:
    world, asked = then_endless(tmp_path)
    async with engine_of(world, sizes=HOURLY) as engine:
        client = Slow(await engine.open(asked))
        assert await client.take()
        assert engine.running == 1
        await client.close()
        assert engine.running == engine.stopped == 0


async def test_the_end_waits_for_a_pause_that_is_under_way(tmp_path: Path) -> None:
    async with engine_of(big(tmp_path, 40, 1_000), max_concurrent=1) as engine:
        client = Slow(await engine.open(replace(ALL, limit=1)))
        assert await client.take()
        assert client.running.ended
        pausing = client.running.pause()
        assert not await client.take()
        assert pausing.done()
        assert client.running.pause() is pausing
        assert engine.running == 0
        await client.close()


async def test_of_too_many_that_are_not_read_the_first_ends(tmp_path: Path) -> None:
    clock, world = HandClock(), big(tmp_path, 40, 1_000)
    async with engine_of(world, clock, max_concurrent=1, max_waiting=2) as engine:
        clients = []
        for _ in range(4):
            clients.append(Slow(await engine.open(ALL)))
            assert await clients[-1].take()
            await clock.advance(0.2)
        found, _ = await search(engine, replace(ALL, limit=1))
        assert len(found) == 1
        for client in clients[:2]:
            with pytest.raises(LimitReached, match="nothing was taken"):
                await client.take()
        for client in clients[2:]:
            while await client.take():
                pass
            assert len(client.found) == ROWS
        assert world.pins == 2
        for client in clients:
            await client.close()


async def test_a_client_that_leaves_while_its_search_stands_aside(tmp_path: Path) -> None:
    clock, world = HandClock(), big(tmp_path, 40, 1_000)
    async with engine_of(world, clock, max_concurrent=1, stall_seconds=20) as engine:
        clients = [Slow(await engine.open(ALL))]
        assert await clients[0].take()
        await clock.advance(0.2)
        clients.append(Slow(await engine.open(ALL)))
        await clients[0].close()
        assert await clients[1].take()
        await clock.advance(0.2)
        found, _ = await search(engine, replace(ALL, limit=1))
        assert len(found) == 1
        await clock.advance(21)  # it takes nothing while it stands aside
        with pytest.raises(LimitReached, match="nothing was taken"):
            await clients[1].take()
        await clients[1].close()
