"""Databases that searches use one after the other: nothing of one is left for the next."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from service.query.duckdb import Connection, Database, LockedDatabase, in_this_process
from service.query.duckdb_process import Check, ProcessConnection
from service.query.engine import DatabasePool
from service.settings import QuerySettings
from tailrace.logstore.errors import Damaged, InvalidInput, LimitReached, TailraceError
from tests.e2e.processes import works as works_on
from tests.settings import changed
from tests.simulation.hand_clock import HandClock

ROWS = 40_000  # more than a piece


@dataclass
class Opening:
    """Opens databases, and knows of each whether it is open."""

    root: Path
    opened: list[LockedDatabase] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    key: Hashable = None

    def __call__(self, separate: bool, check: Check | None = None) -> LockedDatabase:
        def connect(config: Mapping[str, Any]) -> Connection:
            if not separate:
                return in_this_process(config)
            process = ProcessConnection(config, patience_seconds=10, check=check)
            self.processes.append(process.pid)
            return process

        spill = str(self.root / f"spill-{len(self.opened)}")
        settings = changed(QuerySettings(), memory_bytes=64 << 20, threads=1)
        self.opened.append(LockedDatabase(settings, [], spill, connect=connect))
        return self.opened[-1]


@pytest.fixture
def opening(tmp_path: Path) -> Opening:
    return Opening(tmp_path)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def pool(opening: Opening, clock: HandClock) -> Iterator[DatabasePool]:
    made = DatabasePool(opening, lambda: opening.key, clock, most=3, idle_seconds=60)
    yield made
    made.close()


@pytest.fixture(params=[False, True], ids=["here", "process"])
def take(pool: DatabasePool, request: pytest.FixtureRequest) -> Callable[[], Database]:
    return lambda: pool.take(separate=request.param)


def works(database: Database) -> bool:
    return database.number("SELECT 7", {}) == 7


def test_the_next_search_has_the_same_database(
    take: Callable[[], Database], opening: Opening
) -> None:
    for _ in range(3):
        database = take()
        assert works(database)
        database.close()
    assert len(opening.opened) == 1
    first, second = take(), take()
    assert works(first)
    assert works(second)
    first.close()
    second.close()
    assert len(opening.opened) == 2


def test_a_process_shares_the_processors_as_one_of_ours_and_gets_no_signal_of_a_terminal(
    pool: DatabasePool, opening: Opening
) -> None:
    pool.take(separate=True).close()
    (child,) = opening.processes
    assert os.getsid(child) == os.getsid(0)
    assert os.getpgid(child) == child != os.getpgid(0)


@pytest.mark.parametrize(
    ("leave", "look"),
    [
        (None, "SELECT count(*) FROM held"),
        (None, "SELECT count(*) FROM fed"),
        ("CREATE TEMP TABLE left_over AS SELECT 1", "SELECT count(*) FROM left_over"),
        ("PREPARE left_over AS SELECT 1", "EXECUTE left_over"),
        ("SET VARIABLE left_over = 1", "SELECT getvariable('left_over') IS NOT NULL AND error('')"),
        ("BEGIN TRANSACTION", "ROLLBACK"),
    ],
)
def test_nothing_of_one_search_is_there_for_the_next(
    take: Callable[[], Database], opening: Opening, leave: str | None, look: str
) -> None:
    database = take()
    table = pa.table({"a": [1]})
    database.hold("held", table)
    database.feed("fed", table.schema, iter(table.to_batches()))
    if leave is not None:
        list(database.run(leave, {}))
    database.close()
    following = take()
    if "getvariable" in look:
        assert following.number(look, {}) == 0
    else:
        with pytest.raises(Damaged):
            list(following.run(look, {}))
    following.close()
    assert len(opening.opened) == 1


def test_an_interrupt_that_comes_late_does_not_meet_the_next_search(
    take: Callable[[], Database], opening: Opening
) -> None:
    database = take()
    assert works(database)
    database.close()
    following = take()
    database.interrupt(TailraceError("too late"))
    assert works(following)
    following.close()
    assert len(opening.opened) == 1


def stopped(database: Database) -> None:
    database.interrupt(TailraceError("enough"))


def failed(database: Database) -> None:
    with pytest.raises(Damaged):
        list(database.run("SELECT nothing", {}))


def half_read(database: Database) -> None:
    rows = database.run(f"SELECT range AS a FROM range({ROWS})", {})
    next(rows)
    rows.close()


@pytest.mark.parametrize("harm", [stopped, failed, half_read])
def test_one_that_was_not_left_in_order_is_not_used_again(
    take: Callable[[], Database], opening: Opening, harm: Callable[[Database], None]
) -> None:
    database = take()
    harm(database)
    database.close()
    following = take()
    assert works(following)
    following.close()
    assert len(opening.opened) == 2


def test_one_that_has_something_on_disk_is_not_used_again(
    pool: DatabasePool, opening: Opening, tmp_path: Path
) -> None:
    database = pool.take(separate=False)
    assert works(database)
    (tmp_path / "spill-0").mkdir()
    (tmp_path / "spill-0" / "left_over").write_bytes(b"x")
    database.close()
    assert not (tmp_path / "spill-0").exists()
    pool.take(separate=False).close()
    assert len(opening.opened) == 2


def test_a_pattern_that_is_refused_costs_no_database(
    take: Callable[[], Database], opening: Opening
) -> None:
    for pattern in ("(", "a"):
        database = take()
        try:
            database.check_regex(pattern)
        except InvalidInput:
            assert pattern == "("
        database.close()
    assert len(opening.opened) == 1


def test_other_keys_of_the_store_are_another_database(pool: DatabasePool, opening: Opening) -> None:
    opening.key = "of today"
    pool.take(separate=False).close()
    opening.key = "of tomorrow"
    pool.take(separate=False).close()
    pool.take(separate=False).close()
    assert len(opening.opened) == 2


def test_a_process_that_was_killed_while_it_was_idle_is_replaced(
    pool: DatabasePool, opening: Opening
) -> None:
    pool.take(separate=True).close()
    os.kill(opening.processes[0], signal.SIGKILL)
    database = pool.take(separate=True)
    assert works(database)
    database.close()
    assert len(opening.processes) == 2


def test_a_process_that_is_stopped_while_it_was_idle_is_replaced(
    pool: DatabasePool, opening: Opening
) -> None:
    pool.take(separate=True).close()
    os.kill(opening.processes[0], signal.SIGSTOP)
    database = pool.take(separate=True)
    assert works(database)
    database.close()
    assert len(opening.processes) == 2
    assert not works_on(opening.processes[0])


def test_whoever_may_wait_no_longer_for_a_stopped_process_ends_it(
    pool: DatabasePool, opening: Opening
) -> None:
    pool.take(separate=True).close()
    os.kill(opening.processes[0], signal.SIGSTOP)

    def check() -> None:
        raise LimitReached("the time is over")

    with pytest.raises(LimitReached, match="the time is over"):
        pool.take(separate=True, check=check)
    assert not works_on(opening.processes[0])
    assert len(opening.processes) == 1
    database = pool.take(separate=True)
    assert works(database)
    database.close()


def test_no_more_are_kept_than_may_be(pool: DatabasePool, opening: Opening) -> None:
    for separate, kept in ((False, 3), (True, 2)):
        before = len(opening.opened)
        for database in [pool.take(separate=separate) for _ in range(5)]:
            database.close()
        for database in [pool.take(separate=separate) for _ in range(5)]:
            database.close()
        assert len(opening.opened) - before == 5 + 5 - kept


def lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


async def test_what_nobody_uses_is_closed_after_a_while(
    pool: DatabasePool, opening: Opening, clock: HandClock
) -> None:
    pool.take(separate=True).close()
    pool.watch()
    await clock.advance(59)
    assert lives(opening.processes[0])
    await clock.advance(1)
    while lives(opening.processes[0]):
        await asyncio.sleep(0)
    pool.take(separate=True).close()
    assert len(opening.opened) == 2
    pool.watch()


async def test_what_is_given_back_after_the_end_is_closed(
    pool: DatabasePool, opening: Opening
) -> None:
    kept, database = pool.take(separate=True), pool.take(separate=True)
    kept.close()
    pool.watch()
    pool.close()
    assert not lives(opening.processes[0])
    database.close()
    assert not lives(opening.processes[1])
