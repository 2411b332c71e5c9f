"""Segments in a store, and nodes that serve them to consumers, in leaping time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from service.queue.catalog import SegmentName
from service.queue.queue import GivenLease, SegmentQueue
from service.settings import QueueSettings
from tailrace.coordination.groups import ConsumerGroup, GroupStart
from tailrace.coordination.lease import StoreTime
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.report import raise_watermark
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import encode_segment
from tests.batches import make_batches
from tests.settings import changed
from tests.simulation.backing import open_store
from tests.simulation.powercut import EPOCH_NS, PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

T = TypeVar("T")
START_MS = EPOCH_NS // 1_000_000
RUN = RunKey("service.pipeline", "run")
SETTINGS = changed(QueueSettings(), report_seconds=5.0)


def body_of(node: str, seq: int, at_ms: int, lines: int = 2, run: RunKey = RUN) -> bytes:
    """A segment whose ULIDs are of that time."""
    text = b"".join(b"%s %d %d\n" % (node.encode(), seq, i) for i in range(lines))
    first = ulid.lowest_at(at_ms) | seq << 40
    entries = make_batches(node, [(run, first, text)], first_pos=seq * 1000)
    return bytes(encode_segment(entries, node=node, seq=seq, carry=Carry()).body)


@dataclass
class QueueWorld:
    """One store; `store` is the straight way to it, nodes may have another."""

    clock: VirtualClock
    seed: int = 0
    settings: QueueSettings = SETTINGS
    fs: PowerCutFileSystem = field(default_factory=PowerCutFileSystem)
    queues: int = 0
    seqs: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store: ObjectStore = open_store(self.fs, self.clock, Random(f"world {self.seed}"))

    def way(self) -> ObjectStore:
        """Another way to the store."""
        self.queues += 1
        return open_store(self.fs, self.clock, Random(f"{self.seed} {self.queues}"))

    def queue(
        self, store: ObjectStore | None = None, settings: QueueSettings | None = None
    ) -> SegmentQueue:
        """A node's queue; nothing wakes it but its own polls."""
        self.queues += 1
        return SegmentQueue(
            store or self.way(),
            self.clock,
            Random(f"queue {self.seed} {self.queues}"),
            StoreTime(self.clock, None),
            settings or self.settings,
            woken=never,
        )

    async def put(self, node: str, at_ms: int | None = None, lines: int = 2) -> SegmentName:
        """The node's next segment."""
        seq = self.seqs[node] = self.seqs.get(node, 0) + 1
        at = self.clock.now_ms() if at_ms is None else at_ms
        await self.store.put(keys.segment(node, seq), body_of(node, seq, at, lines))
        return SegmentName(node, seq)

    async def low(self, node: str, low: int) -> None:
        """As the compactor raises it before it deletes."""
        ids = Random(f"low {low}")

        def fresh_id() -> str:
            return ulid.encode(ids.getrandbits(128))

        await raise_watermark(self.store, node, fresh_id=fresh_id, low=low)

    async def delete(self, *names: SegmentName) -> None:
        await self.store.delete([name.key for name in names])


async def never() -> None:
    await asyncio.Event().wait()


def playing(scenario: Callable[[QueueWorld], Coroutine[Any, Any, T]], **of_world: Any) -> T:
    """What the scenario gives, in a world of its own."""

    async def go(clock: VirtualClock) -> T:
        return await scenario(QueueWorld(clock, **of_world))

    return simulate(go, start_ms=START_MS)


async def take(
    queue: SegmentQueue,
    group: str = "g",
    *,
    wait: float = 0.0,
    lease: float = 60.0,
    start: GroupStart = GroupStart.OLDEST,
    peer: str = "",
) -> GivenLease | None:
    return await queue.next(group, wait_seconds=wait, lease_seconds=lease, start=start, peer=peer)


async def taken(queue: SegmentQueue, group: str = "g", **how: Any) -> GivenLease:
    given = await take(queue, group, **how)
    assert given is not None, "there is nothing to take"
    return given


async def commit(queue: SegmentQueue, given: GivenLease, group: str = "g") -> None:
    await queue.commit(group, given.lease.name, given.lease.epoch)


async def consume_all(queue: SegmentQueue, group: str = "g", **how: Any) -> list[SegmentName]:
    """Takes and commits until there is nothing."""
    found: list[SegmentName] = []
    while (given := await take(queue, group, **how)) is not None:
        await commit(queue, given, group)
        found.append(given.lease.name)
    return found


def open_in(group: ConsumerGroup) -> Sequence[SegmentName]:
    return [
        SegmentName(node, seq) for node, cursor in group.cursors.items() for seq in cursor.pending
    ]
