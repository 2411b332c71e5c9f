"""What only the store on S3 does, on a real MinIO, looked at with another client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import (
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
)
from tailrace.logstore.objects.s3.client import BlockingBucket, open_client
from tailrace.logstore.objects.s3.credentials import Credentials
from tailrace.logstore.objects.s3.keys import BucketPlace
from tailrace.logstore.objects.s3.settings import S3Settings
from tailrace.logstore.objects.s3.store import S3Store, keeping_of
from tailrace.logstore.objects.s3.writes import PartLimits
from tailrace.logstore.objects.store import ObjectPart
from tests.servers.minio import KMS_KEY, Bucket, Minio

MIB = 1 << 20
SMALL = PartLimits(smallest=5 * MIB, copied=11 * MIB, sent=6 * MIB, single_put=7 * MIB)


@asynccontextmanager
async def store_with(bucket: Bucket, limits: PartLimits) -> AsyncIterator[S3Store]:
    settings, clock = bucket.settings, SystemClock()
    assert settings.bucket is not None
    async with open_client(settings.s3, Credentials(settings.s3), clock) as client:
        yield S3Store(
            client,
            BucketPlace(*settings.bucket),
            clock,
            system_entropy(),
            blocking=BlockingBucket(settings.s3, Credentials(settings.s3), bucket.name),
            keeping=keeping_of(settings.s3),
            limits=limits,
            uploads_by_prefix=False,
        )


@pytest.fixture
def boto(bucket: Bucket) -> Iterator[Any]:
    client = bucket.client()
    yield client
    client.close()


def blocks(size: int) -> bytes:
    """Bytes of which no two MiB are equal."""
    return b"".join([i.to_bytes(8) for i in range(size // 8)])


def unfinished(boto: Any, bucket: Bucket) -> list[str]:
    found = boto.list_multipart_uploads(Bucket=bucket.name).get("Uploads", [])
    return [upload["Key"] for upload in found]


# -- sizes


@pytest.mark.minio
async def test_a_large_put_goes_in_parts(bucket: Bucket, boto: Any) -> None:
    body = blocks(20 * MIB)
    async with store_with(bucket, SMALL) as store:
        put = await store.put("large", body, if_absent=True, metadata={"a": "b"})
        assert (await store.get("large"))[1] == body
        assert put.metadata == (await store.head("large")).metadata == {"a": "b"}
        assert store.requests.made["upload_part"] == 4
        with pytest.raises(PreconditionFailed):
            await store.put("large", body, if_absent=True)
        assert (
            await store.put("large", memoryview(body)[:-1], if_match=put.etag)
        ).size == 20 * MIB - 1
    assert boto.head_object(Bucket=bucket.name, Key="store/large")["ETag"].endswith('-4"')
    assert unfinished(boto, bucket) == []


@pytest.mark.minio
async def test_a_refused_body_is_not_sent(bucket: Bucket) -> None:
    """Above 1 MiB the server is asked first; its refusal is no broken connection."""
    body = blocks(6 * MIB)
    async with bucket.open() as store:
        assert isinstance(store, S3Store)
        await store.put("k", b"first")
        for _ in range(3):
            with pytest.raises(PreconditionFailed):
                await store.put("k", body, if_absent=True)
        assert (await store.get("k"))[1] == b"first"
        assert store.requests.made["put_object"] == 4


@pytest.mark.minio
async def test_stored_ranges_are_copied_and_only_small_ones_pass_through(bucket: Bucket) -> None:
    body = blocks(40 * MIB)
    async with store_with(bucket, SMALL) as store:
        await store.put("a", body)
        await store.put("small", b"small")
        asked = dict(store.requests.made)
        await store.compose(
            "b",
            [
                b"<",
                ObjectPart("a", 3, 30 * MIB),
                ObjectPart("small", 0, 5),
                ObjectPart("a", 7, 12 * MIB),
                b">",
            ],
        )
        made = {op: n - asked.get(op, 0) for op, n in store.requests.made.items()}
        expected = b"<" + body[3 : 3 + 30 * MIB] + b"small" + body[7 : 7 + 12 * MIB] + b">"
        assert (await store.get("b"))[1] == expected
    assert made == {
        "head_object": 1,  # a range that takes several requests is pinned to what is there
        "put_object": 0,
        "create_multipart_upload": 1,
        "upload_part": 3,
        "upload_part_copy": 4,
        "get_object": 3,
        "complete_multipart_upload": 1,
    } | {op: 0 for op in made if made[op] == 0}


@pytest.mark.minio
async def test_more_parts_than_s3_takes_are_merged(bucket: Bucket) -> None:
    limits = PartLimits(smallest=5 * MIB, count=3, copied=5 * MIB, sent=5 * MIB)
    body = blocks(6 * MIB)
    async with store_with(bucket, limits) as store:
        await store.put("a", body)
        composed = await store.compose("b", [ObjectPart("a")] * 9)
        assert composed.size == 54 * MIB
        assert (await store.get("b"))[1] == body * 9
        parts = store.requests.made.get("upload_part", 0)
        assert parts + store.requests.made.get("upload_part_copy", 0) <= 3


@pytest.mark.minio
async def test_a_range_that_is_shorter_than_said_is_what_there_is(bucket: Bucket) -> None:
    body = blocks(12 * MIB)
    async with store_with(bucket, SMALL) as store:
        await store.put("a", body)
        for size in (13 * MIB, 11 * MIB + 1):
            part = ObjectPart("a", 2 * MIB, size)
            await store.compose("b", [part, b"."])
            assert (await store.get("b"))[1] == body[2 * MIB : 2 * MIB + size] + b"."


# -- what others see


@pytest.mark.minio
async def test_objects_say_what_they_are_and_who_wrote_them(bucket: Bucket, boto: Any) -> None:
    async with bucket.open() as store:
        await store.put("t/logs.txt", b"text", metadata={"total-bytes": "4"})
        found = boto.head_object(Bucket=bucket.name, Key="store/t/logs.txt")
        assert found["ContentType"] == "text/plain; charset=utf-8"
        assert found["Metadata"].keys() == {"total-bytes", "tailrace-write"}
        assert (await store.head("t/logs.txt")).metadata == {"total-bytes": "4"}
        assert store.uri("t/logs.txt") == f"s3://{bucket.name}/store/t/logs.txt"


@pytest.mark.minio
async def test_two_prefixes_are_two_stores_and_none_is_the_bucket(
    minio: Minio, bucket: Bucket
) -> None:
    other = Bucket(bucket.endpoint_url, bucket.name, "store2/x")
    root = Bucket(bucket.endpoint_url, bucket.name, "")
    async with bucket.open() as one, other.open() as two, root.open() as all_:
        await one.put("a/k", b"1")
        await two.put("a/k", b"2")
        await all_.put("k", b"3")
        assert [info.key async for info in one.list("")] == ["a/k"]
        assert [name async for name in two.folders("")] == ["a"]
        everything = [info.key async for info in all_.list("")]
        assert everything == ["k", "store/a/k", "store2/x/a/k"]
        await one.delete(["a/k"])
        assert (await two.get("a/k"))[1] == b"2"


@pytest.mark.minio
async def test_hadoops_markers_of_folders_are_no_objects(bucket: Bucket, boto: Any) -> None:
    boto.put_object(Bucket=bucket.name, Key="store/table/")
    boto.put_object(Bucket=bucket.name, Key="store/table/f", Body=b"x")
    async with bucket.open() as store:
        assert [info.key async for info in store.list("")] == ["table/f"]


@pytest.mark.minio
@pytest.mark.parametrize(
    ("s3", "shown"),
    [
        ({"encryption": "AES256"}, ("AES256", None)),
        ({"encryption": "aws:kms", "kms_key_id": KMS_KEY}, ("aws:kms", f"arn:aws:kms:{KMS_KEY}")),
    ],
)
async def test_every_way_of_writing_encrypts_and_only_logs_have_a_class(
    minio: Minio, s3: dict[str, Any], shown: tuple[str, str | None]
) -> None:
    bucket = minio.bucket(storage_class="REDUCED_REDUNDANCY", **s3)
    body = blocks(12 * MIB)
    async with store_with(bucket, SMALL) as store:
        await store.put("chunks/1.txt", body[:100])
        await store.put("chunks/2.txt", body)
        await store.compose("partial.txt", [ObjectPart("chunks/1.txt"), b"+"])
        for key in ("logs.txt", "run/logs.txt", "run/partial.txt"):
            await store.compose(key, [ObjectPart("chunks/2.txt"), ObjectPart("chunks/1.txt")])
        await store.put("small/logs.txt", b"x")
        for name in ("J-00000-R1.parquet", "J-00000-R1-L1.parquet"):  # fresh, and written anew
            await store.compose(
                f"table/date=2026-11-22/hour=01/{name}", [ObjectPart("chunks/1.txt")]
            )
        keys = [info.key async for info in store.list("")]
    client = bucket.client()
    try:
        for key in keys:
            found = client.head_object(Bucket=bucket.name, Key=f"store/{key}")
            seen = found["ServerSideEncryption"], found.get("SSEKMSKeyId")
            assert seen == shown, key
            kept = key.endswith(("/logs.txt", "-L1.parquet"))
            large = "REDUCED_REDUNDANCY" if kept else None
            assert found.get("StorageClass") == large, key
    finally:
        client.close()
    assert len(keys) == 9


# -- what is left behind


@pytest.mark.minio
async def test_an_upload_that_fails_is_aborted(bucket: Bucket, boto: Any) -> None:
    async with store_with(bucket, SMALL) as store:
        etag = (await store.put("a", blocks(12 * MIB))).etag
        with pytest.raises(NotFound):
            await store.compose("b", [ObjectPart("a", 0, 12 * MIB), ObjectPart("gone", 0, 9 * MIB)])
        with pytest.raises(PreconditionFailed):
            await store.compose("b", [ObjectPart("a", 0, 9 * MIB, if_match="0" * 32), b"x"])
        with pytest.raises(PreconditionFailed):
            await store.compose("a", [ObjectPart("a", 0, 12 * MIB), b"x"], if_absent=True)
        assert (await store.head("a")).etag == etag
        writing = asyncio.create_task(store.compose("b", [ObjectPart("a", 0, 12 * MIB)] * 20))
        while not store.requests.made.get("upload_part_copy", 0) > 3:
            await asyncio.sleep(0.001)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        with pytest.raises(NotFound):
            await store.head("b")
    assert unfinished(boto, bucket) == []


@pytest.mark.minio
async def test_what_a_crash_left_is_swept_and_only_ours(bucket: Bucket, boto: Any) -> None:
    for key in ("store/table/part-0.parquet", "store/logs.txt", "storefront/theirs", "theirs"):
        boto.create_multipart_upload(Bucket=bucket.name, Key=key)
    async with bucket.open() as store:
        now_ms = SystemClock().now_ms()
        assert await store.sweep(now_ms - 3600_000) == 0
        assert len(unfinished(boto, bucket)) == 4
        assert await store.sweep(now_ms + 3600_000) == 2
        assert sorted(unfinished(boto, bucket)) == ["storefront/theirs", "theirs"]
        assert await store.sweep(now_ms + 3600_000) == 0


# -- the way to the server


@pytest.mark.minio
async def test_every_answer_tells_the_stores_time(bucket: Bucket) -> None:
    clock = SystemClock()
    async with bucket.open() as store:
        assert isinstance(store, S3Store)
        before = store.newest_date
        with pytest.raises(NotFound):
            await store.head("absent")
        sample = store.newest_date
        assert before is None
        assert sample is not None
        assert sample.sent <= sample.arrived <= clock.monotonic()
        assert abs(sample.date_ms - clock.now_ms()) < 5000
        assert sample.ahead_ms == 0


async def test_a_server_that_nobody_reaches_wrote_nothing() -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        bucket = Bucket(f"http://127.0.0.1:{taken.getsockname()[1]}", "bucket")
        async with bucket.through(bucket.endpoint_url, backoff_milliseconds=1).open() as store:
            with pytest.raises(StoreUnavailable):
                await store.put("k", b"x")
            with pytest.raises(StoreUnavailable):
                await store.get("k")


async def test_a_request_is_sent_once_by_a_try() -> None:
    """aiohttp would send a PUT again, unasked, when a kept connection ends."""
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for turn in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"expect" not in head.lower(), "a small body waits for nobody's leave"
            heads.append(head.split(b" ")[0])
            if heads[-1] == b"HEAD":
                break
            await reader.readexactly(1)
            if turn == 0:
                writer.write(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\n\r\n')
                await writer.drain()
        writer.close()  # the second request was read, and perhaps done

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with Bucket(url, "bucket", s3={"attempts": 1}).open() as store:
            await store.put("k", b"1")
            with pytest.raises(OutcomeUnknown):
                await store.put("k", b"2")
    finally:
        server.close()
        await server.wait_closed()
    assert heads == [b"PUT", b"PUT", b"HEAD"]  # the last looks whether the second happened


# -- who we are


def test_a_profile_that_is_not_there_is_found_at_once(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidInput, match="nobodys"):
        Credentials(S3Settings(profile="nobodys", region="eu-west-1"))


async def test_without_credentials_nothing_is_sent(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    nobody = {"access_key_id": "", "secret_access_key": ""}
    async with Bucket("http://127.0.0.1:1", "bucket", s3=nobody).open() as store:
        with pytest.raises(InvalidInput, match="no credentials") as caught:
            await store.put("k", b"x")
    assert "s3.access_key_id" in caught.value.hint


@pytest.mark.minio
@pytest.mark.parametrize("how", ["environment", "profile", "role"])
async def test_credentials_are_found(
    how: str, bucket: Bucket, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = bucket.settings.s3.access_key_id
    secret = bucket.settings.s3.secret_access_key.get_secret_value()
    given = {"access_key_id": key, "secret_access_key": secret}
    none = {"access_key_id": "", "secret_access_key": ""}
    if how == "environment":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        s3 = none
    elif how == "profile":
        text = f"[logs]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
        (tmp_path / "credentials").write_text(text)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        s3 = none | {"profile": "logs"}
    else:
        s3 = given | {"role_arn": "arn:aws:iam::123456789012:role/logs"}
    place = bucket.through(bucket.endpoint_url, **s3)
    frozen = Credentials(place.settings.s3).frozen()
    assert bool(frozen.session_token) == (how == "role")
    assert (frozen.access_key_id == key) == (how != "role")
    assert secret not in repr(frozen)
    async with place.open() as store:
        await store.put("k", b"x")
        assert (await store.get("k"))[1] == b"x"


@pytest.mark.minio
async def test_a_role_that_cannot_be_assumed_is_a_store_that_is_away(bucket: Bucket) -> None:
    s3 = {"secret_access_key": "wrong", "role_arn": "arn:aws:iam::123456789012:role/logs"}
    async with bucket.through(bucket.endpoint_url, backoff_milliseconds=1, **s3).open() as store:
        with pytest.raises(StoreUnavailable, match="credentials"):
            await store.put("k", b"x")


async def test_lists_of_threads_are_counted_page_by_page(bucket: Bucket) -> None:
    async with store_with(bucket, SMALL) as store:
        await asyncio.gather(*(store.put(f"n/{i:04d}", b"") for i in range(1_001)))
        before = dict(store.requests.made)
        assert len(await asyncio.to_thread(lambda: [*store.listed("n/")])) == 1_001
        assert store.requests.made == before | {"list_objects_v2": 2}
