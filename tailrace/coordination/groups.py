"""Consumer groups of the segment queue: the progress of each, one object of bounded size a group.

`coordination/groups/{group}`, a JSON object changed by compare-and-swap:

    format      1
    group       its name
    state       `starting` (made, and its cursors not set yet), `active`, `evicted`
    start       where it began: `oldest` or `now`
    created_at  when it was made; `since` when it was made or reset last
    epoch       the highest fencing token given out; a new one is above it and at least the
                store's time in milliseconds, so it rises also when the object was removed
    nodes       {node: {"seq", "pending", "failed"}}: segments up to `seq` were handed out;
                those in neither of the two lists are committed
                pending  {seq: {epoch, until, attempts, claim, low, bytes, available_at, reason}}
                         leased until `until`; with 0 nobody has it, and it is free from
                         `available_at` on
                failed   {seq: {epoch, at, attempts, reason, low, bytes}}: tried too often
    recent      {node: [[seq, epoch], …]}: the last commits, so that a repetition is recognised
    evicted     null or {"at", "reason"}; `evictions` counts them
    max_bytes   0 or, of a log pipeline, how much may be kept for it instead of `segments.max_bytes`
    replay      null or {"id", "low", "at"}: the last replay that was requested, of a log pipeline
    committed_segments, committed_bytes, dropped    since it was made; `dropped` are failed
                ones on which nobody decided in time
    version     a fresh ULID in every write, so that no two versions have equal bytes

Times are milliseconds of the store's clock. A node that is not named has cursor 0. A `starting`
group holds back every segment: it is made before its process looks where segments begin, and a
process that deletes segments raises `low` before it looks at groups, so one of the two sees the
other. Keys that this version does not know survive a rewrite.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple, Self

from tailrace.logstore import keys
from tailrace.logstore.cas import Document, swap
from tailrace.logstore.errors import Damaged, UnsupportedVersion
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.state import decode_checked, encode_checked

# A replay that operators request of a log pipeline. It is stored in the pipeline's group.


@dataclass(frozen=True, slots=True)
class PipelineReplay:
    """Where a log pipeline is to go on: at the ULID `low`, or without one with the next segments.

    `id` is a ULID: of two replays the higher one counts.
    """

    id: str
    low: str | None
    asked_ms: int

    def value(self) -> dict[str, Any]:
        """It as JSON."""
        return {"id": self.id, "low": self.low, "at": self.asked_ms}

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Self:
        """What `value` gave. Raises `KeyError`, `TypeError`, `ValueError`."""
        low = value["low"]
        return cls(str(value["id"]), None if low is None else str(low), int(value["at"]))


FORMAT: Final = 1
PIPELINES: Final = "pipeline:"
"""What the names of groups of log pipelines begin with; see `tailrace.pipelines.process`."""
REMOTE: Final = "@http"
"""What the groups of those end with whose checkpoints are in another store."""
_NAMES: Final = (
    "format group state start created_at since epoch nodes recent evicted evictions "
    "committed_segments committed_bytes dropped version replay max_bytes"
)
_KNOWN: Final = frozenset(_NAMES.split(" "))


def pipeline_group(pipeline: str) -> str:
    """The name of a log pipeline's group."""
    return PIPELINES + pipeline


def remote_group(pipeline: str) -> str:
    """The name of the group of a log pipeline that reads over HTTP."""
    return f"{PIPELINES}{pipeline}{REMOTE}"


class State(StrEnum):
    """The state of a group."""

    STARTING = "starting"
    ACTIVE = "active"
    EVICTED = "evicted"


class GroupStart(StrEnum):
    """Where a group begins: with the oldest segment that is kept, or after the newest."""

    OLDEST = "oldest"
    NOW = "now"


@dataclass(frozen=True, slots=True)
class PendingSegment:
    """A segment that was handed out and neither committed nor failed."""

    epoch: int
    until_ms: int
    """When the lease ends; 0: it was returned and is nobody's."""
    attempts: int
    claim: str
    """Who took it: a ULID of the call, by which a lost answer is found again."""
    low: str = ""
    size: int = 0
    available_ms: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class FailedSegment:
    """A segment that was tried too often, or cannot be read."""

    epoch: int
    failed_ms: int
    attempts: int
    reason: str
    low: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True)
class GroupCursor:
    """The progress of a group in one node's segments."""

    seq: int = 0
    pending: Mapping[int, PendingSegment] = field(default_factory=dict)
    failed: Mapping[int, FailedSegment] = field(default_factory=dict)

    @property
    def decided(self) -> int:
        """The segment up to which all are committed or failed."""
        return min(self.pending, default=self.seq + 1) - 1

    def needed_from(self, quarantined: Collection[int] = ()) -> int:
        """The lowest segment that the group may still read.

        Segments that are `quarantined` are empty and count as read.
        """
        open_ = [seq for seq in (*self.pending, *self.failed) if seq not in quarantined]
        return min(open_, default=self.seq + 1)


@dataclass(frozen=True, slots=True)
class Evicted:
    """The time and the reason of a group's eviction."""

    at_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """One version of a group."""

    name: str
    state: State
    start: GroupStart
    created_ms: int
    since_ms: int
    epoch: int = 0
    cursors: Mapping[str, GroupCursor] = field(default_factory=dict)
    recent: tuple[tuple[str, int, int], ...] = ()
    """(node, seq, epoch) of the last commits, by epoch."""
    evicted: Evicted | None = None
    evictions: int = 0
    committed_segments: int = 0
    committed_bytes: int = 0
    dropped: int = 0
    version: str = ""
    others: Mapping[str, Any] = field(default_factory=dict)
    replay: PipelineReplay | None = None
    max_bytes: int = 0

    @property
    def of_pipeline(self) -> bool:
        """Whether it is that of a log pipeline, which is evicted by size and not by age."""
        return self.name.startswith(PIPELINES)

    @property
    def key(self) -> str:
        """The key of the group's object."""
        return keys.group(self.name)

    def cursor(self, node: str) -> GroupCursor:
        """The group's cursor in a node's segments."""
        return self.cursors.get(node, GroupCursor())

    def holds(self, node: str, seq: int, quarantined: Collection[int] = ()) -> bool:
        """Whether the group still needs a segment, so that it must not be deleted."""
        if self.state is State.EVICTED:
            return False
        return self.state is State.STARTING or seq >= self.cursor(node).needed_from(quarantined)

    def at(self, node: str, cursor: GroupCursor) -> ConsumerGroup:
        """The group with another cursor in a node's segments."""
        return replace(self, cursors={**self.cursors, node: cursor})


def evict(group: ConsumerGroup, now_ms: int, reason: str) -> ConsumerGroup:
    """Evicts the group: it holds back no segment, and reports its eviction until it is reset."""
    return replace(
        group, state=State.EVICTED, evicted=Evicted(now_ms, reason), evictions=group.evictions + 1
    )


def drop_failed(group: ConsumerGroup, node: str, seq: int) -> ConsumerGroup:
    """Drops a failed segment for good, because nobody decided on it in time."""
    cursor = group.cursor(node)
    left = {other: failed for other, failed in cursor.failed.items() if other != seq}
    return replace(group.at(node, replace(cursor, failed=left)), dropped=group.dropped + 1)


# --- in the store ----------------------------------------------------------------


def group_document(store: ObjectStore, name: str) -> Document[ConsumerGroup]:
    """The object of the group of that name, for a compare-and-swap."""
    return _document(store, keys.group(name))


async def read_group(store: ObjectStore, name: str) -> ConsumerGroup | None:
    """Returns the group, None if there is none. Raises `StoreUnavailable`, `Damaged`."""
    found = await group_document(store, name).read()
    return None if found is None else found.value


class Groups(NamedTuple):
    """All groups, by key; and why a group cannot be read, by its key."""

    groups: list[ConsumerGroup]
    unreadable: dict[str, str]


async def read_groups(store: ObjectStore) -> Groups:
    """Reads all groups. Raises `StoreUnavailable`."""
    found = Groups([], {})
    async for info in store.list(keys.GROUPS):
        try:
            stored = await _document(store, info.key).read()
        except Damaged as error:
            found.unreadable[info.key] = str(error)
        else:
            found.groups.extend([] if stored is None else [stored.value])
    return found


async def create_group(store: ObjectStore, group: ConsumerGroup) -> ConsumerGroup:
    """Creates the group unless there is one of its name; returns what is stored.

    Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
    """

    async def made(found: ConsumerGroup | None) -> ConsumerGroup | None:
        return group if found is None else None

    stored = await swap(group_document(store, group.name), made)
    return group if stored is None else stored.value


async def change_group(
    store: ObjectStore,
    name: str,
    change: Callable[[ConsumerGroup], ConsumerGroup],
    *,
    fresh_id: Callable[[], str],
) -> ConsumerGroup | None:
    """The group after `change`, which is called again whenever another writer was faster.

    Returns None if there is no such group. Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
    """

    async def changed(group: ConsumerGroup | None) -> ConsumerGroup | None:
        wanted = None if group is None else change(group)
        if wanted is None or wanted == group:
            return None
        return replace(wanted, version=fresh_id())

    stored = await swap(group_document(store, name), changed)
    return None if stored is None else stored.value


def _document(store: ObjectStore, key: str) -> Document[ConsumerGroup]:
    return Document(store, key, partial(decode_group, key), encode_group)


# --- bytes -------------------------------------------------------------------------


def encode_group(group: ConsumerGroup) -> bytes:
    """The bytes of a group."""
    recent: dict[str, list[tuple[int, int]]] = {}
    for node, seq, epoch in group.recent:
        recent.setdefault(node, []).append((seq, epoch))
    evicted, again = group.evicted, group.replay
    return encode_checked(
        {
            **group.others,
            "format": FORMAT,
            "group": group.name,
            "state": group.state,
            "start": group.start,
            "created_at": group.created_ms,
            "since": group.since_ms,
            "epoch": group.epoch,
            "nodes": {node: _cursor_value(cursor) for node, cursor in group.cursors.items()},
            "recent": recent,
            "evicted": evicted and {"at": evicted.at_ms, "reason": evicted.reason},
            "evictions": group.evictions,
            "committed_segments": group.committed_segments,
            "committed_bytes": group.committed_bytes,
            "dropped": group.dropped,
            "replay": again and again.value(),
            "max_bytes": group.max_bytes,
            "version": group.version,
        }
    )


def _cursor_value(cursor: GroupCursor) -> dict[str, Any]:
    return {
        "seq": cursor.seq,
        "pending": {
            str(seq): {
                "epoch": one.epoch,
                "until": one.until_ms,
                "attempts": one.attempts,
                "claim": one.claim,
                "low": one.low,
                "bytes": one.size,
                "available_at": one.available_ms,
                "reason": one.reason,
            }
            for seq, one in cursor.pending.items()
        },
        "failed": {
            str(seq): {
                "epoch": one.epoch,
                "at": one.failed_ms,
                "attempts": one.attempts,
                "reason": one.reason,
                "low": one.low,
                "bytes": one.size,
            }
            for seq, one in cursor.failed.items()
        },
    }


def decode_group(key: str, body: bytes) -> ConsumerGroup:
    """The group that `body` holds. Raises `Damaged`, `UnsupportedVersion`."""
    try:
        value = decode_checked(body)
        if int(value["format"]) > FORMAT:
            raise UnsupportedVersion(f"{key} has format {value['format']}, this knows {FORMAT}")
        return _group(value)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"{key} is not a consumer group: {error}") from error


def _group(value: dict[str, Any]) -> ConsumerGroup:
    evicted, again = value["evicted"], value.get("replay")
    recent = [(node, seq, epoch) for node, some in value["recent"].items() for seq, epoch in some]
    return ConsumerGroup(
        name=str(value["group"]),
        state=State(value["state"]),
        start=GroupStart(value["start"]),
        created_ms=int(value["created_at"]),
        since_ms=int(value["since"]),
        epoch=int(value["epoch"]),
        cursors={node: _cursor(one) for node, one in value["nodes"].items()},
        recent=tuple(sorted(recent, key=lambda one: one[2])),
        evicted=evicted and Evicted(int(evicted["at"]), str(evicted["reason"])),
        evictions=int(value["evictions"]),
        committed_segments=int(value["committed_segments"]),
        committed_bytes=int(value["committed_bytes"]),
        dropped=int(value["dropped"]),
        version=str(value["version"]),
        others={key: kept for key, kept in value.items() if key not in _KNOWN},
        replay=again and PipelineReplay.of(again),
        max_bytes=int(value.get("max_bytes", 0)),
    )


def _cursor(value: dict[str, Any]) -> GroupCursor:
    return GroupCursor(
        seq=int(value["seq"]),
        pending={
            int(seq): PendingSegment(
                epoch=int(one["epoch"]),
                until_ms=int(one["until"]),
                attempts=int(one["attempts"]),
                claim=str(one["claim"]),
                low=str(one["low"]),
                size=int(one["bytes"]),
                available_ms=int(one["available_at"]),
                reason=one["reason"],
            )
            for seq, one in value["pending"].items()
        },
        failed={
            int(seq): FailedSegment(
                epoch=int(one["epoch"]),
                failed_ms=int(one["at"]),
                attempts=int(one["attempts"]),
                reason=str(one["reason"]),
                low=str(one["low"]),
                size=int(one["bytes"]),
            )
            for seq, one in value["failed"].items()
        },
    )
