"""OpenMetadata's section `logStorageConfiguration`, told in our names.

The section is taken as it stands in an OpenMetadata server's YAML, so that a person who
moves over need not learn anything. What has no meaning here is named in a warning.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from logstore.errors import InvalidInput

SECTIONS = ("logStorageConfiguration", "LogStorageConfiguration", "logStorage")

_OURS = {
    "bucketName": "store",
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
_IGNORED = {
    "asyncBufferSizeMB": "the journal is the buffer",
    "enableServerSideEncryption": "a local store leaves encryption to the disk",
    "sseAlgorithm": "a local store leaves encryption to the disk",
    "kmsKeyId": "a local store leaves encryption to the disk",
    "storageClass": "a local store has no storage classes",
    "awsConfig": "a local store needs no account",
}
_SWITCHES = {"type", "enabled"}


def translate(content: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The file's content with the section turned into ours, and warnings.

    What the file says under our own names wins. Raises `InvalidInput` for keys that
    OpenMetadata does not know either, and for a section that asks for what is not here.
    """
    ours = {key: value for key, value in content.items() if key not in SECTIONS}
    warnings: list[str] = []
    for name in SECTIONS:
        section = content.get(name)
        if section is None:
            continue
        if not isinstance(section, Mapping):
            raise InvalidInput(f"setting {name} must hold keys and values", field=name)
        for key, value in section.items():
            _take(f"{name}.{key}", key, value, ours, warnings)
    return ours, warnings


def _take(full: str, key: str, value: Any, ours: dict[str, Any], warnings: list[str]) -> None:
    if key in _SWITCHES:
        _check_switch(full, key, value)
    elif key in _IGNORED:
        warnings.append(f"{full} is ignored: {_IGNORED[key]}")
    elif key not in _OURS:
        near = difflib.get_close_matches(key, [*_OURS, *_IGNORED, *_SWITCHES], n=1)
        hint = f"Did you mean {near[0]}?" if near else "Leave it out."
        raise InvalidInput(f"unknown setting {full} in the settings file", field=full, hint=hint)
    else:
        _put(ours, _OURS[key], _converted(full, key, value))


def _check_switch(full: str, key: str, value: Any) -> None:
    if key == "enabled" and value is False:
        raise InvalidInput(
            f"setting {full} is false, but keeping logs is all that this service does",
            field=full,
            hint="Set it to true, or leave it out.",
        )
    if key == "type" and value not in ("default", "local"):
        raise InvalidInput(
            f"setting {full} is {value!r}; this version keeps its store in a folder",
            field=full,
            hint="Leave `type` out, and name the folder with `store`.",
        )


def _converted(full: str, key: str, value: Any) -> Any:
    if key == "bucketName":
        return f"s3://{value}"
    if key != "streamTimeoutHours":
        return value
    if not isinstance(value, int | float):
        raise InvalidInput(f"setting {full}: should be a number (it is {value!r})", field=full)
    return round(value * 60)


def _put(ours: dict[str, Any], name: str, value: Any) -> None:
    section, _, key = name.rpartition(".")
    target = ours.setdefault(section, {}) if section else ours
    if isinstance(target, dict):
        target.setdefault(key, value)
