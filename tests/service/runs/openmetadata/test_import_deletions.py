"""Runs that OpenMetadata wrote, deleted or expired: they do not come back."""

from __future__ import annotations

import pytest

from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NotFound
from tailrace.logstore.runs.deletions import Deletion
from tests.service.runs.openmetadata.test_import import (
    DOTTED,
    FOLDERS,
    RUNS,
    agree,
    started,
    stored,
)
from tests.service.runs.world import World
from tests.settings import SETTINGS, settings_with

pytestmark = pytest.mark.usefixtures("every_store")


@pytest.mark.on_servers(touched=(True,))
@pytest.mark.parametrize("key", RUNS)
@pytest.mark.parametrize("touched", [False, True])
async def test_a_deleted_run_does_not_come_back(key: RunKey, touched: bool) -> None:
    world = await started(key, partial=b"a\n", logs=b"z\n")
    if touched:
        await world.whole(key)
    await world.run_logs.delete_run(key)
    await gone(world, key)
    for name in ("partial", "logs"):
        assert await stored(world, f"{FOLDERS[key]}/{key.run}/{name}.txt") is None


@pytest.mark.on_servers(touched=(True,))
@pytest.mark.parametrize("key", RUNS)
@pytest.mark.parametrize("touched", [False, True])
async def test_a_deleted_pipelines_runs_do_not_come_back(key: RunKey, touched: bool) -> None:
    world = await started(key, logs=b"z\n")
    if touched:
        await world.whole(key)
    assert await world.run_logs.delete_pipeline(key.fqn) == [key.run]
    await gone(world, key)
    kept = await stored(world, f"{FOLDERS[key]}/{key.run}/logs.txt")
    # Nobody knows whose it is, if it stands under a name that is not ours.
    assert kept == (b"z\n" if key is DOTTED and not touched else None)


async def test_a_deletion_by_another_node_is_heard_of_before_anything_is_taken_in() -> None:
    world = await started(logs=b"z\n")
    twin = World(store=world.disk_store, seed=2)
    await twin.run_logs.start()
    await world.run_logs.delete_pipeline(DOTTED.fqn)
    with pytest.raises(NotFound):
        await twin.run_logs.reader.page(DOTTED, after=None, limit=5)
    assert twin.run_logs.importer.imported == 0


@pytest.mark.parametrize("run", [None, DOTTED.run])
async def test_what_was_written_after_a_deletion_is_read(run: str | None) -> None:
    world = await started(partial=b"new\n")
    await world.run_logs.deletions.record(Deletion(DOTTED.fqn, run, 1, "x"))
    await world.restart()
    await agree(world, DOTTED, b"new\n", "open")
    await world.run_logs.close_run(DOTTED)
    await agree(world, DOTTED, b"new\n", "closed")


async def gone(world: World, key: RunKey) -> None:
    for _ in range(2):
        with pytest.raises(NotFound):
            await world.run_logs.reader.page(key, after=None, limit=5)
        assert await world.listed(key.fqn, 5) == []
        # The manifest that says so goes some day; the deletion outlives it.
        await world.disk_store.delete([keys.run_manifest(key)])
        await world.restart()
    world.append(key, b"new\n", ulid=world.mint_above(world.run_logs.deletions.horizon(key)))
    await agree(world, key, b"new\n", "open")


async def test_an_expired_run_does_not_come_back() -> None:
    world = await started(logs=b"z\n")
    world.settings = settings_with(SETTINGS, runs={"expiration_days": 30})
    await world.restart()
    await agree(world, DOTTED, b"z\n", "closed")
    world.clock.pass_seconds(31 * 86_400)
    await world.run_logs.sweeper.sweep()
    await gone(world, DOTTED)
