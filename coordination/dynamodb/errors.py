"""The meaning of DynamoDB's errors: the request did nothing, may have happened, or cannot succeed.

Errors of the connection mean the same as on the way to S3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from botocore.exceptions import ClientError

from logstore.errors import InvalidInput, StoreUnavailable, TailraceError, TooLarge
from logstore.objects.s3 import errors as on_the_way
from logstore.objects.s3.errors import Meaning

_DONE_NOTHING: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingException",
        "ThrottledException",
        "LimitExceededException",
        "TransactionConflictException",
        "ReplicatedWriteConflictException",
        "ResourceInUseException",
        "ExpiredTokenException",  # the next try signs with fresh credentials
    }
)
THROTTLED: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingException",
        "ThrottledException",
    }
)
_RIGHTS: Final = (
    "Allow dynamodb:DescribeTable, DescribeTimeToLive, GetItem, BatchGetItem, PutItem, UpdateItem,"
    " DeleteItem and Query on the table and its index, and CreateTable and UpdateTimeToLive"
    " unless skip_table_creation is set."
)
_HINTS: Final = {
    on_the_way.NO_KEY: "Look at sts_role_arn: whoever gives out keys refused, or is away.",
    "AccessDeniedException": _RIGHTS,
    "UnrecognizedClientException": "The server does not know the access key.",
    "InvalidSignatureException": "The secret key is not that of the access key.",
    "ResourceNotFoundException": "Somebody removed the table. Restore it, or start again without"
    " skip_table_creation.",
    **dict.fromkeys(
        THROTTLED, "Raise provisioned_read_capacity_units and provisioned_write_capacity_units."
    ),
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request gave no result. `item` is the one that did not fulfil a condition."""

    meaning: Meaning
    message: str
    code: str = ""
    item: Mapping[str, Any] | None = None

    def error(self, what: str) -> TailraceError:
        """The `TailraceError` of a request that changed nothing."""
        text = f"{what}: {self.message}"
        if self.code == "ValidationException":
            if "Item size" in self.message:
                return TooLarge(text, hint="Keep what is large elsewhere, its address as progress.")
            return InvalidInput(text)
        return StoreUnavailable(text, hint=_HINTS.get(self.code))


def failure_of(error: Exception) -> Failure | None:
    """Classifies an error of botocore or aiohttp; None for other errors, which are bugs."""
    if isinstance(error, ClientError):
        return _answered(error.response)
    found = on_the_way.failure_of(error)
    return None if found is None else Failure(found.meaning, found.message, found.code)


def _answered(response: Any) -> Failure:
    error = response.get("Error", {})
    code = str(error.get("Code", ""))
    text = " ".join(part for part in (code, error.get("Message", "")) if part)
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return Failure(_meaning(code, status), text or f"status {status}", code, response.get("Item"))


def _meaning(code: str, status: int) -> Meaning:
    if code == "ConditionalCheckFailedException":
        return Meaning.CONDITION
    if code in _DONE_NOTHING or status == 429:
        return Meaning.DONE_NOTHING
    if code == "ResourceNotFoundException":
        return Meaning.ABSENT
    return Meaning.UNCLEAR if status >= 500 or status < 300 else Meaning.FINAL
