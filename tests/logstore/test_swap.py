"""The loop of compare-and-swap: what it promises whatever the store answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

import orjson
import pytest

from tailrace.logstore.cas import (
    Document,
    RetryBudget,
    Revision,
    swap,
    write_until_known,
)
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import (
    Conflict,
    Damaged,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
)
from tailrace.logstore.objects.store import Body, ObjectInfo, ObjectStore
from tests.faults.schedule import Schedule as NetworkSchedule
from tests.simulation.backing import open_store
from tests.simulation.faulty_store import WRITES, Fault, FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem

KEY = "coordination/counter"


@dataclass(frozen=True)
class Counter:
    """Counts without knowing who counted, so that one effect too many is seen."""

    count: int = 0
    version: str = ""


def decode(body: bytes) -> Counter:
    try:
        return Counter(**orjson.loads(body))
    except (ValueError, TypeError) as error:
        raise Damaged(f"not a counter: {error}") from error


class Adding:
    """A change that adds one; `asked` is what it was given."""

    def __init__(self, entropy: Random) -> None:
        self._entropy = entropy
        self.asked: list[Counter | None] = []

    async def __call__(self, found: Counter | None) -> Counter | None:
        self.asked.append(found)
        version = f"{self._entropy.getrandbits(80):x}"
        return Counter(1 if found is None else found.count + 1, version)


class Interrupted(FaultyStore):
    """A store where something else happens before or after one of the puts."""

    def __init__(
        self,
        inner: ObjectStore,
        *,
        before: Callable[[], Awaitable[object]] | None = None,
        refuses_afterwards: bool = False,
        arrives_late: bool = False,
    ) -> None:
        super().__init__(inner, Schedule.none())
        self._before = before
        self._refuses_afterwards = refuses_afterwards
        self._arrives_late = arrives_late
        self._late: Callable[[], Awaitable[object]] | None = None

    async def put(
        self,
        key: str,
        body: Body,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        async def made() -> ObjectInfo:
            return await super(Interrupted, self).put(
                key, body, if_absent=if_absent, if_match=if_match, metadata=metadata
            )

        if self._late is not None:
            late, self._late = self._late, None
            await late()
        before, self._before = self._before, None
        if before is not None:
            await before()
        if self._arrives_late:
            self._late, self._arrives_late = made, False
            raise OutcomeUnknown("it is on its way")
        info = await made()
        if self._refuses_afterwards:
            self._refuses_afterwards = False
            raise PreconditionFailed("a proxy asked twice")
        return info


def make_store() -> ObjectStore:
    return open_store(PowerCutFileSystem(), SystemClock(), Random(1))


def that_answers(*answers: Fault) -> FaultyStore:
    """A store with these faults of its first writes."""
    faults = dict(enumerate(answers, 1))
    schedule = Schedule(faults, applies=lambda call: call.split()[0] in WRITES)
    return FaultyStore(make_store(), schedule)


def counter_in(store: ObjectStore) -> Document[Counter]:
    return Document(store, KEY, decode, orjson.dumps)


async def stored_in(store: ObjectStore) -> Counter:
    found = await counter_in(store).read()
    assert found is not None
    return found.value


@pytest.mark.usefixtures("every_store")
async def test_a_value_is_made_changed_and_left() -> None:
    document = counter_in(make_store())
    adding = Adding(Random(2))
    first = await swap(document, adding)
    second = await swap(document, adding)
    assert first is not None
    assert second is not None
    assert adding.asked == [None, first.value]
    assert (first.written, second.written, second.value.count) == (True, True, 2)

    async def leave(_: Counter | None) -> None:
        return None

    assert await swap(document, leave) == replace(second, written=False)


async def test_nothing_is_made_where_there_is_nothing_to_change() -> None:
    async def leave(_: Counter | None) -> None:
        return None

    store = make_store()
    assert await swap(counter_in(store), leave) is None
    assert await counter_in(store).read() is None


@pytest.mark.usefixtures("every_store")
@pytest.mark.parametrize(
    "answers",
    [
        (Fault.UNKNOWN_DONE,),
        (Fault.UNKNOWN_NOT_DONE,),
        (Fault.UNKNOWN_NOT_DONE, Fault.UNKNOWN_DONE),
        (Fault.UNKNOWN_NOT_DONE, Fault.UNKNOWN_NOT_DONE),
    ],
)
async def test_a_lost_answer_changes_nothing_twice(answers: tuple[Fault, ...]) -> None:
    store = that_answers(*answers)
    stored = await swap(counter_in(store), Adding(Random(2)))
    assert stored is not None
    assert stored.written
    assert await stored_in(store.inner) == stored.value
    assert stored.value.count == 1


@pytest.mark.usefixtures("every_store")
async def test_an_own_write_is_recognised_behind_a_refusal() -> None:
    store = Interrupted(make_store(), refuses_afterwards=True)
    stored = await swap(counter_in(store), Adding(Random(2)))
    assert stored is not None
    assert stored.written
    assert (await stored_in(store)).count == 1
    again = await counter_in(store).write(Counter(7, "next"), stored.etag)
    assert again.value.count == 7


async def test_a_write_that_arrives_late_is_recognised() -> None:
    """It comes after the read that did not find it, and before the next try."""
    store = Interrupted(make_store(), arrives_late=True)
    adding = Adding(Random(2))
    stored = await swap(counter_in(store), adding)
    assert stored is not None
    assert stored.written
    assert adding.asked == [None, None]
    assert await stored_in(store) == stored.value
    assert stored.value.count == 1


@pytest.mark.usefixtures("every_store")
@pytest.mark.parametrize("there", [False, True])
async def test_who_loses_a_race_decides_again(there: bool) -> None:
    inner = make_store()
    if there:
        await swap(counter_in(inner), Adding(Random(3)))
    store = Interrupted(inner, before=lambda: swap(counter_in(inner), Adding(Random(4))))
    budget = RetryBudget()
    stored = await swap(counter_in(store), Adding(Random(2)), budget=budget)
    assert stored is not None
    assert stored.value.count == (3 if there else 2)
    assert (budget.refused, budget.ambiguous) == (1, 0)


@pytest.mark.parametrize("fault", [None, Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE])
async def test_racing_writers_count_each_change(
    fault: Fault | None, every_store: NetworkSchedule | None
) -> None:
    """What somebody else changed over a write without an answer is counted again, or once."""
    faults = {} if fault is None else {4: fault, 9: fault}
    store = FaultyStore(make_store(), Schedule(faults, applies=lambda call: call[:3] == "put"))
    clock, writers = SystemClock(), 8

    async def add(number: int) -> None:
        budget = RetryBudget(clock, Random(number), ambiguous=10)
        await swap(counter_in(store), Adding(Random(number)), budget=budget)

    await asyncio.gather(*[add(number) for number in range(writers)])
    # The network before a server hides answers of writes that were made, too.
    hidden = 0 if every_store is None else every_store.injected.total()
    most = writers + hidden + (len(faults) if fault is Fault.UNKNOWN_DONE else 0)
    assert writers <= (await stored_in(store)).count <= most


async def test_a_store_that_never_says_is_left_alone() -> None:
    store = that_answers(*[Fault.UNKNOWN_NOT_DONE] * 100)
    with pytest.raises(OutcomeUnknown):
        await swap(counter_in(store), Adding(Random(2)))
    assert store.schedule.fired == 3


async def test_who_is_always_refused_gives_up_with_nothing_changed() -> None:
    inner = make_store()
    budget = RetryBudget(refusals=5)

    class Refusing(FaultyStore):
        async def put(self, *_: object, **__: object) -> ObjectInfo:
            raise PreconditionFailed("always")

    with pytest.raises(StoreUnavailable, match="others were always faster"):
        await swap(counter_in(Refusing(inner, Schedule.none())), Adding(Random(2)), budget=budget)
    assert budget.refused == 5
    assert await counter_in(inner).read() is None


async def test_a_failure_after_a_lost_answer_does_not_say_that_nothing_was_changed() -> None:
    faults = {2: Fault.UNKNOWN_DONE, 3: Fault.UNAVAILABLE}  # get, put, get
    store = FaultyStore(make_store(), Schedule(faults))
    with pytest.raises(OutcomeUnknown):
        await swap(counter_in(store), Adding(Random(2)))
    assert (await stored_in(store.inner)).count == 1

    store = FaultyStore(make_store(), Schedule({2: Fault.UNAVAILABLE}))
    with pytest.raises(StoreUnavailable):
        await swap(counter_in(store), Adding(Random(2)))


# --- a version that is known ---------------------------------------------------------


async def revision_in(store: ObjectStore) -> Revision[Counter]:
    stored = await swap(counter_in(store), Adding(Random(5)))
    assert stored is not None
    return stored


@pytest.mark.usefixtures("every_store")
async def test_a_known_version_saves_the_read() -> None:
    store = FaultyStore(make_store(), Schedule.none())
    known = await revision_in(store)
    store.calls.clear()
    await swap(counter_in(store), Adding(Random(2)), known=known)
    assert store.calls == [f"put {KEY}"]


@pytest.mark.usefixtures("every_store")
async def test_a_known_version_that_is_old_costs_a_try() -> None:
    store = make_store()
    known = await revision_in(store)
    await revision_in(store)
    stored = await swap(counter_in(store), Adding(Random(2)), known=known)
    assert stored is not None
    assert stored.value.count == 3


@pytest.mark.parametrize("newer", [False, True])
async def test_only_a_version_that_was_read_is_left_or_refused(newer: bool) -> None:
    store = make_store()
    known = await revision_in(store)
    newest = await revision_in(store) if newer else known

    async def leave(_: Counter | None) -> None:
        return None

    async def refuse(found: Counter | None) -> Counter | None:
        raise Conflict(f"it is {found}")

    left = await swap(counter_in(store), leave, known=known)
    assert left == replace(newest, written=False)
    with pytest.raises(Conflict, match=str(newest.value.version)):
        await swap(counter_in(store), refuse, known=known)


# --- writes that may be made twice -----------------------------------------------------


async def test_a_write_that_may_be_made_twice_is_made_until_it_is_known() -> None:
    store = that_answers(Fault.UNKNOWN_NOT_DONE, Fault.UNKNOWN_DONE)
    info = await write_until_known(lambda: store.put(KEY, b"same"))
    assert (await store.get(KEY))[0].etag == info.etag
    assert store.schedule.fired == 2

    store = that_answers(*[Fault.UNKNOWN_NOT_DONE] * 100)
    with pytest.raises(OutcomeUnknown):
        await write_until_known(lambda: store.put(KEY, b"same"))
    assert store.schedule.fired == 3

    store = that_answers(Fault.UNKNOWN_DONE, Fault.UNAVAILABLE)
    with pytest.raises(OutcomeUnknown):
        await write_until_known(lambda: store.put(KEY, b"same"))
