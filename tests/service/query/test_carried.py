"""One traceback is one error: counts count records, searches return lines, wherever these lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from service.query.engine import QueryEngine
from service.query.facets import CountRequest, HistogramRequest, count_by, histogram
from service.query.output import lines
from service.query.request import QueryRequest
from tailrace.logstore import ulid
from tailrace.logstore.search.language import parse
from tests.batches import Entry
from tests.service.query.world import NOW_MS, RUNS, World, engine_of

SKIPPED = "ERROR: one file skipped\n" + "".join(f"backup of {n}\n" for n in range(5_000))
TRACE = """INFO begins
ERROR cannot load
Traceback (most recent call last):
  File "load.py", line 3, in <module>
    load()
  File "load.py", line 2, in load
    total = row["total"]
  File "row.py", line 7, in __getitem__
    raise KeyError(name)
            ^^^^^^^^^^^^^
KeyError: 'total'
INFO ends
"""
ONE, OTHER = RUNS[:2]


async def filled(world: World, source: str) -> None:
    at = ulid.lowest_at(NOW_MS - 60_000)
    entries: list[Entry] = [(ONE, at, SKIPPED.encode()), (OTHER, at + (1 << 40), TRACE.encode())]
    if source == "table":
        world.merge(entries, {})
        await world.index()
    elif source == "segments":
        await world.segment(entries)
    else:
        world.unflushed(entries)


async def found(engine: QueryEngine, q: str, **more: Any) -> list[dict[str, Any]]:
    """The lines in ndjson of a search, oldest first."""
    request = QueryRequest(condition=parse(q, now_ms=NOW_MS), descending=False)
    rows: list[dict[str, Any]] = []
    async with await engine.open(replace(request, **more)) as search:
        async for batch in search.batches():
            rows += map(orjson.loads, lines(batch).splitlines())
    return rows


async def counted(engine: QueryEngine, q: str) -> int:
    request = QueryRequest(condition=parse(q, now_ms=NOW_MS))
    async with await engine.open(request) as search:
        await search.count()
        return int(search.stats()["matches"])


async def levels(engine: QueryEngine) -> dict[str | None, int]:
    asked = CountRequest.parse({"by": "level", "from": "0"}, now_ms=NOW_MS)
    async with await engine.open(asked.search) as search:
        counts = (await search.totals(lambda running: count_by(running, asked))).counts
    return {one.values[0]: one.records for one in counts}


async def charted(engine: QueryEngine, q: str) -> dict[str | None, int]:
    request = QueryRequest(
        low=ulid.lowest_at(NOW_MS - 90_000),
        high=ulid.highest_at(NOW_MS),
        condition=parse(q, now_ms=NOW_MS),
    )
    asked = HistogramRequest(request, 600_000)
    async with await engine.open(request) as search:
        buckets = await search.totals(lambda running: histogram(running, asked))
    return {level: n for bucket in buckets for level, n in bucket.levels.items()}


@pytest.mark.parametrize("source", ["table", "segments", "journal"])
async def test_one_traceback_is_one_error(tmp_path: Path, source: str) -> None:
    world = World(tmp_path)
    await filled(world, source)
    async with engine_of(world) as engine:
        assert [await counted(engine, f"level>=ERROR run:{one.run}") for one in (ONE, OTHER)] == [
            1,
            1,
        ]
        assert await levels(engine) == {None: 5_000, "ERROR": 2, "INFO": 2}
        assert await charted(engine, f"fqn:{OTHER.fqn} run:{OTHER.run}") == {"ERROR": 1, "INFO": 2}
        trace = await found(engine, f"level>=ERROR run:{OTHER.run} fqn:{OTHER.fqn}")
        assert [row["message"] for row in trace] == TRACE.splitlines()[1:11]
        assert [row.get("carried") for row in trace] == [None] + [True] * 9
        errors = [
            await found(engine, "level>=ERROR carried:false", limit=1, descending=descending)
            for descending in (False, True)
        ]
        assert [one[0]["message"] for one in errors] == [
            "ERROR: one file skipped",
            "ERROR cannot load",
        ]
        # What stands in a traceback is found, and the chart above it is not empty.
        assert await counted(engine, '"KeyError: "') == 1
        assert await charted(engine, '"KeyError: "') == {"ERROR": 1}
        assert await counted(engine, 'level>=ERROR NOT "nowhere"') == 2
