"""A search steps over segments that the table has, and misses none that it has not."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore import keys
from logstore.clock import SystemClock
from logstore.objects.local import LocalStore
from logstore.objects.store import ObjectInfo
from service.query import segments
from service.query.request import QueryRequest
from service.query.segments import above_marks, list_above, list_above_here
from tests.batches import Entry
from tests.service.query.live.rig import batch
from tests.service.query.world import NOW_MS, World, engine_of, lake_in, search

ALL = QueryRequest(descending=False)
NODES = ["a-1", "b-1", "c-1"]


@pytest.fixture(autouse=True)
def _a_few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_MANY_IN_FOLDER", 2)


async def _segments(world: World, node: str, count: int) -> list[list[Entry]]:
    """Segments of a batch each."""
    dice = random.Random(f"{node} {count}")
    made = [[batch(dice, NOW_MS - n)] for n in range(count)]
    for entries in made:
        await world.segment(entries, node)
    return made


def _rows(made: list[list[Entry]]) -> list[Entry]:
    return [entry for entries in made for entry in entries]


async def test_segments_that_the_table_had_before_are_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, listed = lake_in(tmp_path), list[str]()
    made = await _segments(world, NODES[0], 50)
    world.merge(_rows(made[:45]), {NODES[0]: 45})
    async with engine_of(world, SystemClock()) as engine:
        assert (await search(engine, ALL))[0] == world.expected(ALL)
        assert isinstance(world.store, LocalStore)
        inner = world.store.listed

        def counted(prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
            for info in inner(prefix, after=after):
                listed.append(info.key)
                yield info

        monkeypatch.setattr(world.store, "listed", counted)
        assert (await search(engine, ALL))[0] == world.expected(ALL)
        assert listed == [keys.segment(NODES[0], n) for n in (1, *range(46, 51))]


async def test_a_table_that_holds_less_than_the_one_before_hides_nothing(tmp_path: Path) -> None:
    world = lake_in(tmp_path)
    made = await _segments(world, NODES[0], 20)
    world.merge(_rows(made[:15]), {NODES[0]: 15})
    async with engine_of(world, SystemClock()) as engine:
        assert (await search(engine, ALL))[0] == world.expected(ALL)
        shutil.rmtree(tmp_path / "store" / keys.TABLE)
        assert (await search(engine, ALL))[0] == world.expected(ALL)
        world.merge(_rows(made[:3]), {NODES[0]: 3})
        assert (await search(engine, ALL))[0] == world.expected(ALL)


@pytest.mark.parametrize("seed", range(8))
async def test_nothing_above_the_marks_is_left_out(tmp_path: Path, seed: int) -> None:
    dice, world = random.Random(seed), lake_in(tmp_path)
    for node in NODES:
        await _segments(world, node, dice.randrange(30))
    await world.store.put(keys.quarantine_marker(NODES[1], 1), b"{}")
    everything = [info async for info in world.store.list(keys.SEGMENTS)]
    known = {node: dice.randrange(30) for node in NODES}
    marks = {node: mark + dice.choice([0, 0, 3]) for node, mark in known.items()}
    assert isinstance(world.store, LocalStore)
    above = list_above_here(world.store, lambda node: known[node])
    assert await list_above(world.store, lambda node: known[node]) == above
    assert above.passed.items() <= known.items()
    assert above_marks(above.found, marks, []) == above_marks(everything, marks, [])
    folders = [{info.key.split("/")[1] for info in infos} for infos in (above.found, everything)]
    assert folders[0] == folders[1], "each node is known to the report"
