"""Damaged state objects are problems of the node that reads them, until they are intact or gone."""

from __future__ import annotations

import asyncio
from random import Random

import orjson

from service.runtime.counters import MeteredStore, StoreCounters
from service.runtime.health import StateWatch
from tailrace.coordination.object_store.shard import Shard, compressed, encode_shard
from tailrace.logstore import keys
from tailrace.logstore.runs.report import Watermark
from tailrace.logstore.state import encode_checked
from tests.edited import flips
from tests.simulation.backing import open_store
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

START_MS = 1_800_000_000_000
KEY = keys.watermark("node-1")
BODY = encode_checked(Watermark(3, 12000, 1, "V"))


def test_an_object_of_today_and_one_of_an_earlier_version_are_whole() -> None:
    watch = StateWatch()
    rows = {f"{n:06d}": {"version": "V", "created_at": n} for n in range(4000)}
    large = compressed(encode_shard(Shard("s", 0, 1, rows=rows)))
    for key, body in (
        (KEY, BODY),
        (KEY, orjson.dumps(Watermark(3, 12000, 1, "V"))),
        (keys.partition_shard("s", 0), large),
        (keys.segment("node-1", 1), b"no JSON"),
        ("coordination/later/x", b"no JSON"),
    ):
        watch.saw(key, body)
        assert watch.problems() == [], key


def test_every_flip_is_a_problem_that_names_the_object_and_what_to_do() -> None:
    watch = StateWatch()
    for changed in [*flips(BODY), b"", BODY[:20]]:
        watch.saw(KEY, changed)
        (problem,) = watch.problems()
        assert f"the object {KEY} (watermark) is damaged" in problem
        assert "tailrace verify --repair" in problem
        assert watch.damaged == 1
        watch.saw(KEY, BODY)
        assert watch.problems() == []


def test_a_problem_ends_when_the_object_is_intact_or_gone() -> None:
    async def scenario(clock: VirtualClock) -> None:
        watch = StateWatch()
        inner = open_store(PowerCutFileSystem(), clock, Random(1))
        store = MeteredStore(inner, clock, StoreCounters(), watch)
        looking = asyncio.ensure_future(watch.run(store, clock))
        other = keys.group("siem")
        for key in (KEY, other):
            await inner.put(key, BODY[:-1])
            await store.get(key)
        await clock.sleep(60.0)
        assert watch.damaged == 2
        await inner.put(KEY, BODY)
        await inner.delete([other])
        await clock.sleep(11.0)
        assert watch.problems() == []
        looking.cancel()

    simulate(scenario, start_ms=START_MS)
