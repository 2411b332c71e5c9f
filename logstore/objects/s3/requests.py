"""Requests to S3 with a bounded number of retries; they also sample the server's clock.

botocore's own retries are off: they would send a conditional write again after a lost
answer, and return the 412 that their own first try had caused. Instead:

- `ask` is for requests that may be made twice: reads, deletes, parts of an upload. Between
  tries it waits, twice as long each time, with jitter;
- `settle` is for the request that makes an object. When it is not clear whether a try
  happened, or a 412 may be its own, `look` tells whether our write is there. A write
  that happened is therefore never reported as refused, nor another's as ours.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import Any, Final, TypeVar

from logstore.clock import Clock, Entropy
from logstore.errors import StoreUnavailable, TailraceError
from logstore.objects.remote import DateSample
from logstore.objects.s3.errors import NO_KEY, Failure, Meaning, failure_of

T = TypeVar("T")

_LONGEST_PAUSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Tries:
    """How often a request is tried, and the pause before the second try."""

    count: int = 4
    pause_seconds: float = 0.1


class Failed(Exception):
    """A request that failed. The store translates it and never raises it to callers."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Requests:
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

    def with_tries(self, tries: Tries) -> Requests:
        """The same client with another number of tries."""
        return Requests(self._client, self.bucket, self._clock, self._entropy, tries)

    def count(self, operation: str) -> None:
        """Counts a request that is sent, by this client or the one that blocks."""
        with self._counting:
            self.made[operation] = self.made.get(operation, 0) + 1

    async def once(self, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Sends one of botocore's operations once. Raises `Failed`."""
        self.count(operation)
        sent = self._clock.monotonic()
        try:
            answer = await getattr(self._client, operation)(Bucket=self.bucket, **parameters)
        except StoreUnavailable as error:  # no key to sign with, so nothing was sent
            raise Failed(Failure(Meaning.DONE_NOTHING, str(error), NO_KEY)) from error
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                raise
            # An error of the connection has a response too, which is None.
            self._note_date(getattr(error, "response", None) or {}, sent)
            raise Failed(failure) from error
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
        failure: Failure | None = None
        for pause in self.pauses():
            await self._clock.sleep(pause)
            try:
                return await send()
            except Failed as failed:
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
        unclear: Failure | None = None
        failure: Failure | None = None
        for pause in self.pauses():
            await self._clock.sleep(pause)
            try:
                return await send()
            except Failed as failed:
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
        yield 0.0
        for tried in range(self._tries.count - 1):
            longest = min(self._tries.pause_seconds * 2**tried, _LONGEST_PAUSE_SECONDS)
            yield longest * (1 + self._entropy.getrandbits(16) / 65536) / 2

    def _note_date(self, answer: Mapping[str, Any], sent: float) -> None:
        date_ms = date_of(answer)
        if date_ms is not None:
            arrived, now_ms = self._clock.monotonic(), self._clock.now_ms()
            self.newest = DateSample(date_ms, sent, arrived, now_ms)


def date_of(answer: Mapping[str, Any]) -> int | None:
    """The time of the answer by the server's clock, in ms; None if the answer has none."""
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:
        return round(parsedate_to_datetime(headers["date"]).timestamp() * 1000)
    except (KeyError, ValueError):  # a proxy's answer, or none
        return None


def _of_a_write(failure: Failure) -> Failure:
    """The failure of a write: an absent object to be replaced counts as a failed condition."""
    if failure.meaning is Meaning.ABSENT and failure.code != "NoSuchUpload":
        return replace(failure, meaning=Meaning.CONDITION)
    return failure


def _outcome(
    what: str, failure: Failure, unclear: Failure | None, *, conditional: bool
) -> TailraceError:
    if unclear is not None:
        return unclear.unknown(what)
    if failure.meaning is Meaning.CONDITION and not conditional:
        return StoreUnavailable(f"{what}: {failure.message}")
    return failure.error(what)
