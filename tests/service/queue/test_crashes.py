"""A node dies between any two of its steps, or hears no answer: nothing is lost, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pytest

from service.queue.catalog import SegmentName
from service.queue.queue import SegmentQueue
from tailrace.coordination.groups import GroupStart, State
from tailrace.logstore import keys
from tailrace.logstore.errors import OutcomeUnknown, StoreUnavailable
from tailrace.logstore.objects.store import ObjectStore
from tests.seeds import some
from tests.service.queue.world import QueueWorld, commit, consume_all, playing, take
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule

T = TypeVar("T")
_MOST_STEPS = 300


class Dying(FaultyStore):
    """From one step on the node is dead: nothing it does reaches the store, nothing answers."""

    def __init__(self, inner: ObjectStore, step: int, *, after: bool) -> None:
        super().__init__(inner, Schedule.none())
        self._left = step
        self._after = after
        self.dead = asyncio.Event()

    async def _step(self, name: str, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._left -= 1
        if self._left > 0:
            return await super()._step(name, key, work)
        if self._left == 0 and self._after:
            await work()
        self.dead.set()
        await asyncio.Event().wait()
        raise AssertionError("the dead do not wake")


@dataclass
class Consumer:
    """Takes, renews, gives the second back once, and commits; knows what it was told."""

    delivered: list[SegmentName] = field(default_factory=list)
    committed: list[SegmentName] = field(default_factory=list)

    async def work(self, queue: SegmentQueue) -> None:
        while (given := await take(queue, wait=2.0)) is not None:
            name, epoch = given.lease.name, given.lease.epoch
            self.delivered.append(name)
            await queue.renew("g", name, epoch, 30.0)
            if name.seq == 2 and given.lease.attempts == 1:
                await queue.fail("g", name, epoch, "once")
                continue
            await commit(queue, given)
            self.committed.append(name)


async def three(world: QueueWorld) -> list[SegmentName]:
    return [await world.put(node) for node in "aab"]


@pytest.mark.parametrize("after", [False, True])
def test_killed_between_any_two_steps(after: bool) -> None:
    async def scenario(world: QueueWorld, step: int) -> bool:
        names = await three(world)
        line = Dying(world.way(), step, after=after)
        first = Consumer()
        working = asyncio.ensure_future(first.work(world.queue(line)))
        ends = {working, asyncio.ensure_future(line.dead.wait())}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        through = working.done()
        await world.clock.sleep(70)
        second = Consumer()
        other = world.queue()
        await second.work(other)
        again = set(first.committed) & set(second.delivered)
        assert not again, "what was committed is not delivered again"
        assert set(first.delivered) | set(second.delivered) == set(names)
        group = await other.group("g")
        assert group.committed_segments == len(names)
        assert [cursor.decided for _, cursor in sorted(group.cursors.items())] == [2, 1]
        assert not any(cursor.pending or cursor.failed for cursor in group.cursors.values())
        return through

    for step in some(range(1, _MOST_STEPS), 3, "worker"):
        if playing(partial(scenario, step=step)):
            assert step > 20
            return
    pytest.fail("it never got through")


@pytest.mark.parametrize(
    "fault", [Fault.UNKNOWN_DONE, Fault.UNKNOWN_NOT_DONE, Fault.UNAVAILABLE], ids=str
)
def test_an_answer_is_lost_at_any_write(fault: Fault) -> None:
    async def scenario(world: QueueWorld, step: int) -> int:
        names = await three(world)
        puts = Schedule({step: fault}, applies=lambda call: call.startswith("put coordination"))
        consumer, queue = Consumer(), world.queue(FaultyStore(world.way(), puts))
        while True:
            try:
                await consumer.work(queue)
            except (StoreUnavailable, OutcomeUnknown):
                await world.clock.sleep(70)
            else:
                break
        group = await queue.group("g")
        assert group.committed_segments == len(names)
        if fault is not Fault.UNAVAILABLE:
            # No lease was given to nobody: each came as often as it was asked for.
            assert len(consumer.delivered) == len(names) + 1
        assert sorted(consumer.committed) == sorted(names)
        return puts.fired

    steps = 1
    while playing(partial(scenario, step=steps)):
        steps += 1
    assert steps > 8


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("to", list(GroupStart))
def test_a_reset_that_is_killed_at_any_step_is_done_or_not_begun(
    to: GroupStart, after: bool
) -> None:
    async def scenario(world: QueueWorld, step: int) -> bool:
        names = await three(world)
        await consume_all(world.queue())
        line = Dying(world.way(), step, after=after)
        working = asyncio.ensure_future(world.queue(line).reset("g", to))
        ends = {working, asyncio.ensure_future(line.dead.wait())}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        found = await consume_all(world.queue())
        assert sorted(found) in ([], sorted(names) if to is GroupStart.OLDEST else [])
        assert (await world.queue().group("g")).state is State.ACTIVE
        return working.done()

    for step in some(range(1, _MOST_STEPS), 3, f"{to} {after}"):
        if playing(partial(scenario, step=step)):
            return
    pytest.fail("it never got through")


def test_a_store_that_is_away_is_an_error_and_not_an_empty_queue() -> None:
    async def scenario(world: QueueWorld) -> None:
        await three(world)
        down = Schedule(dict.fromkeys(range(1, 99), Fault.UNAVAILABLE))
        for words in (keys.GROUPS, keys.SEGMENTS, keys.QUARANTINE):
            store = FaultyStore(world.way(), down)
            down = Schedule(
                dict.fromkeys(range(1, 99), Fault.UNAVAILABLE),
                applies=lambda call, word=words: word in call,  # type: ignore[misc]
            )
            with pytest.raises(StoreUnavailable):
                await take(world.queue(store))

    playing(scenario)
