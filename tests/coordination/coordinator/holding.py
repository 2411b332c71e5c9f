"""A partition that is held, the ways to end that, and what was counted of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tailrace.coordination.leases import Lease
from tailrace.coordination.partitions import Status
from tailrace.coordination.work_queue import WorkQueue
from tests.coordination.processes import put

ENDS: dict[str, Callable[[Lease], Awaitable[None]]] = {
    "complete": lambda held: held.complete(),
    "close": lambda held: held.close(60.0),
    "give up": lambda held: held.give_up(),
    "fail": lambda held: held.fail("bad"),
}
STATUS = {
    "complete": Status.COMPLETED,
    "close": Status.CLOSED,
    "give up": Status.UNASSIGNED,
    "fail": Status.UNASSIGNED,
}


async def one_held(work: WorkQueue, key: str = "a") -> Lease:
    if await work.get(key) is None:
        await put(work, key)
    held = await work.acquire_key(key)
    assert held is not None
    return held


def counted(work: WorkQueue) -> dict[str, int]:
    """Counters that are not 0, but those that every test here counts."""
    names = (
        "completed closed deleted given_up saved not_found not_owned failures failed "
        "renewal_errors asked_back"
    )
    found = {name: getattr(work.counters, name) for name in names.split()}
    return {name: count for name, count in found.items() if count}
