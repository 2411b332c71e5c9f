"""A node whose metrics are read ten times a second of its time, as whole lives of it pass."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from prometheus_client.core import Metric

from service.metrics.declared import MetricSources
from service.metrics.scrape import METRICS, families
from service.node import Node
from service.runtime.counters import MeteredStore, MeteredSyncer
from service.runtime.environment import Environment
from service.runtime.process import in_place
from service.settings import Settings, Tuning
from service.wiring import Machine, make_engine, make_sources
from tailrace.logstore.filesystem import File
from tailrace.logstore.objects.store import DateSample, ObjectStore
from tests.service.simulated_node import DATA, SMALL, START_MS, TUNING, nothing_taken
from tests.settings import changed
from tests.simulation.backing import open_store
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule
from tests.simulation.powercut import DirectSyncer, PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

_EVERY_SECONDS = 0.1


class Outage(Schedule):
    """Calls whose name has one of `words` in it fail, as long as they are there."""

    def __init__(self) -> None:
        super().__init__({})
        self.words: set[str] = set()

    def next(self, call: str) -> Fault | None:
        return Fault.UNAVAILABLE if any(word in call for word in self.words) else None


class SlowStore(FaultyStore):
    """Composes take a moment, so that a reader finds them under way."""

    async def compose(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0.3)
        return await super().compose(*args, **kwargs)


class SlowSyncer(DirectSyncer):
    """Syncs take a moment."""

    async def sync(self, file: File, size: int = 0, /) -> None:
        await asyncio.sleep(0.15)
        await super().sync(file, size)


@dataclass
class Watched:
    """A disk, and what all lives on it ever showed: metric to the readings that it had."""

    scratch: Path
    fs: PowerCutFileSystem = field(default_factory=PowerCutFileSystem)
    outage: Outage = field(default_factory=Outage)
    ahead_seconds: int = 0
    shown: dict[str, set[tuple[Any, ...]]] = field(default_factory=lambda: defaultdict(set))
    now_ms: int = START_MS
    lives: int = 0

    def live(
        self,
        scenario: Callable[[Node, VirtualClock], Coroutine[Any, Any, None]],
        *,
        settings: Settings = SMALL,
        tuning: Tuning = TUNING,
        name: str = "",
        data: str = DATA,
        stops: bool = True,
    ) -> None:
        """One life of a node; without `stops` it is killed at the end of the scenario."""

        async def go(clock: VirtualClock) -> int:
            machine = Machine(fs=self.fs, journal_fs=self.fs, clock=clock)
            node = self._node(machine, changed(settings, data=data, node_id=name), tuning)
            await node.start()
            scratch = Settings(data=str(self.scratch))
            engine = make_engine(scratch, machine, node, make_sources(scratch, node))
            sources = MetricSources(node, engine, machine.http, machine.store, machine.fsync)
            watching = asyncio.create_task(self._watch(sources, clock))
            await scenario(node, clock)
            self.look(sources)
            watching.cancel()
            if stops:
                await node.stop()
                self.look(sources)
            engine.close()
            return clock.now_ms()

        self.now_ms = simulate(go, start_ms=self.now_ms) + 1000
        self.fs.end_processes()

    def store(self, clock: VirtualClock) -> ObjectStore:
        """The store of all lives, as it is."""
        return open_store(self.fs, clock, Random(self.lives))

    def moved(self) -> set[str]:
        """The metrics that showed more than one thing."""
        return {name for name, readings in self.shown.items() if len(readings) > 1}

    def _date(self, clock: VirtualClock) -> DateSample:
        """What a store says whose clock is `ahead_seconds` behind ours."""
        now, second = clock.monotonic(), clock.now_ms() // 1000 - self.ahead_seconds
        return DateSample(second * 1000, now, now, clock.now_ms())

    async def _watch(self, sources: MetricSources, clock: VirtualClock) -> None:
        while True:
            self.look(sources)
            await clock.sleep(_EVERY_SECONDS)

    def look(self, sources: MetricSources) -> None:
        """Reads all metrics, as a scrape does; an alias says what its metric says."""
        for declared in METRICS:
            own, *aliases = map(_readings, families(declared, declared.read(sources)))
            self.shown[declared.name].add(own)
            assert aliases == ([own] if declared.alias else []), declared

    def _node(self, machine: Machine, settings: Settings, tuning: Tuning) -> Node:
        self.lives += 1
        dice, clock = Random(self.lives), machine.clock
        assert isinstance(clock, VirtualClock)
        store = SlowStore(self.store(clock), self.outage)
        return Node(
            Environment(
                store=MeteredStore(store, clock, machine.store),
                fs=self.fs,
                clock=clock,
                entropy=dice,
                syncer=lambda: MeteredSyncer(SlowSyncer(), clock, machine.fsync),
                offload=in_place,
                newest_date=lambda: self._date(clock),
            ),
            settings,
            default_name="node",
            table_mark=nothing_taken,
            tuning=tuning,
        )


def _readings(family: Metric) -> tuple[Any, ...]:
    """The values by labels, and by what the names of the samples add to the metric's."""
    return tuple(
        (s.name.removeprefix(family.name), *_sorted(s.labels), s.value) for s in family.samples
    )


def _sorted(labels: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(labels.items())
