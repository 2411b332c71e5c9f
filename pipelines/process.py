"""A process that runs pipelines: it takes the appenders that nobody works on, and works on them.

What there is to do is in partitions (`work`), which processes that run the same pipelines share
fairly. Each partition that is acquired has a worker (`worker`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from coordination.coordinator.coordinator import Coordinator
from coordination.coordinator.work_queue import WorkQueue
from coordination.groups import State
from coordination.pipelines.admin import NAME
from coordination.pipelines.control import Control, change_control, read_control
from coordination.pipelines.replay import Replay
from logstore.disk import Disk
from logstore.errors import (
    InvalidInput,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    TailraceError,
    Unavailable,
    with_hint,
)
from logstore.memory import memory_limit
from logstore.prometheus import serve
from pipelines import work
from pipelines.appenders.own_metrics import AppenderMetrics, Names
from pipelines.definition.config import PipelineConfig, PipelineSettings
from pipelines.definition.folder import Folder, beside
from pipelines.metrics import collect, health
from pipelines.settings import PipelinesSettings
from pipelines.sources.segments import SegmentSource
from pipelines.sources.table import TableSource
from pipelines.worker.gate import Gate
from pipelines.worker.memory import cached, for_events, share
from pipelines.worker.reader import Counts
from pipelines.worker.waiting import wait_or_stop
from pipelines.worker.worker import Worker
from pipelines.world import World, open_world

log = logging.getLogger("tailrace.pipelines")

_GROUP_SECONDS: Final = 10.0


class PipelinesProcess:
    """Runs pipelines until it is stopped.

    `read_again` gives what the files say now; what runs of a file that is wrong goes on as it is,
    and so does everything if it raises `InvalidInput`. A pipeline that changed saves its
    checkpoints and goes on from there with what its file says; the others notice nothing.
    """

    def __init__(
        self,
        world: World,
        pipelines: Sequence[PipelineConfig],
        read_again: Callable[[], Folder] | None = None,
    ) -> None:
        self._world = world
        self._pipelines = {one.name: one for one in pipelines}
        self._read_again = read_again
        self._said: dict[str, str] = {}
        self.wrong: dict[str, str] = {}
        """What is wrong with files, by their paths."""
        self._memory = world.settings.pipelines.memory_bytes or memory_limit()
        self.source: SegmentSource = SegmentSource(
            world.segments,
            world.clock,
            cache_bytes=cached(self._memory),
            prefetch_bytes=world.settings.pipelines.prefetch_bytes,
        )
        self.counts: dict[tuple[str, ...], Counts] = {}
        """What was done for each part, by pipeline, appender and part."""
        self.own_names = Names()
        self.evicted: set[str] = set()
        self.unready = False
        """Whether its files are wrong, or the store did not answer when it looked last."""
        self._gate = Gate()
        self._refused = False
        self._sourced: set[str] = set()
        self._looked = world.clock.monotonic()
        self._workers: dict[asyncio.Task[None], Worker] = {}
        self._stopping = asyncio.Event()
        self._coordinator = Coordinator(
            world.partitions,
            world.clock,
            world.entropy,
            name=NAME,
            identity=world.identity,
            configured=world.configured,
            prefix=world.settings.source_coordination.prefix,
            limits=world.settings.limits,
        )
        self._queues: dict[str, WorkQueue] = {}

    @property
    def identity(self) -> str:
        """Who it is among those that share work."""
        return self._world.identity

    @property
    def workers(self) -> list[Worker]:
        """What it works on now."""
        return list(self._workers.values())

    @property
    def problems(self) -> list[str]:
        """What is wrong with pipelines, and with their files."""
        said = [f"{name}: {what}" if name else what for name, what in sorted(self._said.items())]
        return [*said, *[what for _, what in sorted(self.wrong.items())]]

    @property
    def poll_seconds(self) -> float:
        """How often it looks for work."""
        return self._world.settings.pipelines.poll_seconds

    @property
    def seconds_since_look(self) -> float:
        """For how long it has not looked for work."""
        return self._world.clock.monotonic() - self._looked

    def _buffer_share(self, settings: PipelineSettings) -> int:
        """The bytes of events that may wait for each of its workers for that pipeline."""
        ratio, workers = self._world.settings.pipelines.auto_buffer_ratio, self.workers
        of_each = Counter(one.pipeline for one in workers)
        wanted = [self._wanted(one.settings, of_each) for one in workers]
        return share(self._memory, ratio, self._wanted(settings, of_each), wanted)

    def _wanted(self, settings: PipelineSettings, of_each: Mapping[str, int]) -> int:
        """The bytes that a pipeline's file wants for each of its workers; 0: it does not say."""
        if settings.auto_buffer_ratio is None:
            return settings.buffer_size_bytes
        workers = max(of_each.get(settings.name, 0), 1)
        return int(for_events(self._memory) * settings.auto_buffer_ratio) // workers

    def stop(self) -> None:
        """Makes `run` save checkpoints, give its leases back and return."""
        self._stopping.set()

    async def run(self) -> None:
        """Works until it is stopped."""
        beating = asyncio.ensure_future(self._coordinator.run())
        grouping = asyncio.ensure_future(self._keep_groups())
        try:
            while not self._stopping.is_set():
                await self._look_at_files()
                self._refused = False
                for pipeline in self._pipelines.values():
                    await self._take(pipeline)
                self._hand_over()
                self.unready = "" in self._said or bool(self.wrong) or self._refused
                self._looked = self._world.clock.monotonic()
                await wait_or_stop(self._world.clock, self.poll_seconds, self._stopping)
        finally:
            grouping.cancel()
            for worker in self._workers.values():
                worker.stop()
            await self._end_workers()
            await self.source.close()
            await self._coordinator.stop()
            beating.cancel()
            with suppress(asyncio.CancelledError):
                await beating

    async def _end_workers(self) -> None:
        """Waits for the workers; one whose appender hangs is left behind."""
        if not self._workers:
            return
        seconds = self._world.settings.pipelines.stop_seconds
        _, hanging = await asyncio.wait(list(self._workers), timeout=seconds)
        for task in hanging:
            log.error("%s hangs: what it has not saved comes again", self._workers[task].name)
            task.cancel()
        if hanging:
            await asyncio.wait(hanging)

    async def _look_at_files(self) -> None:
        """Takes over what the pipelines' files say now."""
        if self._read_again is None:
            return
        try:
            folder = beside(await asyncio.to_thread(self._read_again), self._pipelines)
        except InvalidInput as error:
            self._say("", f"nothing is changed: {with_hint(error)}")
            return
        self._said.pop("", None)
        self._tell_wrong(folder.wrong)
        found = {one.name: one for one in folder.pipelines}
        for name in sorted({*found, *self._pipelines}):
            old, new = self._pipelines.get(name), found.get(name)
            if old == new:
                continue
            what = "added" if old is None else "removed" if new is None else "changed"
            log.info("pipeline %s was %s", name, what)
            self._said.pop(name, None)
            self._stop(name)
        self._pipelines = found

    def _tell_wrong(self, wrong: Mapping[str, InvalidInput]) -> None:
        """Says what is wrong with files, each once."""
        now = {path: with_hint(error) for path, error in wrong.items()}
        for path, what in sorted(now.items()):
            if self.wrong.get(path) != what:
                log.error("a file is wrong, and what runs of it goes on as it is: %s", what)
        self.wrong = now

    def _stop(self, pipeline: str) -> None:
        for worker in self.workers:
            if worker.pipeline == pipeline:
                worker.stop()

    def _replay(self, pipeline: str, asked: Replay | None) -> None:
        """Tells the workers of a pipeline of the last replay."""
        for worker in self.workers:
            if worker.pipeline == pipeline:
                worker.asked = asked

    def _say(self, pipeline: str, what: str) -> None:
        """Says something about a pipeline, or all, unless that was said last."""
        if self._said.get(pipeline) != what:
            self._said[pipeline] = what
            log.error("%s%s", f"{pipeline}: " if pipeline else "", what)

    # --- work ------------------------------------------------------------------------------

    async def _take(self, pipeline: PipelineConfig) -> None:
        """Works on what of the pipeline is free. The store's silence is waited out."""
        queue = self._queues.get(pipeline.name)
        if queue is None:
            queue = self._queues[pipeline.name] = self._coordinator.work(pipeline.name)
        try:
            control = await self._control(pipeline.name)
            self._tell(control)
            if control.paused:
                return
            group = await work.begin(self._world, pipeline, queue)
            if group.state is State.EVICTED:
                reason = "" if group.evicted is None else group.evicted.reason
                self._say(pipeline.name, f"it is evicted and does nothing: {reason}")
                self._stop(pipeline.name)
                self.evicted.add(pipeline.name)
                return
            if pipeline.name in self.evicted:
                self.evicted.discard(pipeline.name)
                self._said.pop(pipeline.name, None)
            self._replay(pipeline.name, group.replay)
            for lease in await queue.acquire(len(work.keys_of(pipeline))):
                found = work.keys_of(pipeline).get(lease.key)
                if found is None:  # of an appender that this process does not know
                    await lease.give_up(later_seconds=self._world.settings.pipelines.poll_seconds)
                    continue
                appender, part = found
                worker = Worker(
                    pipeline,
                    appender,
                    part,
                    lease,
                    self.source,
                    TableSource(
                        self._world.store, self._world.table, self.source, self._world.clock
                    ),
                    clock=self._world.clock,
                    fs=self._world.fs,
                    on_disabled=partial(self._disable, pipeline.name),
                    on_failing=partial(self._tell_failing, pipeline.name),
                    counts=self.counts.setdefault(
                        (pipeline.name, appender.name, str(part)),
                        Counts(own=AppenderMetrics(self.own_names)),
                    ),
                    instance=self._world.identity,
                    store=self._world.settings,
                    gate=self._gate,
                    buffer_share=partial(self._buffer_share, pipeline.settings),
                )
                worker.asked = group.replay
                self._start(worker, control)
        except InvalidInput as error:
            self._say(pipeline.name, with_hint(error))
        except (Unavailable, OutcomeUnknown, LeaseLost, NotFound) as error:
            self._refused = True
            log.warning("%s waits: %s", pipeline.name, error)
        except TailraceError as error:  # what is stored of it is damaged, or of a newer version
            self._say(pipeline.name, with_hint(error))

    def _start(self, worker: Worker, control: Control) -> None:
        """Lets a worker work. That it is disabled may be so for weeks: each new log says it."""
        disabled = control.disabled.get(worker.appender)
        worker.disabled = disabled is not None
        worker.redeliver = control.redeliver.get(worker.appender, "")
        if disabled is not None:
            log.error(
                "%s is disabled: %s (repair its target, then `tailrace pipelines enable`)",
                *(worker.name, disabled.reason),
            )
        task = asyncio.ensure_future(worker.run())
        self._workers[task] = worker
        task.add_done_callback(lambda done: self._workers.pop(done, None))

    def _tell(self, control: Control) -> None:
        """Tells the workers of a pipeline what operators want."""
        for worker in self._workers.values():
            if worker.pipeline == control.pipeline:
                worker.disabled = worker.appender in control.disabled
                worker.redeliver = control.redeliver.get(worker.appender, "")
                if control.paused:
                    worker.stop()

    async def _control(self, pipeline: str) -> Control:
        """What operators want; the first time it stores whether the pipeline reads over HTTP."""
        if pipeline in self._sourced:
            return await read_control(self._world.store, pipeline)
        over_http = bool(self._world.settings.pipelines.source_url)
        told = await change_control(
            self._world.store,
            pipeline,
            lambda control: replace(control, over_http=over_http),
            fresh_id=self._world.fresh_id,
        )
        self._sourced.add(pipeline)
        return told

    async def _disable(self, pipeline: str, appender: str, reason: str) -> None:
        now_ms = self._world.clock.now_ms()
        await change_control(
            self._world.store,
            pipeline,
            lambda control: control.disable(appender, now_ms, reason),
            fresh_id=self._world.fresh_id,
        )

    async def _tell_failing(self, pipeline: str, part: str, reason: str | None) -> None:
        """Stores that a part fails, or works again; if the store is away, it is not shown."""
        now_ms = self._world.clock.now_ms()
        try:
            await change_control(
                self._world.store,
                pipeline,
                lambda control: control.fail(part, now_ms, reason),
                fresh_id=self._world.fresh_id,
            )
        except (Unavailable, OutcomeUnknown) as error:
            log.warning("%s/%s: its state is not stored: %s", pipeline, part, error)

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
        for pipeline in self._pipelines.values():
            queue = self._queues.get(pipeline.name)
            try:
                if queue is not None:
                    await work.move_group(self._world, pipeline, queue)
            except TailraceError as error:
                log.warning("%s keeps segments longer: %s", pipeline.name, error)


async def run_pipelines(
    settings: PipelinesSettings,
    pipelines: Sequence[PipelineConfig],
    read_again: Callable[[], Folder],
    started: Callable[[PipelinesProcess], None],
) -> None:
    """Runs the pipelines until the process that `started` was given is stopped.

    With a data folder of its own, which is made if need be, it has its leases back after a crash.
    """
    with suppress(OSError):  # it is not ours to write in
        Disk(private=True).make_folders(settings.data)
    async with open_world(settings) as world:
        process = PipelinesProcess(world, pipelines, read_again)
        stop_metrics = None
        if settings.pipelines.metrics_listen:
            stop_metrics = serve(
                settings.pipelines.metrics_listen,
                lambda: collect(process),
                lambda: health(process),
                key="pipelines.metrics_listen",
            )
        try:
            started(process)
            await process.run()
        finally:
            if stop_metrics is not None:
                await asyncio.to_thread(stop_metrics)
