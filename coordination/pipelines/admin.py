"""Log pipelines as operators see and steer them, from what is stored: no process is asked.

A pipeline is known once a process has begun to run it: it has a consumer group then. What an
operator says is stored, and processes look at it every `pipelines.poll_seconds`.

    state    `running`; `paused`; `evicted`: it does nothing until it is replayed, or skips what it
             missed; of a part also `disabled`: its events go to the dead-letter file, or wait
             `damaged`: what is stored of the pipeline, or of a part its checkpoint, cannot be read
    lag      for how long the oldest segment that was not read is stored
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from coordination.groups import PIPELINES, REMOTE, Group, State, pipeline_group, read_group
from coordination.lease import identity_of
from coordination.partitions.partition import Partition
from coordination.partitions.store import PartitionStore
from coordination.pipelines.checkpoint import Checkpoint, Redelivery, decode
from coordination.pipelines.control import (
    Control,
    ask_for_replay,
    change_control,
    lowest_from,
    read_control,
)
from coordination.pipelines.replay import Replay
from logstore import keys
from logstore.clock import Clock
from logstore.errors import Damaged, InvalidInput, NotFound
from logstore.names import decode as decode_name
from logstore.objects.store import ObjectStore

NAME: Final = "pipelines"
COUNTS: Final = (
    "events",
    "late",
    "forced",
    "clamped",
    "copies",
    "deleted",
    "dead",
    "again",
    "lost",
    "refused",
    "redelivered",
)


class Unread(NamedTuple):
    """A segment that some part has not read; its size, and when it was stored."""

    seq: int
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class PartEntry:
    """A part of an appender, as of its last checkpoint."""

    pipeline: str
    appender: str
    part: str
    state: str
    reason: str | None
    error: str | None
    owner: str | None
    segments_behind: int
    bytes_behind: int
    lag_seconds: float
    checkpoint_at: int | None
    replay: str | None
    counts: Mapping[str, int]
    redelivery: Redelivery | None = None

    def spelled(self) -> dict[str, Any]:
        """As JSON."""
        names = [name for name in self.__slots__ if name not in ("counts", "redelivery")]
        return {name: getattr(self, name) for name in names} | dict(self.counts)


@dataclass(frozen=True, slots=True)
class PipelineEntry:
    """A pipeline and its parts."""

    name: str
    state: str
    reason: str | None
    parts: Sequence[PartEntry]

    def spelled(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "pipeline": self.name,
            "state": self.state,
            "reason": self.reason,
            "segments_behind": max((one.segments_behind for one in self.parts), default=0),
            "lag_seconds": max((one.lag_seconds for one in self.parts), default=0.0),
            "appenders": [one.spelled() for one in self.parts],
        }


class PipelinesAdmin:
    """The pipelines of a store."""

    def __init__(
        self,
        store: ObjectStore,
        partitions: PartitionStore,
        clock: Clock,
        fresh_id: Callable[[], str],
        *,
        prefix: str | None,
    ) -> None:
        self._store = store
        self._partitions = partitions
        self._clock = clock
        self._fresh_id = fresh_id
        self._base = NAME if prefix is None else f"{prefix}|{NAME}"

    async def names(self) -> list[str]:
        """The pipelines that are known. Raises `StoreUnavailable`."""
        found = []
        async for info in self._store.list(keys.group(PIPELINES)):
            name = decode_name(info.key.removeprefix(keys.GROUPS))
            if name is not None and not name.endswith(REMOTE):
                found.append(name.removeprefix(PIPELINES))
        return sorted(found)

    async def show(self, name: str) -> PipelineEntry:
        """A pipeline. Raises `NotFound`, `StoreUnavailable`, `Damaged`."""
        group = await self._known(name)
        control = await read_control(self._store, name)
        partitions = await self._parts(name)
        found = [_checkpoint(one) for one in partitions]
        unread = await self._unread([checkpoint for checkpoint, _ in found])
        now_ms = self._clock.now_ms()
        state, reason = _state(group, control)
        parts = [
            _part(name, _worst(state, reason, damage), control, one, checkpoint, unread, now_ms)
            for one, (checkpoint, damage) in zip(partitions, found, strict=True)
        ]
        return PipelineEntry(name, state, reason, parts)

    async def all(self) -> list[PipelineEntry]:
        """Every pipeline that is known; one that cannot be read is `damaged`, and why.

        Raises `StoreUnavailable`.
        """
        found = []
        for name in await self.names():
            try:
                found.append(await self.show(name))
            except NotFound:
                continue  # deleted meanwhile
            except Damaged as error:
                found.append(PipelineEntry(name, "damaged", str(error), ()))
        return found

    async def pause(self, name: str, *, paused: bool) -> PipelineEntry:
        """Stops a pipeline wherever it runs, or lets it go on. Raises as `show`."""
        return await self._say(name, lambda control: replace(control, paused=paused))

    async def disable(self, name: str, appender: str, reason: str) -> PipelineEntry:
        """Gives an appender's events to its dead-letter file. Raises as `show`."""
        await self._refuse_unknown(name, appender)
        now_ms = self._clock.now_ms()
        return await self._say(name, lambda control: control.disable(appender, now_ms, reason))

    async def enable(self, name: str, appender: str) -> PipelineEntry:
        """Lets a disabled appender go on. Raises as `show`."""
        await self._refuse_unknown(name, appender)
        return await self._say(name, lambda control: control.enable(appender))

    async def redeliver(self, name: str, appender: str) -> tuple[str, PipelineEntry]:
        """Has dead letters of an appender sent again; its id, by which parts say how far it is.

        Raises `InvalidInput` for one that is disabled, and as `show`.
        """
        await self._refuse_unknown(name, appender)
        asked = self._fresh_id()

        def wanted(control: Control) -> Control:
            if appender in control.disabled:
                raise InvalidInput(
                    f"{name}/{appender} is disabled: {control.disabled[appender].reason}",
                    hint="Enable it first: its dead letters are sent by itself.",
                )
            return replace(control, redeliver={**control.redeliver, appender: asked})

        return asked, await self._say(name, wanted)

    async def replay(self, name: str, start: str | None) -> tuple[Replay, PipelineEntry]:
        """Gives the events again from a time or ULID on; None: goes on with what comes.

        Raises `InvalidInput` for a `start` that is neither, and for one of a pipeline that reads
        over HTTP, and as `show`.
        """
        now_ms = self._clock.now_ms()
        low = None if start is None else lowest_from(start, now_ms=now_ms, field="from")
        if low is not None and (await read_control(self._store, name)).over_http:
            raise InvalidInput(
                f"the pipeline {name} reads over HTTP and cannot be replayed: no route gives the"
                " table",
                hint="Run it where the store of its segments is reachable, without"
                " pipelines.source_url, and replay it there; or skip.",
            )
        asked = Replay(self._fresh_id(), low, now_ms)
        await ask_for_replay(self._store, name, asked, fresh_id=self._fresh_id)
        return asked, await self.show(name)

    async def _say(self, name: str, change: Callable[[Control], Control]) -> PipelineEntry:
        await self._known(name)
        await change_control(self._store, name, change, fresh_id=self._fresh_id)
        return await self.show(name)

    async def _known(self, name: str) -> Group:
        group = await read_group(self._store, pipeline_group(name))
        if group is None:
            raise NotFound(
                f"no pipeline {name[:80]!r} has run on this store",
                hint="A pipeline is known once a process has begun to run it.",
            )
        return group

    async def _refuse_unknown(self, name: str, appender: str) -> None:
        await self._known(name)
        known = sorted({one.key.partition("/")[0] for one in await self._parts(name)})
        if appender not in known:
            raise InvalidInput(
                f"{name} has no appender {appender[:80]!r}",
                field="appender",
                hint=f"It has {', '.join(known) or 'none yet'}.",
            )

    async def _parts(self, name: str) -> list[Partition]:
        found: list[Partition] = []
        after: str | None = None
        while True:
            page = await self._partitions.page(f"{self._base}|{name}", after=after)
            found += page.partitions
            if page.after is None:
                return found
            after = page.after

    async def _unread(self, checkpoints: Sequence[Checkpoint]) -> dict[str, list[Unread]]:
        """The segments of each node that one of them has not read."""
        found: dict[str, list[Unread]] = {}
        async for component in self._store.folders(keys.SEGMENTS):
            node = decode_name(component)
            if component.startswith(".") or node is None:
                continue
            nexts = [one.nodes[node].next if node in one.nodes else 1 for one in checkpoints]
            last = keys.segment(node, max(min(nexts, default=1) - 1, 0))
            async for info in self._store.list(keys.segments_of(node), after=last):
                parsed = keys.parse_segment(info.key)
                if parsed is not None:
                    one = Unread(parsed[1], info.size, info.modified_ms)
                    found.setdefault(node, []).append(one)
        return found


def _state(group: Group, control: Control) -> tuple[str, str | None]:
    if group.state is State.EVICTED:
        return "evicted", None if group.evicted is None else group.evicted.reason
    return ("paused" if control.paused else "running"), None


def damaged_part(pipeline: str, reason: str) -> PartEntry:
    """What stands for all parts of a pipeline whose parts are not known."""
    counts = dict.fromkeys(COUNTS, 0)
    return PartEntry(pipeline, "", "", "damaged", reason, None, None, 0, 0, 0.0, None, None, counts)


def _checkpoint(partition: Partition) -> tuple[Checkpoint, str | None]:
    """A partition's checkpoint, or one that has read nothing and why it cannot be read."""
    try:
        return decode(partition.progress), None
    except Damaged as error:
        return Checkpoint(), f"the checkpoint of {partition.key} cannot be read: {error}"


def _worst(state: str, reason: str | None, damage: str | None) -> tuple[str, str | None]:
    """The state of a part: the pipeline's, unless its own checkpoint is damaged."""
    return (state, reason) if damage is None else ("damaged", damage)


def _part(
    pipeline: str,
    of_pipeline: tuple[str, str | None],
    control: Control,
    partition: Partition,
    checkpoint: Checkpoint,
    unread: Mapping[str, Sequence[Unread]],
    now_ms: int,
) -> PartEntry:
    appender, _, part = partition.key.partition("/")
    state, reason = of_pipeline
    if appender in control.disabled and state == "running":
        state, reason = "disabled", control.disabled[appender].reason
    behind = [
        one
        for node, segments in unread.items()
        for one in segments
        if one.seq >= (checkpoint.nodes[node].next if node in checkpoint.nodes else 1)
    ]
    oldest = min((one.modified_ms for one in behind), default=now_ms)
    failing = control.failing.get(partition.key)
    return PartEntry(
        pipeline,
        appender,
        part,
        state,
        reason,
        None if failing is None else failing.reason,
        None if partition.owner is None else identity_of(partition.owner),
        len(behind),
        sum(one.size for one in behind),
        max(now_ms - oldest, 0) / 1000,
        checkpoint.saved_ms or None,
        checkpoint.replayed if checkpoint.replay is not None else None,
        {name: checkpoint.counts.get(name, 0) for name in COUNTS},
        checkpoint.redelivery,
    )
