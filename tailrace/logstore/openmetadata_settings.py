"""Translates OpenMetadata's section `logStorageConfiguration` into our settings.

The section is accepted as it stands in an OpenMetadata server's YAML, so that a person who
migrates needs to learn nothing. It may stand alone, in `pipelineServiceClientConfiguration`, or in
the server's own file, of which nothing else is read. A warning names each key that has no meaning
here. Keys without a value or with an empty one count as absent. With `type: s3` objects are
encrypted unless the section says otherwise. With an endpoint of one's own they are encrypted only
if the section says so. OpenMetadata does the same in both cases.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tailrace.logstore.errors import InvalidInput

SECTIONS = ("logStorageConfiguration", "LogStorageConfiguration", "logStorage")
PARENT: Final = "pipelineServiceClientConfiguration"
"""The section of an OpenMetadata server's file in which it nests the first of `SECTIONS`."""

# An OpenMetadata server does not start without these, and no settings file of ours has them.
_OF_THE_SERVER: Final = ("authorizerConfiguration", "database", "migrationConfiguration")

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
    "region",
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
_KNOWN: Final = (*_RUNS, *_S3, *_IGNORED, *_SWITCHES)
_KNOWN_OF_AWS: Final = (*_AWS, "enabled")
_TRUTHS: Final = {"true": True, "false": False}
_VARIABLE: Final = re.compile(r"\$\{[^}]*\}")

Put = Callable[[str, Any], None]
"""Gives one of our settings a value, unless the file itself did."""


def translate(content: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns the file's content with the section translated into our settings, and warnings.

    Settings under our own names have precedence. Raises `InvalidInput` for keys that OpenMetadata
    does not know either, and for a section that asks for an unsupported feature.
    """
    warnings: list[str] = []
    ours, sections = _parted(content, warnings)

    def put(name: str, value: Any) -> None:
        section, _, key = name.rpartition(".")
        target = ours.setdefault(section, {}) if section else ours
        if isinstance(target, dict):
            target.setdefault(key, value)

    for name, said in sections:
        _TranslatedSection(name, _mapping(name, said, _KNOWN), put, warnings).take()
    return ours, warnings


def _parted(
    content: Mapping[str, Any], warnings: list[str]
) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """The settings under our names, and OpenMetadata's sections with their full names."""
    theirs = content.get(PARENT)
    if theirs is None:
        ours = {key: _copy(value) for key, value in content.items() if key not in SECTIONS}
        return ours, [(name, content[name]) for name in SECTIONS if content.get(name) is not None]
    nested, name = _mapping(PARENT, theirs), f"{PARENT}.{SECTIONS[0]}"
    sections = [(name, nested[SECTIONS[0]])] if SECTIONS[0] in nested else []
    if all(key in content for key in _OF_THE_SERVER):
        warnings.append(f"of OpenMetadata's own file only {name} is read")
        return {}, sections
    others = [f"{PARENT}.{key}" for key in nested if key != SECTIONS[0]]
    if others:
        warnings.append(_ignored(others, f"only {name} has a meaning here"))
    ours, beside = _parted({k: v for k, v in content.items() if k != PARENT}, warnings)
    return ours, [*beside, *sections]


def _copy(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _mapping(name: str, value: Any, known: Sequence[str] = ()) -> dict[str, Any]:
    """The keys with a value. Raises `InvalidInput` for one that is not `known`."""
    if not isinstance(value, Mapping):
        raise InvalidInput(f"setting {name} must hold keys and values", field=name)
    if known:
        _check_names(name, value, known)
    return {key: said for key, said in value.items() if said is not None and said != ""}


def _ignored(names: list[str], reason: str) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} ignored: {reason}"


class _TranslatedSection:
    """One section of OpenMetadata, and where its translation is written."""

    def __init__(self, name: str, said: Mapping[str, Any], put: Put, warnings: list[str]) -> None:
        self._name = name
        self._said = said
        self._put = put
        self._warnings = warnings
        self._ignores: dict[str, list[str]] = {}

    def take(self) -> None:
        self._check_variables(self._name, self._said)
        if self._truth("enabled") is False:
            self._ignore("enabled", "this service keeps every log that it is sent")
        for key, name in _RUNS.items():
            if key in self._said:
                self._put(name, self._value(key))
        for key, reason in _IGNORED.items():
            self._ignore(key, reason)
        if self._on_s3():
            self._take_s3()
        else:
            for key in _S3:
                self._ignore(key, "the store is a folder, with `type: s3` it would be a bucket")
        self._warnings += [_ignored(names, reason) for reason, names in self._ignores.items()]

    def _on_s3(self) -> bool:
        kind = self._said.get("type", "s3" if "bucketName" in self._said else "default")
        if kind not in ("s3", "default", "local"):
            raise self._wrong("type", f"is {kind!r}; there are `s3` and `default`")
        return bool(kind == "s3")

    def _take_s3(self) -> None:
        if "bucketName" not in self._said:
            raise self._wrong("bucketName", "is missing; `type: s3` needs it")
        self._put("store", f"s3://{self._said['bucketName']}")
        aws = _mapping(f"{self._name}.awsConfig", self._said.get("awsConfig", {}), _KNOWN_OF_AWS)
        self._check_variables(f"{self._name}.awsConfig", aws)
        self._take_account(aws)
        if "region" in self._said:  # as in its example for S3; its schema knows only `awsRegion`
            self._put("s3.region", self._said["region"])
        self._take_encryption(own_server="endPointURL" in aws)
        if "storageClass" in self._said:
            self._put("s3.storage_class", self._said["storageClass"])

    def _take_account(self, aws: Mapping[str, Any]) -> None:
        for key, name in _AWS.items():
            if key not in aws:
                continue
            if key == "profileName" and "awsAccessKeyId" in aws:
                self._note(f"awsConfig.{key}", "awsAccessKeyId says who we are")
            elif key not in _OF_A_ROLE or "assumeRoleArn" in aws:
                self._put(name, aws[key])

    def _take_encryption(self, *, own_server: bool) -> None:
        wanted = self._truth("enableServerSideEncryption")
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

    def _value(self, key: str) -> Any:
        value = self._said[key]
        if key == "prefix":
            return str(value).rstrip("/")  # as there
        if key != "streamTimeoutHours":
            return value
        try:
            return round(float(value) * 60)
        except (TypeError, ValueError):
            raise self._wrong(key, f"should be a number (it is {value!r})") from None

    def _truth(self, key: str) -> bool | None:
        said = self._said.get(key)
        if said is None or isinstance(said, bool):
            return said
        if str(said).lower() not in _TRUTHS:
            raise self._wrong(key, f"should be true or false (it is {said!r})")
        return _TRUTHS[str(said).lower()]

    def _check_variables(self, section: str, said: Mapping[str, Any]) -> None:
        for key, value in said.items():
            left = _VARIABLE.search(value) if isinstance(value, str) else None
            if left:
                raise InvalidInput(
                    f"setting {section}.{key} needs {left[0]}, which is not set",
                    field=f"{section}.{key}",
                    hint="Set the variable, or write its default behind `:-`.",
                )

    def _ignore(self, key: str, reason: str) -> None:
        if key in self._said:
            self._note(key, reason)

    def _note(self, key: str, reason: str) -> None:
        self._ignores.setdefault(reason, []).append(f"{self._name}.{key}")

    def _wrong(self, key: str, what: str) -> InvalidInput:
        full = f"{self._name}.{key}"
        return InvalidInput(
            f"setting {full} {what}", field=full, hint="Correct it, or leave it out."
        )


def _check_names(section: str, said: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in said:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else "Leave it out."
            full = f"{section}.{key}"
            raise InvalidInput(
                f"unknown setting {full} in the settings file", field=full, hint=hint
            )
