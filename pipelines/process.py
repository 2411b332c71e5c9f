"""A process that runs pipelines: it takes the appenders that nobody works on, and works on them.

Each part of an appender is a partition `{appender}/{part}-{parts}` of the source
`pipelines|{pipeline}`, whose progress is the appender's checkpoint. Processes that run the same
pipelines share the partitions fairly. The pipeline's consumer group `pipeline:{name}` says which
segments are still needed: those from the lowest checkpoint of all its partitions on. So the
compactor keeps them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from coordination.coordinator.coordinator import Coordinator
from coordination.coordinator.work_queue import WorkQueue
from coordination.groups import (
    Cursor,
    Group,
    Start,
    State,
    change_group,
    create_group,
    pipeline_group,
    read_group,
)
from coordination.open import open_partitions
from coordination.partitions.partition import NewPartition, Partition
from coordination.partitions.store import PartitionStore
from logstore import ulid
from logstore.clock import Clock, Entropy, SystemClock, system_entropy
from logstore.disk import Disk
from logstore.errors import InvalidInput, LeaseLost, NotFound, OutcomeUnknown, Unavailable
from logstore.filesystem import FileSystem, Lock
from logstore.objects.open import open_store
from logstore.objects.remote import newest_date_of
from logstore.objects.store import ObjectStore
from pipelines.checkpoint import decode
from pipelines.config import AppenderConfig, PipelineConfig
from pipelines.control import Control, change_control, read_control
from pipelines.settings import PipelinesSettings
from pipelines.source import SegmentSource
from pipelines.worker import Worker

log = logging.getLogger("tailrace.pipelines")

NAME: Final = "pipelines"
_LOCK: Final = "pipelines.lock"
_GROUP_SECONDS: Final = 10.0
_SHARDS: Final = 1


@dataclass(frozen=True, slots=True)
class World:
    """What a process works with."""

    store: ObjectStore
    partitions: PartitionStore
    clock: Clock
    entropy: Entropy
    fs: FileSystem
    settings: PipelinesSettings
    identity: str
    configured: bool

    def fresh_id(self) -> str:
        """A new ULID, as text."""
        return ulid.encode(ulid.fresh(self.clock, self.entropy))


@asynccontextmanager
async def open_world(settings: PipelinesSettings) -> AsyncIterator[World]:
    """The store and the partitions of the settings. Raises `InvalidInput`, `StoreUnavailable`."""
    clock, entropy, fs = SystemClock(), system_entropy(), Disk(private=True)
    identity, lock = _identity(fs, settings.data)
    try:
        async with (
            open_store(settings, clock, entropy, Disk()) as store,
            open_partitions(
                settings.source_coordination.store,
                store,
                clock,
                entropy,
                newest_date=newest_date_of(store),
                shards=_SHARDS,
            ) as partitions,
        ):
            await partitions.start()
            yield World(store, partitions, clock, entropy, fs, settings, identity, lock is not None)
    finally:
        if lock is not None:
            lock.release()


def _identity(fs: FileSystem, data: str) -> tuple[str, Lock | None]:
    """This process's identity, and the lock by which it knows that an earlier one has ended."""
    host, folder = socket.gethostname(), os.path.abspath(data)
    try:
        lock = fs.lock(f"{folder}/{_LOCK}", wait=False)
    except OSError:  # there is no such folder, or it is not ours to write in
        lock = None
    return (host, None) if lock is None else (f"{host}:{folder}", lock)


class PipelinesProcess:
    """Runs pipelines until it is stopped."""

    def __init__(self, world: World, pipelines: Sequence[PipelineConfig]) -> None:
        self._world = world
        self._pipelines = pipelines
        self._source = SegmentSource(world.store, world.clock)
        self._workers: dict[asyncio.Task[None], Worker] = {}
        self._stopping = asyncio.Event()
        limits = replace(
            world.settings.source_coordination.limits,
            lease_seconds=world.settings.pipelines.lease_seconds,
            max_attempts=0,
        )
        self._coordinator = Coordinator(
            world.partitions,
            world.clock,
            world.entropy,
            name=NAME,
            identity=world.identity,
            configured=world.configured,
            prefix=world.settings.source_coordination.prefix,
            limits=limits,
        )
        self._queues = {one.name: self._coordinator.work(one.name) for one in pipelines}

    @property
    def workers(self) -> list[Worker]:
        """What it works on now."""
        return list(self._workers.values())

    def stop(self) -> None:
        """Makes `run` save checkpoints, give its leases back and return."""
        self._stopping.set()

    async def run(self) -> None:
        """Works until it is stopped."""
        beating = asyncio.ensure_future(self._coordinator.run())
        grouping = asyncio.ensure_future(self._keep_groups())
        try:
            while not self._stopping.is_set():
                for pipeline in self._pipelines:
                    await self._take(pipeline)
                self._hand_over()
                await self._wait(self._world.settings.pipelines.poll_seconds)
        finally:
            grouping.cancel()
            for worker in self._workers.values():
                worker.stop()
            if self._workers:
                await asyncio.wait(self._workers)
            await self._coordinator.stop()
            beating.cancel()
            with suppress(asyncio.CancelledError):
                await beating

    # --- work ------------------------------------------------------------------------------

    async def _take(self, pipeline: PipelineConfig) -> None:
        """Works on what of the pipeline is free. The store's silence is waited out."""
        queue = self._queues[pipeline.name]
        try:
            control = await read_control(self._world.store, pipeline.name)
            self._tell(control)
            if control.paused or not await self._open(pipeline, queue):
                return
            for lease in await queue.acquire(len(_keys(pipeline))):
                found = _keys(pipeline).get(lease.key)
                if found is None:  # of an appender that this process does not know
                    await lease.give_up(later_seconds=self._world.settings.pipelines.poll_seconds)
                    continue
                appender, part = found
                worker = Worker(
                    pipeline,
                    appender,
                    part,
                    lease,
                    self._source,
                    clock=self._world.clock,
                    fs=self._world.fs,
                    on_disabled=partial(self._disable, pipeline.name),
                )
                worker.disabled = appender.name in control.disabled
                task = asyncio.ensure_future(worker.run())
                self._workers[task] = worker
                task.add_done_callback(lambda done: self._workers.pop(done, None))
        except (Unavailable, OutcomeUnknown, LeaseLost, NotFound) as error:
            log.warning("%s waits: %s", pipeline.name, error)

    def _tell(self, control: Control) -> None:
        """Tells the workers of a pipeline what operators want."""
        for worker in self._workers.values():
            if worker.pipeline == control.pipeline:
                worker.disabled = worker.appender in control.disabled
                if control.paused:
                    worker.stop()

    async def _disable(self, pipeline: str, appender: str, reason: str) -> None:
        now_ms = self._world.clock.now_ms()
        await change_control(
            self._world.store,
            pipeline,
            lambda control: control.disable(appender, now_ms, reason),
            fresh_id=self._world.fresh_id,
        )

    async def _open(self, pipeline: PipelineConfig, queue: WorkQueue) -> bool:
        """Makes the pipeline's group and partitions if need be; False if it is evicted."""
        world = self._world
        group = await read_group(world.store, pipeline_group(pipeline.name))
        if group is None:
            now = world.clock.now_ms()
            start = Start(pipeline.settings.start)
            name = pipeline_group(pipeline.name)
            group = Group(name, State.ACTIVE, start, now, now, version=world.fresh_id())
            await create_group(world.store, group)
        if group.state is State.EVICTED:
            reason = "" if group.evicted is None else group.evicted.reason
            log.error("%s is evicted and does nothing: %s", pipeline.name, reason)
            return False
        known = [one.key for one in await _all(queue)]
        _refuse_other_parts(pipeline, known)
        await queue.create([NewPartition(key) for key in _keys(pipeline) if key not in known])
        return True

    def _hand_over(self) -> None:
        """Ends what other processes are entitled to."""
        for worker in self._workers.values():
            if worker.lease.asked_back.is_set():
                worker.stop()

    # --- groups ----------------------------------------------------------------------------

    async def _keep_groups(self) -> None:
        """Says now and then which segments are still needed."""
        while True:
            await self._world.clock.sleep(_GROUP_SECONDS)
            await self.move_groups()

    async def move_groups(self) -> None:
        """Says in the groups which segments are still needed; the rest may be removed."""
        for pipeline in self._pipelines:
            try:
                await self._move_group(pipeline)
            except (Unavailable, OutcomeUnknown) as error:
                log.warning("%s keeps segments longer: %s", pipeline.name, error)

    async def _move_group(self, pipeline: PipelineConfig) -> None:
        partitions = [
            one for one in await _all(self._queues[pipeline.name]) if one.key in _keys(pipeline)
        ]
        if len(partitions) < len(_keys(pipeline)):
            return
        needed = lowest(partitions)
        if needed is None:
            return

        def moved(group: Group) -> Group:
            for node, low in needed.items():
                if group.cursor(node).seq < low - 1:
                    group = group.at(node, Cursor(seq=low - 1))
            return group

        await change_group(
            self._world.store,
            pipeline_group(pipeline.name),
            moved,
            fresh_id=self._world.fresh_id,
        )

    async def _wait(self, seconds: float) -> None:
        stopping = asyncio.ensure_future(self._stopping.wait())
        sleeping = asyncio.ensure_future(self._world.clock.sleep(seconds))
        try:
            await asyncio.wait({stopping, sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            sleeping.cancel()


def lowest(partitions: Sequence[Partition]) -> Mapping[str, int] | None:
    """For each node the lowest segment that a partition needs; None: one has not begun yet."""
    found: dict[str, list[int]] = {}
    for partition in partitions:
        if partition.progress is None:
            return None
        for node, reading in decode(partition.progress).nodes.items():
            found.setdefault(node, []).append(reading.low)
    # A node that a partition does not know yet is read by it from the beginning.
    return {node: min(lows) for node, lows in found.items() if len(lows) == len(partitions)}


def _keys(pipeline: PipelineConfig) -> Mapping[str, tuple[AppenderConfig, int]]:
    parts = pipeline.settings.parts
    return {
        f"{one.name}/{part}-{parts}": (one, part)
        for one in pipeline.appenders
        for part in range(parts)
    }


def _refuse_other_parts(pipeline: PipelineConfig, known: Sequence[str]) -> None:
    """Raises `InvalidInput` if an appender has checkpoints of another number of parts."""
    for one in pipeline.appenders:
        for key in known:
            appender, _, part = key.partition("/")
            parts = part.rpartition("-")[2]
            if appender == one.name and int(parts) != pipeline.settings.parts:
                raise InvalidInput(
                    f"{pipeline.name}: the appender {appender} was divided into {parts} parts",
                    field="parts",
                    hint="Its checkpoints are of these parts: give it another name to begin anew.",
                )


async def _all(queue: WorkQueue) -> list[Partition]:
    found: list[Partition] = []
    after: str | None = None
    while True:
        page = await queue.page(after=after)
        found += page.partitions
        if page.after is None:
            return found
        after = page.after


async def run_pipelines(
    settings: PipelinesSettings,
    pipelines: Sequence[PipelineConfig],
    started: Callable[[PipelinesProcess], None],
) -> None:
    """Runs the pipelines until the process that `started` was given is stopped."""
    async with open_world(settings) as world:
        process = PipelinesProcess(world, pipelines)
        started(process)
        await process.run()
