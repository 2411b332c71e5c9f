"""A search steps over segments that the table has, and misses none that it has not."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from service.query import sources as segments
from service.query.request import QueryRequest
from service.query.sources import above_marks, list_above, open_snapshot
from tailrace.logstore import keys
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.objects.store import Listing
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import encode_segment
from tests.batches import Entry, make_batches
from tests.service.query.live.rig import batch
from tests.service.query.world import NOW_MS, World, engine_of, lake_in, search

ALL = QueryRequest(descending=False)
NODES = ["a-1", "b-1", "c-1"]


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
        inner = world.store.listed

        def counted(prefix: str, *, after: str = "") -> Listing:
            listing, behind = inner(prefix, after=after), None
            with suppress(StopIteration):
                while True:
                    found = listing.send(behind)
                    listed.append(found.key)
                    behind = yield found

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
    everything = list(world.store.listed(keys.SEGMENTS))
    known = {node: dice.randrange(30) for node in NODES}
    marks = {node: mark + dice.choice([0, 0, 3]) for node, mark in known.items()}
    above = list_above(world.store, lambda node: known[node])
    assert above.passed.items() <= known.items()
    assert above_marks(above.found, marks, []) == above_marks(everything, marks, [])
    folders = [{info.key.split("/")[1] for info in infos} for infos in (above.found, everything)]
    assert folders[0] == folders[1], "each node is known to the report"


async def test_a_segment_of_this_node_is_known_before_a_search_meets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = lake_in(tmp_path)
    entries = [batch(random.Random(1), NOW_MS)]
    key = await world.segment(entries, NODES[0])
    sources = world.sources()
    encoded = encode_segment(make_batches(NODES[0], entries), node=NODES[0], seq=1, carry=Carry())
    sources.catalog.note(world.store, key, encoded)

    async def nobody(*_: object, **__: object) -> None:
        raise AssertionError("its footer is read")

    monkeypatch.setattr(segments, "read_footer", nobody)
    async with engine_of(world, SystemClock(), sources=sources) as engine:
        assert (await search(engine, ALL))[0] == world.expected(ALL)
    await world.segment([batch(random.Random(2), NOW_MS)], NODES[0])
    with pytest.raises(AssertionError, match="its footer is read"):
        await open_snapshot(sources, ALL)


async def test_a_store_that_says_nothing_holds_up_no_other_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, says = lake_in(tmp_path), threading.Event()

    def silent(*_: object, **__: object) -> Listing:
        says.wait()
        yield from ()

    monkeypatch.setattr(world.store, "listed", silent)
    looks = [asyncio.ensure_future(open_snapshot(world.sources(), ALL)) for _ in range(64)]
    try:
        await asyncio.sleep(0.1)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "done"), 60) == "done"
        assert not any(look.done() for look in looks)
    finally:
        says.set()
        for snapshot in await asyncio.gather(*looks):
            snapshot.release()
