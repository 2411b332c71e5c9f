"""What Spark is told of S3: by whom requests are signed, from where the jars come, no secrets."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import pytest

from compactor.spark.s3 import LEFT_OUT, PACKAGES, S3A, SUBMIT, address, jars_conf
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.objects.s3.settings import S3Settings
from tests.servers.jars import LOCK, ROOT, jars_folder
from tests.servers.minio import ACCESS_KEY, Bucket

KEY = {"access_key_id": "somebody", "secret_access_key": "s3cret"}
ROLE = {"role_arn": "arn:aws:iam::123456789012:role/lake", "role_external_id": "xyz"}


def told(**s3: Any) -> dict[str, str]:
    needed = S3A(S3Settings.model_validate(s3)).needed()
    return {name.removeprefix("spark.hadoop.fs.s3a."): it for name, it in needed.items()}


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    (tmp_path / "config").write_text("[profile lake]\nregion = eu-north-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return "lake"


def test_an_address_is_spelled_as_spark_does_and_a_path_stays() -> None:
    assert address("s3://bucket/a b/%41") == "s3a://bucket/a b/%41"
    assert address("/folder/s3://x") == "/folder/s3://x"


def test_who_signs_depends_on_what_is_set(profile: str) -> None:
    by_key, by_token = told(**KEY), told(**KEY, session_token="t")
    assert by_key["aws.credentials.provider"].endswith(".SimpleAWSCredentialsProvider")
    assert by_token["aws.credentials.provider"].endswith(".TemporaryAWSCredentialsProvider")
    assert told()["aws.credentials.provider"].endswith(".DefaultCredentialsProvider")
    named = told(profile=profile)
    assert named["aws.credentials.provider"].endswith(".ProfileAWSCredentialsProvider")
    assert (named["auth.profile.name"], named["endpoint.region"]) == ("lake", "eu-north-1")


def test_a_role_of_aws_is_assumed_and_renewed_by_spark() -> None:
    found = told(**KEY, **ROLE)
    assert found["aws.credentials.provider"].endswith(".AssumedRoleCredentialProvider")
    provider = found["assumed.role.credentials.provider"]
    assert provider.endswith(".SimpleAWSCredentialsProvider")
    assert found["assumed.role.arn"] == ROLE["role_arn"]
    assert found["assumed.role.external.id"] == "xyz"
    assert not any("endpoint" in name for name in found if "role" in name)


@pytest.mark.parametrize("s3", [{"role_source_identity": "me"}, {"sts_endpoint_url": "http://sts"}])
def test_a_role_that_spark_cannot_assume_is_lent_to_it(s3: dict[str, str]) -> None:
    found = told(**KEY, **ROLE, **s3)
    assert found["aws.credentials.provider"].endswith(".TemporaryAWSCredentialsProvider")
    assert "assumed.role.arn" not in found


@pytest.mark.minio
def test_lent_keys_are_those_of_the_role(bucket: Bucket) -> None:
    lent = S3A(bucket.through(bucket.endpoint_url, **ROLE).settings.s3).secrets()
    assert lent["fs.s3a.session.token"]
    assert lent["fs.s3a.access.key"] != ACCESS_KEY


def test_encryption_is_spelled_as_hadoop_does() -> None:
    assert told(encryption="AES256")["encryption.algorithm"] == "AES256"
    found = told(encryption="aws:kms", kms_key_id="key")
    assert (found["encryption.algorithm"], found["encryption.key"]) == ("SSE-KMS", "key")
    assert "encryption.algorithm" not in told()


def test_no_secret_is_on_a_command_line() -> None:
    s3a = S3A(S3Settings.model_validate({**KEY, "session_token": "t0ken"}))
    plain = str(s3a.needed() | s3a.launch())
    assert "s3cret" not in plain
    assert "t0ken" not in plain
    assert "s3cret" in s3a.secrets().values()


def test_a_folder_of_jars_is_used_and_an_empty_one_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no jars"):
        jars_conf(str(tmp_path))
    with pytest.raises(InvalidInput, match="cannot be read"):
        jars_conf(str(tmp_path / "none"))
    for name in ("b.jar", "a.jar", "read.me"):
        (tmp_path / name).touch()
    assert jars_conf(str(tmp_path)) == {"spark.jars": f"{tmp_path}/a.jar,{tmp_path}/b.jar"}


def test_the_file_for_spark_submit_says_what_the_program_says() -> None:
    path = re.search(r"--properties-file (\S+)", SUBMIT)
    assert path is not None
    lines = (ROOT / path[1]).read_text().splitlines()
    said = dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
    assert said == jars_conf("")
    assert said["spark.jars.packages"].split(",") == list(PACKAGES)
    assert "software.amazon.awssdk:bundle" in LEFT_OUT


@pytest.mark.jars
def test_the_jars_are_those_that_were_tried() -> None:
    pairs = [line.split() for line in LOCK.read_text().splitlines()]
    locked = {name: digest for digest, name in pairs}
    found = {path.name: path for path in jars_folder().iterdir()}
    assert sorted(found) == sorted(locked)
    for name, path in found.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == locked[name]
    assert sum(os.path.getsize(path) for path in found.values()) < 25_000_000
