"""Which row groups are looked at in threads of their own, and which one after the other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from service.query import text_scan
from service.query.engine import QueryEngine
from service.query.footers import Footers
from service.query.page_checks import PageChecks
from service.query.request import QueryRequest, UlidRange
from service.query.table_reads import table_reads
from tailrace.logstore.search.conditions import Contains
from tailrace.logstore.search.translate import Needs, needs_of
from tests.service.query.scattered import ALL
from tests.service.query.test_scan_copies import copied, files_of
from tests.service.query.test_skipping import batch_at, put_in_table
from tests.service.query.world import World, engine_of, search
from tests.waiting import until

NEEDLE = replace(ALL, condition=Contains("needle-in-a-haystack"))
GROUPS = 10


def put(world: World, hour: int) -> None:
    """A file of ten row groups, one of which has the text."""
    lines = [f"{hour} line {n}" for n in range(GROUPS * 100)]
    lines[777] += " needle-in-a-haystack"
    put_in_table(world, [batch_at(hour, lines)], group_rows=100)


async def in_threads(engine: QueryEngine, world: World, request: QueryRequest) -> int:
    """How many row groups were given to other threads."""
    with pytest.MonkeyPatch.context() as patch:
        submit = Mock(side_effect=engine._scanning.submit)
        patch.setattr(engine._scanning, "submit", submit)
        patch.setattr(text_scan.Prefilter, "ahead", lambda *_: None)
        assert (await search(engine, request))[0] == world.expected(request)
    return submit.call_count


@pytest.mark.parametrize(
    ("quick_bytes", "asked", "expected"),
    [
        (1 << 20, NEEDLE, 0),
        (-1, NEEDLE, GROUPS - 1),
        (1 << 20, replace(NEEDLE, fqn="svc.pipe"), GROUPS),
        (1 << 20, replace(NEEDLE, run="run"), GROUPS),
    ],
    ids=["little", "much", "a pipeline", "a run"],
)
async def test_copies_of_which_little_is_looked_through_take_no_other_thread(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quick_bytes: int,
    asked: QueryRequest,
    expected: int,
) -> None:
    monkeypatch.setattr(text_scan, "_QUICK_BYTES", quick_bytes)
    world = World(tmp_path)
    put(world, 0)
    async with engine_of(world) as engine:
        await copied(engine, 1)
        assert await in_threads(engine, world, asked) == expected


async def test_what_is_cancelled_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    put(world, 0)
    await world.index()
    everything, looked = UlidRange(0, (1 << 128) - 1), list[Any]()
    request = replace(ALL, condition=Contains(" line "))  # it is in all row groups
    monkeypatch.setattr(text_scan.Prefilter, "candidates", lambda _, *work: looked.append(work))
    busy, threads = threading.Event(), ThreadPoolExecutor(1)
    async with engine_of(world, scan_copies_bytes=0) as engine:
        made = text_scan.Prefilter(
            request, Footers(), PageChecks(Footers(), threads), None, threads, lambda: None
        )
        files, indexes = files_of(world), engine.indexes
        told = indexes.which(files, cast(Needs, needs_of(request.condition)))
        reads = table_reads(everything, files, told, engine.copies.of, indexes.maps)
        threads.submit(busy.wait)
        begun = made.begin(reads, everything)
        assert threads._work_queue.qsize() == GROUPS
        begun.cancel()
        busy.set()
        threads.shutdown(wait=True)
        assert looked == []


async def test_files_beside_copies_are_decoded_in_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little was looked through in the copies before them."""
    monkeypatch.setattr(text_scan, "_FEW", 1)
    world = World(tmp_path)
    for hour in range(3):
        put(world, hour)
    await world.index()
    one, *others = files_of(world)
    async with engine_of(world) as engine:
        engine.copies.note_read(one, one.size)
        await until(lambda: engine.copies.made == 1)
        assert await in_threads(engine, world, NEEDLE) == len(others)
