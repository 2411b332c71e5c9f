"""What a text costs the store: no small chunks in its middle, and few copies of it."""

from __future__ import annotations

import pytest

from service.settings import Tuning
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tests.service.runs.world import World
from tests.settings import SETTINGS, settings_with
from tests.simulation.backing import on_disk

pytestmark = pytest.mark.usefixtures("every_store")

RUN = RunKey("service.pipeline", "run")
LINE = b"x" * 999 + b"\n"


async def chunks_of(world: World) -> list[int]:
    manifest = (await world.run_logs.manifests.get(RUN)).manifest
    return [chunk.bytes for chunk in manifest.chunks]


@pytest.mark.on_servers(lines=(23,))
@pytest.mark.parametrize("lines", [1, 7, 8, 9, 13, 14, 15, 22, 23, 41])
async def test_a_flush_of_more_than_one_chunk_leaves_no_small_one(lines: int) -> None:
    world = World(tuning=Tuning(chunk_bytes=8 * len(LINE)))
    await world.run_logs.start()
    for _ in range(lines):
        world.append(RUN, LINE)
    await world.confirm()
    await world.run_logs.flusher.drain()
    sizes = [size // len(LINE) for size in await chunks_of(world)]
    assert sum(sizes) == lines
    assert all(6 < size <= 14 for size in sizes) or sizes == [lines]
    assert len(sizes) == (1 if lines <= 14 else -(-(lines - 14) // 8) + 1)


@pytest.mark.in_turn(4)
async def test_a_growing_text_is_published_at_most_twice_over() -> None:
    settings = settings_with(
        SETTINGS,
        runs={"early_flush_watermark_bytes": 1 << 30, "partial_flush_interval_minutes": 0.0},
    )
    world = World(settings=settings)
    await world.run_logs.start()
    published: list[int] = []
    rounds = 40 if on_disk() else 15
    for _ in range(rounds):
        world.append(RUN, LINE * 1000)
        await world.confirm()
        await world.run_logs.flusher.drain()
        info = await world.disk_store.head(keys.partial("pipeline-logs", RUN))
        if not published or published[-1] != info.size:
            published.append(info.size)
    small = 5 << 20
    assert published[0] == len(LINE) * 1000  # at once, while it is small
    assert published[-1] * 2 > rounds * len(LINE) * 1000  # never less than half of it
    assert sum(size for size in published if size >= small) <= 2 * rounds * len(LINE) * 1000
