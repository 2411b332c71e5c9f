"""A run's whole life on S3 with encryption and a storage class, every object of it looked at.

The bucket keeps versions, so objects that were replaced or deleted meanwhile are seen, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.main import run
from tailrace.logstore.errors import InvalidInput
from tests.servers.minio import KMS_KEY, Bucket, Minio
from tests.service.runtime.test_store_check import forgetful_server
from tests.service.test_main import RUN, service, settings_for

SEES = "arn:aws:kms:" + KMS_KEY
SOON: dict[str, Any] = {
    "flush": {"segment_seconds": 0.2},
    "runs": {"partial_flush_interval_minutes": 0.005},
}


@dataclass
class Versions:
    """What another client sees of the bucket."""

    client: Any
    bucket: Bucket

    def heads(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every version of every object, by key."""
        pages = self.client.get_paginator("list_object_versions")
        for page in pages.paginate(Bucket=self.bucket.name):
            for version in page.get("Versions", []):
                place = {"Key": version["Key"], "VersionId": version["VersionId"]}
                yield version["Key"], self.client.head_object(Bucket=self.bucket.name, **place)

    def now(self) -> set[str]:
        """Of what is there now."""
        found = self.client.list_objects_v2(Bucket=self.bucket.name).get("Contents", [])
        return {entry["Key"] for entry in found}


@pytest.fixture
def versions(minio: Minio) -> Iterator[Versions]:
    s3 = {"encryption": "aws:kms", "kms_key_id": KMS_KEY, "storage_class": "REDUCED_REDUNDANCY"}
    bucket = minio.bucket(**s3)
    client = bucket.client()
    status = {"Status": "Enabled"}
    client.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration=status)
    yield Versions(client, bucket)
    client.close()


async def _until(versions: Versions, end: str) -> None:
    async with asyncio.timeout(120):
        while not any(key.endswith(end) for key in versions.now()):
            await asyncio.sleep(0.05)


async def _append(client: httpx.AsyncClient, text: bytes) -> None:
    sent = await client.post(RUN, content=text, headers={"content-type": "text/plain"})
    assert sent.status_code == 200


@pytest.mark.minio
async def test_every_object_is_encrypted_and_only_logs_have_the_class(
    versions: Versions, tmp_path: Path
) -> None:
    stored = versions.bucket.settings
    settings = settings_for(tmp_path, store=stored.store, s3=stored.s3, **SOON)
    large = b"".join([b"%019d\n" % i for i in range(400_000)])  # 8 MB: copied, not sent
    async with service(settings) as (client, _):
        await _append(client, b"first\n")
        await _until(versions, "/partial.txt")
        await _append(client, large)
        closed = await client.post(f"{RUN}/close")
        assert closed.json()["state"] == "closed"
        await _append(client, b"late\n")
        assert (await client.post(f"{RUN}/close")).json()["state"] == "closed"
        assert (await client.get(f"{RUN}/download")).content == b"first\n" + large + b"late\n"
    seen = list(versions.heads())
    kinds = {key.rpartition("/")[2] for key, _ in seen}
    assert {"partial.txt", "logs.txt", "r.json"} <= kinds
    assert any(key.startswith("store/segments/") for key, _ in seen)
    assert any("/chunks/" in key for key, _ in seen)
    for key, head in seen:
        assert (head["ServerSideEncryption"], head.get("SSEKMSKeyId")) == ("aws:kms", SEES), key
        wanted = "REDUCED_REDUNDANCY" if key.endswith("/logs.txt") else None
        assert head.get("StorageClass") == wanted, key
    uploads = versions.client.list_multipart_uploads(Bucket=versions.bucket.name)
    assert uploads.get("Uploads", []) == []


@pytest.mark.minio
async def test_a_store_that_refuses_stops_the_start(bucket: Bucket, tmp_path: Path) -> None:
    place = bucket.through(bucket.endpoint_url, storage_class="STANDARD_IA").settings
    settings = settings_for(tmp_path, store=place.store, s3=place.s3)
    with pytest.raises(InvalidInput, match="InvalidStorageClass"):
        await run(settings, asyncio.Event(), on_listening=pytest.fail)


@pytest.mark.slow
async def test_a_store_that_answers_late_and_refuses_ends_the_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    away = asyncio.Event()
    away.set()
    async with forgetful_server(away=away, known=False) as url:
        place = Bucket(url, "bucket", s3={"attempts": 1}).settings
        settings = settings_for(
            tmp_path, store=place.store, s3=place.s3, server={"port": 0, "stop_seconds": 0.1}
        )
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(
            run(settings, asyncio.Event(), on_listening=listening.set_result)
        )
        async with httpx.AsyncClient(base_url=await listening, timeout=120) as client:
            ready = await client.get("/health/ready")
            assert ready.status_code == 503
            assert "was not checked: SlowDown" in ready.json()["detail"]
        away.clear()
        async with asyncio.timeout(120):
            assert await serving == 1
    assert "the node cannot go on: the store s3://bucket/ refuses" in caplog.text
