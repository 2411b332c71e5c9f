"""Closes that need what vanished: `logs.txt`, indexes of chunks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.logstore import keys
from tailrace.logstore.errors import NotFound
from tests.service.runs.repair.test_chunks import RUN, WHERE, agree, chunk_keys, written

pytestmark = pytest.mark.usefixtures("every_store")


@pytest.mark.repairs(reason="an index or `logs.txt` is taken away")
@pytest.mark.on_servers(where=("both",), logs=("gone",))
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("logs", ["gone", "other bytes"])
async def test_logs_txt_vanished_with_its_index(tmp_path: Path, where: str, logs: str) -> None:
    """It was given up as lost, though all of it was in segments or table."""
    async with written(tmp_path, where=where, closed=True) as (world, expected):
        name = keys.logs(keys.PREFIX, RUN)
        await world.store.delete([name, *await chunk_keys(world, ".idx")])
        if logs == "other bytes":
            await world.store.put(name, b"x" * 2000)
        await world.restart()
        await agree(world, expected)
        world.clock.pass_seconds(3600)
        await world.run_logs.sweeper.sweep()
        assert (await world.store.get(name))[1] == expected, "sealed again"
        assert (await world.run_logs.reader.size(RUN)).state == "closed"
        await agree(world, expected)


@pytest.mark.repairs(reason="an index or `logs.txt` is taken away")
@pytest.mark.on_servers(act=("killed",))
@pytest.mark.parametrize("act", ["close", "sweep", "killed"])
async def test_a_close_makes_again_an_index_that_it_needs(tmp_path: Path, act: str) -> None:
    """Its intent kept the repaired chunk out of the manifest, so that it could never end."""
    async with written(tmp_path) as (world, expected):
        await world.store.delete((await chunk_keys(world, ".idx"))[1:3])
        await world.restart()
        if act == "killed":  # with the intent written, and by one that cannot go on
            with pytest.raises(NotFound):
                await world.run_logs.closer.finish(RUN, world.journal.end)
            assert (await world.manifest()).closing is not None
            await agree(world, expected)
        if act == "sweep":
            world.clock.pass_seconds(100_000)
            await world.run_logs.sweeper.sweep()
            await world.run_logs.sweeper.sweep()
        else:
            assert await world.run_logs.close_run(RUN) == "closed"
        assert (await world.run_logs.reader.size(RUN)).state == "closed"
        await agree(world, expected)
        assert (await world.store.get(keys.logs(keys.PREFIX, RUN)))[1] == expected


@pytest.mark.repairs(reason="an index or `logs.txt` is taken away")
@pytest.mark.on_servers(act=("sweep",), logs=("other bytes",))
@pytest.mark.parametrize("act", ["close", "sweep"])
@pytest.mark.parametrize("logs", ["gone", "cut", "other bytes"])
async def test_a_reopened_run_is_closed_though_its_logs_txt_vanished(
    tmp_path: Path, act: str, logs: str
) -> None:
    """It was taken for damage that only a reader could repair; other bytes were taken over."""
    async with written(tmp_path, closed=True) as (world, old):
        name = keys.logs(keys.PREFIX, RUN)
        world.append(RUN, b"late\n")
        await world.confirm()
        await world.run_logs.drain()
        await world.store.delete([name])
        if logs != "gone":
            await world.store.put(name, old[:-5] if logs == "cut" else b"x" * 2000)
        if act == "close":
            assert await world.run_logs.close_run(RUN) == "closed"
        else:
            world.clock.pass_seconds(100_000)
            await world.run_logs.sweeper.sweep()
            await world.run_logs.sweeper.sweep()
        assert (await world.store.get(name))[1] == old + b"late\n"
        assert (await world.run_logs.reader.size(RUN)).state == "closed"
        await agree(world, old + b"late\n")
