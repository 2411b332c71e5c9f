"""The metrics of leases, of coordinators and of named ones: each moves, by source."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from service.metrics.declared import LEASES, MetricSources
from service.metrics.scrape import family
from tailrace.coordination.lease import StoreTime
from tailrace.coordination.named_leases import NamedLeases, text_lease
from tailrace.coordination.partitions import NewPartition, reset
from tailrace.coordination.work_queue import SharedState
from tailrace.logstore.errors import LeaseLost, NotFound, StoreUnavailable
from tailrace.logstore.objects.local import LocalStore, inline
from tests.coordination.processes import LIMITS, World, told
from tests.simulation.faulty_store import Fault
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock

MOVE_WITH_LEASES = {metric.name for metric in LEASES}
SOURCE = "pipeline|file"


async def supplier(state: SharedState) -> AsyncGenerator[NewPartition, None]:
    for number in range(state.map.setdefault("made", 0), 12):
        yield NewPartition(f"{number:02}")
    state.map["made"] = 12


def named(clock: VirtualClock, name: str = "node-A") -> NamedLeases:
    store = LocalStore("/store", PowerCutFileSystem(), clock, Random(0), run=inline)
    return NamedLeases(store, clock, Random(1), StoreTime(clock, None), node=name)


def sources_of(clock: VirtualClock, leases: NamedLeases, *work: Any) -> MetricSources:
    node = SimpleNamespace(
        run_logs=SimpleNamespace(leases=leases), environment=SimpleNamespace(clock=clock)
    )
    return MetricSources(cast("Any", node), cast("Any", None), work=work)


def shown(sources: MetricSources) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by the labels' values, of each metric by its name."""
    families = [(metric, family(metric, metric.read(sources))) for metric in LEASES]
    return {
        metric.name: {
            tuple(sample.labels[label] for label in metric.labels): sample.value
            for sample in found.samples
            if not sample.name.endswith("_created")
        }
        for metric, found in families
    }


def test_the_metrics_of_a_coordinator() -> None:
    seen: dict[str, set[str]] = {metric.name: set() for metric in LEASES}

    async def scenario(world: World) -> None:
        mine = world.coordinator("A", limits=replace(LIMITS, max_attempts=1))
        work = mine.work("file", supplier=supplier)
        other = world.coordinator("B").work("file")

        async def overtaken(_: SharedState) -> AsyncGenerator[NewPartition, None]:
            yield NewPartition("one")
            state = await world.stored("list", "pipeline|GLOBAL")
            await world.store.change(state, reset(state, world.clock.now_ms()))

        listing = mine.work("list", supplier=overtaken)
        sources = sources_of(world.clock, named(world.clock), work, listing)

        def look() -> None:
            for name, readings in shown(sources).items():
                seen[name].add(str(readings))

        look()
        async with world.running(mine):
            held = await work.acquire(12)
            look()
            assert len(held) == 12
            assert await other.acquire(12) == []
            await world.clock.sleep(LIMITS.worker_seconds / 3 + 1)
            await held[0].save("1")
            await held[0].complete()
            await held[1].close(1e6)
            await held[2].give_up()
            await held[3].fail("bad")
            await held[4].delete()
            await world.store.delete(await world.stored(held[5].key))
            with pytest.raises(NotFound):
                await held[5].save("1")
            await other.reset(held[6].key)
            with pytest.raises(LeaseLost):
                await held[6].save("1")
            world.faulty.fault = lambda call: Fault.UNAVAILABLE if call == "change" else None
            for verb in (held[7].save("1"), held[7].close(1), held[7].complete()):
                with pytest.raises(StoreUnavailable):
                    await verb
            await world.clock.sleep(LIMITS.lease_seconds / 3 + 1)  # a heartbeat
            world.faulty.fault = lambda _: None
            look()
            await other.acquire(12)
            await world.clock.sleep(2)
            assert await work.acquire(100) == []
            await listing.acquire()
            look()

    told(scenario)
    still = {name for name, readings in seen.items() if len(readings) < 2}
    assert still == set()


def test_the_metrics_of_named_leases() -> None:
    async def scenario(world: World) -> None:
        leases = named(world.clock)
        sources = sources_of(world.clock, leases)
        held = await leases.acquire(text_lease("node-A"))
        await leases.acquire(text_lease("node-B"))
        await world.clock.sleep(7)
        found = shown(sources)
        assert found["tailrace_partitions_acquired"] == {("text",): 2}
        assert found["tailrace_leases_held"] == {("text",): 2}
        assert found["tailrace_lease_oldest_seconds"] == {("text",): 7}
        assert held is not None
        await leases.release(held)
        found = shown(sources)
        assert found["tailrace_partitions_given_up"] == {("text",): 1}
        assert found["tailrace_leases_held"] == {("text",): 1}
        assert ("text", "saveState") in found["tailrace_partition_update_errors"]

    told(scenario)


def test_the_names_are_data_preppers_last_words() -> None:
    assert {
        f"tailrace_{name}"
        for name in (
            *("partition_creation_supplier_invocations", "no_partitions_acquired"),
            *("partitions_created_count", "partitions_acquired", "partitions_completed"),
            *("partitions_closed", "partitions_deleted", "partitions_given_up"),
            *("save_partition_progress_state_invocations_success", "partition_update_errors"),
            *("partition_not_found_errors", "partition_not_owned_errors"),
        )
    } <= MOVE_WITH_LEASES
    assert all(metric.labels[0] == "source" for metric in LEASES)
