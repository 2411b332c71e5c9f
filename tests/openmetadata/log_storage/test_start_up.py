"""S3LogStorageTest, its tests of starting and ending, with the settings as OpenMetadata's."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings, load_settings
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.objects.s3.client import open_client
from tailrace.logstore.objects.s3.credentials import Credentials
from tailrace.logstore.objects.s3.settings import S3Settings
from tests.openmetadata.server import FQN, ROOT, RUN
from tests.servers.minio import ACCESS_KEY, SECRET_KEY, Bucket
from tests.service.test_main import service


def theirs(folder: Path, **section: Any) -> Settings:
    """The settings of a file with OpenMetadata's section in it."""
    aws = {"awsRegion": "us-east-1", **section.pop("awsConfig", {})}
    content = {
        "data": str(folder / "data"),
        "server": {"port": 0},
        "compaction": {"enabled": False},
        "logStorageConfiguration": {"type": "s3", "enabled": True, "awsConfig": aws, **section},
    }
    file = folder / "tailrace.yaml"
    file.write_text(yaml.safe_dump(content))
    return load_settings(config=str(file))[0]


def at(bucket: Bucket) -> dict[str, str]:
    """How to reach the server of a bucket."""
    keys = {"awsAccessKeyId": ACCESS_KEY, "awsSecretAccessKey": SECRET_KEY}
    return {"endPointURL": bucket.endpoint_url, **keys}


@pytest.mark.minio
async def test_the_storage_is_s3(bucket: Bucket, tmp_path: Path) -> None:
    """S3LogStorageTest.testS3LogStorageInitialization: it starts, and its type is `s3`."""
    settings = theirs(tmp_path, bucketName=bucket.name, awsConfig=at(bucket))
    assert settings.store_place == f"s3://{bucket.name}"
    async with service(settings) as (client, _):
        stored = await client.post(f"{ROOT}/logs/{FQN}/{RUN}", json={"logs": "a\n"})
        assert stored.status_code == 200
        assert (await client.get("/health/ready")).json()["status"] == "ready"
    with closing(bucket.client()) as s3:
        found = s3.list_objects_v2(Bucket=bucket.name)["Contents"]
        assert [entry for entry in found if entry["Key"].startswith("coordination/nodes/")]


def client_of(settings: S3Settings) -> AbstractAsyncContextManager[Any]:
    """The client that the service makes of such settings."""
    return open_client(settings, Credentials(settings), SystemClock())


KEY = {"access_key_id": "a", "secret_access_key": "b"}


async def test_calls_have_time_outs() -> None:
    """S3LogStorageTest.testS3ClientsUseApiCallTimeouts: every client has them."""
    async with client_of(S3Settings.model_validate(KEY)) as client:
        config = client.meta.config
        assert (config.connect_timeout, config.read_timeout) == (5, 60)
    async with client_of(S3Settings.model_validate({**KEY, "read_timeout_seconds": 7})) as client:
        assert client.meta.config.read_timeout == 7


@pytest.mark.minio
async def test_an_end_closes_the_client(bucket: Bucket) -> None:
    """S3LogStorageTest.testClose: the clients are closed."""
    async with client_of(bucket.settings.s3) as client:
        await client.list_objects_v2(Bucket=bucket.name)
        session = client._endpoint.http_session
        assert session._sessions
    assert not session._sessions, "no connection is left open"


@pytest.mark.minio
async def test_a_bucket_that_is_not_there_is_found_at_the_start(
    bucket: Bucket, tmp_path: Path
) -> None:
    """S3LogStorageTest.testInitializeFailsWhenBucketDoesNotExist: the start fails, and says so."""
    settings = theirs(tmp_path, bucketName="no-such-bucket", awsConfig=at(bucket))
    with pytest.raises(InvalidInput, match="no-such-bucket") as caught:
        async with service(settings):
            pass
    assert caught.value.hint


@pytest.mark.minio
async def test_credentials_that_are_missing_are_found_at_the_start(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3LogStorageTest.testInitializeFailsWhenCredentialsAreMissing: unless IAM gives them.

    Ours: they may also come from profile, role or environment; nowhere at all is an error.
    """
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    settings = theirs(
        tmp_path, bucketName=bucket.name, awsConfig={"endPointURL": bucket.endpoint_url}
    )
    with pytest.raises(InvalidInput, match="credentials") as caught:
        async with service(settings):
            pass
    assert "access_key" in caught.value.hint


def test_the_time_out_of_a_stream(tmp_path: Path) -> None:
    """S3LogStorageTest.testInitializeReadsStreamTimeoutDefault: 1440 minutes."""
    assert theirs(tmp_path, bucketName="logs-of-runs").runs.stream_timeout_minutes == 1440
    told = theirs(tmp_path, bucketName="logs-of-runs", streamTimeoutMinutes=5)
    assert told.runs.stream_timeout_minutes == 5
    assert (
        theirs(
            tmp_path, bucketName="logs-of-runs", streamTimeoutHours=2
        ).runs.stream_timeout_minutes
        == 120
    )
