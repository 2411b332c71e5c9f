"""What the first search of a program leaves for the next one, so that it need not wait."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from typing import Any

import duckdb
import pytest

from service.query import engine as engine_module
from service.query import engine as module
from service.query.duckdb import LockedDatabase
from service.query.duckdb_process import Check
from service.query.engine import prefault, read_only
from tailrace.logstore.errors import StoreUnavailable
from tailrace.logstore.process import memory_limit
from tests.service.query.scattered import ALL
from tests.service.query.test_pool import Opening, clock, opening, pool, works
from tests.service.query.test_scan_copies import one_file
from tests.service.query.world import World, engine_of, search
from tests.waiting import until

__all__ = ["clock", "opening", "pool"]

MAPS = """\
55d0a000-55d0b000 r--p 00000000 fe:00 11 /usr/bin/python3.11
7f0000000000-7f0000002000 r--p 00000000 fe:00 12 /a folder/pyarrow/libarrow.so.2600
7f0000002000-7f0000012000 r-xp 00002000 fe:00 12 /a folder/pyarrow/libarrow.so.2600
7f0000012000-7f0000013000 rw-p 00012000 fe:00 12 /a folder/pyarrow/libarrow.so.2600
7f0000013000-7f0000014000 ---p 00012000 fe:00 12 /a folder/pyarrow/libarrow.so.2600
7f0000020000-7f0000021000 r-xp 00000000 fe:00 13 /a folder/pyarrow/libarrow_flight.so.2600
7f0000030000-7f0000031000 r-xp 00000000 fe:00 14 /a folder/_duckdb.cpython-311-x86_64-linux-gnu.so
7f0000040000-7f0000041000 rw-p 00000000 00:00 0
7f0000050000-7f0000051000 r-xp 00000000 00:00 0 [vdso]
"""


def test_only_what_nobody_writes_to_is_mapped() -> None:
    assert list(read_only(MAPS.splitlines())) == [
        (0x7F0000000000, 0x2000),
        (0x7F0000002000, 0x10000),
        (0x7F0000030000, 0x1000),
    ]


def can_populate() -> bool:
    """Whether the system maps pages beforehand: Linux from 5.14 on."""
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        try:
            page.madvise(module._MADV_POPULATE_READ)
        except (OSError, ValueError, AttributeError):
            return False
    return sys.platform == "linux" and memory_limit() >= module._LEAST_MEMORY


@pytest.mark.skipif(not can_populate(), reason="this system cannot map pages beforehand")
def test_the_code_of_libraries_is_in_memory_afterwards() -> None:
    assert prefault() > 50 << 20
    names = {line.rsplit("/", 1)[-1] for line in resident_in_full()}
    for library in ("_duckdb.", "libarrow.", "libparquet."):
        assert any(name.startswith(library) for name in names), names


def resident_in_full() -> Sequence[str]:
    """Headings of `/proc/self/smaps`, of code of which all is in memory."""
    found, heading, size = list[str](), "", ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line[0] in "0123456789abcdef":
            heading = line
        elif line.startswith("Size:"):
            size = line.split()[1]
        elif line.startswith("Rss:") and line.split()[1] == size and " r-xp " in heading:
            found.append(heading)
    return found


def test_with_little_memory_nothing_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "memory_limit", lambda: (1 << 30) - 1)
    assert prefault.__wrapped__() == 0


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
    tmp_path: Path, opened: list[LockedDatabase], monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped: list[Callable[[], int]] = []
    monkeypatch.setattr(engine_module, "prefault", lambda: mapped.append(prefault))
    world = World(tmp_path)
    async with engine_of(world) as engine:
        assert not opened
        await search(engine, ALL)  # there is nothing to find
        await until(lambda: len(opened) == 1)
        assert len(mapped) == 1
        await one_file(world)
        for _ in range(3):
            assert (await search(engine, ALL))[0] == world.expected(ALL)
        assert len(opened) == len(mapped) == 1


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
