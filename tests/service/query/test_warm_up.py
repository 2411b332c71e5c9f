"""What the first search of a program leaves for the next one, so that it need not wait."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from typing import Any

import duckdb
import pytest

from service.query import engine as engine_module
from service.query.duckdb import LockedDatabase
from service.query.duckdb_process import Check
from tailrace.logstore.errors import StoreUnavailable
from tests.service.query.scattered import ALL
from tests.service.query.test_pool import Opening, clock, opening, pool, works
from tests.service.query.test_scan_copies import one_file
from tests.service.query.world import World, engine_of, search
from tests.waiting import until

__all__ = ["clock", "opening", "pool"]


def test_one_that_is_idle_is_enough(pool: Any, opening: Opening) -> None:
    pool.open_one()
    pool.open_one()
    assert len(opening.opened) == 1
    database = pool.take(separate=False)
    assert works(database)
    database.close()
    assert len(opening.opened) == 1
    opening.key = "rotated"  # what is idle cannot read the store any more
    pool.open_one()
    assert len(opening.opened) == 2
    pool.close()
    pool.open_one()
    assert len(opening.opened) == 2


def test_one_that_is_idle_is_not_away_while_its_pool_is_closed(
    pool: Any, opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that a thread has taken is closed later than the pool."""
    pool.open_one()
    session, taken = LockedDatabase.session, Event()

    def held(self: LockedDatabase) -> Any:
        taken.wait()
        return session(self)

    monkeypatch.setattr(LockedDatabase, "session", held)
    with ThreadPoolExecutor(1) as thread:
        try:
            wait([thread.submit(pool.open_one)], timeout=0.2)
            pool.close()
            with pytest.raises(duckdb.ConnectionException, match="closed"):
                session(opening.opened[0])
        finally:
            taken.set()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[LockedDatabase]:
    """The databases that engines open from now on."""
    found: list[LockedDatabase] = []
    real = engine_module.QueryEngine._open_database

    def noted(
        self: engine_module.QueryEngine, separate: bool, check: Check | None
    ) -> LockedDatabase:
        found.append(real(self, separate, check))
        return found[-1]

    monkeypatch.setattr(engine_module.QueryEngine, "_open_database", noted)
    return found


async def test_once_a_search_has_ended_the_next_one_finds_a_database(
    tmp_path: Path, opened: list[LockedDatabase]
) -> None:
    world = World(tmp_path)
    async with engine_of(world) as engine:
        assert not opened
        await search(engine, ALL)  # there is nothing to find
        await until(lambda: len(opened) == 1)
        await one_file(world)
        for _ in range(3):
            assert (await search(engine, ALL))[0] == world.expected(ALL)
        assert len(opened) == 1


async def test_a_store_that_does_not_answer_then_is_left_to_the_next_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    real = engine_module.QueryEngine._open_database

    def refused_once(
        self: engine_module.QueryEngine, separate: bool, check: Check | None
    ) -> LockedDatabase:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise StoreUnavailable("not now")
        return real(self, separate, check)

    monkeypatch.setattr(engine_module.QueryEngine, "_open_database", refused_once)
    world = World(tmp_path)
    async with engine_of(world) as engine:
        await search(engine, ALL)
        assert engine._warming is not None
        await engine._warming
        await one_file(world)
        assert (await search(engine, ALL))[0] == world.expected(ALL)
        assert asked == 2
