"""Log pipelines in the store: checkpoints of appenders, operators' control, and its view.

`Checkpoint` is the progress of an appender, `PipelineControl` has the requests of operators, and
`PipelinesAdmin` shows and steers pipelines. Damaged objects raise `Damaged`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

from tailrace.coordination.groups import (
    PIPELINES,
    REMOTE,
    ConsumerGroup,
    PipelineReplay,
    State,
    change_group,
    pipeline_group,
    read_group,
)
from tailrace.coordination.lease import identity_of
from tailrace.coordination.partitions import Partition, PartitionStore
from tailrace.logstore import keys, ulid
from tailrace.logstore.cas import Document, swap
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import Damaged, InvalidInput, NotFound, UnsupportedVersion
from tailrace.logstore.keys import decode as decode_name
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.search.conditions import parse_moment
from tailrace.logstore.state import decode_checked, encode_checked

# The checkpoint of an appender: its partition keeps it as progress, a JSON object.
#
#   format      1
#   nodes       {node: [low, next, high_ms]}: segments below `next` were read, their highest ULID
#               is of that time, and of those from `low` on some events may wait
#   frontier    null or [microseconds, ULID, fqn, run]: the highest event that was given to the
#               appender
#   appender    null or the result of the appender's `sync`; `dead_letter`: the same of the file
#               that takes its events while it is disabled, and refused events
#   replayed    the id of the last replay that it knows of, a ULID; "" for none
#   replay      null, or the replay that it is in:
#               low       the lowest ULID that is given again
#               marks     {node: seq}: the segments that were in the table when it began
#               table     [low, next, end]: of the table, the records of ULIDs below the time
#                         `next` were read, and of those from `low` on some may wait
#               read      {node: seq}: the segments below were read before it began
#               frontier  as above, before it began: events up to it were given before
#               appender  the result of the `sync` of the appender that gets those again
#   redelivery  absent, or the last time that dead letters were sent again:
#               id        a ULID, chosen by the process that requested it
#               upto      the last of the files that are sent; empty: there was none
#               file, row where it is: the next line of that file
#               sent, refused, deleted    events that the appender took, refused again, and that
#                         a deletion covers
#               done      whether all were sent, and the files are removed
#   saved_at    when it was saved, in milliseconds
#   counts      events, late, forced, clamped, copies, deleted, lost (segments that were gone before
#               they were read), dead, again (events that a replay gave again), refused,
#               redelivered, since it began
#
# Of the segments below `next`, the appender has synced exactly the events up to the frontier.


_FORMAT: Final = 1


class EventKey(NamedTuple):
    """The place of an event in the order: microseconds since 1970, ULID, fqn, run."""

    moment: int
    ulid: str
    fqn: str
    run: str


class Reading(NamedTuple):
    """The progress in the segments of a node: `high_ms` is the highest time of a ULID in them."""

    low: int
    next: int
    high_ms: int = 0


class TableReading(NamedTuple):
    """The progress in the table: times of ULIDs in milliseconds, the last one exclusive."""

    low: int
    next: int
    end: int


@dataclass(frozen=True, slots=True)
class Replaying:
    """A replay that an appender is in."""

    low: str
    marks: Mapping[str, int]
    table: TableReading
    read: Mapping[str, int]
    frontier: EventKey | None
    appender: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Redelivery:
    """Dead letters that are sent again, and the progress of that."""

    id: str
    upto: str = ""
    file: str = ""
    row: int = 0
    sent: int = 0
    refused: int = 0
    deleted: int = 0
    done: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The progress of an appender."""

    nodes: Mapping[str, Reading] = field(default_factory=dict)
    frontier: EventKey | None = None
    appender: Mapping[str, Any] | None = None
    dead_letter: Mapping[str, Any] | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    replayed: str = ""
    replay: Replaying | None = None
    saved_ms: int = 0
    redelivery: Redelivery | None = None


def encode(checkpoint: Checkpoint) -> str:
    """The JSON of a checkpoint."""
    return encode_checked(
        {
            "format": _FORMAT,
            "nodes": {node: list(one) for node, one in checkpoint.nodes.items()},
            "frontier": checkpoint.frontier and list(checkpoint.frontier),
            "appender": checkpoint.appender,
            "dead_letter": checkpoint.dead_letter,
            "counts": checkpoint.counts,
            "replayed": checkpoint.replayed,
            "replay": checkpoint.replay and _replay_value(checkpoint.replay),
            "saved_at": checkpoint.saved_ms,
        }
        | ({} if checkpoint.redelivery is None else {"redelivery": asdict(checkpoint.redelivery)})
    ).decode()


def _replay_value(replay: Replaying) -> dict[str, Any]:
    return {
        "low": replay.low,
        "marks": replay.marks,
        "table": list(replay.table),
        "read": replay.read,
        "frontier": replay.frontier and list(replay.frontier),
        "appender": replay.appender,
    }


def decode(text: str | None) -> Checkpoint:
    """The checkpoint in a JSON text; the first one if there is none. Raises `Damaged`."""
    if text is None:
        return Checkpoint()
    try:
        value = decode_checked(text.encode())
        if int(value["format"]) > _FORMAT:
            raise UnsupportedVersion(
                f"a checkpoint has format {value['format']}, this program knows {_FORMAT}"
            )
        nodes = {node: Reading(*map(int, one)) for node, one in value["nodes"].items()}
        replay = value.get("replay")
        return Checkpoint(
            nodes,
            _event_key(value["frontier"]),
            value["appender"],
            value["dead_letter"],
            {name: int(count) for name, count in value["counts"].items()},
            str(value.get("replayed", "")),
            None if replay is None else _replay(replay),
            int(value.get("saved_at", 0)),
            None if value.get("redelivery") is None else _redelivery(value["redelivery"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"not a checkpoint: {error}") from error


def _event_key(value: Any) -> EventKey | None:
    return None if value is None else EventKey(int(value[0]), *map(str, value[1:]))


def _redelivery(value: Mapping[str, Any]) -> Redelivery:
    return Redelivery(
        str(value["id"]),
        str(value["upto"]),
        str(value["file"]),
        int(value["row"]),
        int(value["sent"]),
        int(value["refused"]),
        int(value["deleted"]),
        bool(value["done"]),
    )


def _replay(value: Mapping[str, Any]) -> Replaying:
    return Replaying(
        str(value["low"]),
        {node: int(seq) for node, seq in value["marks"].items()},
        TableReading(*map(int, value["table"])),
        {node: int(seq) for node, seq in value["read"].items()},
        _event_key(value["frontier"]),
        value["appender"],
    )


# The control of a pipeline, by operators and after too many failures: paused, or without some
# appenders.
#
# `coordination/pipelines/{name}`, a JSON object changed by compare-and-swap:
#
#   format    1
#   pipeline  its name
#   paused    whether nothing is done
#   disabled  {appender: {"at": ms, "reason": text}}: its events go to the dead-letter file, or wait
#   failing   {appender/part-parts: {"at": ms, "reason": text}}: it fails, and is tried again
#   redeliver {appender: ULID}: its dead letters are to be sent again, once for each ULID
#   over_http whether the pipeline's processes read its segments over HTTP; absent if not
#   version   a fresh ULID in every write
#
# Processes read it every `pipelines.poll_seconds`. A pipeline without the object is not paused.


class Disabled(NamedTuple):
    """Since when an appender is disabled, or fails, and why."""

    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class PipelineControl:
    """One version of the object."""

    pipeline: str
    paused: bool = False
    disabled: Mapping[str, Disabled] = field(default_factory=dict)
    version: str = ""
    failing: Mapping[str, Disabled] = field(default_factory=dict)
    over_http: bool = False
    redeliver: Mapping[str, str] = field(default_factory=dict)

    def fail(self, part: str, now_ms: int, reason: str | None) -> PipelineControl:
        """The same with a part that fails for a reason; None: it works."""
        known = self.failing.get(part)
        if reason == (None if known is None else known.reason):
            return self
        kept = {name: one for name, one in self.failing.items() if name != part}
        if reason is not None:
            kept[part] = Disabled(now_ms, reason)
        return replace(self, failing=kept)

    def disable(self, appender: str, now_ms: int, reason: str) -> PipelineControl:
        """The same with an appender disabled; one that is so already keeps its reason."""
        if appender in self.disabled:
            return self
        return replace(self, disabled={**self.disabled, appender: Disabled(now_ms, reason)})

    def enable(self, appender: str) -> PipelineControl:
        """The same with an appender enabled again."""
        kept = {name: one for name, one in self.disabled.items() if name != appender}
        return replace(self, disabled=kept)


def replayed(group: ConsumerGroup, asked: PipelineReplay) -> ConsumerGroup:
    """The pipeline's group with a replay: not evicted, and it holds back every segment.

    It does so until all appenders have begun where they are to. A later replay is kept.
    """
    if group.replay is not None and group.replay.id >= asked.id:
        return group
    return replace(
        group, state=State.ACTIVE, evicted=None, cursors={}, since_ms=asked.asked_ms, replay=asked
    )


def lowest_from(text: str, *, now_ms: int, field: str) -> str:
    """The lowest ULID of a time, in any form, or the ULID itself. Raises `InvalidInput`."""
    try:
        return ulid.encode(ulid.decode(text.strip().upper()))
    except InvalidInput:
        return ulid.encode(ulid.lowest_at(parse_moment(text, now_ms=now_ms, field=field)))


async def ask_for_replay(
    store: ObjectStore, pipeline: str, asked: PipelineReplay, *, fresh_id: Callable[[], str]
) -> ConsumerGroup:
    """Has the pipeline go on elsewhere; returns its group.

    Raises `NotFound` for a pipeline that never ran, `StoreUnavailable`, `OutcomeUnknown`,
    `Damaged`.
    """
    name = pipeline_group(pipeline)
    group = await change_group(store, name, lambda found: replayed(found, asked), fresh_id=fresh_id)
    if group is None:
        raise NotFound(
            f"no pipeline {pipeline!r} has run on this store",
            hint="A pipeline is known once a process has begun to run it.",
        )
    return group


async def read_control(store: ObjectStore, pipeline: str) -> PipelineControl:
    """Returns the control of a pipeline. Raises `StoreUnavailable`, `Damaged`."""
    found = await _document(store, pipeline).read()
    return PipelineControl(pipeline) if found is None else found.value


async def change_control(
    store: ObjectStore,
    pipeline: str,
    change: Callable[[PipelineControl], PipelineControl],
    *,
    fresh_id: Callable[[], str],
) -> PipelineControl:
    """Returns the control after `change`.

    Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
    """

    async def changed(found: PipelineControl | None) -> PipelineControl | None:
        before = found or PipelineControl(pipeline)
        wanted = change(before)
        return None if wanted == before else replace(wanted, version=fresh_id())

    stored = await swap(_document(store, pipeline), changed)
    return PipelineControl(pipeline) if stored is None else stored.value


def _document(store: ObjectStore, pipeline: str) -> Document[PipelineControl]:
    key = keys.pipeline_control(pipeline)
    return Document(store, key, partial(decode_control, key), encode_control)


def encode_control(control: PipelineControl) -> bytes:
    """The bytes of a pipeline's control."""
    disabled, failing = (
        {name: {"at": at, "reason": why} for name, (at, why) in some.items()}
        for some in (control.disabled, control.failing)
    )
    return encode_checked(
        {
            "format": _FORMAT,
            "pipeline": control.pipeline,
            "paused": control.paused,
            "disabled": disabled,
            "failing": failing,
            "version": control.version,
        }
        | ({"over_http": True} if control.over_http else {})
        | ({"redeliver": dict(control.redeliver)} if control.redeliver else {})
    )


def decode_control(where: str, body: bytes) -> PipelineControl:
    """The control of a pipeline that `body` holds. Raises `Damaged`, `UnsupportedVersion`."""
    try:
        value = decode_checked(body)
        if int(value["format"]) > _FORMAT:
            raise UnsupportedVersion(f"{where} has format {value['format']}")
        disabled, failing = (
            {
                str(name): Disabled(int(one["at"]), str(one["reason"]))
                for name, one in value.get(key, {}).items()
            }
            for key in ("disabled", "failing")
        )
        return PipelineControl(
            str(value["pipeline"]),
            bool(value["paused"]),
            disabled,
            value["version"],
            failing,
            bool(value.get("over_http", False)),
            {str(name): str(one) for name, one in value.get("redeliver", {}).items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"{where} does not say how a pipeline stands: {error}") from error


# The view of operators, from stored objects alone: no process is asked.
#
# A pipeline is known once a process has begun to run it: it has a consumer group then. A request of
# an operator is stored, and processes read it every `pipelines.poll_seconds`.
#
#   state    `running`; `paused`; `evicted`: it does nothing until it is replayed, or skips the
#            segments that it missed; of a part also `disabled`: its events go to the dead-letter
#            file, or wait; `damaged`: the stored state of the pipeline, or the checkpoint of a
#            part, cannot be read
#   lag      for how long the oldest segment that was not read is stored


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


class UnreadSegment(NamedTuple):
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

        def wanted(control: PipelineControl) -> PipelineControl:
            if appender in control.disabled:
                raise InvalidInput(
                    f"{name}/{appender} is disabled: {control.disabled[appender].reason}",
                    hint="Enable it first: its dead letters are sent by itself.",
                )
            return replace(control, redeliver={**control.redeliver, appender: asked})

        return asked, await self._say(name, wanted)

    async def replay(self, name: str, start: str | None) -> tuple[PipelineReplay, PipelineEntry]:
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
        asked = PipelineReplay(self._fresh_id(), low, now_ms)
        await ask_for_replay(self._store, name, asked, fresh_id=self._fresh_id)
        return asked, await self.show(name)

    async def _say(
        self, name: str, change: Callable[[PipelineControl], PipelineControl]
    ) -> PipelineEntry:
        await self._known(name)
        await change_control(self._store, name, change, fresh_id=self._fresh_id)
        return await self.show(name)

    async def _known(self, name: str) -> ConsumerGroup:
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

    async def _unread(self, checkpoints: Sequence[Checkpoint]) -> dict[str, list[UnreadSegment]]:
        """The segments of each node that one of them has not read."""
        found: dict[str, list[UnreadSegment]] = {}
        async for component in self._store.folders(keys.SEGMENTS):
            node = decode_name(component)
            if component.startswith(".") or node is None:
                continue
            nexts = [one.nodes[node].next if node in one.nodes else 1 for one in checkpoints]
            last = keys.segment(node, max(min(nexts, default=1) - 1, 0))
            async for info in self._store.list(keys.segments_of(node), after=last):
                parsed = keys.parse_segment(info.key)
                if parsed is not None:
                    one = UnreadSegment(parsed[1], info.size, info.modified_ms)
                    found.setdefault(node, []).append(one)
        return found


def _state(group: ConsumerGroup, control: PipelineControl) -> tuple[str, str | None]:
    if group.state is State.EVICTED:
        return "evicted", None if group.evicted is None else group.evicted.reason
    return ("paused" if control.paused else "running"), None


def damaged_part(pipeline: str, reason: str) -> PartEntry:
    """The entry that represents all parts of a pipeline whose parts are not known."""
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
    control: PipelineControl,
    partition: Partition,
    checkpoint: Checkpoint,
    unread: Mapping[str, Sequence[UnreadSegment]],
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
