"""How often a request is made, and what is said when nobody can know what became of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
from botocore import exceptions as vendor

from tailrace.logstore.errors import (
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
    TailraceError,
)
from tailrace.logstore.objects.s3.keys import MARK, BucketPlace, ObjectProtection
from tailrace.logstore.objects.s3.requests import S3Requests
from tailrace.logstore.objects.s3.writes import ObjectWrites, PartLimits, WriteTarget
from tailrace.logstore.retry import Tries
from tests.simulation.clocks import ManualClock

LOST = vendor.ReadTimeoutError(endpoint_url="http://store")


def refusal(code: str, status: int) -> Exception:
    headers = {"date": "Wed, 21 Oct 2026 07:28:00 GMT"}
    response: Any = {
        "Error": {"Code": code},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers},
    }
    error: Exception = vendor.ClientError(response, "PutObject")
    return error


EXISTS = refusal("PreconditionFailed", 412)
SLOW = refusal("SlowDown", 503)
BROKEN = refusal("InternalError", 500)
DENIED = refusal("AccessDenied", 403)
UNKNOWN_KEY = refusal("InvalidAccessKeyId", 403)
CONFLICT = refusal("ConditionalRequestConflict", 409)
GONE = refusal("NoSuchKey", 404)
NO_KEY = StoreUnavailable("s3 credentials: no answer")
DONE = {"ETag": '"e"'}


class Scripted:
    """A client that answers puts as it is told; `there` is what HEAD finds."""

    def __init__(self, puts: list[Any], there: str) -> None:
        self.puts = puts
        self.there = there
        self.mark = ""
        self.asked: list[str] = []

    async def put_object(self, **parameters: Any) -> dict[str, Any]:
        self.asked.append("put")
        assert self.mark in ("", parameters["Metadata"][MARK]), "every try carries the same id"
        self.mark = parameters["Metadata"][MARK]
        answer = self.puts.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    async def head_object(self, **_: Any) -> dict[str, Any]:
        self.asked.append("head")
        if self.there == "away":
            raise SLOW
        if self.there == "nothing":
            raise refusal("404", 404)
        mark = self.mark if self.there == "ours" else "another's"
        when = SINCE
        return {**DONE, "Metadata": {MARK: mark}, "ContentLength": 1, "LastModified": when}


class Since:
    def timestamp(self) -> float:
        return 1_750_000_000.5


SINCE = Since()


def put(client: Scripted, *, if_absent: bool) -> Callable[[], Awaitable[Any]]:
    clock, dice = ManualClock(), Random(1)
    requests = S3Requests(client, "bucket", clock, dice, Tries(3, 0.1))
    place = BucketPlace("bucket", "")
    writes = ObjectWrites(requests, place, ObjectProtection(), PartLimits(), clock, dice)
    return lambda: writes.put(WriteTarget("k", if_absent, None, {}), b"x")


@pytest.mark.parametrize("if_absent", [False, True])
@pytest.mark.parametrize(
    ("puts", "there"),
    [
        ([DONE], "nothing"),
        ([SLOW, DONE], "nothing"),
        ([CONFLICT, SLOW, DONE], "nothing"),
        ([NO_KEY, DONE], "nothing"),
        ([LOST, DONE], "nothing"),
        ([BROKEN, LOST, DONE], "nothing"),
        ([LOST], "ours"),
        ([BROKEN], "ours"),
        ([LOST, DONE], "away"),
        ([EXISTS], "ours"),  # somebody on the way sent it twice
    ],
)
async def test_what_happened_is_a_success(puts: list[Any], there: str, if_absent: bool) -> None:
    client = Scripted(list(puts), there)
    info = await put(client, if_absent=if_absent)()
    assert (info.key, info.etag) == ("k", "e")
    assert client.puts == []


@pytest.mark.parametrize(
    ("puts", "there", "error"),
    [
        ([EXISTS], "another's", PreconditionFailed),
        ([SLOW, EXISTS], "another's", PreconditionFailed),
        ([GONE], "nothing", PreconditionFailed),
        ([SLOW, SLOW, SLOW], "nothing", StoreUnavailable),
        ([NO_KEY, NO_KEY, NO_KEY], "nothing", StoreUnavailable),
        ([DENIED, DENIED, DENIED], "nothing", StoreUnavailable),
        ([UNKNOWN_KEY], "nothing", StoreUnavailable),
        ([refusal("MetadataTooLarge", 400)], "nothing", InvalidInput),
        # From here on the first try may have happened.
        ([LOST, EXISTS], "another's", OutcomeUnknown),
        ([LOST, SLOW, SLOW], "nothing", OutcomeUnknown),
        ([LOST, UNKNOWN_KEY], "nothing", OutcomeUnknown),
        ([LOST, NO_KEY, NO_KEY], "nothing", OutcomeUnknown),
        ([LOST, LOST, LOST], "nothing", OutcomeUnknown),
        ([LOST, LOST, LOST], "away", OutcomeUnknown),
        ([EXISTS, EXISTS, EXISTS], "away", OutcomeUnknown),
    ],
)
async def test_what_did_not_happen_and_what_nobody_knows(
    puts: list[Any], there: str, error: type[TailraceError]
) -> None:
    client = Scripted(list(puts), there)
    with pytest.raises(TailraceError) as caught:
        await put(client, if_absent=True)()
    assert type(caught.value) is error
    assert client.puts == []


async def test_a_refused_condition_that_nobody_made_is_no_condition() -> None:
    client = Scripted([EXISTS, EXISTS, EXISTS], "another's")
    with pytest.raises(StoreUnavailable):
        await put(client, if_absent=False)()


async def test_tries_are_bounded_and_pauses_grow_with_jitter() -> None:
    clock = ManualClock()

    def pauses(seed: int, count: int) -> list[float]:
        return list(S3Requests(None, "b", clock, Random(seed), Tries(count, 0.1)).pauses())

    assert pauses(1, 1) == [0.0]
    for seed in range(20):
        first, *rest = pauses(seed, 10)
        assert first == 0.0
        assert len(rest) == 9
        for tried, pause in enumerate(rest):
            longest = min(0.1 * 2**tried, 5.0)
            assert longest / 2 <= pause <= longest
    assert pauses(1, 5) != pauses(2, 5)


async def test_a_read_says_at_last_what_the_server_said() -> None:
    class Away:
        async def head_object(self, **_: Any) -> None:
            raise SLOW

    requests = S3Requests(Away(), "b", ManualClock(), Random(1), Tries(3, 0.1))
    with pytest.raises(StoreUnavailable, match="head k: SlowDown"):
        await requests.ask("head_object", "head k", Key="k")
    assert requests.made == {"head_object": 3}
    assert requests.newest is not None
    assert requests.newest.date_ms == 1_792_567_680_000


async def test_what_is_not_there_is_asked_for_once() -> None:
    class Empty:
        async def head_object(self, **_: Any) -> None:
            raise refusal("404", 404)

    requests = S3Requests(Empty(), "b", ManualClock(), Random(1), Tries(3, 0.1))
    with pytest.raises(NotFound):
        await requests.ask("head_object", "head k", Key="k")
    assert requests.made == {"head_object": 1}
