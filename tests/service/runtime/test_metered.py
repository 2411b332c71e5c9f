"""The metered store keeps the contract of stores, and counts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import cast

import pytest

from service.ingest.batch import AppendReceipt, IncomingBatch
from service.runtime.counters import (
    LINES,
    Distribution,
    HttpCounters,
    MeteredStore,
    MeteredSyncer,
    StoreCounters,
    SyncCounters,
    Throughput,
    metered_append,
)
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import (
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
)
from tailrace.logstore.filesystem import Disk, File, ThreadSyncer
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.objects.store import ObjectInfo, ObjectPart, ObjectStore
from tests.contracts.object_store import ObjectStoreContract
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule


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
    assert [name async for name in store.folders("")] == []
    assert b"".join([piece async for piece in store.stream("a")]) == b"12345"
    await store.compose("b", [ObjectPart("a", size=3), b"678", ObjectPart("a", offset=4)])
    await store.delete(["b"])
    assert counters.requests == {
        ("put", "done"): 1,
        ("put", "refused"): 1,
        ("get", "done"): 1,
        ("head", "refused"): 1,
        ("list", "done"): 2,
        ("stream", "done"): 1,
        ("compose", "done"): 1,
        ("delete", "done"): 1,
    }
    assert counters.sent == {"put": 6, "compose": 3}
    assert counters.received == {"get": 2, "stream": 5}
    assert counters.composed == {"compose": 4}
    assert counters.calls("put", "get") == 3
    assert counters.calls() == 9
    assert counters.done("put", "compose") == 2
    assert counters.errors == 0
    assert sum(counters.seconds["put"].counts) == 2
    assert sum(counters.all_seconds().counts) == 6
    assert set(counters.running.values()) == {0}
    assert counters.write_throughput.per_second(SystemClock().monotonic()) == 9 / 60


async def test_failures_are_counted_and_answers_are_not(tmp_path: Path) -> None:
    inner = LocalStore(str(tmp_path), Disk(), SystemClock(), random.Random(1))
    counters = StoreCounters()
    steps = {
        1: Fault.UNAVAILABLE,
        2: Fault.UNKNOWN_DONE,
        4: Fault.UNAVAILABLE,
        5: Fault.UNAVAILABLE,
    }
    store = MeteredStore(FaultyStore(inner, Schedule(steps)), SystemClock(), counters)
    with pytest.raises(StoreUnavailable):
        await store.put("a", b"")
    with pytest.raises(OutcomeUnknown):
        await store.put("a", b"")
    with pytest.raises(PreconditionFailed):
        await store.put("a", b"", if_absent=True)
    with pytest.raises(StoreUnavailable):
        [info async for info in store.list("")]
    with pytest.raises(StoreUnavailable):
        [piece async for piece in store.stream("a")]
    assert counters.requests == {
        ("put", "failed"): 1,
        ("put", "unknown"): 1,
        ("put", "refused"): 1,
        ("list", "failed"): 1,
        ("stream", "failed"): 1,
    }
    assert counters.errors == 4


async def test_a_call_without_an_answer_is_seen_running_and_counted_when_it_is_left(
    tmp_path: Path,
) -> None:
    class Silent(FaultyStore):
        async def head(self, key: str) -> ObjectInfo:
            await asyncio.Event().wait()
            raise AssertionError(key)

    counters = StoreCounters()
    inner = LocalStore(str(tmp_path), Disk(), SystemClock(), random.Random(1))
    store = MeteredStore(Silent(inner, Schedule.none()), SystemClock(), counters)
    call = asyncio.create_task(store.head("a"))
    await asyncio.sleep(0)
    assert counters.running == {"head": 1}
    assert counters.requests == {}
    call.cancel()
    await asyncio.wait([call])
    assert counters.running == {"head": 0}
    assert counters.requests == {("head", "left"): 1}
    assert counters.errors == 0


async def test_whoever_stops_reading_in_the_middle_has_had_what_it_wanted(tmp_path: Path) -> None:
    counters = StoreCounters()
    store = metered(tmp_path, counters)
    await store.put("a", b"1")
    await store.put("b", b"1")
    async with aclosing(cast("AsyncGenerator[ObjectInfo]", store.list(""))) as found:
        assert (await anext(found)).key == "a"
    assert counters.requests[("list", "done")] == 1


async def test_syncs_are_timed(tmp_path: Path) -> None:
    counters = SyncCounters()
    file = Disk().open(str(tmp_path / "f"), "create")
    await MeteredSyncer(ThreadSyncer(), SystemClock(), counters).sync(file)
    file.close()
    assert sum(counters.seconds.counts) == 1
    assert counters.seconds.sum > 0
    assert counters.waiting_seconds(SystemClock().monotonic()) == 0


async def test_a_sync_that_hangs_shows_how_long_it_has_taken(tmp_path: Path) -> None:
    class Hanging:
        async def sync(self, file: File, _size: int = 0, /) -> None:
            await asyncio.Event().wait()

        def close(self) -> None:
            return

    counters = SyncCounters()
    file = Disk().open(str(tmp_path / "f"), "create")
    start = SystemClock().monotonic()
    sync = asyncio.create_task(MeteredSyncer(Hanging(), SystemClock(), counters).sync(file))
    await asyncio.sleep(0)
    assert counters.waiting_seconds(start + 100) > 90
    sync.cancel()
    await asyncio.wait([sync])
    file.close()
    assert counters.waiting_seconds(start + 100) == 0
    assert sum(counters.seconds.counts) == 0


async def test_appends_are_counted_timed_and_measured() -> None:
    async def append(batch: IncomingBatch) -> AppendReceipt:
        if not batch.records:
            raise InvalidInput("no records")
        return AppendReceipt(1, batch.records, False, "durable", 1)

    counters = HttpCounters()
    counted = metered_append(append, SystemClock(), counters)
    await counted(IncomingBatch(RunKey("p", "r"), b"a\nb\n", 2, 2))
    with pytest.raises(InvalidInput):
        await counted(IncomingBatch(RunKey("p", "r"), b"", 0, 0))
    assert (counters.stored, counters.not_stored) == (1, 1)
    assert counters.batch_lines.sum == 2
    assert sum(counters.append_seconds.counts) == 1


def test_buckets_are_cumulative() -> None:
    seconds = Distribution()
    for value in (0.00005, 0.002, 0.002, 100.0):
        seconds.observe(value)
    buckets = dict(seconds.buckets())
    assert (buckets["0.0001"], buckets["0.003"], buckets["30.0"], buckets["+Inf"]) == (1, 3, 3, 4)
    lines = Distribution(LINES)
    lines.observe(1)
    assert lines.buckets()[0] == ("1.0", 1)


def test_throughput_is_the_mean_of_the_last_minute() -> None:
    rate = Throughput()
    rate.add(0.0, 600)
    rate.add(30.0, 60)
    assert rate.per_second(59.0) == 11
    assert rate.per_second(60.0) == 1
    assert rate.per_second(1000.0) == 0
