"""OpenMetadata's section for a store on S3, in our names."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from service.settings import Settings
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.objects.config import StoreSettings
from tailrace.logstore.objects.s3.settings import S3Settings
from tailrace.logstore.openmetadata_settings import translate

WHOLE = """
logStorageConfiguration:
  type: s3
  enabled: true
  bucketName: om-logs
  prefix: pipeline-logs
  enableServerSideEncryption: true
  sseAlgorithm: AWS_KMS
  kmsKeyId: arn:aws:kms:eu-west-1:1:key/2
  storageClass: ONEZONE_IA
  expirationDays: 14
  awsConfig:
    enabled: true
    awsAccessKeyId: key
    awsSecretAccessKey: secret
    awsSessionToken: token
    awsRegion: eu-west-1
    endPointURL: null
    assumeRoleArn: arn:aws:iam::1:role/logs
    assumeRoleSessionName: OpenMetadataSession
    assumeRoleSourceIdentity: om
"""


def _translated(**section: Any) -> tuple[dict[str, Any], list[str]]:
    return translate({"logStorage": {"type": "s3", "bucketName": "logs", **section}})


def test_the_whole_section() -> None:
    ours, warnings = translate(yaml.safe_load(WHOLE))
    settings = Settings.model_validate(ours)
    assert settings.bucket == ("om-logs", "")
    assert settings.runs.expiration_days == 14
    s3 = settings.s3
    assert (s3.encryption, s3.kms_key_id) == ("aws:kms", "arn:aws:kms:eu-west-1:1:key/2")
    assert (s3.storage_class, s3.region, s3.access_key_id) == ("ONEZONE_IA", "eu-west-1", "key")
    assert s3.secret_access_key.get_secret_value() == "secret"
    assert s3.session_token.get_secret_value() == "token"
    assert s3.role_arn == "arn:aws:iam::1:role/logs"
    assert (s3.role_session_name, s3.role_source_identity) == ("OpenMetadataSession", "om")
    assert warnings == []


def test_the_compactor_reads_the_same_section() -> None:
    ours, _ = translate(yaml.safe_load(WHOLE))
    assert StoreSettings.model_validate(ours).store_place == "s3://om-logs"


@pytest.mark.parametrize(
    ("section", "encryption"),
    [
        ({}, "AES256"),
        ({"enableServerSideEncryption": True}, "AES256"),
        ({"enableServerSideEncryption": False}, ""),
        ({"enableServerSideEncryption": False, "sseAlgorithm": "aws:kms"}, ""),
        ({"sseAlgorithm": None}, "AES256"),
        ({"sseAlgorithm": "AES_256"}, "AES256"),
        ({"sseAlgorithm": "AES256"}, "AES256"),
        ({"sseAlgorithm": "aws:kms"}, "aws:kms"),
        ({"awsConfig": {"endPointURL": "http://minio:9000"}}, ""),
        (
            {
                "awsConfig": {"endPointURL": "http://minio:9000"},
                "enableServerSideEncryption": True,
            },
            "AES256",
        ),
    ],
)
def test_objects_are_encrypted_unless_the_section_says_otherwise(
    section: dict[str, Any], encryption: str
) -> None:
    ours, _ = _translated(**section)
    assert Settings.model_validate(ours).s3.encryption == encryption


def test_our_own_names_ask_for_no_encryption() -> None:
    assert S3Settings().encryption == ""


def test_our_own_names_win() -> None:
    ours, _ = translate(
        {
            "store": "s3://other/place",
            "s3": {"encryption": "", "region": "here"},
            "logStorage": {
                "type": "s3",
                "bucketName": "logs",
                "awsConfig": {"awsRegion": "there"},
            },
        }
    )
    settings = Settings.model_validate(ours)
    assert settings.store_place == "s3://other/place"
    assert (settings.s3.encryption, settings.s3.region) == ("", "here")


@pytest.mark.parametrize(
    ("section", "warned"),
    [
        ({"kmsKeyId": "k"}, "kmsKeyId"),
        ({"sseAlgorithm": "AES256", "awsConfig": {"endPointURL": "http://m"}}, "sseAlgorithm"),
        (
            {
                "awsConfig": {
                    "awsAccessKeyId": "a",
                    "awsSecretAccessKey": "b",
                    "profileName": "p",
                }
            },
            "awsConfig.profileName",
        ),
        ({"enabled": False}, "enabled"),
    ],
)
def test_what_has_no_meaning_is_named(section: dict[str, Any], warned: str) -> None:
    ours, warnings = _translated(**section)
    Settings.model_validate(ours)
    assert warnings[0].startswith(f"logStorage.{warned} is ignored: ")


def test_what_has_no_meaning_for_one_reason_is_named_in_one_sentence() -> None:
    _, warnings = _translated(type="default", storageClass="STANDARD")
    named, _, reason = warnings[0].partition(" are ignored: ")
    assert (named, len(warnings)) == ("logStorage.bucketName, logStorage.storageClass", 1)
    assert reason == "the store is a folder, with `type: s3` it would be a bucket"


def test_a_section_of_type_default_leaves_the_store_in_its_folder() -> None:
    ours, _ = _translated(type="default")
    assert Settings.model_validate(ours).bucket is None


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"bucketName": None}, "logStorage.bucketName is missing"),
        ({"sseAlgorithm": "rot13"}, "logStorage.sseAlgorithm is 'rot13'"),
        ({"type": "gcs"}, "logStorage.type is 'gcs'"),
        ({"streamTimeoutHours": "a day"}, "logStorage.streamTimeoutHours should be a number"),
        ({"enableServerSideEncryption": "ja"}, "Encryption should be true or false"),
        ({"awsConfig": "us-east-1"}, "logStorage.awsConfig must hold keys"),
        ({"awsConfig": {"awsRegoin": "x"}}, "unknown setting logStorage.awsConfig.awsRegoin"),
    ],
)
def test_what_cannot_be_is_refused_by_name(section: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        _translated(**section)
    assert caught.value.hint or "must hold" in message


def test_an_archive_class_is_refused() -> None:
    ours, _ = _translated(storageClass="GLACIER")
    with pytest.raises(ValueError, match="cannot be read directly"):
        Settings.model_validate(ours)
