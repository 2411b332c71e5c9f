"""The next cut is encoded while one is put: in order, once, and with nothing left behind."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, TypeVar

import pyarrow.parquet as pq
import pytest

from service.runtime.health import LONG_SECONDS
from service.shipping.watermarks import Forked
from tailrace.logstore import keys
from tailrace.logstore.errors import NodeNotReady
from tailrace.logstore.segments.levels import NO_LEVEL, level_of_word
from tests.service.journal.rig import NODE, RUN
from tests.service.shipping.shipping import Ship, is_put, sail
from tests.simulation.faulty_store import Fault, Schedule
from tests.simulation.virtual_time import VirtualClock

pytestmark = pytest.mark.usefixtures("every_store")

T = TypeVar("T")
_OF_A_CUT = 2  # calls that are offloaded: its check, and its encoding
_ERROR = b"2026-01-01 00:00:00 ERROR it broke\n"
_WARNING = b"2026-01-01 00:00:01 WARN it may break again\n"
_TRACE = b"  at line 7\n"


@dataclass
class Offloaded:
    """Counts calls. Those in `fails`, from 1, find no descriptor; those above `most` wait."""

    fails: frozenset[int] = frozenset()
    most: int = 1_000
    calls: int = 0
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, work: Callable[[], T]) -> T:
        self.calls += 1
        if self.calls in self.fails:
            raise NodeNotReady("no descriptor is free")
        if self.calls > self.most:
            await self.go_on.wait()
        return work()


def _outage(first: int, last: int) -> Schedule:
    """Puts fail, from one of them to another."""
    return Schedule(dict.fromkeys(range(first, last + 1), Fault.UNAVAILABLE), applies=is_put)


async def _cut(ship: Ship, *texts: bytes) -> None:
    """A cut of each text."""
    for text in texts:
        await ship.add(text)
        await ship.shipper.cut("demand")


async def _levels(ship: Ship) -> list[str | None]:
    """The levels of all stored lines."""
    found: list[str | None] = []
    for seq, _ in await ship.stored():
        body = (await ship.store.inner.get(keys.segment(NODE, seq)))[1]
        found += pq.read_table(BytesIO(body), columns=["level"])["level"].to_pylist()
    return found


def _carried(ship: Ship) -> int:
    """The level that a line without one would have behind what is confirmed."""
    return int(ship.shipper.carry.load([RUN]).levels[0])


def _pins(ship: Ship) -> int:
    return sum(file.pins for file in ship.journal.files)


def test_one_cut_is_encoded_ahead_and_readers_begin_behind_what_is_confirmed() -> None:
    async def scenario(clock: VirtualClock) -> None:
        offload = Offloaded()
        ship = Ship(clock, _outage(2, 6), offload=offload)
        await _cut(ship, _ERROR, _WARNING, _TRACE, _TRACE)
        assert _carried(ship) == NO_LEVEL
        ship.run()
        await clock.sleep(1)
        assert [cut.seq for cut in ship.confirmed] == [1]
        assert offload.calls == 3 * _OF_A_CUT, "the second is put, the third is ready"
        assert _carried(ship) == level_of_word("ERROR")
        async with asyncio.timeout(60):
            await ship.shipper.confirmed_through(ship.journal.next_pos)
        assert offload.calls == 4 * _OF_A_CUT
        assert _carried(ship) == level_of_word("WARN")
        assert await _levels(ship) == ["ERROR", "WARN", "WARN", "WARN"]

    sail(scenario)


@pytest.mark.parametrize("call", [3, 4])
def test_a_cut_that_cannot_be_encoded_ahead_is_encoded_in_its_turn(call: int) -> None:
    async def scenario(clock: VirtualClock) -> None:
        ship = Ship(clock, offload=Offloaded(frozenset({call})))
        await _cut(ship, _ERROR, _TRACE, _TRACE)
        ship.run()
        async with asyncio.timeout(60):
            await ship.shipper.confirmed_through(ship.journal.next_pos)
        assert ship.shipper.failures == 1
        assert await ship.stored() == [(1, ((0, 1),)), (2, ((1, 2),)), (3, ((2, 3),))]
        assert await _levels(ship) == ["ERROR"] * 3

    sail(scenario)


def test_a_cut_that_nobody_encodes_is_a_problem_with_its_age() -> None:
    async def scenario(clock: VirtualClock) -> None:
        offload = Offloaded(most=_OF_A_CUT - 1)
        ship = Ship(clock, offload=offload)
        await _cut(ship, _ERROR)
        ship.run()
        await clock.sleep(LONG_SECONDS - 1)
        assert ship.shipper.ongoing.problems() == []
        await clock.sleep(9)
        (problem,) = ship.shipper.ongoing.problems()
        assert problem.startswith("a segment is not made, or not stored: for 308 s")
        offload.go_on.set()
        async with asyncio.timeout(60):
            await ship.shipper.confirmed_through(ship.journal.next_pos)
        assert ship.shipper.ongoing.problems() == []

    sail(scenario)


def test_a_shipper_ends_only_once_nobody_reads_the_journal_for_it() -> None:
    async def scenario(clock: VirtualClock) -> None:
        offload = Offloaded(most=_OF_A_CUT)
        ship = Ship(clock, _outage(1, 1_000), offload=offload)
        await _cut(ship, _ERROR, _TRACE)
        ship.run()
        await clock.sleep(1)
        ship.shipper.stop()
        await clock.sleep(60)
        assert not ship.tasks[1].done()
        assert _pins(ship) == 1
        offload.go_on.set()
        await asyncio.wait(ship.tasks, timeout=60)
        assert ship.tasks[1].done()
        assert _pins(ship) == 0

    sail(scenario)


@pytest.mark.parametrize("fails", [frozenset(), frozenset({3})])
def test_a_fork_leaves_nothing_of_what_was_ahead(fails: frozenset[int]) -> None:
    async def scenario(clock: VirtualClock) -> None:
        unheard: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unheard.append(context))
        ship = Ship(clock, offload=Offloaded(fails))
        await _cut(ship, _ERROR, _TRACE)
        ship.run()
        await ship.store.inner.put(keys.segment(NODE, 1), b"somebody else's")
        await asyncio.wait(ship.tasks, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert isinstance(ship.tasks[1].exception(), Forked)
        assert _pins(ship) == 0
        gc.collect()
        assert unheard == []

    sail(scenario)
