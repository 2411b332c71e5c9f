"""What S3 and the way to it answer, as errors of ours."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from botocore import exceptions as vendor

from tailrace.logstore.errors import (
    Conflict,
    InvalidInput,
    InvalidName,
    NotFound,
    PreconditionFailed,
    StoreUnavailable,
    TailraceError,
    TooLarge,
)
from tailrace.logstore.objects.s3.requests import Meaning, failure_of

URL = "http://store"


def _answer(code: str, status: int) -> Exception:
    response: Any = {
        "Error": {"Code": code, "Message": "said the server"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    error: Exception = vendor.ClientError(response, "PutObject")
    return error


@pytest.mark.parametrize(
    ("code", "status", "meaning", "error"),
    [
        ("PreconditionFailed", 412, Meaning.CONDITION, PreconditionFailed),
        ("412", 412, Meaning.CONDITION, PreconditionFailed),
        ("NoSuchKey", 404, Meaning.ABSENT, NotFound),
        ("404", 404, Meaning.ABSENT, NotFound),
        ("NoSuchUpload", 404, Meaning.ABSENT, StoreUnavailable),
        ("NoSuchBucket", 404, Meaning.FINAL, StoreUnavailable),
        ("AccessDenied", 403, Meaning.DONE_NOTHING, StoreUnavailable),
        ("InvalidAccessKeyId", 403, Meaning.FINAL, StoreUnavailable),
        ("InvalidStorageClass", 400, Meaning.FINAL, StoreUnavailable),
        ("EntityTooLarge", 400, Meaning.FINAL, TooLarge),
        ("MetadataTooLarge", 400, Meaning.FINAL, InvalidInput),
        ("KeyTooLongError", 400, Meaning.FINAL, InvalidName),
        ("XMinioParentIsObject", 400, Meaning.FINAL, Conflict),
        ("NotImplemented", 501, Meaning.FINAL, StoreUnavailable),
        ("SlowDown", 503, Meaning.DONE_NOTHING, StoreUnavailable),
        ("ConditionalRequestConflict", 409, Meaning.DONE_NOTHING, StoreUnavailable),
        ("RequestTimeout", 400, Meaning.DONE_NOTHING, StoreUnavailable),
        ("XMinioUnknown", 429, Meaning.DONE_NOTHING, StoreUnavailable),
        ("InternalError", 500, Meaning.UNCLEAR, StoreUnavailable),
        ("InternalError", 200, Meaning.UNCLEAR, StoreUnavailable),
        ("502", 502, Meaning.UNCLEAR, StoreUnavailable),
        ("503", 503, Meaning.UNCLEAR, StoreUnavailable),
        ("504", 504, Meaning.UNCLEAR, StoreUnavailable),
    ],
)
def test_answers(code: str, status: int, meaning: Meaning, error: type[TailraceError]) -> None:
    failure = failure_of(_answer(code, status))
    assert failure is not None
    assert failure.meaning is meaning
    ours = failure.error("put k")
    assert type(ours) is error
    assert str(ours).startswith("put k: ")
    assert code in str(ours)


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (vendor.ConnectTimeoutError(endpoint_url=URL), Meaning.DONE_NOTHING),
        (
            vendor.EndpointConnectionError(endpoint_url=URL, error=aiohttp.ClientOSError("reset")),
            Meaning.UNCLEAR,
        ),
        (vendor.ReadTimeoutError(endpoint_url=URL), Meaning.UNCLEAR),
        (vendor.ConnectionClosedError(endpoint_url=URL), Meaning.UNCLEAR),
        (vendor.IncompleteReadError(actual_bytes=1, expected_bytes=2), Meaning.UNCLEAR),
        (aiohttp.ClientPayloadError("cut"), Meaning.UNCLEAR),
        (ConnectionResetError("reset"), Meaning.UNCLEAR),
        (TimeoutError(), Meaning.UNCLEAR),
        (vendor.NoCredentialsError(), Meaning.DONE_NOTHING),
        (vendor.ParamValidationError(report="not a key"), Meaning.FINAL),
    ],
)
def test_what_went_wrong_on_the_way(error: Exception, meaning: Meaning) -> None:
    failure = failure_of(error)
    assert failure is not None
    assert failure.meaning is meaning
    assert failure.message


def test_bugs_are_not_errors_of_the_store() -> None:
    assert failure_of(TypeError("ours")) is None


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("AccessDenied", "s3:ListBucket"),
        ("NoSuchBucket", "bucket"),
        ("RequestTimeTooSkewed", "clock"),
        ("PermanentRedirect", "s3.region"),
        ("KMS.DisabledException", "s3.kms_key_id"),
    ],
)
def test_a_person_is_told_what_to_do(code: str, word: str) -> None:
    failure = failure_of(_answer(code, 400))
    assert failure is not None
    assert word in failure.error("put k").hint
