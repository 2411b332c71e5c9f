"""Searches over a store on a real S3 server, and what its database may not touch there."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.query.duckdb import Connect, Database, LockedDatabase, in_this_process
from service.query.duckdb_process import ProcessConnection
from service.settings import QuerySettings
from tailrace.logstore import keys
from tailrace.logstore.errors import Damaged, LimitReached, StoreUnavailable
from tailrace.logstore.objects.s3.client import BlockingBucket
from tailrace.logstore.table.table import open_table
from tests.faults.kinds import Kind
from tests.faults.schedule import Schedule, evenly
from tests.faults.thread import fault_proxy
from tests.servers.minio import Bucket
from tests.service.query.scattered import ALL, scattered, some_requests
from tests.service.query.test_skipping import RARE, altered, rare_word
from tests.service.query.world import World, bucket_of, engine_of, entry, search
from tests.simulation.hand_clock import HandClock

pytestmark = pytest.mark.minio


@pytest.fixture
async def world(bucket: Bucket, tmp_path: Path) -> AsyncIterator[World]:
    async with bucket.open() as store:
        yield World(tmp_path, bucket, store)


@pytest.mark.parametrize("seed", [1])
async def test_a_search_gives_what_the_model_gives(world: World, seed: int) -> None:
    await scattered(world, seed)
    async with engine_of(world, file_cache_bytes=0) as engine:
        for request in some_requests(random.Random(seed)):
            for asked in (request, replace(request, descending=False)):
                found, stats = await search(engine, asked)
                assert found == world.expected(asked)
                assert stats["complete"]


@pytest.mark.parametrize("harmed", [False, True])
async def test_a_skip_index_is_fetched_once_and_leaves_out_what_cannot_match(
    world: World, monkeypatch: pytest.MonkeyPatch, harmed: bool
) -> None:
    assert world.bucket is not None
    file = await rare_word(world)
    key = keys.skip_index(file.path)
    if harmed:
        await world.store.put(key, altered((await world.store.get(key))[1]))
    got, get = list[str](), BlockingBucket.get

    def noting(self: BlockingBucket, what: str, key: str, range_: str = "") -> bytes:
        got.append(key)
        return get(self, what, key, range_)

    monkeypatch.setattr(BlockingBucket, "get", noting)
    async with engine_of(world, file_cache_bytes=0) as engine:
        for request in (RARE, replace(RARE, limit=1), RARE):
            found, stats = await search(engine, request)
            assert found == world.expected(request)
            assert (stats["bytes"] == file.size) == harmed
            assert harmed or stats["bytes"] < file.size * 0.05
        assert engine.indexes.damaged == harmed
    assert got.count(f"{world.bucket.prefix}/{key}") == 1


async def test_the_keys_of_an_assumed_role_do_as_well(
    bucket: Bucket, world: World, tmp_path: Path
) -> None:
    await scattered(world, 1)
    role = bucket.through(bucket.endpoint_url, role_arn="arn:aws:iam::123456789012:role/any")
    async with role.open() as store:
        other = World(tmp_path, role, store, records=world.records)
        other.unflushed(world._unflushed)
        async with engine_of(other, file_cache_bytes=0) as engine:
            assert (await search(engine, ALL))[0] == world.expected(ALL)


async def test_names_are_taken_as_they_stand(world: World) -> None:
    for node in ("50% of it", "a*b", "x?s3_endpoint=127.0.0.1:1", "ü+&=[1]"):
        await world.segment([entry(random.Random(node))], node)
    async with engine_of(world, file_cache_bytes=0) as engine:
        found, stats = await search(engine, ALL)
        assert found == world.expected(ALL)
        assert stats["complete"]


@pytest.mark.parametrize("harm", ["vanished", "page", "footer"])
async def test_an_unreadable_segment_is_left_out_and_named(world: World, harm: str) -> None:
    rng = random.Random(3)
    await world.segment([entry(rng)])
    kept = list(world.records)
    bad = await world.segment([entry(rng, lines=400)], "node-02")
    body = (await world.store.get(bad))[1]
    async with engine_of(world, file_cache_bytes=0) as engine:
        if harm == "footer":
            await world.store.put(bad, body[:-5])
        async with await engine.open(ALL) as running:
            if harm == "page":
                await world.store.put(bad, bytes(len(body) // 2) + body[len(body) // 2 :])
            elif harm == "vanished":
                await world.store.delete([bad])
            rows = [batch.num_rows async for batch in running.batches()]
            assert sum(rows) == len(kept)
            assert running.stats()["unreadable"] == [bad]


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("seed", [1, 2])
async def test_a_search_survives_single_faults_of_any_request(world: World, seed: int) -> None:
    """One listing of delta-rs whose body broke off made it a 503."""
    await scattered(world, seed)
    straight, rates = world.bucket, evenly(0.1) | {Kind.CUT_RESPONSE: 0.2}
    schedule = Schedule(seed, rates, most_in_a_row=1, delay_seconds=0.005)
    assert straight is not None
    with fault_proxy(straight.endpoint_url, schedule) as url:
        through = straight.through(url, backoff_milliseconds=5)
        async with through.open() as store:
            world.bucket, world.store, world.table = through, store, open_table(through.settings)
            for _ in range(4):
                async with engine_of(world, file_cache_bytes=0) as engine:
                    found, stats = await search(engine, ALL)
                    assert (found, stats["complete"]) == (world.expected(ALL), True)
    assert schedule.injected[Kind.CUT_RESPONSE] > 0


async def test_a_bucket_that_does_not_answer_damages_nothing(world: World) -> None:
    await scattered(world, 1)
    assert world.bucket is not None
    world.bucket = world.bucket.through("http://127.0.0.1:1", attempts=1)
    async with engine_of(world, file_cache_bytes=0) as engine:
        found, stats = await search(engine, ALL)
        assert set(found) <= set(world.expected(ALL)), "the node's own lines"
        assert (stats["complete"], stats["store"]) == (False, "silent")


async def test_a_server_that_says_nothing_does_not_hold_a_search_past_its_time(
    world: World,
) -> None:
    await scattered(world, 1)
    clock = HandClock()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert world.bucket is not None
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        world.bucket = world.bucket.through(address, attempts=1, read_timeout_seconds=1)
        async with engine_of(world, clock, file_cache_bytes=0, time_limit_seconds=5) as engine:
            async with await engine.open(ALL) as running:
                first = asyncio.ensure_future(anext(running.batches()))
                connection, _ = await asyncio.to_thread(silent.accept)
                await clock.advance(6)
                with pytest.raises(LimitReached):
                    await first
                connection.close()


@pytest.mark.parametrize("connect", [in_this_process, ProcessConnection])
async def test_the_environment_says_nothing_of_s3(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connect: Connect
) -> None:
    for name in ("AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_REGION", "DUCKDB_S3_ENDPOINT"):
        monkeypatch.setenv(name, "of-somebody-else")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-somebody-else")
    monkeypatch.setenv("DUCKDB_S3_REQUESTER_PAYS", "true")
    locked = LockedDatabase(
        QuerySettings(), [], str(tmp_path / "spill"), bucket_of(bucket), connect
    )
    database = Database(locked)
    told = "SELECT count(*) FROM duckdb_settings() WHERE name LIKE 's3%' AND value = $value"
    assert database.number(told, {"value": "of-somebody-else"}) == 0
    assert database.number(told.replace("s3%", "s3_requester_pays"), {"value": "true"}) == 0
    database.close()


@pytest.fixture
def database(bucket: Bucket, tmp_path: Path) -> Iterator[Database]:
    folder = f"s3://{bucket.name}/{bucket.prefix}/{keys.SEGMENTS.rstrip('/')}"
    made = Database(
        LockedDatabase(QuerySettings(), [folder], str(tmp_path / "spill"), bucket_of(bucket))
    )
    yield made
    made.close()


@pytest.mark.parametrize(
    "place",
    [
        "s3://{bucket}/{prefix}/other/1.parquet",
        "s3://{bucket}/elsewhere/1.parquet",
        "s3://{bucket}/{prefix}/segments/../other/1.parquet",
        "s3://{bucket}/{prefix}/segments/../../elsewhere/1.parquet",
        "s3a://{bucket}/{prefix}/segments/1.parquet",
        "{endpoint}/{bucket}/{prefix}/segments/1.parquet",
        "s3://{bucket}/{prefix}/segments/*.parquet",
        "s3://{bucket}/{prefix}/segments/1.parquet?s3_use_ssl=false",
    ],
)
async def test_no_other_place_is_read(bucket: Bucket, database: Database, place: str) -> None:
    body = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [1]}), body)
    names = {"bucket": bucket.name, "prefix": bucket.prefix, "endpoint": bucket.endpoint_url}
    client = bucket.client()
    for folder in ("{prefix}/segments", "{prefix}/other", "elsewhere"):
        key = f"{folder}/1.parquet".format(**names)
        client.put_object(Bucket=bucket.name, Key=key, Body=body.getvalue().to_pybytes())
    client.close()
    statement = "SELECT count(*) FROM read_parquet($files)"
    allowed = "s3://{bucket}/{prefix}/segments/1.parquet".format(**names)
    assert database.number(statement, {"files": [allowed]}) == 1
    with pytest.raises((Damaged, StoreUnavailable)):
        database.number(statement, {"files": [place.format(**names)]})


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) FROM read_text('/etc/passwd')",
        "LOAD '/nowhere/other.duckdb_extension'",
        "INSTALL json",
        "SET s3_url_compatibility_mode = false",
        "SET s3_endpoint = 'elsewhere'",
        "SET enable_external_access = true",
        "CREATE PERSISTENT SECRET mine (TYPE s3)",
    ],
)
async def test_nothing_else_is_read_loaded_or_set(database: Database, statement: str) -> None:
    with pytest.raises(Damaged):
        database.number(statement, {})


async def test_the_secret_is_told_nowhere(database: Database) -> None:
    (batch,) = database.run("SELECT secret_string FROM duckdb_secrets()", {})
    assert "redacted" in str(batch.to_pylist())
    assert "tailrace-tests-secret" not in str(batch.to_pylist())
