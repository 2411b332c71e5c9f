"""A bucket as an OpenMetadata server leaves it, on a real S3 server that misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import pytest

from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import NotFound
from tailrace.logstore.objects.store import ObjectStore
from tests.faults.schedule import Schedule, evenly
from tests.faults.thread import fault_proxy
from tests.servers.minio import Bucket
from tests.service.runs.world import World
from tests.simulation.backing import PAUSE_MS, TRIES
from tests.stores import RATE

pytestmark = pytest.mark.minio

RUN = RunKey("my_service.my pipeline", "6f1c0e5e-0d1f-4b7c-8f3a-2a2f3a3b4c5d")
PLAIN = RunKey("plain", RUN.run)
FOLDERS = {RUN: "pipeline-logs/my_service_my_pipeline", PLAIN: "pipeline-logs/plain"}
MIB = 1 << 20


def lines(size: int) -> bytes:
    """So many bytes of lines, the last of which has not ended."""
    return b"".join(b"[2026-11-21 10:00:00] INFO %08d\n" % n for n in range(size // 36 + 1))[:-1]


@pytest.fixture
async def store(bucket: Bucket) -> AsyncIterator[ObjectStore]:
    schedule = Schedule(1, evenly(RATE), delay_seconds=0.005)
    with fault_proxy(bucket.endpoint_url, schedule) as url:
        through = bucket.through(url, attempts=TRIES.count, backoff_milliseconds=PAUSE_MS)
        async with through.open() as store:
            yield store
    assert schedule.injected


def upstream(bucket: Bucket, key: RunKey, **texts: bytes) -> None:
    """Puts what OpenMetadata puts, by another client than ours: from 5 MiB on in parts."""
    with closing(bucket.client()) as client:
        for name, body in texts.items():
            where = f"{bucket.prefix}/{FOLDERS[key]}/{key.run}/{name}.txt".lstrip("/")
            _put(client, bucket.name, where, body)


def _put(client: Any, bucket: str, key: str, body: bytes) -> None:
    about = {
        "Bucket": bucket,
        "Key": key,
        "ContentType": "text/plain",
        "Metadata": {
            "last-flushed-line": str(body.count(b"\n")),
            "total-bytes": str(len(body)),
            "writer-epoch": "1763719200000",
            "writer-version": "streamable-logs-v2",
        },
    }
    if len(body) < 5 * MIB:
        client.put_object(Body=body, **about)
        return
    upload = {"Bucket": bucket, "Key": key}
    upload["UploadId"] = client.create_multipart_upload(**about)["UploadId"]
    parts = []
    for number, at in enumerate(range(0, len(body), 5 * MIB), 1):
        piece = body[at : at + 5 * MIB]
        etag = client.upload_part(PartNumber=number, Body=piece, **upload)["ETag"]
        parts.append({"PartNumber": number, "ETag": etag})
    client.complete_multipart_upload(MultipartUpload={"Parts": parts}, **upload)


async def node(store: ObjectStore, seed: int = 1) -> World:
    world = World(store=store, seed=seed)
    world.journal.node = f"node-{seed}"
    world.clock.ms = SystemClock().now_ms()
    await world.restart()
    return world


async def read(store: ObjectStore, key: str) -> bytes:
    return (await store.get(key))[1]


@pytest.mark.parametrize("size", [1000, 12 * MIB])
@pytest.mark.parametrize("key", [RUN, PLAIN], ids=["their key", "our key"])
@pytest.mark.parametrize("name", ["partial", "logs"])
async def test_read_appended_to_and_closed(
    bucket: Bucket, store: ObjectStore, size: int, key: RunKey, name: str
) -> None:
    text = lines(size)
    upstream(bucket, key, **{name: text})
    world = await node(store)
    assert await world.whole(key) == text + b"\n"
    page = await world.run_logs.reader.page(key, after=None, limit=5, tail=2)
    assert page.text == b"\n".join([*text.split(b"\n")[-2:], b""])
    world.append(key, b"ours\n")
    await world.confirm()
    await world.run_logs.flusher.drain()
    assert await world.run_logs.close_run(key) == "closed"
    assert await world.whole(key) == text + b"\nours\n"
    assert await read(store, keys.logs("pipeline-logs", key)) == text + b"\nours\n"
    if key is RUN:
        assert await read(store, f"{FOLDERS[key]}/{key.run}/{name}.txt") == text


async def test_a_closed_run_stays_where_it_is(bucket: Bucket, store: ObjectStore) -> None:
    text = lines(6 * MIB) + b"\n"
    upstream(bucket, PLAIN, logs=text)
    before = await store.head(keys.logs("pipeline-logs", PLAIN))
    world = await node(store)
    assert await world.whole(PLAIN) == text
    assert (await world.run_logs.reader.size(PLAIN)).state == "closed"
    assert await store.head(before.key) == before
    names = [info.key async for info in store.list("pipeline-logs/")]
    assert [name for name in names if not name.endswith(".idx")] == [before.key]


async def test_both_of_equal_bytes_in_other_parts_are_one_text(
    bucket: Bucket, store: ObjectStore
) -> None:
    text = lines(6 * MIB)
    upstream(bucket, RUN, logs=text)
    where = f"{FOLDERS[RUN]}/{RUN.run}/"
    await store.put(f"{where}partial.txt", text)
    tags = [(await store.head(f"{where}{name}.txt")).etag for name in ("logs", "partial")]
    assert tags[0] != tags[1]
    world = await node(store)
    assert await world.whole(RUN) == text + b"\n"
    assert (await world.run_logs.reader.size(RUN)).state == "closed"


async def test_two_nodes_at_once(bucket: Bucket, store: ObjectStore) -> None:
    text = lines(7 * MIB)
    upstream(bucket, RUN, partial=text)
    one, two = await node(store, 1), await node(store, 2)
    two.append(RUN, b"ours\n")
    await two.confirm()
    found = await asyncio.gather(one.whole(RUN), two.run_logs.flusher.drain(), one.whole(RUN))
    assert {found[0], found[2]} <= {text + b"\n", text + b"\nours\n"}
    for world in (one, two):
        assert await world.whole(RUN) == text + b"\nours\n"


async def test_a_deleted_run_does_not_come_back(bucket: Bucket, store: ObjectStore) -> None:
    upstream(bucket, RUN, logs=b"a\n", partial=b"b\n")
    world = await node(store)
    assert [run.run for run in await world.listed(RUN.fqn, 5)] == [RUN.run]
    await world.run_logs.delete_run(RUN)
    await world.restart()
    with pytest.raises(NotFound):
        await world.whole(RUN)
    assert await world.listed(RUN.fqn, 5) == []
    assert [info.key async for info in store.list("pipeline-logs/")] == []
