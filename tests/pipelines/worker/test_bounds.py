"""What a process of pipelines needs: memory, decoding, and requests while nothing comes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailrace.logstore import keys
from tailrace.logstore.objects.store import ObjectInfo
from tailrace.pipelines.definition import PipelineFolder
from tailrace.pipelines.progress import AppenderProgress
from tailrace.pipelines.sources.segments import SegmentSource
from tailrace.pipelines.sources.stored import StoredSegments
from tailrace.pipelines.waiting import TurnLimiter, cached, for_events, pieces, share
from tailrace.pipelines.worker import AppenderWorker, Hooks
from tests.pipelines.events import events
from tests.pipelines.lake import Lake
from tests.pipelines.remembering import Remembering, forget, has, named, pipeline, until

__all__ = ["forget"]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


async def test_one_decode_feeds_all_pipelines_of_a_process(lake: Lake) -> None:
    lines = [str(number) for number in range(6)]
    for line in lines:
        await lake.put(line)
    many = [named(f"p{n}", pipeline(f"a{n}", f"b{n}")) for n in range(4)]
    async with lake.running(*many) as process:
        for n in range(4):
            await until(has(f"a{n}", *lines))
            await until(has(f"b{n}", *lines))
        assert process.source.decoded == len(lines)


async def test_a_pipeline_that_is_given_up_frees_what_waited(lake: Lake) -> None:
    waits = {"event_delay_ms": 900_000, "idle_node_ms": 900_000}
    files = [named("x", pipeline("x", **waits)), named("y", pipeline("y", **waits))]
    for number in range(3):
        await lake.put(*[f"{number} {line} " + "x" * 1000 for line in range(1000)])
    async with lake.running(*files, read_again=lambda: PipelineFolder(files)) as process:
        await until(lambda: len(process.workers) == 2)
        await until(
            lambda: all(
                one.progress is not None and len(one.progress.buffer) == 3000
                for one in process.workers
            )
        )
        # Both see the same segments: what is left is that of the other and the cache.
        held = pa.total_allocated_bytes()
        files.clear()
        await until(lambda: process.workers == [])
        process.source.forget()
        await until(lambda: pa.total_allocated_bytes() < held - 2_500_000)


async def test_what_waits_stays_within_the_size_of_the_buffer(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each turn, whatever came: no event is lost for it."""
    sizes: list[int] = []
    original = AppenderWorker._turn

    async def turn(self: AppenderWorker, progress: AppenderProgress, hooks: Hooks) -> bool:
        try:
            return await original(self, progress, hooks)
        finally:
            sizes.append(progress.buffer.size)

    monkeypatch.setattr(AppenderWorker, "_turn", turn)
    waits = {"event_delay_ms": 900_000, "idle_node_ms": 900_000, "buffer_size_bytes": 700_000}
    for number in range(6):
        await lake.put(*[f"{number} {line:03d} " + "x" * 1000 for line in range(500)])
    async with lake.running(pipeline("x", **waits)):
        await until(lambda: len(Remembering.lines.get("x", ())) > 2000)
    assert max(sizes) <= 700_000
    lines = Remembering.lines["x"]
    assert lines == sorted(set(lines))


@pytest.mark.parametrize("load", [0.0, 0.09, 1.0])
async def test_a_slow_turn_holds_up_nobody(load: float) -> None:
    """Also while others compute, which keeps it for some times as long."""
    started = time.monotonic()
    spent = lambda: (time.monotonic() - started) * load  # noqa: E731
    gate, done = TurnLimiter(1, seconds=0.01, spent=spent), asyncio.Event()

    async def hangs() -> None:
        async with gate.turn():
            await done.wait()

    hanging = [asyncio.ensure_future(hangs()) for _ in range(5)]
    async with asyncio.timeout(60), gate.turn():
        pass
    done.set()
    await asyncio.gather(*hanging)
    async with asyncio.timeout(60), gate.turn():
        assert gate.free == 0
    assert gate.free == 1


@pytest.mark.parametrize(("load", "lasts"), [(0.0, 1), (0.5, 4)])
async def test_a_turn_that_computes_lasts_longer_than_one_that_waits(
    load: float, lasts: int
) -> None:
    """Counted in looks at the processors' time: on a busy machine each turn takes longer."""
    looks = itertools.count()
    gate = TurnLimiter(1, seconds=0.001, spent=lambda: next(looks) * 0.001 * load)
    async with gate.turn():
        async with asyncio.timeout(60), gate.turn():
            first = next(looks)
    assert first == 1 + lasts + 1  # its beginning, its looks, the beginning of the second


def test_buffers_share_the_memory_and_appenders_get_pieces() -> None:
    equal = [share(4000, 0.7, 0, [0] * parts) for parts in (0, 1, 7, 10_000)]
    assert equal == [700, 700, 100, 1]
    assert [share(4000, 0.7, own, [300, 0]) for own in (300, 0)] == [300, 350]
    sizes = [1 << 40, 0, 50, 1 << 40]
    assert [share(4000, 0.7, own, sizes) for own in sizes] == [237, 175, 50, 237]
    for megabytes in (64, 256, 512, 4096):  # code, decoded segments, what waits
        whole = megabytes << 20
        for_events = share(whole, 0.7, 1 << 60, [1 << 60])
        assert for_events + cached(whole) <= max(whole - (160 << 20), whole // 2)
    table = events([f"{number:01000}" for number in range(10_000)])
    parts = list(pieces(table))
    assert pa.concat_tables(parts).equals(table)
    assert len(parts) > 2
    assert list(pieces(table.slice(0, 0))) == []


async def test_a_pipelines_file_says_its_part_of_the_memory_for_events(lake: Lake) -> None:
    """Its appenders share it; what all have together stays bounded by the process's ratio."""
    whole = for_events(lake.settings.pipelines.memory_bytes)
    has = named("has", pipeline("a", "b", auto_buffer_ratio=0.3))
    plain, greedy = named("plain", pipeline("c")), named("greedy", pipeline("d"))
    files = [has, plain]
    async with lake.running(*files, read_again=lambda: PipelineFolder(files)) as process:

        def limits() -> dict[str, int]:
            return {one.appender: one.buffer_limit for one in process.workers}

        await until(lambda: len(limits()) == 3)
        assert limits() == {"a": whole * 3 // 20, "b": whole * 3 // 20, "c": whole * 7 // 30}
        greedy = named("greedy", pipeline("d", auto_buffer_ratio=0.9))
        files.append(greedy)
        await until(lambda: len(limits()) == 4)
        found = limits()
        assert (found["a"], found["d"]) == (
            whole * 3 // 20,
            int(whole * 0.7) - sum(found[one] for one in "abc"),
        )
        assert sum(found.values()) <= whole * 0.7


class Seconds:
    """A clock that stands."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


async def test_requests_become_fewer_while_nothing_comes(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes is found all the same."""
    await lake.put("1")
    listed: list[str] = []
    original = lake.store.list

    def counted(prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        listed.append(prefix)
        return original(prefix, after=after)

    monkeypatch.setattr(lake.store, "list", counted)
    clock: Any = Seconds()
    source = SegmentSource(StoredSegments(lake.store), clock)

    async def looks(seconds: int) -> int:
        before = listed.count(keys.segments_of("n"))
        for _ in range(seconds * 2):
            await source.refresh()
            clock.now += 0.5
        return listed.count(keys.segments_of("n")) - before

    await looks(20)
    assert await looks(60) <= 16
    await lake.put("2")
    await looks(5)
    assert source.nodes["n"].sizes.keys() == {1, 2}
    await lake.put("3")
    await source.refresh(clock.now)  # as before events are given: deletions count at once
    assert source.nodes["n"].sizes.keys() == {1, 2, 3}
