"""Requests about one table: bounded retries, counters, and samples of the server's time.

Between tries the client waits a random time of up to twice the previous bound, so that clients that
were throttled together do not return together. A request that is throttled to the end raises
`StoreUnavailable`: its answer is never empty, and it is never retried without bound.

- `ask` is for requests that may be made twice: reads, and adding to a counter whose gaps do no
  harm;
- `write` is for a conditional write. A try without an answer is made again: if the first happened,
  the condition refuses the second and returns the item, whose version tells the caller that the
  write was its own.

`failure_of` classifies errors of DynamoDB and of the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from botocore.exceptions import ClientError

from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import (
    InvalidInput,
    OutcomeUnknown,
    StoreUnavailable,
    TailraceError,
    TooLarge,
)
from tailrace.logstore.objects.s3 import requests as on_the_way
from tailrace.logstore.objects.s3.requests import NO_KEY, Meaning, date_sample
from tailrace.logstore.objects.store import DateSample
from tailrace.logstore.retry import Tries

# The meaning of DynamoDB's errors: the request did nothing, may have happened, or cannot succeed.
#
# Errors of the connection have the same meaning as for S3.


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
    on_the_way.NO_KEY: "Check sts_role_arn: the service that issues credentials refused, or does"
    " not answer.",
    "AccessDeniedException": _RIGHTS,
    "UnrecognizedClientException": "The server does not know the access key.",
    "InvalidSignatureException": "The secret key does not belong to the access key.",
    "ResourceNotFoundException": "The table was removed. Restore it, or restart without"
    " skip_table_creation.",
    **dict.fromkeys(
        THROTTLED, "Raise provisioned_read_capacity_units and provisioned_write_capacity_units."
    ),
}


@dataclass(frozen=True, slots=True)
class DynamoFailure:
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
                return TooLarge(
                    text, hint="Store large data elsewhere, and its address as progress."
                )
            return InvalidInput(text)
        return StoreUnavailable(text, hint=_HINTS.get(self.code))


def failure_of(error: Exception) -> DynamoFailure | None:
    """Classifies an error of botocore or aiohttp; None for other errors, which are bugs."""
    if isinstance(error, ClientError):
        return _answered(error.response)
    found = on_the_way.failure_of(error)
    return None if found is None else DynamoFailure(found.meaning, found.message, found.code)


def _answered(response: Any) -> DynamoFailure:
    error = response.get("Error", {})
    code = str(error.get("Code", ""))
    text = " ".join(part for part in (code, error.get("Message", "")) if part)
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return DynamoFailure(
        _meaning(code, status), text or f"status {status}", code, response.get("Item")
    )


def _meaning(code: str, status: int) -> Meaning:
    if code == "ConditionalCheckFailedException":
        return Meaning.CONDITION
    if code in _DONE_NOTHING or status == 429:
        return Meaning.DONE_NOTHING
    if code == "ResourceNotFoundException":
        return Meaning.ABSENT
    return Meaning.UNCLEAR if status >= 500 or status < 300 else Meaning.FINAL


CONNECTIONS: Final = 32
TRIES: Final = Tries(count=10, pause_seconds=0.05, least_part=0.0)
_NAME_THEIR_TABLES: Final = frozenset({"batch_get_item"})


class DynamoRequestFailed(Exception):
    """A request that failed. The store translates it and never raises it to callers."""

    def __init__(self, failure: DynamoFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Refused(Exception):
    """The condition did not hold for `item` (None: no item). The store never raises it to callers.

    With `unclear`, an earlier try of the same write may have happened.
    """

    def __init__(self, item: Mapping[str, Any] | None, *, unclear: bool) -> None:
        super().__init__("the condition did not hold")
        self.item = item
        self.unclear = unclear


class DynamoRequests:
    """The requests of one client about one table, counted by operation, and its refused writes."""

    def __init__(
        self, client: Any, table: str, clock: Clock, entropy: Entropy, tries: Tries = TRIES
    ) -> None:
        self._client = client
        self.table = table
        self._clock = clock
        self._entropy = entropy
        self._tries = tries
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self.newest: DateSample | None = None
        self.made: dict[str, int] = {}
        self.refused = 0

    async def once(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Sends one of botocore's operations once. Raises `DynamoRequestFailed`."""
        async with self._slots:
            self.made[operation] = self.made.get(operation, 0) + 1
            sent = self._clock.monotonic()
            try:
                answer = await getattr(self._client, operation)(**parameters)
            except StoreUnavailable as error:  # no key to sign with, so nothing was sent
                failure = DynamoFailure(Meaning.DONE_NOTHING, str(error), NO_KEY)
                raise DynamoRequestFailed(failure) from error
            except Exception as error:
                found = failure_of(error)
                if found is None:
                    raise
                self._note_date(getattr(error, "response", None) or {}, sent)
                raise DynamoRequestFailed(found) from error
            self._note_date(answer, sent)
            return dict(answer)

    async def ask(self, operation: str, what: str, **parameters: Any) -> dict[str, Any]:
        """The answer, after several tries if needed. Raises `StoreUnavailable`, `InvalidInput`."""
        try:
            return await self.again(operation, **parameters)
        except DynamoRequestFailed as failed:
            raise failed.failure.error(what) from None

    async def again(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """As `ask`. Raises `DynamoRequestFailed`."""
        failure: DynamoFailure | None = None
        for pause in self._tries.pauses(self._entropy):
            await self._clock.sleep(pause)
            try:
                return await self.once(operation, self._named(operation, parameters))
            except DynamoRequestFailed as failed:
                failure = failed.failure
            if failure.meaning in (Meaning.ABSENT, Meaning.FINAL):
                break
        assert failure is not None
        raise DynamoRequestFailed(failure)

    async def write(self, operation: str, what: str, **parameters: Any) -> None:
        """Makes a conditional write.

        Raises `Refused`, `StoreUnavailable` if nothing was written, `InvalidInput`, `TooLarge`,
        `OutcomeUnknown`.
        """
        parameters |= {"TableName": self.table, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        failure: DynamoFailure | None = None
        unclear: DynamoFailure | None = None
        for pause in self._tries.pauses(self._entropy):
            await self._clock.sleep(pause)
            try:
                await self.once(operation, parameters)
            except DynamoRequestFailed as failed:
                failure = failed.failure
            else:
                return
            if failure.meaning is Meaning.CONDITION:
                self.refused += 1
                raise Refused(failure.item, unclear=unclear is not None)
            if failure.meaning is Meaning.UNCLEAR:
                unclear = failure
            elif failure.meaning is not Meaning.DONE_NOTHING:
                break
        assert failure is not None
        if unclear is not None:
            raise OutcomeUnknown(f"{what}: {unclear.message}; it may have been written")
        raise failure.error(what)

    async def pages(self, what: str, **parameters: Any) -> AsyncIterator[list[dict[str, Any]]]:
        """The items of a query, page by page. Raises as `ask`."""
        while True:
            answer = await self.ask("query", what, **parameters)
            yield answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return
            parameters["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def _named(self, operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        named = operation in _NAME_THEIR_TABLES
        return parameters if named else {"TableName": self.table, **parameters}

    def _note_date(self, answer: Mapping[str, Any], sent: float) -> None:
        self.newest = date_sample(answer, sent, self._clock) or self.newest
