"""The S3 store through a proxy that misbehaves: what a correct client hides, and what it says.

The contract of every store holds as if nothing happened, with 500, 503 and 409, lost answers,
cut bodies, resets, and a 412 for the store's own write among a third of all requests.
Where nobody can know, the store says `OutcomeUnknown`, and callers look.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest

from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import (
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
)
from tailrace.logstore.objects.s3.client import BlockingBucket, open_client
from tailrace.logstore.objects.s3.credentials import Credentials
from tailrace.logstore.objects.s3.keys import BucketPlace
from tailrace.logstore.objects.s3.store import S3Store
from tailrace.logstore.objects.store import Body, ObjectInfo, ObjectPart, ObjectStore
from tailrace.logstore.retry import Tries
from tests.contracts.object_store import LargeObjectContract, ObjectStoreContract
from tests.faults.kinds import HIDDEN, KNOWABLE, Kind
from tests.faults.proxy import FaultProxy
from tests.faults.requests import Request
from tests.faults.schedule import Schedule, evenly
from tests.servers.minio import Bucket

pytestmark = pytest.mark.minio

MIB = 1 << 20
RATE = 0.33


@dataclass
class Site:
    """A store, and the schedule between it and its server."""

    store: ObjectStore
    schedule: Schedule
    bucket: Bucket

    def uploads(self) -> list[str]:
        """Keys of the uploads that were begun and neither completed nor aborted."""
        client: Any = self.bucket.client()
        try:
            answer = client.list_multipart_uploads(Bucket=self.bucket.name)
        finally:
            client.close()
        return [upload["Key"] for upload in answer.get("Uploads", [])]


@asynccontextmanager
async def standing(
    bucket: Bucket, schedule: Schedule, *, tries: int = 5, **s3: Any
) -> AsyncIterator[Site]:
    """A store whose pauses are short; `s3` are settings."""
    async with FaultProxy(bucket.endpoint_url, schedule) as proxy:
        settings = bucket.through(proxy.url, **s3).settings.s3
        clock = SystemClock()
        async with open_client(settings, Credentials(settings), clock) as client:
            store = S3Store(
                client,
                BucketPlace(bucket.name, bucket.prefix),
                clock,
                system_entropy(),
                blocking=BlockingBucket(settings, Credentials(settings), bucket.name),
                tries=Tries(tries, 0.001),
                uploads_by_prefix=False,
            )
            yield Site(store, schedule, bucket)


@pytest.fixture
async def site(bucket: Bucket) -> AsyncIterator[Site]:
    async with standing(bucket, Schedule(1, delay_seconds=0.001)) as made:
        yield made


class Asking:
    """What every caller does with an unknown outcome: looks for its own, or tries again."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.unknown = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put(self, key: str, body: Body, **how: Any) -> ObjectInfo:
        return await self._asked(key, bytes(body), lambda: self._inner.put(key, body, **how))

    async def compose(
        self, key: str, parts: Sequence[ObjectPart | bytes], **how: Any
    ) -> ObjectInfo:
        whole = b"".join([await self._part(part) for part in parts])
        return await self._asked(key, whole, lambda: self._inner.compose(key, parts, **how))

    async def _part(self, part: ObjectPart | bytes) -> bytes:
        if isinstance(part, bytes):
            return part
        try:
            return (await self._inner.get(part.key, offset=part.offset, size=part.size))[1]
        except NotFound:
            return b"nothing"

    async def _asked(
        self, key: str, body: bytes, write: Callable[[], Awaitable[ObjectInfo]]
    ) -> ObjectInfo:
        while True:
            try:
                return await write()
            except OutcomeUnknown:
                self.unknown += 1
            try:
                info, found = await self._inner.get(key)
            except NotFound:
                continue
            if found == body:
                return info


class TestContract(ObjectStoreContract):
    @pytest.fixture
    async def store(self, bucket: Bucket, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
        # Whoever counts without saying who cannot tell an unknown outcome from another's.
        nothing = Kind.SLOW_DOWN, Kind.CONFLICT, Kind.DELAY
        kinds = nothing if "counter" in request.node.name else HIDDEN
        schedule = Schedule(request.node.name, evenly(RATE, kinds), delay_seconds=0.001)
        # Twenty race on one key there, and the schedule bounds what they meet together, not each.
        async with standing(bucket, schedule, tries=12) as site:
            yield Asking(site.store)


class TestLargeObjects(LargeObjectContract):
    @pytest.fixture
    async def store(self, bucket: Bucket) -> AsyncIterator[Any]:
        schedule = Schedule(3, evenly(RATE), delay_seconds=0.001)
        async with standing(bucket, schedule) as site:
            yield site.store
        assert schedule.injected.total() > 5


# -- one kind at a time


def is_put(request: Request) -> bool:
    return request.method == "PUT"


def is_part(request: Request) -> bool:
    return "partNumber" in request.query


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("kind", HIDDEN)
async def test_each_fault_of_each_request_is_hidden(site: Site, kind: Kind) -> None:
    """Twice for every request that it may meet, while all that a store does is done."""
    site.schedule.rates[kind] = 0.6
    store = cast("ObjectStore", Asking(site.store))
    first = await store.put("k", b"first", if_absent=True)
    await store.put("k", b"second", if_match=first.etag)
    with pytest.raises(PreconditionFailed):
        await store.put("k", b"third", if_absent=True)
    big = await store.put("big", bytes(6 * MIB), metadata={"a": "b"})
    made = await store.compose("made", [ObjectPart("big", if_match=big.etag), b"!"], if_absent=True)
    await store.compose("made", [ObjectPart("big"), ObjectPart("k")], if_match=made.etag)
    with pytest.raises(PreconditionFailed):
        await store.compose("made", [ObjectPart("big"), b"?"], if_match=made.etag)
    assert (await store.get("made", offset=6 * MIB))[1] == b"second"
    assert sum([len(piece) async for piece in store.stream("big")]) == 6 * MIB
    assert [info.key async for info in store.list("")] == ["big", "k", "made"]
    await store.delete(["big", "k"])
    assert [info.key async for info in store.list("")] == ["made"]
    assert site.schedule.injected[kind] > (1 if kind is Kind.ERROR_IN_200 else 3)
    site.schedule.calm()
    await store.sweep(SystemClock().now_ms() + 60_000)
    assert site.uploads() == []


@pytest.mark.parametrize("kind", [Kind.SLOW_DOWN, Kind.CONFLICT])
async def test_what_did_not_happen_is_unavailable(site: Site, kind: Kind) -> None:
    site.schedule.refuse(kind)
    with pytest.raises(StoreUnavailable):
        await site.store.put("k", b"x", if_absent=True)
    site.schedule.relent()
    with pytest.raises(NotFound):
        await site.store.head("k")


@pytest.mark.parametrize(
    ("kind", "done"),
    [
        (Kind.DROPPED, True),
        (Kind.ERROR_AFTER, True),
        (Kind.RESET, False),
        (Kind.CUT_REQUEST, False),
    ],
)
async def test_what_nobody_can_know_is_unknown(site: Site, kind: Kind, done: bool) -> None:
    site.schedule.refuse(kind)
    with pytest.raises(OutcomeUnknown):
        await site.store.put("k", b"x", if_absent=True)
    site.schedule.relent()
    assert [info.key async for info in site.store.list("")] == ["k"] * done


async def test_a_refusal_by_the_own_lost_write_is_a_success(site: Site) -> None:
    site.schedule.plan(Kind.RETRIED, times=2, applies=is_put)
    made = await site.store.put("k", b"one", if_absent=True)
    assert (await site.store.put("k", b"two", if_match=made.etag)).size == 3
    assert site.schedule.injected == {Kind.RETRIED: 2}
    assert (await site.store.get("k"))[1] == b"two"


async def test_a_put_that_arrives_late_undoes_nothing(bucket: Bucket) -> None:
    """Its sender gave up and tried again; by the time that it arrives another wrote."""
    schedule = Schedule(stall_seconds=1.0)
    schedule.plan(Kind.STALL, applies=is_put)
    async with standing(bucket, schedule, read_timeout_seconds=0.5) as site:
        made = await site.store.put("k", b"one", if_absent=True)
        await site.store.put("k", b"two", if_match=made.etag)
        await asyncio.sleep(1.5)
        assert schedule.injected == {Kind.STALL: 1}
        assert (await site.store.get("k"))[1] == b"two"


async def test_an_upload_that_fails_is_aborted(site: Site) -> None:
    await site.store.put("big", bytes(6 * MIB))
    site.schedule.plan(Kind.RESET, times=99, applies=is_part)
    with pytest.raises(StoreUnavailable):
        await site.store.compose("made", [ObjectPart("big"), b"!"])
    assert site.schedule.injected[Kind.RESET] >= 5
    assert site.uploads() == []


async def test_what_a_lost_answer_began_is_swept_once_it_is_old(site: Site) -> None:
    await site.store.put("big", bytes(6 * MIB))
    begins = lambda request: "uploads" in request.query  # noqa: E731
    site.schedule.plan(Kind.DROPPED, applies=begins)
    await site.store.compose("made", [ObjectPart("big"), b"!"])
    assert len(site.uploads()) == 1
    assert await site.store.sweep(SystemClock().now_ms() - 60_000) == 0
    assert await site.store.sweep(SystemClock().now_ms() + 60_000) == 1
    assert site.uploads() == []


# -- many writers


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_every_outcome_of_racing_writers_is_true(bucket: Bucket, seed: int) -> None:
    """Faults without end in a row, few tries: all outcomes come, and each says what is so."""
    schedule = Schedule(seed, evenly(0.5, KNOWABLE), most_in_a_row=99, delay_seconds=0.01)
    outcomes: dict[str, type[Exception] | None] = {}
    async with standing(bucket, schedule, tries=2) as site:

        async def write(writer: int) -> None:
            for count in range(12):
                name = f"{writer}.{count}"
                try:
                    info, text = await site.store.get("list")
                    outcomes[name] = StoreUnavailable
                    text += name.encode() + b" "
                    await site.store.put("list", text, if_match=info.etag)
                    outcomes[name] = None
                except (PreconditionFailed, StoreUnavailable, OutcomeUnknown) as error:
                    outcomes[name] = type(error)

        while True:
            try:
                await site.store.put("list", b"")
                break
            except (StoreUnavailable, OutcomeUnknown):
                continue
        await asyncio.gather(*[write(writer) for writer in range(6)])
        schedule.calm()
        held = (await site.store.get("list"))[1].decode().split()
    assert len(held) == len(set(held))
    assert set(outcomes.values()) == {None, PreconditionFailed, StoreUnavailable, OutcomeUnknown}
    for name, outcome in outcomes.items():
        if outcome is not OutcomeUnknown:
            assert (name in held) == (outcome is None), f"{name}: {outcome}"
