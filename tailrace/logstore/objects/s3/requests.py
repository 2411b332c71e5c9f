"""Requests to S3 with a bounded number of retries; they also sample the server's clock.

botocore's own retries are off: they would send a conditional write again after a lost answer, and
return the 412 that their own first try had caused. Instead:

- `ask` is for requests that may be made twice: reads, deletes, parts of an upload. Between tries it
  waits, twice as long each time, with jitter;
- `settle` is for the request that makes an object. When it is not clear whether a try happened, or
  a 412 may be its own, `look` tells whether our write is stored. Therefore a write that happened is
  never reported as refused, nor another's write as ours.

`failure_of` classifies errors of S3 and of the connection by their `Meaning`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from enum import Enum
from threading import Lock
from typing import Any, Final, TypeVar

import aiohttp
from botocore import exceptions as botocore_errors
from botocore.parsers import ResponseParserError

from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import (
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
from tailrace.logstore.objects.store import DateSample
from tailrace.logstore.retry import Tries

# The meaning of S3's errors and of errors of the connection.
#
#   DONE_NOTHING  the request did nothing, and may succeed later: a throttle, no connection
#   UNCLEAR       the request may have happened: no answer, half an answer, a server's error
#   CONDITION     412: the object does not fulfil the condition of the request
#   ABSENT        no such object or upload
#   FINAL         the same request will be refused again
#
# A server that answers 500 may have done the request nevertheless; so may the server behind a
# balancer that answers 502 or 504.


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
    NO_KEY: "Check s3.profile and s3.role_arn: the service that issues credentials refused, or"
    " does not answer.",
    "AccessDenied": "Give the credentials the right to read, write, list and delete below the"
    " store's prefix, and s3:ListBucket on the bucket.",
    "403": "Give the credentials the right to read, write, list and delete below the"
    " store's prefix, and s3:ListBucket on the bucket.",
    "InvalidAccessKeyId": "Correct s3.access_key_id: the server does not know it.",
    "SignatureDoesNotMatch": "Correct s3.secret_access_key: it is not that of s3.access_key_id.",
    "RequestTimeTooSkewed": "This machine's clock is wrong: set it right.",
    "NoSuchBucket": "Create the bucket, or correct `store`.",
    "PermanentRedirect": "The bucket is in another region: set s3.region.",
    "301": "The bucket is in another region: set s3.region.",
    "AuthorizationHeaderMalformed": "The bucket is in another region: set s3.region.",
    "NotImplemented": "Use AWS S3, MinIO, or another server that honours conditional writes.",
    "InvalidStorageClass": "This server does not have that class: set s3.storage_class to"
    " STANDARD.",
    "KMSNotConfigured": "The server has no key store: leave s3.encryption empty, or set one up.",
    "InvalidObjectState": "The object was moved to an archive class: restore it there first.",
    "QuotaExceeded": "Raise the bucket's quota, or free space.",
    "XMinioStorageFull": "Free space on the server's disks.",
}


@dataclass(frozen=True, slots=True)
class S3Failure:
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
            return "The server cannot use that key: check s3.kms_key_id and the key's policy."
        return _HINTS.get(self.code)

    def unknown(self, what: str) -> OutcomeUnknown:
        """The error of a write that may have happened."""
        return OutcomeUnknown(
            f"{what}: {self.message}; the object may have been written",
            hint="Read the object before you write again.",
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


def failure_of(error: Exception) -> S3Failure | None:
    """Classifies an error of botocore or aiohttp; None for other errors, which are bugs."""
    if isinstance(error, botocore_errors.ClientError):
        return _answered(error.response)
    if isinstance(error, botocore_errors.ParamValidationError):
        return S3Failure(Meaning.FINAL, _first_line(error), "InvalidInput")
    if isinstance(error, botocore_errors.ConnectTimeoutError):
        return S3Failure(Meaning.DONE_NOTHING, _first_line(error))
    if isinstance(error, botocore_errors.EndpointConnectionError):
        return _not_connected(error)
    if isinstance(error, _CREDENTIALS):
        return S3Failure(Meaning.DONE_NOTHING, _first_line(error), "AccessDenied")
    if isinstance(error, _BROKEN_OFF):
        return S3Failure(Meaning.UNCLEAR, _first_line(error) or "no answer in time")
    return None


def failure_of_key(entry: Any) -> S3Failure:
    """Why one key of a batch was not deleted."""
    code = str(entry.get("Code", ""))
    meaning = _meaning(code, 403 if code == "AccessDenied" else 500)
    return S3Failure(meaning, f"{code} {entry.get('Message', '')}", code)


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


def _not_connected(error: Any) -> S3Failure:
    """Whether no connection was made; aiobotocore raises the same for one that broke later."""
    cause = error.kwargs.get("error")
    never = isinstance(cause, aiohttp.ClientConnectorError)
    return S3Failure(Meaning.DONE_NOTHING if never else Meaning.UNCLEAR, str(cause or error))


def _answered(response: Any) -> S3Failure:
    error = response.get("Error", {})
    code = str(error.get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    text = " ".join(part for part in (code, error.get("Message", "")) if part)
    if "KMS" in text and "not configured" in text:
        code = "KMSNotConfigured"
    return S3Failure(_meaning(code, status), text or f"status {status}", code, status)


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


T = TypeVar("T")


class S3RequestFailed(Exception):
    """A request that failed. The store translates it and never raises it to callers."""

    def __init__(self, failure: S3Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class S3Requests:
    """Requests of one client about one bucket; counts them by operation."""

    def __init__(
        self, client: Any, bucket: str, clock: Clock, entropy: Entropy, tries: Tries
    ) -> None:
        self._client = client
        self.bucket = bucket
        self._clock = clock
        self._entropy = entropy
        self._tries = tries
        self.newest: DateSample | None = None
        self.made: dict[str, int] = {}
        self._counting = Lock()

    def with_tries(self, tries: Tries) -> S3Requests:
        """The same client with another number of tries."""
        return S3Requests(self._client, self.bucket, self._clock, self._entropy, tries)

    def count(self, operation: str) -> None:
        """Counts a request that is sent, by this client or the one that blocks."""
        with self._counting:
            self.made[operation] = self.made.get(operation, 0) + 1

    async def once(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Sends one of botocore's operations once. Raises `S3RequestFailed`."""
        self.count(operation)
        sent = self._clock.monotonic()
        try:
            answer = await getattr(self._client, operation)(Bucket=self.bucket, **parameters)
        except StoreUnavailable as error:  # no key to sign with, so nothing was sent
            raise S3RequestFailed(S3Failure(Meaning.DONE_NOTHING, str(error), NO_KEY)) from error
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                raise
            # An error of the connection has a response too, which is None.
            self._note_date(getattr(error, "response", None) or {}, sent)
            raise S3RequestFailed(failure) from error
        self._note_date(answer, sent)
        return dict(answer)

    async def ask(self, operation: str, what: str, **parameters: Any) -> dict[str, Any]:
        """The answer, after several tries if needed. Raises as `again`."""

        async def send() -> dict[str, Any]:
            return await self.once(operation, parameters)

        return await self.again(what, send, conditional="IfMatch" in parameters)

    async def again(
        self, what: str, send: Callable[[], Awaitable[T]], *, conditional: bool = False
    ) -> T:
        """The result of `send`, after retries. `send` must be safe to repeat.

        Raises `NotFound`, `PreconditionFailed` if the request is `conditional`, `InvalidInput`,
        `StoreUnavailable`.
        """
        failure: S3Failure | None = None
        for pause in self.pauses():
            await self._clock.sleep(pause)
            try:
                return await send()
            except S3RequestFailed as failed:
                failure = failed.failure
            if failure.meaning in (Meaning.ABSENT, Meaning.FINAL):
                raise failure.error(what)
            if failure.meaning is Meaning.CONDITION and conditional:
                raise failure.error(what)
        assert failure is not None
        raise StoreUnavailable(f"{what}: {failure.message}", hint=failure.hint)

    async def settle(
        self,
        what: str,
        send: Callable[[], Awaitable[T]],
        look: Callable[[], Awaitable[T | None]],
        *,
        conditional: bool,
    ) -> T:
        """The result of `send`, or of `look` when that finds that `send` did its work.

        Raises `PreconditionFailed` if the request is `conditional`, `InvalidInput`,
        `StoreUnavailable` if nothing was written, `OutcomeUnknown`.
        """
        unclear: S3Failure | None = None
        failure: S3Failure | None = None
        for pause in self.pauses():
            await self._clock.sleep(pause)
            try:
                return await send()
            except S3RequestFailed as failed:
                failure = _of_a_write(failed.failure)
            if failure.meaning is Meaning.FINAL:
                break
            if failure.meaning is Meaning.DONE_NOTHING:
                continue
            try:
                found = await look()
            except StoreUnavailable:
                unclear = failure
                continue
            if found is not None:
                return found
            if failure.meaning is Meaning.CONDITION:
                if conditional:
                    break
            else:
                unclear = failure
        assert failure is not None
        raise _outcome(what, failure, unclear, conditional=conditional)

    def pauses(self) -> Iterator[float]:
        """Seconds to wait before each try."""
        return self._tries.pauses(self._entropy)

    def _note_date(self, answer: Mapping[str, Any], sent: float) -> None:
        self.newest = date_sample(answer, sent, self._clock) or self.newest


def date_sample(answer: Mapping[str, Any], sent: float, clock: Clock) -> DateSample | None:
    """The server's time in an answer that just arrived; None if the answer has none."""
    date_ms = date_of(answer)
    if date_ms is None:
        return None
    return DateSample(date_ms, sent, clock.monotonic(), clock.now_ms())


def date_of(answer: Mapping[str, Any]) -> int | None:
    """The time of the answer by the server's clock, in ms; None if the answer has none."""
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:
        return round(parsedate_to_datetime(headers["date"]).timestamp() * 1000)
    except (KeyError, ValueError):  # a proxy's answer, or none
        return None


def _of_a_write(failure: S3Failure) -> S3Failure:
    """The failure of a write: an absent object to be replaced counts as a failed condition."""
    if failure.meaning is Meaning.ABSENT and failure.code != "NoSuchUpload":
        return replace(failure, meaning=Meaning.CONDITION)
    return failure


def _outcome(
    what: str, failure: S3Failure, unclear: S3Failure | None, *, conditional: bool
) -> TailraceError:
    if unclear is not None:
        return unclear.unknown(what)
    if failure.meaning is Meaning.CONDITION and not conditional:
        return StoreUnavailable(f"{what}: {failure.message}")
    return failure.error(what)
