"""DynamoDB through a proxy that misbehaves: the contract holds, and nothing is guessed.

Throttles, 500 before and after the deed, lost answers, writes that arrive twice, resets and
halves meet a fifth of all requests; the others pass as they are, and so do those of the other
modules here, which have no proxy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count

import pytest

from tailrace.coordination.dynamodb.store import DynamoPartitions
from tailrace.coordination.lease import StoreTime
from tailrace.coordination.partitions import NewPartition, Status, completed, reset, saved
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import (
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
)
from tailrace.logstore.retry import Tries
from tests.contracts.partition_acquire import SOURCE, claim_of, got, keys_taken, put, taken
from tests.contracts.partition_store import PartitionStoreContract
from tests.coordination.dynamodb.tables import settings_of, standing
from tests.faults.kinds import Kind
from tests.faults.proxy import FaultProxy
from tests.faults.requests import Request
from tests.faults.schedule import Schedule, evenly
from tests.servers.dynamodb import DynamoDb
from tests.simulation.clocks import ManualClock

pytestmark = [pytest.mark.dynamodb, pytest.mark.in_turn(4, "faults of DynamoDB")]

PATIENT = Tries(count=12, pause_seconds=0.001)
FEW = Tries(count=3, pause_seconds=0.001)


class Quick(SystemClock):
    """Waits as the machine does, and tells the time of another clock."""

    def __init__(self, other: ManualClock) -> None:
        self._other = other
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        """Happens once, before the next try of a request."""

    def now_ms(self) -> int:
        return self._other.now_ms()

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        if seconds > 0 and self.meanwhile is not None:
            act, self.meanwhile = self.meanwhile, None
            await act()


@dataclass
class Site:
    """A store, the schedule before its server, and a store that nothing happens to."""

    store: DynamoPartitions
    schedule: Schedule
    calm: DynamoPartitions
    clock: Quick


@asynccontextmanager
async def site_of(
    server: DynamoDb, schedule: Schedule, *, tries: Tries = PATIENT
) -> AsyncIterator[Site]:
    settings = settings_of(server)
    moved = ManualClock()
    quick = Quick(moved)
    async with FaultProxy(
        server.endpoint_url,
        schedule,
    ) as proxy:
        through = settings.model_copy(update={"endpoint_url": proxy.url})
        own = StoreTime(moved, None)
        async with (
            standing(settings, clock=moved, time=own, seed="calm") as calm,
            standing(through, clock=quick, time=own, tries=tries) as store,
        ):
            yield Site(store, schedule, calm, quick)


def operation(name: str) -> Callable[[Request], bool]:
    return lambda request: request.operation == name


class TestThroughFaults(PartitionStoreContract):
    MANY = 120
    clock: ManualClock

    @pytest.fixture
    async def store(
        self, dynamodb: DynamoDb, request: pytest.FixtureRequest
    ) -> AsyncIterator[DynamoPartitions]:
        self.clock = ManualClock()
        schedule = Schedule(request.node.name, evenly(0.2), delay_seconds=0.002)
        settings, quick = settings_of(dynamodb), Quick(self.clock)
        time = StoreTime(self.clock, None)
        async with FaultProxy(dynamodb.endpoint_url, schedule) as proxy:
            through = settings.model_copy(update={"endpoint_url": proxy.url})
            async with standing(through, clock=quick, time=time, tries=PATIENT) as store:
                yield store
        assert schedule.requests > 0

    async def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)


LOST = [Kind.DROPPED, Kind.ERROR_AFTER, Kind.CUT_RESPONSE, Kind.RETRIED]


@pytest.mark.parametrize("kind", LOST)
async def test_a_write_whose_answer_was_lost_is_known_again(dynamodb: DynamoDb, kind: Kind) -> None:
    async with site_of(dynamodb, Schedule()) as site:
        plan = site.schedule.plan
        plan(kind, applies=operation("PutItem"))
        assert await site.store.create(SOURCE, [NewPartition("a")]) == ["a"]
        plan(kind, applies=operation("PutItem"))
        held = await taken(site.store, "a")
        plan(kind, times=2, applies=operation("PutItem"))
        held = await site.store.change(held, saved(held, "new", held.until_ms))
        assert await got(site.calm, "a") == held
        assert site.schedule.injected[kind] >= 3


@pytest.mark.parametrize("kind", [Kind.DROPPED, Kind.ERROR_AFTER, Kind.CUT_RESPONSE])
async def test_a_deletion_whose_answer_was_lost_is_done(dynamodb: DynamoDb, kind: Kind) -> None:
    async with site_of(dynamodb, Schedule()) as site:
        await put(site.store, "a")
        held = await taken(site.store, "a")
        site.schedule.plan(kind, applies=operation("DeleteItem"))
        await site.store.delete(held)
        assert await site.calm.get(SOURCE, "a") is None


async def test_an_epoch_counted_twice_is_a_gap(dynamodb: DynamoDb) -> None:
    async with site_of(dynamodb, Schedule()) as site:
        await put(site.store, "a", "b")
        first = await taken(site.store, "a")
        site.schedule.plan(Kind.DROPPED, times=2, applies=operation("UpdateItem"))
        assert (await taken(site.store, "b")).epoch > first.epoch + 1


@pytest.mark.parametrize("operated", ["Query", "UpdateItem", "PutItem"])
async def test_throttled_to_the_end_is_an_error_and_never_no_work(
    dynamodb: DynamoDb, operated: str
) -> None:
    async with site_of(dynamodb, Schedule(), tries=FEW) as site:
        await put(site.store, "a", "b")
        site.schedule.plan(Kind.SLOW_DOWN, times=1000, applies=operation(operated))
        before = site.schedule.requests
        with pytest.raises(StoreUnavailable, match="ProvisionedThroughputExceeded") as caught:
            await site.store.acquire(SOURCE, claim_of(site.store), 2)
        assert "provisioned_read_capacity_units" in caught.value.hint
        assert site.schedule.requests - before <= 3 * 3 + 3 + 2 * 3, "bounded"
        site.schedule.calm()
        held = [await got(site.calm, key) for key in ("a", "b")]
        assert {one.status for one in held} == {Status.UNASSIGNED}
        assert await keys_taken(site.store, claim_of(site.store), 2) == ["a", "b"]


async def test_throttles_that_end_are_waited_out(dynamodb: DynamoDb) -> None:
    async with site_of(dynamodb, Schedule()) as site:
        site.schedule.plan(Kind.SLOW_DOWN, times=8)
        await put(site.store, "a")
        assert (await taken(site.store)).key == "a"
        assert site.schedule.injected[Kind.SLOW_DOWN] == 8


async def test_errors_of_reads_are_errors(dynamodb: DynamoDb) -> None:
    async with site_of(dynamodb, Schedule(), tries=FEW) as site:
        await put(site.store, "a")
        held = await taken(site.store)
        site.schedule.refuse(Kind.INTERNAL_ERROR)
        store = site.store
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: store.get(SOURCE, "a"),
            lambda: store.acquire(SOURCE, claim_of(store), 1),
            lambda: store.acquire(SOURCE, claim_of(store), 1, only="a"),
            lambda: store.page(SOURCE),
            lambda: store.counts(SOURCE),
            lambda: store.sources(),
            lambda: store.purge(SOURCE, 1 << 60),
            lambda: store.create(SOURCE, [NewPartition("b")]),
        ]
        for call in calls:
            with pytest.raises(StoreUnavailable):
                await call()
        with pytest.raises(OutcomeUnknown):
            await store.change(held, held)
        with pytest.raises(OutcomeUnknown):
            await store.delete(held)
        assert await got(site.calm, "a") == held


async def test_what_cannot_be_known_is_said_to_be_unknown(dynamodb: DynamoDb) -> None:
    """It happened, and every answer was lost."""
    async with site_of(dynamodb, Schedule(), tries=FEW) as site:
        await put(site.store, "a")
        held = await taken(site.store)
        site.schedule.plan(Kind.DROPPED, times=3, applies=operation("PutItem"))
        with pytest.raises(OutcomeUnknown):
            await site.store.change(held, completed(held, held.until_ms))
        assert (await got(site.calm, "a")).status is Status.COMPLETED


def behind(passing: int, name: str) -> Callable[[Request], bool]:
    """Operations of that name but the first ones."""
    seen = count(1)
    return lambda request: request.operation == name and next(seen) > passing


@pytest.mark.parametrize("name", ["BatchGetItem", "PutItem"])
async def test_what_was_made_before_a_failure_is_counted(dynamodb: DynamoDb, name: str) -> None:
    async with site_of(dynamodb, Schedule(), tries=FEW) as site:
        new = [NewPartition(f"{i:03d}") for i in range(101)]
        passing = 1 if name == "BatchGetItem" else 100
        site.schedule.plan(Kind.SLOW_DOWN, times=1000, applies=behind(passing, name))
        with pytest.raises(OutcomeUnknown, match="100 partitions"):
            await site.store.create(SOURCE, new)
        site.schedule.calm()
        assert await site.store.create(SOURCE, new) == ["100"]


async def test_what_was_won_is_given_though_the_rest_failed(dynamodb: DynamoDb) -> None:
    async with site_of(dynamodb, Schedule(), tries=FEW) as site:
        await put(site.store, *[f"{i:02d}" for i in range(40)])
        site.schedule.plan(Kind.SLOW_DOWN, times=1000, applies=behind(3, "Query"))
        brought = await site.store.acquire(SOURCE, claim_of(site.store), 40)
        won = len(brought.partitions)
        assert 0 < won < 40, "one part of the source, before the others could not be looked at"
        assert (await site.calm.counts(SOURCE))[Status.ASSIGNED] == won


async def test_a_deletion_leaves_what_was_made_anew(dynamodb: DynamoDb) -> None:
    async with site_of(dynamodb, Schedule()) as site:
        await put(site.store, "a")
        held = await taken(site.store)
        await site.calm.delete(held)
        with pytest.raises(NotFound):
            await site.store.delete(held)
        await put(site.calm, "a")
        site.schedule.plan(Kind.DROPPED, applies=operation("DeleteItem"))
        await site.store.delete(held)
        assert (await got(site.calm, "a")).status is Status.UNASSIGNED


async def put_back(site: Site) -> None:
    now = await got(site.calm, "a")
    await site.calm.change(now, reset(now, site.calm.time.at_most_ms()))


async def put_back_and_taken(site: Site) -> None:
    await put_back(site)
    await taken(site.calm, "a", "other/B")


async def removed(site: Site) -> None:
    await site.calm.delete(await got(site.calm, "a"))


async def made_anew(site: Site) -> None:
    await removed(site)
    await put(site.calm, "a")


@pytest.mark.parametrize(
    ("kind", "meanwhile", "expected"),
    [
        (Kind.DROPPED, put_back, None),  # ours, then another's
        (Kind.RESET, put_back, PreconditionFailed),  # another's instead of ours
        (Kind.DROPPED, put_back_and_taken, OutcomeUnknown),
        (Kind.RESET, put_back_and_taken, OutcomeUnknown),
        (Kind.DROPPED, removed, NotFound),
        (Kind.RESET, removed, NotFound),
        (Kind.RESET, made_anew, PreconditionFailed),
    ],
)
async def test_what_others_do_before_a_second_try(
    dynamodb: DynamoDb,
    kind: Kind,
    meanwhile: Callable[[Site], Awaitable[None]],
    expected: type[Exception] | None,
) -> None:
    async with site_of(dynamodb, Schedule()) as site:
        await put(site.store, "a")
        held = await taken(site.store, "a")
        site.schedule.plan(kind, applies=operation("PutItem"))
        site.clock.meanwhile = lambda: meanwhile(site)
        saving = site.store.change(held, saved(held, "mine", held.until_ms))
        if expected is None:
            assert (await saving).progress == "mine"
            assert (await got(site.calm, "a")).progress == "mine", "a reset keeps it"
        else:
            with pytest.raises(expected):
                await saving
        assert site.clock.meanwhile is None
