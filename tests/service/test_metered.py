"""The metered store keeps the contract of stores, and counts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from logstore.clock import SystemClock
from logstore.disk import Disk
from logstore.errors import NotFound, OutcomeUnknown, PreconditionFailed, StoreUnavailable
from logstore.objects.local import LocalStore
from logstore.objects.store import ObjectStore
from logstore.syncer import ThreadSyncer
from service.counters import Durations, StoreCounters
from service.metered import MeteredStore, MeteredSyncer
from tests.contracts.object_store import ObjectStoreContract
from tests.faulty_store import Fault, FaultyStore, Schedule

pytestmark = pytest.mark.anyio


def metered(root: Path, counters: StoreCounters) -> MeteredStore:
    inner = LocalStore(str(root), Disk(), SystemClock(), random.Random(1))
    return MeteredStore(inner, SystemClock(), counters)


class TestMeteredStore(ObjectStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return metered(tmp_path, StoreCounters())


async def test_calls_bytes_and_time_are_counted_by_operation(tmp_path: Path) -> None:
    counters = StoreCounters()
    store = metered(tmp_path / "store", counters)
    await store.put("a", b"12345")
    await store.get("a", size=2)
    with pytest.raises(NotFound):
        await store.head("none")
    with pytest.raises(PreconditionFailed):
        await store.put("a", b"x", if_absent=True)
    assert [info.key async for info in store.list("")] == ["a"]
    assert b"".join([piece async for piece in store.stream("a")]) == b"12345"
    assert counters.requests == {"put": 2, "get": 1, "head": 1, "list": 1, "stream": 1}
    assert counters.bytes == {"put": 5, "get": 2, "stream": 5}
    assert counters.failures == {}
    assert sum(counters.seconds["put"].counts) == 2


async def test_failures_are_counted_and_answers_are_not(tmp_path: Path) -> None:
    inner = LocalStore(str(tmp_path), Disk(), SystemClock(), random.Random(1))
    counters = StoreCounters()
    faults = Schedule({1: Fault.UNAVAILABLE, 2: Fault.UNKNOWN_DONE})
    store = MeteredStore(FaultyStore(inner, faults), SystemClock(), counters)
    with pytest.raises(StoreUnavailable):
        await store.put("a", b"")
    with pytest.raises(OutcomeUnknown):
        await store.put("a", b"")
    with pytest.raises(PreconditionFailed):
        await store.put("a", b"", if_absent=True)
    assert counters.failures == {"put": 2}


async def test_syncs_are_timed(tmp_path: Path) -> None:
    seconds = Durations()
    file = Disk().open(str(tmp_path / "f"), "create")
    await MeteredSyncer(ThreadSyncer(), SystemClock(), seconds).sync(file)
    file.close()
    assert sum(seconds.counts) == 1
    assert seconds.sum > 0


def test_buckets_are_cumulative() -> None:
    seconds = Durations()
    for value in (0.00005, 0.002, 0.002, 100.0):
        seconds.observe(value)
    buckets = dict(seconds.buckets())
    assert (buckets["0.0001"], buckets["0.003"], buckets["30.0"], buckets["+Inf"]) == (1, 3, 3, 4)
