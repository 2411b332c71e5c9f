"""Small runs: their text stands in the manifest, and few objects and requests are enough."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from pathlib import Path

import httpx
import orjson
import pytest

from benchmarks.wire import counted
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NotFound, StoreUnavailable
from tailrace.logstore.runs.manifest import INLINE_BYTES, Manifest, decode_manifest
from tests.seeds import some
from tests.servers.minio import Minio
from tests.service.runs.interrupted import Interrupted
from tests.service.runs.test_crashes import RUN, check, close, delete, killed_everywhere, lines
from tests.service.runs.test_crashes import prepared as prepared_run
from tests.service.runs.world import FakeJournal, SmallWorld, World
from tests.service.test_main import PLAIN, service, settings_for
from tests.settings import changed
from tests.simulation.faulty_store import AT_EACH_STEP, Fault

LOGS = "/api/v1/services/ingestionPipelines/logs"
TEXT = b"one\ntwo\nthree\n"


async def objects(world: World) -> set[str]:
    return {
        info.key
        for prefix in (keys.RUNS, "pipeline-logs/")
        async for info in world.disk_store.list(prefix)
    }


async def manifest_of(world: World) -> Manifest:
    return decode_manifest((await world.disk_store.get(keys.run_manifest(RUN)))[1])


async def send_and_close(client: httpx.AsyncClient, runs: int) -> None:
    async def one(number: int) -> None:
        path = f"{LOGS}/p/run-{number}"
        assert (await client.post(path, content=TEXT, headers=PLAIN)).status_code == 200
        while (await client.post(f"{path}/close")).json()["state"] != "closed":
            pass

    await asyncio.gather(*[one(number) for number in range(runs)])


async def test_a_closed_one_is_three_files_and_reads_as_any_other(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path)) as (client, _):
        await send_and_close(client, 5)
    store = tmp_path / "data" / "store"
    files = [str(path) for path in store.rglob("*") if path.is_file() and "run-3" in str(path)]
    assert len(files) == 3, files
    assert [path for path in files if "chunks" in path or ".meta/runs" in path] == []
    async with service(settings_for(tmp_path)) as (client, _):
        page = (await client.get(f"{LOGS}/p/run-3")).json()
        assert (page["logs"], page["state"]) == (TEXT.decode().rstrip("\n"), "closed")
        assert (await client.get(f"{LOGS}/p/run-3/download")).content == TEXT
        again = await client.post(f"{LOGS}/p/run-3", content=b"late\n", headers=PLAIN)
        assert again.status_code == 200
        await send_and_close(client, 4)
        whole = TEXT + b"late\n" + TEXT
        assert (await client.get(f"{LOGS}/p/run-3/download")).content == whole
        assert (store / keys.logs("pipeline-logs", RunKey("p", "run-3"))).read_bytes() == whole


async def test_texts_stand_in_the_manifest_until_they_are_many() -> None:
    world = SmallWorld()
    await world.run_logs.start()
    sent = b""
    while len(sent) < 2 * INLINE_BYTES:
        sent += lines(len(sent), 90)
        world.append(RUN, sent[-900:])
        await world.confirm()
        await world.run_logs.flusher.drain()
        assert await world.whole(RUN) == sent
        manifest = await manifest_of(world)
        assert manifest.inline_bytes <= INLINE_BYTES
        named = {chunk.id for chunk in manifest.chunks if chunk.text is None}
        found = {key.rpartition("/")[2].partition(".")[0] for key in await objects(world)}
        assert found == named | {"run", "partial"}
    stored = (await world.disk_store.get(keys.run_manifest(RUN)))[1]
    assert orjson.loads(stored)["format"] == 3, "older versions stop, and name the format"
    assert await world.run_logs.close_run(RUN) == "closed"
    await check(world, sent)


@pytest.mark.parametrize("fault", AT_EACH_STEP)
@pytest.mark.parametrize("chunks", [0, 1])
async def test_a_close_that_is_killed_anywhere(fault: Fault, chunks: int) -> None:
    async def verify(world: World) -> None:
        expected = lines(0, 2 * chunks + 6)
        await check(world, expected)
        assert await world.run_logs.close_run(RUN) == "closed"
        await check(world, expected)
        world.journal.first = world.journal.end
        await check(world, expected)
        logs = keys.logs("pipeline-logs", RUN)
        assert (await world.disk_store.get(logs))[1] == expected

    async def prepare() -> World:
        return await prepared_run(chunks=chunks, closed=False, late=True, kind=SmallWorld)

    await killed_everywhere(prepare, close, fault, verify)


@pytest.mark.parametrize("fault", AT_EACH_STEP)
async def test_a_deletion_that_is_killed_anywhere_leaves_no_text(fault: Fault) -> None:
    async def verify(world: World) -> None:
        await world.run_logs.delete_run(RUN)
        with pytest.raises(NotFound):
            await world.run_logs.reader.page(RUN, after=None, limit=5)
        for key in await objects(world):
            assert b"line 0001" not in (await world.disk_store.get(key))[1], key

    async def prepare() -> World:
        return await prepared_run(chunks=2, closed=True, late=False, kind=SmallWorld)

    await killed_everywhere(prepare, delete, fault, verify)


@pytest.mark.parametrize("seed", some(range(20), 5, "two nodes close"))
async def test_two_nodes_that_close_one_lose_no_line(seed: int) -> None:
    a = SmallWorld(seed=seed)
    journal = FakeJournal(node="node-B")
    b = SmallWorld(store=a.disk_store, journal=journal, seed=seed + 100)
    for number, world in enumerate((a, b)):
        await world.run_logs.start()
        world.append(RUN, lines(number * 10, 3))
        await world.confirm()
    turns = [a, b] if seed % 2 else [b, a]
    await turns[0].run_logs.flusher.drain()
    states = await asyncio.gather(*[world.run_logs.close_run(RUN) for world in turns])
    assert set(states) <= {"closed", "closing"}
    assert sorted((await a.whole(RUN)).split(b"\n")) == sorted(
        (lines(0, 3) + lines(10, 3)).split(b"\n")
    )
    logs = (await a.disk_store.get(keys.logs("pipeline-logs", RUN)))[1]
    manifest = await manifest_of(a)
    assert manifest.logs is not None
    assert len(logs) == manifest.logs.bytes


async def test_a_close_behind_another_nodes_deletion_brings_no_text_back() -> None:
    a = SmallWorld()
    b = SmallWorld(store=a.disk_store, journal=FakeJournal(node="node-B"), seed=2)
    for world in (a, b):
        await world.run_logs.start()
    a.append(RUN, lines(0, 3))
    await a.confirm()
    await a.run_logs.flusher.drain()
    b.clock.ms = a.clock.ms + 1
    await b.run_logs.delete_run(RUN)
    await a.run_logs.close_run(RUN)
    for key in await objects(a):
        assert b"line 0001" not in (await a.disk_store.get(key))[1], key


async def two_nodes() -> tuple[World, World, Interrupted]:
    """A node with lines of a new run, behind an interrupted store, and one without lines."""
    a = SmallWorld()
    store = Interrupted(a.disk_store)
    await a.restart(store)
    b = SmallWorld(store=a.disk_store, journal=FakeJournal(node="node-B"), seed=2)
    await b.run_logs.start()
    a.append(RUN, lines(0, 3))
    await a.confirm()
    return a, b, store


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize(
    "put", [keys.logs("pipeline-logs", RUN), keys.run_manifest(RUN)], ids=["logs", "manifest"]
)
async def test_a_deletion_during_a_first_close_brings_no_text_back(put: str, lost: bool) -> None:
    a, b, store = await two_nodes()
    b.clock.ms = a.clock.ms + 1

    async def meanwhile() -> None:
        await b.run_logs.delete_run(RUN)
        if lost:
            raise StoreUnavailable("the request did not arrive")

    store.before(f"put {put}", meanwhile)
    pos = await a.record_close(RUN)
    a.run_logs.flusher.hold_at(RUN, pos)
    for tries in range(1 + lost):
        with suppress(StoreUnavailable) if lost and not tries else nullcontext():
            await a.run_logs.closer.finish(RUN, pos)
    assert store.done
    assert (await manifest_of(a)).state == "deleted"
    for key in await objects(a):
        assert b"line 0001" not in (await a.disk_store.get(key))[1], key


async def test_lines_of_another_node_just_before_a_first_manifest_are_all_there() -> None:
    a, b, store = await two_nodes()
    b.append(RUN, lines(10, 3))
    await b.confirm()
    store.before(f"put {keys.run_manifest(RUN)}", b.run_logs.flusher.drain)
    await a.run_logs.close_run(RUN)
    assert store.done
    assert await b.run_logs.close_run(RUN) == "closed"
    expected = lines(10, 3) + lines(0, 3)
    for world in (a, b):
        await check(world, expected)
    assert (await a.disk_store.get(keys.logs("pipeline-logs", RUN)))[1] == expected


async def test_a_log_whose_first_manifest_was_removed_is_rebuilt_or_taken_as_it_is() -> None:
    a, b, _ = await two_nodes()
    assert await a.run_logs.close_run(RUN) == "closed"
    await a.run_logs.flusher.raise_marks(force=True)
    await a.disk_store.delete([keys.run_manifest(RUN)])
    assert await b.whole(RUN) == lines(0, 3), "no record of it is left: the log is all there is"
    assert (await manifest_of(b)).sealed


async def test_what_one_costs_on_s3(minio: Minio, tmp_path: Path) -> None:
    with counted(minio.endpoint_url) as wire:
        place = minio.bucket().through(wire.url).settings
        settings = changed(settings_for(tmp_path), store=place.store, s3=place.s3)
        async with service(settings) as (client, _):
            before = wire.traffic()
            await send_and_close(client, 20)
            traffic = wire.traffic() - before
    assert traffic.count("PutObject", what="logs.txt") == 20
    assert traffic.count("PutObject", what="manifests") == 20
    assert traffic.count(what="manifests") == 20, "what this node wrote, it does not read"
    assert traffic.count(what="logs.txt") == 20
    assert traffic.count(what="chunks") + traffic.count(what="indexes") == 0
    assert traffic.count(what="partial.txt") == 0
    assert traffic.count("ListObjects") <= 40, "one look each at what OpenMetadata may have written"
    assert traffic.count("HeadObject") == 0
