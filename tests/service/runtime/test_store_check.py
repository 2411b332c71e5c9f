"""What a store refuses is found at the start; a store that is away stops nobody."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from service.runtime.health import StoreCheck
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.objects.s3.store import PROBES, S3Store
from tailrace.logstore.objects.store import ObjectStore
from tests.servers.minio import KMS_KEY, Bucket, Minio
from tests.simulation.clocks import ManualClock

PATIENCE_SECONDS = 120.0


async def checked(store: ObjectStore, *, days: int = 0) -> StoreCheck:
    texts = "pipeline-logs"
    check = StoreCheck(
        store, SystemClock(), texts=texts, expiration_days=days, first_seconds=PATIENCE_SECONDS
    )
    await check.first()
    return check


@asynccontextmanager
async def forgetful_server(
    *,
    away: asyncio.Event | None = None,
    lifecycle: int = 200,
    honest: bool = False,
    known: bool = True,
) -> AsyncIterator[str]:
    """Speaks S3 as some do that know no conditions: everything succeeds.

    But not while `away` is set, and not for us if we are not `known`; `honest`, it refuses
    what a real one does.
    """
    made = False

    async def answer(request: web.Request) -> web.Response:
        nonlocal made
        await request.read()
        if away is not None and away.is_set():
            return web.Response(status=503, text="<Error><Code>SlowDown</Code></Error>")
        if not known:
            return web.Response(status=403, text="<Error><Code>InvalidAccessKeyId</Code></Error>")
        if "lifecycle" in request.query and lifecycle != 200:
            return web.Response(status=lifecycle, text="<Error><Code>AccessDenied</Code></Error>")
        made, before = made or request.method == "PUT", made
        if honest and _refuses(request, made=before):
            return web.Response(status=412, text="<Error><Code>PreconditionFailed</Code></Error>")
        name = "InitiateMultipartUploadResult" if "uploads" in request.query else "Result"
        text = f"<{name}><UploadId>u</UploadId><ETag>e</ETag></{name}>"
        return web.Response(text=text, content_type="application/xml", headers={"ETag": '"e"'})

    app = web.Application()
    app.router.add_route("*", "/{all:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _refuses(request: web.Request, *, made: bool) -> bool:
    headers = request.headers
    if "x-amz-copy-source-if-match" in headers or headers.get("if-match", '"e"') != '"e"':
        return True
    return made and "if-none-match" in headers


@pytest.mark.minio
@pytest.mark.parametrize(
    "s3",
    [
        {},
        {"encryption": "AES256"},
        {"encryption": "aws:kms", "kms_key_id": KMS_KEY, "storage_class": "REDUCED_REDUNDANCY"},
    ],
)
async def test_a_store_that_does_what_we_need_passes_and_keeps_no_probe(
    minio: Minio, s3: dict[str, Any]
) -> None:
    async with minio.bucket(**s3).open() as store:
        check = await checked(store)
        assert check.problems() == []
        assert [info.key async for info in store.list("")] == []
        assert await store.sweep(1 << 60) == 0


@pytest.mark.minio
@pytest.mark.parametrize(
    ("s3", "message", "hint"),
    [
        ({"storage_class": "STANDARD_IA"}, "InvalidStorageClass", "s3.storage_class"),
        ({"encryption": "aws:kms", "kms_key_id": "nobodys"}, "refuses put_object", "kms_key_id"),
        ({"secret_access_key": "wrong"}, "SignatureDoesNotMatch", "s3.secret_access_key"),
        ({"access_key_id": "nobody"}, "InvalidAccessKeyId", "s3.access_key_id"),
    ],
)
async def test_what_the_store_refuses_is_said_with_a_hint(
    bucket: Bucket, s3: dict[str, Any], message: str, hint: str
) -> None:
    async with bucket.through(bucket.endpoint_url, **s3).open() as store:
        with pytest.raises(InvalidInput, match=message) as caught:
            await checked(store)
    assert hint in caught.value.hint
    async with bucket.open() as store:
        assert [info.key async for info in store.list(PROBES)] == []


@pytest.mark.minio
async def test_a_bucket_that_is_not_there(minio: Minio) -> None:
    async with Bucket(minio.endpoint_url, "nobody-made-this").open() as store:
        with pytest.raises(InvalidInput, match="NoSuchBucket") as caught:
            await checked(store)
    assert "Create the bucket" in caught.value.hint


async def test_a_server_that_ignores_conditions_is_refused() -> None:
    async with forgetful_server() as url, Bucket(url, "bucket").open() as store:
        with pytest.raises(InvalidInput, match="does not honour If-None-Match") as caught:
            await checked(store)
    assert "MinIO" in caught.value.hint


async def test_a_store_that_is_away_does_not_stop_the_start() -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with Bucket(url, "bucket").open() as store:
            check = await checked(store)
            assert "was not checked" in check.problems()[0]
            assert not check.refused.done()


async def test_a_store_that_comes_back_and_cannot_be_used_ends_the_service() -> None:
    clock, away = ManualClock(), asyncio.Event()
    away.set()
    async with forgetful_server(away=away) as url, Bucket(url, "bucket").open() as store:
        check = StoreCheck(
            store, clock, texts="texts", expiration_days=0, first_seconds=PATIENCE_SECONDS
        )
        await check.first()
        assert "was not checked" in check.problems()[0]
        away.clear()
        await check.run()
        assert "does not honour" in str(check.refused.result())


@pytest.mark.minio
async def test_our_lifecycle_rule_is_put_among_the_others(bucket: Bucket) -> None:
    other = {
        "ID": "somebody else's",
        "Status": "Enabled",
        "Filter": {"Prefix": "theirs/"},
        "Expiration": {"Days": 3},
    }
    client = bucket.client()
    try:
        client.put_bucket_lifecycle_configuration(
            Bucket=bucket.name, LifecycleConfiguration={"Rules": [other]}
        )

        def rules() -> dict[str, tuple[str, int]]:
            found = client.get_bucket_lifecycle_configuration(Bucket=bucket.name)["Rules"]
            return {
                rule["ID"]: (rule["Filter"]["Prefix"], rule["Expiration"]["Days"]) for rule in found
            }

        theirs = {"somebody else's": ("theirs/", 3)}
        ours = "tailrace store/pipeline-logs/"
        async with bucket.open() as store:
            assert (await checked(store, days=30)).problems() == []
            assert rules() == theirs | {ours: ("store/pipeline-logs/", 30)}
            await checked(store, days=30)
            await checked(store, days=14)
            assert rules() == theirs | {ours: ("store/pipeline-logs/", 14)}
            await checked(store, days=0)
            assert rules() == theirs
    finally:
        client.close()


@pytest.mark.minio
async def test_the_only_rule_goes_with_its_configuration(bucket: Bucket) -> None:
    async with bucket.open() as store:
        assert isinstance(store, S3Store)
        assert await store.expire("texts", 7)
        assert not await store.expire("texts", 7)
        assert await store.expire("texts", 0)
        assert not await store.expire("texts", 0)


async def test_a_lifecycle_that_cannot_be_set_is_said_and_stops_nothing() -> None:
    async with forgetful_server(lifecycle=403, honest=True) as url:
        async with Bucket(url, "bucket").open() as store:
            check = await checked(store, days=30)
    assert "expired runs are removed by the service alone" in check.problems()[0]
