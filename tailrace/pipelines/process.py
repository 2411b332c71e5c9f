"""A process that runs pipelines: it acquires appenders without a worker, and runs them.

The work is in partitions, which processes that run the same pipelines share fairly. Each partition
that is acquired has an `AppenderWorker` (`tailrace.pipelines.worker`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from prometheus_client.core import Metric

from tailrace.coordination.groups import (
    ConsumerGroup,
    GroupCursor,
    GroupStart,
    PipelineReplay,
    State,
    change_group,
    create_group,
    evict,
    pipeline_group,
    read_group,
)
from tailrace.coordination.partitions import NewPartition, Partition
from tailrace.coordination.pipelines import (
    NAME,
    PipelineControl,
    change_control,
    decode,
    read_control,
)
from tailrace.coordination.work_queue import Coordinator, WorkQueue
from tailrace.logstore.errors import (
    GroupEvicted,
    InvalidInput,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    TailraceError,
    Unavailable,
    with_hint,
)
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.process import memory_limit
from tailrace.logstore.prometheus import Declared, ProgramHealth, Reading, serve
from tailrace.pipelines.appenders.contract import (
    LABELS,
    AppenderMetrics,
    DeclaredMetrics,
    collect_own,
)
from tailrace.pipelines.definition import (
    AppenderConfig,
    PipelineConfig,
    PipelineDefinition,
    PipelineFolder,
    beside,
)
from tailrace.pipelines.reader import PartCounts
from tailrace.pipelines.sources.segments import SegmentSource
from tailrace.pipelines.sources.table import TableSource
from tailrace.pipelines.waiting import TurnLimiter, cached, for_events, share, wait_or_stop
from tailrace.pipelines.worker import AppenderWorker
from tailrace.pipelines.world import PipelinesSettings, World, open_world

# The work of a pipeline: its partitions, and the consumer group that keeps its segments.
#
# Each part of an appender is a partition `{appender}/{part}-{parts}` of the source
# `pipelines|{pipeline}`, whose progress is the appender's checkpoint. The consumer group
# `pipeline:{name}` says which segments are still needed: those from the lowest checkpoint of all
# partitions on. It is made before any process looks where segments begin.


def keys_of(pipeline: PipelineConfig) -> Mapping[str, tuple[AppenderConfig, int]]:
    """The keys of a pipeline's partitions, with the appender and the part of each."""
    parts = pipeline.settings.parts
    return {
        f"{one.name}/{part}-{parts}": (one, part)
        for one in pipeline.appenders
        for part in range(parts)
    }


async def begin(world: World, pipeline: PipelineConfig, queue: WorkQueue) -> ConsumerGroup:
    """Makes the pipeline's group and, unless it is evicted, its partitions if need be.

    Raises `InvalidInput` for other parts than its checkpoints have, `StoreUnavailable`.
    """
    name, most_bytes = pipeline_group(pipeline.name), pipeline.settings.segments_max_bytes or 0
    group = await read_group(world.store, name)
    if group is None:
        now, start = world.clock.now_ms(), GroupStart(pipeline.settings.start)
        made = ConsumerGroup(name, State.ACTIVE, start, now, now, version=world.fresh_id())
        group = await create_group(world.store, replace(made, max_bytes=most_bytes))
    if group.max_bytes != most_bytes:
        bounded = lambda one: replace(one, max_bytes=most_bytes)  # noqa: E731
        changed = await change_group(world.store, name, bounded, fresh_id=world.fresh_id)
        group = changed or group
    if group.state is State.EVICTED:
        return group
    try:
        await world.segments.keep(pipeline.name, group.start)
    except GroupEvicted as error:
        reason, now = str(error), world.clock.now_ms()
        evicted = await change_group(
            world.store, name, lambda one: evict(one, now, reason), fresh_id=world.fresh_id
        )
        return evicted or group
    known = [one.key for one in await _all(queue)]
    _refuse_other_parts(pipeline, known)
    await queue.create([NewPartition(key) for key in keys_of(pipeline) if key not in known])
    return group


async def move_group(world: World, pipeline: PipelineConfig, queue: WorkQueue) -> None:
    """Says in the group which segments are still needed. Raises `StoreUnavailable`."""
    keys = keys_of(pipeline)
    partitions = [one for one in await _all(queue) if one.key in keys]
    needed = lowest(partitions) if len(partitions) == len(keys) else None
    if needed is None:
        return
    await world.segments.release(pipeline.name, needed)
    known = min(decode(one.progress).replayed for one in partitions)

    def moved(group: ConsumerGroup) -> ConsumerGroup:
        if group.replay is not None and group.replay.id > known:
            return group  # it holds back everything until all have begun there
        for node, low in needed.items():
            if group.cursor(node).seq < low - 1:
                group = group.at(node, GroupCursor(seq=low - 1))
        return group

    name = pipeline_group(pipeline.name)
    await change_group(world.store, name, moved, fresh_id=world.fresh_id)


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


def _refuse_other_parts(pipeline: PipelineConfig, known: Sequence[str]) -> None:
    """Raises `InvalidInput` if an appender has checkpoints of another number of parts."""
    for one in pipeline.appenders:
        for key in known:
            appender, _, part = key.partition("/")
            parts = part.rpartition("-")[2]
            if appender == one.name and int(parts) != pipeline.settings.parts:
                raise InvalidInput(
                    f"the appender {appender} was divided into {parts} parts",
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


# Metrics of a process of pipelines, read when Prometheus asks.
#
# Workers add to plain integers (`PartCounts`), which the process keeps for as long as it runs; a
# metric costs nothing in between. Values are by pipeline, appender and part.


_STUCK_SECONDS: Final = 60.0


def _counter(
    name: str, text: str, read: Callable[[PartCounts], float]
) -> Declared[PipelinesProcess]:
    def values(process: PipelinesProcess) -> Reading:
        return {key: read(counts) for key, counts in list(process.counts.items())}

    return Declared(f"tailrace_pipelines_{name}", "counter", text, values, LABELS)


def _gauge(
    name: str, text: str, read: Callable[[AppenderWorker], float]
) -> Declared[PipelinesProcess]:
    def values(process: PipelinesProcess) -> Reading:
        return {worker.labels: read(worker) for worker in process.workers}

    return Declared(f"tailrace_pipelines_{name}", "gauge", text, values, LABELS)


def _queue_bytes(worker: AppenderWorker) -> float:
    return 0 if worker.progress is None else worker.progress.buffer.size


def _lag_segments(worker: AppenderWorker) -> float:
    return 0 if worker.progress is None else worker.progress.unread(worker.source.nodes)[0]


def _lag_seconds(worker: AppenderWorker) -> float:
    progress = worker.progress
    high_ms = None if progress is None else progress.unread(worker.source.nodes)[1]
    return 0 if high_ms is None else max(worker.clock.now_ms() - high_ms, 0) / 1000


def _replaying(worker: AppenderWorker) -> float:
    return worker.progress is not None and worker.progress.replay is not None


METRICS: Final[tuple[Declared[PipelinesProcess], ...]] = (
    _counter("events", "Events that were given to the appender.", lambda c: c.given),
    _counter(
        "late_events",
        "Events that arrived after later events were sent, and are out of order.",
        lambda c: c.late,
    ),
    _counter(
        "forced_events",
        "Events that were sent early, because too many waited.",
        lambda c: c.forced,
    ),
    _counter(
        "clamped_events",
        "Events with a time more than a minute after their arrival, which was cut to that minute.",
        lambda c: c.clamped,
    ),
    _counter("copies", "Events left out because another node had sent them.", lambda c: c.copies),
    _counter(
        "deleted_events", "Events left out because their run was deleted.", lambda c: c.deleted
    ),
    _counter("dead_letters", "Events that went to the dead-letter file.", lambda c: c.dead_letters),
    _counter(
        "refused_events",
        "Events that the appender refused for good, and that became dead letters.",
        lambda c: c.refused,
    ),
    _counter(
        "redelivered_events",
        "Dead letters that were sent again and taken.",
        lambda c: c.redelivered,
    ),
    _counter("again_events", "Events that a replay gave to a copy.", lambda c: c.again),
    _counter(
        "lost_segments", "Segments that were removed before they were read.", lambda c: c.lost
    ),
    _counter(
        "damaged_segments", "Segments that cannot be read and were skipped.", lambda c: c.damaged
    ),
    _counter("errors", "Failures of the appender, which are retried.", lambda c: c.failures),
    _counter("checkpoints", "Checkpoints that were saved.", lambda c: c.checkpoints),
    _gauge("queue_bytes", "Bytes of events that wait for their time.", _queue_bytes),
    _gauge(
        "delay_seconds",
        "Age of the oldest of the events that were given last, by their own time.",
        lambda w: w.delay.oldest,
    ),
    _gauge(
        "newest_delay_seconds",
        "Age of the newest of the events that were given last, by its own time.",
        lambda w: w.delay.newest,
    ),
    _gauge(
        "queue_limit_bytes",
        "Bytes of events that may wait: with more, events are forced.",
        lambda w: w.buffer_limit,
    ),
    _gauge(
        "event_delay_seconds",
        "How long an event waits for earlier ones, as the pipeline's file says.",
        lambda w: w.settings.event_delay_ms / 1000,
    ),
    _gauge(
        "checkpoint_interval_seconds",
        "How often a checkpoint is saved, as the pipeline's file says.",
        lambda w: w.settings.checkpoint_interval_ms / 1000,
    ),
    _gauge(
        "last_checkpoint_timestamp_seconds",
        "When the last checkpoint was saved, in seconds since 1970; 0: never.",
        lambda w: w.checkpoint_ms / 1000,
    ),
    _gauge("lag_segments", "Segments that were not read yet.", _lag_segments),
    _gauge(
        "lag_seconds",
        "Age of the newest line that was read from the node furthest behind; 0: no node is behind.",
        _lag_seconds,
    ),
    _gauge(
        "failing",
        "1 while the appender fails and is retried.",
        lambda w: w.failure is not None,
    ),
    _gauge("disabled", "1 while events go to the dead-letter file.", lambda w: w.disabled),
    _gauge("replaying", "1 while a replay runs.", _replaying),
    Declared(
        "tailrace_pipelines_evicted",
        "gauge",
        "Pipelines that do nothing until they are replayed or skip what they missed.",
        lambda process: dict.fromkeys(sorted(process.evicted), 1.0),
        ("pipeline",),
    ),
    Declared(
        "tailrace_pipelines_wrong_files",
        "gauge",
        "Invalid files of pipelines and plugins; running pipelines continue with their last"
        " valid file.",
        lambda process: len(process.wrong),
    ),
    Declared(
        "tailrace_pipelines_segments_decoded",
        "counter",
        "Segments that were fetched and decoded, once for all appenders that are up to date.",
        lambda process: process.source.decoded,
    ),
    Declared(
        "tailrace_pipelines_segment_bytes",
        "counter",
        "Bytes of segments that were fetched.",
        lambda process: process.source.fetched_bytes,
    ),
)


def collect(process: PipelinesProcess) -> Iterator[Metric]:
    """The samples of all metrics, also of those that appenders declare."""
    for one in METRICS:
        yield one.family(process)
    own = {labels: counts.own for labels, counts in list(process.counts.items())}
    yield from collect_own(process.own_names, own)


def health(process: PipelinesProcess) -> ProgramHealth:
    """Live: the process looks for work in time. Ready: its store answers, and its files are good.

    Appenders that fail and pipelines that are evicted are problems of their own, and no reason
    to start the process again.
    """
    problems = list(process.problems)
    failing = {one.name: one.failure for one in process.workers if one.failure is not None}
    problems += [f"{name}: {failure}" for name, failure in sorted(failing.items())]
    late = process.seconds_since_look
    live = late < _STUCK_SECONDS + process.poll_seconds
    if not live:
        problems.insert(0, f"the process has not looked for work for {late:.0f} s")
    return ProgramHealth(live, not process.unready, problems)


log = logging.getLogger("tailrace.pipelines")

_GROUP_SECONDS: Final = 10.0


class PipelinesProcess:
    """Runs pipelines until it is stopped.

    `read_again` returns the present content of the files. If a file is wrong, its running pipelines
    continue unchanged; if `read_again` raises `InvalidInput`, all pipelines do. A pipeline that
    changed saves its checkpoints and continues with the content of its file; the others notice
    nothing.
    """

    def __init__(
        self,
        world: World,
        pipelines: Sequence[PipelineConfig],
        read_again: Callable[[], PipelineFolder] | None = None,
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
        self.counts: dict[tuple[str, ...], PartCounts] = {}
        """What was done for each part, by pipeline, appender and part."""
        self.own_names = DeclaredMetrics()
        self.evicted: set[str] = set()
        self.unready = False
        """Whether its files are wrong, or the store did not answer when it looked last."""
        self._gate = TurnLimiter()
        self._refused = False
        self._sourced: set[str] = set()
        self._looked = world.clock.monotonic()
        self._workers: dict[asyncio.Task[None], AppenderWorker] = {}
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
        """The name of this process among those that share work."""
        return self._world.identity

    @property
    def workers(self) -> list[AppenderWorker]:
        """What it works on now."""
        return list(self._workers.values())

    @property
    def problems(self) -> list[str]:
        """The errors of pipelines, and of their files."""
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

    def _buffer_share(self, settings: PipelineDefinition) -> int:
        """The bytes of events that may wait for each of its workers for that pipeline."""
        ratio, workers = self._world.settings.pipelines.auto_buffer_ratio, self.workers
        of_each = Counter(one.pipeline for one in workers)
        wanted = [self._wanted(one.settings, of_each) for one in workers]
        return share(self._memory, ratio, self._wanted(settings, of_each), wanted)

    def _wanted(self, settings: PipelineDefinition, of_each: Mapping[str, int]) -> int:
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
            log.error(
                "%s hangs: events that it has not saved will be sent again",
                self._workers[task].name,
            )
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
        self._report_wrong(folder.wrong)
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

    def _report_wrong(self, wrong: Mapping[str, InvalidInput]) -> None:
        """Says what is wrong with files, each once."""
        now = {path: with_hint(error) for path, error in wrong.items()}
        for path, what in sorted(now.items()):
            if self.wrong.get(path) != what:
                log.error(
                    "a pipeline's file is invalid, and its pipeline continues with the"
                    " last valid file: %s",
                    what,
                )
        self.wrong = now

    def _stop(self, pipeline: str) -> None:
        for worker in self.workers:
            if worker.pipeline == pipeline:
                worker.stop()

    def _replay(self, pipeline: str, asked: PipelineReplay | None) -> None:
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
            self._report(control)
            if control.paused:
                return
            group = await begin(self._world, pipeline, queue)
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
            for lease in await queue.acquire(len(keys_of(pipeline))):
                found = keys_of(pipeline).get(lease.key)
                if found is None:  # of an appender that this process does not know
                    await lease.give_up(later_seconds=self._world.settings.pipelines.poll_seconds)
                    continue
                appender, part = found
                worker = AppenderWorker(
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
                    on_failing=partial(self._report_failing, pipeline.name),
                    counts=self.counts.setdefault(
                        (pipeline.name, appender.name, str(part)),
                        PartCounts(own=AppenderMetrics(self.own_names)),
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

    def _start(self, worker: AppenderWorker, control: PipelineControl) -> None:
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

    def _report(self, control: PipelineControl) -> None:
        """Tells the workers of a pipeline what operators want."""
        for worker in self._workers.values():
            if worker.pipeline == control.pipeline:
                worker.disabled = worker.appender in control.disabled
                worker.redeliver = control.redeliver.get(worker.appender, "")
                if control.paused:
                    worker.stop()

    async def _control(self, pipeline: str) -> PipelineControl:
        """What operators want; the first time it stores whether the pipeline reads over HTTP."""
        if pipeline in self._sourced:
            return await read_control(self._world.store, pipeline)
        over_http = bool(self._world.settings.pipelines.source_url)
        changed = await change_control(
            self._world.store,
            pipeline,
            lambda control: replace(control, over_http=over_http),
            fresh_id=self._world.fresh_id,
        )
        self._sourced.add(pipeline)
        return changed

    async def _disable(self, pipeline: str, appender: str, reason: str) -> None:
        now_ms = self._world.clock.now_ms()
        await change_control(
            self._world.store,
            pipeline,
            lambda control: control.disable(appender, now_ms, reason),
            fresh_id=self._world.fresh_id,
        )

    async def _report_failing(self, pipeline: str, part: str, reason: str | None) -> None:
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
            log.warning("%s/%s: its state could not be stored: %s", pipeline, part, error)

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
                    await move_group(self._world, pipeline, queue)
            except TailraceError as error:
                log.warning("%s keeps segments longer: %s", pipeline.name, error)


async def run_pipelines(
    settings: PipelinesSettings,
    pipelines: Sequence[PipelineConfig],
    read_again: Callable[[], PipelineFolder],
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
