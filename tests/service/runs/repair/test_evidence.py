"""The manifest of a run was taken away while the run goes on: its older lines stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.query.context import run_records
from service.settings import Tuning
from tailrace.logstore import keys
from tests.service.query.world import engine_of, lake_in
from tests.service.runs.repair.test_chunks import RUN, WHERE, Reader, agree, written

pytestmark = pytest.mark.usefixtures("every_store")


@pytest.mark.repairs(reason="the manifest is taken away")
@pytest.mark.on_servers(where=("both",), restarted=(True,))
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("restarted", [False, True])
async def test_new_lines_come_after_the_manifest_is_gone(
    tmp_path: Path, where: str, restarted: bool
) -> None:
    async with written(tmp_path, where=where) as (world, old):
        expected = old
        await world.store.delete([keys.run_manifest(RUN)])
        if restarted:
            await world.restart()
        for number in range(2):
            world.append(RUN, b"new %d\n" % number)
            await world.confirm()
            await world.run_logs.drain()
            expected += b"new %d\n" % number
            await agree(world, expected)
        assert await world.run_logs.close_run(RUN) == "closed"
        assert (await world.store.get(keys.logs(keys.PREFIX, RUN)))[1] == expected


@pytest.mark.repairs(reason="the manifest is taken away")
async def test_an_older_partial_text_of_our_own_is_not_taken_for_all(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    async with engine_of(lake) as engine:
        world = Reader(store=lake.store, tuning=Tuning(partial_seconds=1e9))
        world.records = run_records(engine)
        await world.run_logs.start()
        expected = b""
        for number in range(3):
            world.append(RUN, b"line %d\n" % number)
            await world.confirm()
            await world.run_logs.drain()
            expected += b"line %d\n" % number
        partial = (await world.store.get(keys.partial(keys.PREFIX, RUN)))[1]
        assert partial != expected
        world.journal.first = world.journal.end
        await world.store.delete([keys.run_manifest(RUN)])
        await world.restart()
        await agree(world, expected)


async def test_a_flush_that_died_before_its_first_manifest_is_done_again(tmp_path: Path) -> None:
    """Its chunk is no trace of a manifest: the lines keep their node and their order."""
    lake = lake_in(tmp_path)
    async with engine_of(lake) as engine:
        world = Reader(store=lake.store, tuning=Tuning(partial_seconds=1e9))
        world.records = run_records(engine)
        await world.run_logs.start()
        world.append(RUN, b"one\n")
        await world.confirm()
        await world.run_logs.drain()
        await world.store.delete([keys.run_manifest(RUN), keys.watermark(world.journal.node)])
        await world.store.delete([keys.partial(keys.PREFIX, RUN)])
        await world.restart()
        world.append(RUN, b"two\n")
        await world.confirm()
        await world.run_logs.drain()
        await agree(world, b"one\ntwo\n")
        assert set((await world.manifest()).writers) == {world.journal.node}
        assert world.run_logs.rebuilder.rebuilt == 0
