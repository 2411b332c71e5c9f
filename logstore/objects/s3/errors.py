"""The meaning of S3's errors and of errors of the connection, and their translation.

    DONE_NOTHING  the request did nothing, and may succeed later: a throttle, no connection
    UNCLEAR       the request may have happened: no answer, half an answer, a server's error
    CONDITION     412: the object is not as the request demanded
    ABSENT        no such object or upload
    FINAL         the same request will be refused again

A server that answers 500 may have done the request nevertheless; so may the server behind a
balancer that answers 502 or 504.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import aiohttp
from botocore import exceptions as botocore_errors
from botocore.parsers import ResponseParserError

from logstore.errors import (
    Conflict,
    InvalidInput,
    InvalidName,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
    TailraceError,
    TooLarge,
)


class Meaning(Enum):
    """The effect of a failed request, as far as the failure tells."""

    DONE_NOTHING = "done nothing"
    UNCLEAR = "unclear"
    CONDITION = "condition"
    ABSENT = "absent"
    FINAL = "final"


_DONE_NOTHING: Final = frozenset(
    {
        "SlowDown",
        "ServiceUnavailable",
        "ThrottlingException",
        "Throttling",
        "RequestLimitExceeded",
        "TooManyRequests",
        "ServerBusy",
        "ConditionalRequestConflict",
        "OperationAborted",
        "RequestTimeout",  # the body did not arrive whole
        "IncompleteBody",
        "BadDigest",
        "XAmzContentSHA256Mismatch",
        "XMinioServerNotInitialized",
        "ExpiredToken",  # the next try signs with fresh credentials
        "AccessDenied",  # MinIO says so when a folder of the key is removed at that moment
    }
)
_ABSENT: Final = frozenset({"NoSuchKey", "NoSuchUpload", "404", "NoSuchVersion"})
_IN_THE_WAY: Final = frozenset({"XMinioParentIsObject", "XMinioObjectExistsAsDirectory"})
_NAMES: Final = frozenset(
    {"KeyTooLongError", "XMinioInvalidObjectName", "XMinioInvalidResourceName"}
)
NO_KEY: Final = "NoKey"
_HINTS: Final = {
    NO_KEY: "Look at s3.profile and s3.role_arn: whoever gives out keys refused, or is away.",
    "AccessDenied": "Give the credentials the right to read, write, list and delete below the"
    " store's prefix, and s3:ListBucket on the bucket.",
    "403": "Give the credentials the right to read, write, list and delete below the"
    " store's prefix, and s3:ListBucket on the bucket.",
    "InvalidAccessKeyId": "The server does not know s3.access_key_id.",
    "SignatureDoesNotMatch": "s3.secret_access_key is not that of s3.access_key_id.",
    "RequestTimeTooSkewed": "This machine's clock is wrong: set it right.",
    "NoSuchBucket": "Make the bucket, or correct `store`.",
    "PermanentRedirect": "The bucket is in another region: set s3.region.",
    "301": "The bucket is in another region: set s3.region.",
    "AuthorizationHeaderMalformed": "The bucket is in another region: set s3.region.",
    "NotImplemented": "Use AWS S3, MinIO, or another server that honours conditional writes.",
    "InvalidStorageClass": "This server has not that class: set s3.storage_class to STANDARD.",
    "KMSNotConfigured": "The server has no key store: leave s3.encryption empty, or set one up.",
    "InvalidObjectState": "The object was moved to an archive class: restore it there first.",
    "QuotaExceeded": "Raise the bucket's quota, or free space.",
    "XMinioStorageFull": "Free space on the server's disks.",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request gave no result. `code` is S3's, `status` HTTP's; both may be missing."""

    meaning: Meaning
    message: str
    code: str = ""
    status: int = 0

    def error(self, what: str) -> TailraceError:
        """The `TailraceError`; `what` names the operation and its key."""
        text = f"{what}: {self.message}"
        if self.meaning is Meaning.CONDITION:
            return PreconditionFailed(text)
        if self.meaning is Meaning.ABSENT and self.code != "NoSuchUpload":
            return NotFound(text)
        return self._refused(text) or StoreUnavailable(text, hint=self.hint)

    @property
    def hint(self) -> str | None:
        """Advice for the operator."""
        if self.code.lower().startswith("kms") and self.code not in _HINTS:
            return "The server cannot use that key: look at s3.kms_key_id and at the key's policy."
        return _HINTS.get(self.code)

    def unknown(self, what: str) -> OutcomeUnknown:
        """The error of a write that may have happened."""
        return OutcomeUnknown(
            f"{what}: {self.message}; the object may have been written",
            hint="Look at the object before you write again.",
        )

    def _refused(self, text: str) -> TailraceError | None:
        if self.code in _IN_THE_WAY:
            return Conflict(
                f"{text}: an object stands where the key needs a folder, or a folder where it ends",
                hint="This server cannot hold both x and x/y. Use another key.",
            )
        if self.code in _NAMES:
            return InvalidName(text, field="key")
        if self.code == "EntityTooLarge":
            return TooLarge(text)
        if self.code in ("MetadataTooLarge", "InvalidInput"):
            return InvalidInput(text, field="metadata")
        return None


def failure_of(error: Exception) -> Failure | None:
    """Classifies an error of botocore or aiohttp; None for other errors, which are bugs."""
    if isinstance(error, botocore_errors.ClientError):
        return _answered(error.response)
    if isinstance(error, botocore_errors.ParamValidationError):
        return Failure(Meaning.FINAL, _first_line(error), "InvalidInput")
    if isinstance(error, botocore_errors.ConnectTimeoutError):
        return Failure(Meaning.DONE_NOTHING, _first_line(error))
    if isinstance(error, botocore_errors.EndpointConnectionError):
        return _not_connected(error)
    if isinstance(error, _CREDENTIALS):
        return Failure(Meaning.DONE_NOTHING, _first_line(error), "AccessDenied")
    if isinstance(error, _BROKEN_OFF):
        return Failure(Meaning.UNCLEAR, _first_line(error) or "no answer in time")
    return None


def failure_of_key(entry: Any) -> Failure:
    """Why one key of a batch was not deleted."""
    code = str(entry.get("Code", ""))
    meaning = _meaning(code, 403 if code == "AccessDenied" else 500)
    return Failure(meaning, f"{code} {entry.get('Message', '')}", code)


_BROKEN_OFF: Final = (
    botocore_errors.BotoCoreError,
    ResponseParserError,
    aiohttp.ClientError,
    asyncio.TimeoutError,
    OSError,
)
_CREDENTIALS: Final = (
    botocore_errors.NoCredentialsError,
    botocore_errors.CredentialRetrievalError,
    botocore_errors.MetadataRetrievalError,
    botocore_errors.TokenRetrievalError,
)


def _not_connected(error: Any) -> Failure:
    """Whether no connection was made; aiobotocore raises the same for one that broke later."""
    cause = error.kwargs.get("error")
    never = isinstance(cause, aiohttp.ClientConnectorError)
    return Failure(Meaning.DONE_NOTHING if never else Meaning.UNCLEAR, str(cause or error))


def _answered(response: Any) -> Failure:
    error = response.get("Error", {})
    code = str(error.get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    text = " ".join(part for part in (code, error.get("Message", "")) if part)
    if "KMS" in text and "not configured" in text:
        code = "KMSNotConfigured"
    return Failure(_meaning(code, status), text or f"status {status}", code, status)


def _meaning(code: str, status: int) -> Meaning:
    if code in ("PreconditionFailed", "412") or status == 412:
        return Meaning.CONDITION
    if code in _DONE_NOTHING or status == 429:
        return Meaning.DONE_NOTHING
    if code in _ABSENT:
        return Meaning.ABSENT
    if status == 501 or code == "NotImplemented":
        return Meaning.FINAL
    return Meaning.UNCLEAR if status >= 500 or status < 300 else Meaning.FINAL


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
