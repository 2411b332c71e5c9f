"""The store with faults: what each fault leaves, and that steps can be enumerated."""

from __future__ import annotations

from random import Random

import pytest

from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import NotFound, OutcomeUnknown, StoreUnavailable
from tailrace.logstore.objects.local import LocalStore, inline
from tailrace.logstore.objects.store import ObjectStore
from tests.simulation.faulty_store import Crash, Fault, FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem


@pytest.fixture
def inner() -> ObjectStore:
    return LocalStore("/store", PowerCutFileSystem(), SystemClock(), Random(1), run=inline)


async def _exists(store: ObjectStore, key: str) -> bool:
    try:
        await store.head(key)
    except NotFound:
        return False
    return True


@pytest.mark.parametrize(
    ("fault", "raised", "done"),
    [
        (Fault.UNAVAILABLE, StoreUnavailable, False),
        (Fault.UNKNOWN_DONE, OutcomeUnknown, True),
        (Fault.UNKNOWN_NOT_DONE, OutcomeUnknown, False),
        (Fault.CRASH_BEFORE, Crash, False),
        (Fault.CRASH_AFTER, Crash, True),
    ],
)
async def test_what_a_fault_leaves(
    inner: ObjectStore, fault: Fault, raised: type[BaseException], done: bool
) -> None:
    store = FaultyStore(inner, Schedule({2: fault}))
    await store.put("one", b"1")
    with pytest.raises(raised):
        await store.put("two", b"2")
    assert await _exists(inner, "one")
    assert await _exists(inner, "two") == done
    assert store.calls == ["put one", "put two"]
    await store.put("three", b"3")


@pytest.mark.parametrize("fault", [Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE])
async def test_a_read_is_never_of_unknown_outcome(inner: ObjectStore, fault: Fault) -> None:
    await inner.put("k", b"1")
    store = FaultyStore(inner, Schedule({1: fault}))
    with pytest.raises(StoreUnavailable):
        await store.get("k")


async def test_faults_may_wait_for_a_call(inner: ObjectStore) -> None:
    schedule = Schedule({2: Fault.UNAVAILABLE}, applies=lambda call: call.startswith("delete"))
    store = FaultyStore(inner, schedule)
    await store.put("k", b"1")
    await store.delete(["k"])
    await store.put("k", b"2")
    with pytest.raises(StoreUnavailable):
        await store.delete(["k"])
    assert schedule.fired == 1


async def test_a_list_can_break_off_at_any_item(inner: ObjectStore) -> None:
    for i in range(3):
        await inner.put(f"k{i}", b"")
    seen = []
    for step in range(1, 10):
        store, got = FaultyStore(inner, Schedule.crash(step)), 0
        try:
            async for _ in store.list(""):
                got += 1
        except Crash:
            seen.append(got)
            continue
        assert (got, store.schedule.fired) == (3, 0)
        break
    assert seen == [0, 0, 1, 2]
