"""Consumer groups: who takes segments, what they make of them, and what must be kept for them."""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import Final

from service.queue.queue import SegmentQueue
from service.settings import QueueSettings
from tailrace.coordination.groups import GroupStart, State, read_groups
from tailrace.coordination.lease import StoreTime
from tailrace.logstore.errors import GroupEvicted, UnsupportedVersion
from tailrace.logstore.objects.store import ObjectStore
from tests.compactor.histories.dated import MovedClock
from tests.service.queue.world import commit, never, take
from tests.settings import changed

GROUPS: Final = ("g", "h")
_SETTINGS: Final = changed(QueueSettings(), max_attempts=2, retry_seconds=0.0)


def queue_of(store: ObjectStore, clock: MovedClock, dice: Random) -> SegmentQueue:
    """What a node hands segments out by."""
    bits = Random(dice.random())
    return SegmentQueue(store, clock, bits, StoreTime(clock, None), _SETTINGS, woken=never)


async def consume(store: ObjectStore, clock: MovedClock, dice: Random) -> str:
    """A consumer of some group takes some segments; gives what became of it, for people."""
    queue = queue_of(store, clock, dice)
    name = dice.choice(GROUPS)
    try:
        done = [await _one(queue, name, dice) for _ in range(dice.randrange(1, 5))]
    except GroupEvicted:
        await queue.reset(name, GroupStart.OLDEST)
        return f"{name} is evicted and begins anew"
    except UnsupportedVersion:
        return f"{name} does not know a segment"
    return f"{name}: {', '.join(done)}"


async def _one(queue: SegmentQueue, name: str, dice: Random) -> str:
    given = await take(queue, name, lease=dice.choice([60.0, 3600.0]))
    if given is None:
        return "nothing there"
    lease = given.lease
    kind = dice.choice(["committed", "committed", "failed", "left"])
    if kind == "committed":
        await commit(queue, given, name)
    elif kind == "failed":
        await queue.fail(name, lease.name, lease.epoch, "poison")
    return f"{lease.name.id} {kind}"


async def keep_one(
    store: ObjectStore, clock: MovedClock, dice: Random, name: str, node: str
) -> str:
    """A consumer takes what there is and keeps the first of a node; what it kept, for people."""
    queue = queue_of(store, clock, dice)
    kept: str | None = None
    try:
        while (given := await take(queue, name, lease=3600.0)) is not None:
            if kept is None and given.lease.name.node == node:
                kept = given.lease.name.id
            else:
                await commit(queue, given, name)
    except GroupEvicted:
        await queue.reset(name, GroupStart.OLDEST)
        return f"{name} is evicted and begins anew"
    except UnsupportedVersion:
        return f"{name} does not know a segment"
    return f"{name} keeps {kept}"


async def check_kept(
    store: ObjectStore, gone: Collection[tuple[str, int]], aside: Collection[tuple[str, int]]
) -> None:
    """Raises `AssertionError` if a segment that is gone is needed by a group."""
    for group in (await read_groups(store)).groups:
        if group.state is State.ACTIVE:
            for node, seq in gone:
                empty = {number for of_node, number in aside if of_node == node}
                assert not group.holds(node, seq, empty), f"{group.name} lacks {seq} of {node}"
