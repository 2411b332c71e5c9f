"""Repair: damage is quarantined, what reads well again comes back, and nothing is deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from compactor.placement import FolderPlacement
from compactor.plan import segments_of
from service.query.duckdb import Database, LockedDatabase
from service.settings import QuerySettings
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.objects.store import ObjectInfo
from tailrace.logstore.table.table import Table
from tailrace.verification.segments import Repair
from tests.tailrace.verification.world import World


def files(world: World) -> set[str]:
    places = ("segments", "table", "pipeline-logs", "runs")
    return {
        str(path)
        for place in places
        for path in (world.root / place).rglob("*")
        if path.is_file() and ".aside" not in path.parts
    }


def test_a_damaged_segment_is_set_aside_and_nothing_is_deleted(world: World) -> None:
    before = files(world)
    damaged = world.segments()[1]
    world.change(damaged, 10)
    assert "quarantined" in world.look(repair=True).one("segment-damaged").detail
    again = world.look()
    assert again.kinds == {"segment-aside"}
    assert not again.findings.sound
    assert files(world) == before


def contents(world: World) -> dict[str, bytes]:
    """All but what the store remembers of its own files."""
    paths = [path for path in world.root.rglob("*") if path.is_file() and ".meta" not in path.parts]
    return {str(path): path.read_bytes() for path in paths}


def test_without_repair_nothing_is_changed(world: World) -> None:
    world.change(world.segments()[1], 10)
    before = contents(world)
    assert not world.look().findings.sound
    assert contents(world) == before


def test_what_reads_well_again_is_brought_back_into_the_table(world: World) -> None:
    """The compactor passed it as empty; then a whole copy was put at its key.

    It has 600 lines, 200 of them deleted since.
    """
    world.set_aside(2, "it was broken")
    world.remake(without=2)
    assert "segment-aside" in world.look().kinds
    found = world.look(repair=True)
    assert found.one("segment-aside").repaired == "brought back; 400 lines were added to the table"
    assert found.findings.sound
    assert world.look().faults == []
    assert not list((world.root / "segments" / ".aside").rglob("0*"))


def test_what_the_table_has_of_it_is_not_added_twice(world: World) -> None:
    """Killed between the commit and the removal of the marker, it is done again."""
    world.set_aside(2, "it was broken")
    repaired = world.look(repair=True).one("segment-aside").repaired
    assert repaired == "brought back; 0 lines were added to the table"
    assert world.look().faults == []


def test_what_the_table_has_not_passed_is_left_to_the_compactor(world: World) -> None:
    last = len(world.segments())
    world.set_aside(last, "it was broken")
    version = world.table.snapshot().version
    assert world.look(repair=True).one("segment-aside").repaired.startswith("brought back; 0")
    assert world.table.snapshot().version == version
    assert world.look().faults == []


def test_what_is_still_damaged_stays_aside(world: World) -> None:
    world.change(world.segments()[1], 10)
    world.set_aside(2, "it is broken")
    assert world.look(repair=True).one("segment-aside").repaired == ""
    assert world.look().kinds == {"segment-aside"}


class Killed(BaseException):
    """The process is no more."""


@dataclass
class Calls:
    """Ends the process at one of its calls."""

    left: int

    def one(self) -> dict[str, str]:
        self.left -= 1
        if self.left < 0:
            raise Killed
        return {}


class DyingStore(LocalStore):
    """Does what it is told, but for the call at which it dies."""

    calls: Calls

    async def put(self, *arguments: Any, **options: Any) -> ObjectInfo:
        self.calls.one()
        return await super().put(*arguments, **options)

    async def delete(self, keys: Sequence[str]) -> None:
        self.calls.one()
        await super().delete(keys)


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("calls", range(4))
def test_killed_at_any_call_it_is_done_again(world: World, calls: int) -> None:
    """It opens the table, writes a file, commits and opens again, and then removes the marker."""
    world.set_aside(2, "it was broken")
    world.remake(without=2)
    clock, disk, dice = SystemClock(), Disk(), system_entropy()
    count = Calls(calls)
    store = DyingStore(str(world.root), disk, clock, dice)
    store.calls = count
    place = world.table.uri
    spill = str(world.folder / "spill")
    database = Database(LockedDatabase(QuerySettings(), [place], spill))
    repair = Repair(
        store, Table(place, count.one), FolderPlacement(disk, place), database, clock, dice
    )

    async def repaired() -> None:
        segment = (await segments_of(store, world.node))[1]
        await repair.segment(segment, (await store.get(segment.key))[1], "")

    with pytest.raises(Killed):
        asyncio.run(repaired())
    database.close()
    assert world.look(repair=True).findings.sound
    assert world.look().faults == []


def test_deleted_lines_do_not_come_back(world: World) -> None:
    world.set_aside(2, "it was broken")
    world.remake(without=2)
    world.delete("p", "open")
    repaired = world.look(repair=True).one("segment-aside").repaired
    assert repaired == "brought back; 200 lines were added to the table"
