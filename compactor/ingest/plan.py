"""Plans the next batch: segments above the table's marks, each node's in sequence.

If a number is missing, later segments of that node wait. After a long time this is an alarm,
but the number is never skipped. Segments are chosen in order of their upload over all nodes, so
that copies of a batch are mostly in one merge, and at most as many as the limit allows.

A node is listed from its mark on, and no further than one batch can reach. A large backlog
therefore needs no more memory than a small one, and each of its batches no more requests.

A segment that cannot be read is quarantined (`logstore/segments/quarantine.py`): every reader
treats it as empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from compactor.report import Lag
from logstore import keys
from logstore.errors import UnsupportedVersion
from logstore.names import decode
from logstore.objects.store import ObjectStore
from logstore.table.snapshot import Snapshot

MOST_SEGMENTS: Final = 20_000  # in a batch: of each the driver holds its path and time ranges
_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment in the listing; `size` in bytes."""

    node: str
    seq: int
    key: str
    size: int
    modified_ms: int
    quarantined: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """A node's first segments above its mark; `more` says that others follow."""

    segments: tuple[StoredSegment, ...]
    more: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The next batch, planned from `snapshot`; each node's segments begin at its mark."""

    snapshot: Snapshot
    segments: tuple[StoredSegment, ...]
    alarms: tuple[str, ...]
    waiting: frozenset[str] = frozenset()
    """Nodes with something to ingest, in this batch or in a later one."""
    more: bool = False
    """Whether something is left for a later one."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The sum of all waiting segments, and each node's last one."""

    lag: Lag
    ends: Mapping[str, int]


async def nodes_of(store: ObjectStore) -> list[str]:
    """Nodes that have segments in the store. Raises `StoreUnavailable`, `UnsupportedVersion`."""
    found = [name async for name in store.folders(keys.SEGMENTS) if not name.startswith(".")]
    return [_node(name) for name in found]


async def segments_of(
    store: ObjectStore, node: str, *, above: int = 0, up_to: int | None = None
) -> list[StoredSegment]:
    """The node's segments above `above` up to `up_to`, lowest first. Raises `StoreUnavailable`."""
    return [segment async for segment in _listed(store, node, above, up_to=up_to)]


async def waiting_above(
    store: ObjectStore, marks: Mapping[str, int], *, batch_bytes: int
) -> dict[str, Waiting]:
    """The nodes' segments above their marks, as far as a batch may reach.

    Raises `StoreUnavailable`, `UnsupportedVersion`.
    """
    turns = asyncio.Semaphore(_AT_ONCE)
    marked = {_node(name) async for name in store.folders(keys.QUARANTINE)}

    async def one(node: str, mark: int) -> Waiting:
        async with turns:
            return await _first(store, node, mark, batch_bytes, marked)

    found = await asyncio.gather(*(one(node, mark) for node, mark in marks.items()))
    return dict(zip(marks, found, strict=True))


async def tally(store: ObjectStore, listed: Mapping[str, Waiting], now_ms: int) -> Tally:
    """Counts all waiting segments, listing from the end of `listed`. Raises `StoreUnavailable`."""
    count, size, oldest_ms = 0, 0, now_ms
    ends: dict[str, int] = {}
    for node, known in listed.items():
        async for segment in _all_of(store, node, known):
            count, size = count + 1, size + segment.size
            oldest_ms = min(oldest_ms, segment.modified_ms)
            ends[node] = segment.seq
    return Tally(Lag(count, size, (now_ms - oldest_ms) / 1000), ends)


def lag_of(segments: Sequence[StoredSegment], now_ms: int) -> Lag:
    """The lag of these segments."""
    oldest_ms = min([now_ms, *(one.modified_ms for one in segments)])
    return Lag(len(segments), sum(one.size for one in segments), (now_ms - oldest_ms) / 1000)


def choose(
    snapshot: Snapshot,
    listed: Mapping[str, Sequence[StoredSegment]],
    *,
    batch_bytes: int,
    gap_before_ms: int,
) -> Plan:
    """The next segments of all nodes, at least one and then at most `batch_bytes`.

    `listed` are a node's first ones above its mark (lower ones do not matter), as many as
    `waiting_above` gives. A gap is an alarm if the segment behind it was uploaded before
    `gap_before_ms`.
    """
    ready: list[StoredSegment] = []
    alarms: list[str] = []
    for node, segments in listed.items():
        mark = snapshot.mark(node)
        waiting = [segment for segment in segments if segment.seq > mark]
        run = _unbroken(waiting, mark)
        ready += run
        if len(run) < len(waiting) and waiting[len(run)].modified_ms < gap_before_ms:
            alarms.append(_gap(node, mark + len(run), waiting[len(run)]))
    nodes = frozenset(segment.node for segment in ready)
    batch = tuple(_within(ready, batch_bytes))
    return Plan(snapshot, batch, tuple(alarms), nodes, more=len(batch) < len(ready))


async def _all_of(store: ObjectStore, node: str, known: Waiting) -> AsyncIterator[StoredSegment]:
    for segment in known.segments:
        yield segment
    if known.more:
        async for segment in _listed(store, node, known.segments[-1].seq, markers=False):
            yield segment


async def _first(
    store: ObjectStore, node: str, mark: int, batch_bytes: int, marked: Collection[str]
) -> Waiting:
    """All of the node's segments, or more of them than one batch can ingest."""
    found: list[StoredSegment] = []
    size = 0
    async for segment in _listed(store, node, mark, markers=node in marked):
        if size > batch_bytes or len(found) > MOST_SEGMENTS:
            return Waiting(tuple(found), more=True)
        found.append(segment)
        size += segment.size
    return Waiting(tuple(found))


async def _listed(
    store: ObjectStore, node: str, above: int, *, up_to: int | None = None, markers: bool = True
) -> AsyncIterator[StoredSegment]:
    marked = await quarantined(store, node, above=above) if markers else set[int]()
    async for info in store.list(keys.segments_of(node), after=keys.segment(node, above)):
        parsed = keys.parse_segment(info.key)
        if parsed is None:
            continue
        seq = parsed[1]
        if up_to is not None and seq > up_to:
            return
        yield StoredSegment(node, seq, info.key, info.size, info.modified_ms, seq in marked)


def _unbroken(waiting: Sequence[StoredSegment], mark: int) -> list[StoredSegment]:
    """The first segments, as far as they follow the mark without a gap."""
    return [s for index, s in enumerate(waiting) if s.seq == mark + index + 1]


def _within(ready: list[StoredSegment], batch_bytes: int) -> list[StoredSegment]:
    ready.sort(key=_upload_order(ready))
    total, taken = 0, 0
    for segment in ready:
        total += segment.size
        if taken and (total > batch_bytes or taken == MOST_SEGMENTS):
            break
        taken += 1
    return ready[:taken]


def _upload_order(ready: Sequence[StoredSegment]) -> Order:
    """Order by time of upload, but each node's segments in sequence."""
    latest: dict[str, int] = {}
    place: dict[tuple[str, int], int] = {}
    for segment in ready:
        at = max(latest.get(segment.node, 0), segment.modified_ms)
        latest[segment.node] = place[segment.node, segment.seq] = at
    return Order(place)


@dataclass(frozen=True, slots=True)
class Order:
    """A sort key that keeps each node's sequence."""

    place: Mapping[tuple[str, int], int]

    def __call__(self, segment: StoredSegment) -> tuple[int, str, int]:
        return self.place[segment.node, segment.seq], segment.node, segment.seq


def _gap(node: str, last: int, behind: StoredSegment) -> str:
    return (
        f"segment {last + 1} of {node} is missing, so {behind.seq} and what follows cannot be"
        " ingested; if the node's disk still has it, start the node"
    )


def _node(component: str) -> str:
    node = decode(component)
    if node is None:
        raise UnsupportedVersion(f"segments/{component} does not name a node")
    return node


async def quarantined(store: ObjectStore, node: str, *, above: int = 0) -> set[int]:
    """Sequences above `above` of the node's segments that are quarantined.

    Raises `StoreUnavailable`.
    """
    prefix = keys.quarantine_marker(node, 0).rsplit("/", 1)[0] + "/"
    listed = store.list(prefix, after=keys.quarantine_marker(node, above))
    names = [info.key.rsplit("/", 1)[1] async for info in listed]
    return {int(name) for name in names if name.isdecimal()}
