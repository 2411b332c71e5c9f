"""OpenMetadata's section `logStorageConfiguration`, told in our names.

The section is taken as it stands in an OpenMetadata server's YAML, so that a person who
moves over need not learn anything. What has no meaning here is named in a warning; keys
without a value are as good as absent. With `type: s3` objects are encrypted unless the section
says otherwise, as there; with a server of one's own only if it says so, as there, too.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Final

from logstore.errors import InvalidInput

SECTIONS = ("logStorageConfiguration", "LogStorageConfiguration", "logStorage")

_RUNS: Final = {
    "prefix": "runs.prefix",
    "expirationDays": "runs.expiration_days",
    "streamTimeoutMinutes": "runs.stream_timeout_minutes",
    "streamTimeoutHours": "runs.stream_timeout_minutes",
    "cleanupIntervalMinutes": "runs.cleanup_interval_minutes",
    "partialFlushIntervalMinutes": "runs.partial_flush_interval_minutes",
    "earlyFlushWatermarkBytes": "runs.early_flush_watermark_bytes",
    "pendingFlushAlertAfterFailures": "runs.pending_flush_alert_after_failures",
    "maxConcurrentStreams": "runs.max_concurrent_streams",
}
_S3: Final = (
    "bucketName",
    "enableServerSideEncryption",
    "sseAlgorithm",
    "kmsKeyId",
    "storageClass",
    "awsConfig",
)
_AWS: Final = {
    "awsAccessKeyId": "s3.access_key_id",
    "awsSecretAccessKey": "s3.secret_access_key",
    "awsSessionToken": "s3.session_token",
    "awsRegion": "s3.region",
    "endPointURL": "s3.endpoint_url",
    "profileName": "s3.profile",
    "assumeRoleArn": "s3.role_arn",
    "assumeRoleSessionName": "s3.role_session_name",
    "assumeRoleSourceIdentity": "s3.role_source_identity",
}
_OF_A_ROLE: Final = ("assumeRoleSessionName", "assumeRoleSourceIdentity")
_SPELLINGS: Final = {
    "AES256": "AES256",
    "AES_256": "AES256",
    "aws:kms": "aws:kms",
    "AWS_KMS": "aws:kms",
}
_SWITCHES: Final = ("type", "enabled")
_IGNORED: Final = {"asyncBufferSizeMB": "the journal is the buffer"}

Put = Callable[[str, Any], None]
"""Gives one of our settings a value, unless the file itself did."""


def translate(content: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The file's content with the section turned into ours, and warnings.

    What the file says under our own names wins. Raises `InvalidInput` for keys that
    OpenMetadata does not know either, and for a section that asks for what is not here.
    """
    ours = {key: _copy(value) for key, value in content.items() if key not in SECTIONS}
    warnings: list[str] = []

    def put(name: str, value: Any) -> None:
        section, _, key = name.rpartition(".")
        target = ours.setdefault(section, {}) if section else ours
        if isinstance(target, dict):
            target.setdefault(key, value)

    for name in SECTIONS:
        section = content.get(name)
        if section is not None:
            _Section(name, _mapping(name, section), put, warnings).take()
    return ours, warnings


def _copy(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"setting {name} must hold keys and values", field=name)
    return {key: said for key, said in value.items() if said is not None}


class _Section:
    """One section and where its translation goes."""

    def __init__(self, name: str, said: Mapping[str, Any], put: Put, warnings: list[str]) -> None:
        self._name = name
        self._said = said
        self._put = put
        self._warnings = warnings

    def take(self) -> None:
        known = [*_RUNS, *_S3, *_IGNORED, *_SWITCHES]
        _check_names(self._name, self._said, known)
        if self._said.get("enabled") is False:
            raise self._wrong("enabled", "is false, but keeping logs is all that this service does")
        for key, name in _RUNS.items():
            if key in self._said:
                self._put(name, self._minutes(key))
        for key, reason in _IGNORED.items():
            self._ignore(key, reason)
        if self._on_s3():
            self._take_s3()
        else:
            for key in _S3:
                self._ignore(key, "the store is a folder, with `type: s3` it would be a bucket")

    def _on_s3(self) -> bool:
        kind = self._said.get("type", "s3" if "bucketName" in self._said else "default")
        if kind not in ("s3", "default", "local"):
            raise self._wrong("type", f"is {kind!r}; there are `s3` and `default`")
        return bool(kind == "s3")

    def _take_s3(self) -> None:
        if "bucketName" not in self._said:
            raise self._wrong("bucketName", "is missing; `type: s3` needs it")
        self._put("store", f"s3://{self._said['bucketName']}")
        aws = _mapping(f"{self._name}.awsConfig", self._said.get("awsConfig", {}))
        _check_names(f"{self._name}.awsConfig", aws, [*_AWS, "enabled"])
        self._take_account(aws)
        self._take_encryption(own_server="endPointURL" in aws)
        if "storageClass" in self._said:
            self._put("s3.storage_class", self._said["storageClass"])

    def _take_account(self, aws: Mapping[str, Any]) -> None:
        for key, name in _AWS.items():
            if key not in aws:
                continue
            if key == "profileName" and "awsAccessKeyId" in aws:
                self._warn(f"awsConfig.{key}", "awsAccessKeyId says who we are")
            elif key not in _OF_A_ROLE or "assumeRoleArn" in aws:
                self._put(name, aws[key])

    def _take_encryption(self, *, own_server: bool) -> None:
        wanted = self._said.get("enableServerSideEncryption")
        if wanted is False or (wanted is None and own_server):
            reason = "set enableServerSideEncryption to encrypt on a server of your own"
            for key in ("sseAlgorithm", "kmsKeyId") if wanted is None else ():
                self._ignore(key, reason)
            return
        algorithm = self._said.get("sseAlgorithm", "AES256")
        if algorithm not in _SPELLINGS:
            raise self._wrong("sseAlgorithm", f"is {algorithm!r}; there are AES256 and aws:kms")
        self._put("s3.encryption", _SPELLINGS[algorithm])
        if _SPELLINGS[algorithm] != "aws:kms":
            self._ignore("kmsKeyId", "AES256 has no key of ours")
        elif "kmsKeyId" in self._said:
            self._put("s3.kms_key_id", self._said["kmsKeyId"])

    def _minutes(self, key: str) -> Any:
        value = self._said[key]
        if key != "streamTimeoutHours":
            return value
        if not isinstance(value, int | float):
            raise self._wrong(key, f"should be a number (it is {value!r})")
        return round(value * 60)

    def _ignore(self, key: str, reason: str) -> None:
        if key in self._said:
            self._warn(key, reason)

    def _warn(self, key: str, reason: str) -> None:
        self._warnings.append(f"{self._name}.{key} is ignored: {reason}")

    def _wrong(self, key: str, what: str) -> InvalidInput:
        full = f"{self._name}.{key}"
        return InvalidInput(
            f"setting {full} {what}", field=full, hint="Correct it, or leave it out."
        )


def _check_names(section: str, said: Mapping[str, Any], known: list[str]) -> None:
    for key in said:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else "Leave it out."
            full = f"{section}.{key}"
            raise InvalidInput(
                f"unknown setting {full} in the settings file", field=full, hint=hint
            )
