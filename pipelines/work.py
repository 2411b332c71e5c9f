"""The work of a pipeline: its partitions, and the consumer group that keeps its segments.

Each part of an appender is a partition `{appender}/{part}-{parts}` of the source
`pipelines|{pipeline}`, whose progress is the appender's checkpoint. The consumer group
`pipeline:{name}` says which segments are still needed: those from the lowest checkpoint of all
partitions on. It is made before anybody looks where segments begin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from coordination.coordinator.work_queue import WorkQueue
from coordination.groups import (
    Cursor,
    Group,
    Start,
    State,
    change_group,
    create_group,
    evict,
    pipeline_group,
    read_group,
)
from coordination.partitions.partition import NewPartition, Partition
from coordination.pipelines.checkpoint import decode
from logstore.errors import GroupEvicted, InvalidInput
from pipelines.definition.config import AppenderConfig, PipelineConfig
from pipelines.world import World


def keys_of(pipeline: PipelineConfig) -> Mapping[str, tuple[AppenderConfig, int]]:
    """The keys of a pipeline's partitions, with the appender and the part of each."""
    parts = pipeline.settings.parts
    return {
        f"{one.name}/{part}-{parts}": (one, part)
        for one in pipeline.appenders
        for part in range(parts)
    }


async def begin(world: World, pipeline: PipelineConfig, queue: WorkQueue) -> Group:
    """Makes the pipeline's group and, unless it is evicted, its partitions if need be.

    Raises `InvalidInput` for other parts than its checkpoints have, `StoreUnavailable`.
    """
    name, most_bytes = pipeline_group(pipeline.name), pipeline.settings.segments_max_bytes or 0
    group = await read_group(world.store, name)
    if group is None:
        now, start = world.clock.now_ms(), Start(pipeline.settings.start)
        made = Group(name, State.ACTIVE, start, now, now, version=world.fresh_id())
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

    def moved(group: Group) -> Group:
        if group.replay is not None and group.replay.id > known:
            return group  # it holds back everything until all have begun there
        for node, low in needed.items():
            if group.cursor(node).seq < low - 1:
                group = group.at(node, Cursor(seq=low - 1))
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
