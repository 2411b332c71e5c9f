"""Replays: the table, then the segments; nothing twice where the appender had it."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import orjson
import pytest

from tailrace.coordination.groups import (
    PipelineReplay,
    change_group,
    evict,
    pipeline_group,
    read_group,
)
from tailrace.coordination.pipelines import ask_for_replay
from tailrace.logstore import ulid
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import NotFound
from tailrace.pipelines.appenders.registry import AppenderRegistry
from tailrace.pipelines.definition import parse
from tailrace.pipelines.process import PipelinesProcess
from tailrace.pipelines.sources import table as table_module
from tailrace.pipelines.sources.segments import SegmentSource
from tailrace.pipelines.sources.stored import StoredSegments
from tailrace.pipelines.sources.table import TableSource
from tailrace.pipelines.world import rows
from tests.pipelines.appenders.receiver import Receiver
from tests.pipelines.lake import Lake
from tests.pipelines.remembering import FAST, Remembering, forget, has, named, pipeline, until
from tests.seeds import seeds, some

__all__ = ["forget"]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


async def ask(lake: Lake, low: int | None = 0, pipeline: str = "p") -> None:
    clock = SystemClock()
    asked = PipelineReplay(
        ulid.fresh_text(clock, system_entropy()),
        None if low is None else ulid.encode(low),
        clock.now_ms(),
    )
    await ask_for_replay(lake.store, pipeline, asked, fresh_id=lambda: asked.id)


async def is_over(lake: Lake, name: str = "p") -> bool:
    async with lake.world() as world:
        return all(row["replay"] is None for row in await rows(world, [name]))


async def test_what_an_appender_had_goes_to_its_copy_and_nothing_else_does(lake: Lake) -> None:
    await lake.put("1", "2")
    await lake.put("3")
    other = named("other", pipeline("b"))
    async with lake.running(pipeline("a"), other) as process:
        await until(has("a", "1", "2", "3"))
        await until(has("b", "1", "2", "3"))
        untouched = next(one for one in process.workers if one.pipeline == "other")
        await lake.compact()
        await lake.put("4")
        await until(has("a", "1", "2", "3", "4"))
        await until(lambda: any(one.counts.checkpoints > 2 for one in process.workers))
        await ask(lake)
        await until(has("a+", "1", "2", "3", "4"))
        await lake.put("5")
        await until(has("a", "1", "2", "3", "4", "5"))
        await until(has("b", "1", "2", "3", "4", "5"))
        assert untouched in process.workers
        assert Remembering.lines["a+"] == ["1", "2", "3", "4"]
        assert "b+" not in Remembering.lines
    assert await is_over(lake)
    async with lake.world() as world:
        (row,) = await rows(world, ["p"])
    assert (row["events"], row["again"], row["lost"]) == (9, 4, 0)


async def test_it_begins_where_it_is_asked_to(lake: Lake) -> None:
    now = ulid.lowest_at(SystemClock().now_ms() - 3 * 3_600_000)
    firsts = [now + (hours * 3_600_000 << 80) for hours in range(3)]
    for line, first in enumerate(firsts):
        await lake.put(str(line), ulid_=first)
    await lake.compact(upto={"n": 2})
    async with lake.running(pipeline("a")) as process:
        await until(lambda: "2" in Remembering.lines.get("a", []))
        await until(lambda: any(one.counts.checkpoints > 1 for one in process.workers))
        await ask(lake, firsts[1])
        await until(has("a+", "1", "2"))


async def test_an_evicted_pipeline_gets_what_it_missed_from_the_table(lake: Lake) -> None:
    await lake.put("1")
    async with lake.running(pipeline("a")):
        await until(has("a", "1"))
    await change_group(
        lake.store, pipeline_group("p"), lambda one: evict(one, 1, "full"), fresh_id=lambda: "v"
    )
    await lake.put("2")
    await lake.put("3", node="m")
    await lake.compact()
    await lake.put("4")
    async with lake.running(pipeline("a")):
        await ask(lake)
        await until(has("a", "1", "2", "3", "4"))
        await until(has("a+", "1"))
        group = await read_group(lake.store, pipeline_group("p"))
        assert group is not None
        assert group.evicted is None
    async with lake.world() as world:
        (row,) = await rows(world, ["p"])
    assert row["lost"] == 0


async def test_an_evicted_pipeline_may_skip_what_it_missed(lake: Lake) -> None:
    await lake.put("1")
    async with lake.running(pipeline("a")):
        await until(has("a", "1"))
    await change_group(
        lake.store, pipeline_group("p"), lambda one: evict(one, 1, "full"), fresh_id=lambda: "v"
    )
    await lake.put("2")
    await lake.compact()
    await lake.put("3")
    await ask(lake, None)
    async with lake.running(pipeline("a")) as process:
        await until(lambda: any(one.counts.checkpoints for one in process.workers))
        await lake.put("4")
        await until(has("a", "1", "4"))
    assert "a+" not in Remembering.lines


async def until_released(lake: Lake, process: PipelinesProcess) -> None:
    """Until the pipeline's group has no need of the second segment any more."""
    async with asyncio.timeout(60):
        while True:
            await process.move_groups()
            group = await read_group(lake.store, pipeline_group("p"))
            if group is not None and not group.holds("n", 2):
                return
            await asyncio.sleep(0.05)


async def test_the_group_holds_every_segment_until_all_have_begun(lake: Lake) -> None:
    await lake.put("1")
    await lake.put("2")
    async with lake.running(pipeline("a", "b")) as process:
        await until_released(lake, process)
    await ask(lake)
    async with lake.world() as world:
        idle = PipelinesProcess(world, [pipeline("a", "b")])
        await idle.move_groups()
    group = await read_group(lake.store, pipeline_group("p"))
    assert group is not None
    assert group.holds("n", 1)
    async with lake.running(pipeline("a", "b")) as process:
        await until(has("a+", "1", "2"))
        await until(has("b+", "1", "2"))
        await until_released(lake, process)


async def test_a_pipeline_that_never_ran_is_not_found(lake: Lake) -> None:
    with pytest.raises(NotFound, match="no pipeline 'p' has run"):
        await ask(lake)


async def test_an_appender_that_is_added_later_has_no_part_in_an_old_replay(lake: Lake) -> None:
    await lake.put("1")
    async with lake.running(pipeline("a")):
        await until(has("a", "1"))
        await ask(lake)
        await until(has("a+", "1"))
    async with lake.running(pipeline("a", "b", start="now")) as process:
        await until(
            lambda: any(one.counts.checkpoints for one in process.workers if one.appender == "b")
        )
        await lake.put("2")
        await until(has("b", "2"))


@pytest.mark.parametrize(
    ("path", "copy"),
    [
        ("{service}/{fqn}.log", "shop/shop.load.replay-ID.log"),
        ("{fqn}", "shop.load.replay-ID"),
        ("x.d/{attribute.a.b}", "x.d/none.replay-ID"),
    ],
)
async def test_a_rolling_file_keeps_what_it_had_apart(
    lake: Lake, tmp_path: Path, path: str, copy: str
) -> None:
    out = tmp_path / "out"
    files = {"type": "rolling_file", "name": "f", "dir": str(out), "path": path}
    made = parse({"name": "p", **FAST, "appenders": [files]}, AppenderRegistry())

    def found() -> list[tuple[str, str]]:
        paths = [one for one in out.rglob("*") if one.is_file() and ".tailrace" not in one.parts]
        return sorted((str(one.relative_to(out)), one.read_text()) for one in paths)

    await lake.put("1", "2")
    async with lake.running(made):
        await until(lambda: [text for _, text in found()] == ["1\n2\n"])
        await lake.compact()
        await ask(lake)
        await until(lambda: [text for _, text in found()] == ["1\n2\n"] * 2)
        await lake.put("3")
        await until(lambda: "1\n2\n3\n" in [text for _, text in found()])
    group = await read_group(lake.store, pipeline_group("p"))
    assert group is not None
    assert group.replay is not None
    whole = [name.replace(group.replay.id, "ID") for name, text in found() if "3" not in text]
    assert whole == [copy]


async def test_objects_counts_and_notices_have_nothing_twice(lake: Lake, tmp_path: Path) -> None:
    """Objects of a replay are apart; what was counted and told is not counted and told again."""
    out, counts = tmp_path / "out", tmp_path / "logs.prom"
    with Receiver().running() as receiver:
        rules = [{"name": "all", "matches": {"contains": "it "}}]
        appenders = [
            {"type": "rolling_object", "name": "o", "store": str(out), "path": "{fqn}.txt"},
            {"type": "metrics", "name": "m", "file": str(counts), "labels": ["fqn"]},
            {"type": "notify", "name": "n", "url": receiver.url, "allow_private": True}
            | {"rules": rules, "every": "1ms"},
        ]
        made = parse({"name": "p", **FAST, "appenders": appenders}, AppenderRegistry())

        def objects() -> list[tuple[str, str]]:
            # Unlike `rglob`, it passes over a folder that goes meanwhile.
            found = [Path(folder) / name for folder, _, names in os.walk(out) for name in names]
            paths = [p for p in found if p.suffix == ".txt" and ".tailrace" not in p.parts]
            return sorted((path.name, path.read_text()) for path in paths)

        def counted() -> int:
            rows = counts.read_text().splitlines() if counts.exists() else []
            return sum(int(row.rpartition(" ")[2]) for row in rows if not row.startswith("#"))

        def told() -> int:
            return sum(orjson.loads(one.body)["count"] for one in receiver.requests)

        await lake.put("it 1", "it 2")
        async with lake.running(made):
            await until(lambda: [text for _, text in objects()] == ["it 1\nit 2\n"])
            await until(lambda: (counted(), told()) == (2, 2))
            await lake.compact()
            await ask(lake)
            await until(lambda: [text for _, text in objects()] == ["it 1\nit 2\n"] * 2)
            async with asyncio.timeout(60):
                while not await is_over(lake):
                    await asyncio.sleep(0.05)
            await lake.put("it 3")
            await until(lambda: (counted(), told()) == (3, 3))
            await until(lambda: "it 1\nit 2\nit 3\n" in [text for _, text in objects()])
    (replayed,) = [name for name, text in objects() if "3" not in text]
    assert replayed.startswith("shop.load.replay-")


async def test_the_table_is_read_as_it_was_though_its_files_are_replaced(lake: Lake) -> None:
    """By slices, in the order of time, without what was compacted since."""
    begun = SystemClock().now_ms() // 3_600_000 * 3_600_000 - 3_600_000
    firsts = [ulid.lowest_at(begun + second * 1000) for second in range(0, 3600, 100)]
    for number, first in enumerate(firsts[::2]):
        await lake.put(f"{number} old", node="mn"[number % 2], ulid_=first)
    await lake.compact(remove=False)
    segments = SegmentSource(StoredSegments(lake.store), SystemClock())
    source = TableSource(lake.store, lake.table, segments, SystemClock(), slice_bytes=400)
    marks, end = await source.begin()
    low, at = ulid.encode(firsts[2]), 0
    found: list[str] = []
    pieces = 0
    while (piece := await source.read(low, at, end, marks)) is not None:
        found += piece.events.column("message").to_pylist()
        at, pieces = piece.until_ms, pieces + 1
        if pieces == 3:
            for number, first in enumerate(firsts[1::2]):
                await lake.put(f"{number} new", node="mno"[number % 3], ulid_=first)
            await lake.compact(remove=False)
            lake.rewrite()
    assert found == [f"{number} old" for number in range(1, 18)]
    assert pieces > 3


@pytest.mark.parametrize("seed", some(seeds(12), 3, "replays"))
async def test_random_replays_with_crashes_and_compactions_give_each_once(
    lake: Lake, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices are small; files of the table are replaced meanwhile; processes end and fail."""
    random_ = random.Random(seed)
    monkeypatch.setattr(table_module, "SLICE_BYTES", 1000)
    begun = SystemClock().now_ms() - 5 * 3_600_000
    number = 0

    async def put(count: int) -> None:
        nonlocal number
        for _ in range(count):
            at = begun + random_.randrange(4 * 3_600_000)
            lines = [str(number + n) for n in range(random_.randrange(1, 6))]
            number += len(lines)
            first = ulid.lowest_at(at) | random_.getrandbits(30) << 25
            await lake.put(*lines, node=random_.choice("mn"), run=random_.choice("rs"), ulid_=first)

    settings = {"event_delay_ms": 4 * 3_600_000, "buffer_size_bytes": 100_000}
    await put(20)
    async with lake.running(pipeline("a", **settings)) as process:
        await until(lambda: len(Remembering.lines.get("a", ())) == number)
        await until(lambda: any(one.counts.checkpoints > 1 for one in process.workers))
    had = number
    evicted = random_.random() < 0.5
    if evicted:
        await change_group(
            lake.store, pipeline_group("p"), lambda one: evict(one, 1, ""), fresh_id=lambda: "v"
        )
    await put(random_.randrange(10))
    await lake.compact(upto={n: random_.randrange(1, s + 1) for n, s in lake.seqs.items()})
    await put(3)
    await ask(lake)
    for _ in range(4):
        async with lake.running(pipeline("a", **settings)) as process:
            for _ in range(random_.randrange(1, 4)):
                await asyncio.sleep(random_.random() * 0.2)
                Remembering.failing = {"a"} if random_.random() < 0.4 else set()
            if random_.random() < 0.5:
                await put(1)
            marks = {n: random_.randrange(1, s + 1) for n, s in lake.seqs.items()}
            await lake.compact(upto=marks, remove=False)
            await asyncio.to_thread(lake.rewrite)
        Remembering.failing = set()
        Remembering.lines["a"].append("not synced")
        if "a+" in Remembering.lines and not await is_over(lake):
            Remembering.lines["a+"].append("not synced")

    def lines(name: str) -> list[int]:
        kept = Remembering.lines.get(name, [])
        return [] if "not synced" in kept else sorted(map(int, kept))

    async with lake.running(pipeline("a", **settings)):
        await until(lambda: {*lines("a"), *lines("a+")} == set(range(number)))
        async with asyncio.timeout(60):
            while not await is_over(lake):
                await asyncio.sleep(0.05)
    main, again = lines("a"), lines("a+")
    assert (len(main), len(again)) == (len(set(main)), len(set(again)))
    assert {*main} & {*again} == set(range(had))
