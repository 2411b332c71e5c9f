"""Deletion of segments waits for consumer groups, and not for ever."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

import orjson
import pytest

from compactor.cleanup import remove_segments
from compactor.report import PassReport
from compactor.settings import Compaction
from service.queue.queue import SegmentQueue
from service.settings import QueueSettings
from tailrace.coordination.groups import (
    ConsumerGroup,
    GroupCursor,
    GroupStart,
    State,
    create_group,
    pipeline_group,
    read_group,
)
from tailrace.coordination.lease import StoreTime
from tailrace.logstore import keys, ulid
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import GroupEvicted
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.report import read_watermark
from tailrace.logstore.table.table import Advance, commit_segments
from tests.compactor.lake import HOUR, Lake
from tests.compactor.maintenance.test_cleanup import Standing, consumed, later, left, written_ms
from tests.service.queue.world import commit, consume_all, never, take, taken
from tests.settings import changed
from tests.simulation.faulty_store import FaultyStore, Schedule

T = TypeVar("T")
SETTINGS = changed(QueueSettings(), max_attempts=1, retry_seconds=0.0)


def queue_of(lake: Lake, store: ObjectStore | None = None) -> SegmentQueue:
    return SegmentQueue(
        store or lake.store,
        lake.clock,
        Random(7),
        StoreTime(lake.clock, None),
        SETTINGS,
        woken=never,
    )


def removed(lake: Lake, hours: float) -> list[int]:
    """What is left so many hours after the beginning."""
    lake.clock.shift_ms = round(hours * HOUR)
    lake.run(remove_segments(lake.compactor, PassReport()))
    return left(lake)


def group(lake: Lake) -> ConsumerGroup:
    found = lake.run(read_group(lake.store, "g"))
    assert found is not None
    return found


def test_what_a_group_has_not_committed_stays(any_lake: Lake) -> None:
    lake = consumed(any_lake, segments=4, mark=4, text=4)

    async def first_two() -> None:
        queue = queue_of(lake)
        await commit(queue, await taken(queue))
        await commit(queue, await taken(queue))
        await taken(queue, lease=3600.0)

    async def the_rest() -> None:
        queue = queue_of(lake)
        while (given := await take(queue)) is not None:
            await commit(queue, given)

    lake.run(first_two())
    assert removed(lake, 2) == [3, 4], "one is leased, one was not handed out"
    assert lake.run(read_watermark(lake.store, "n")).low == 3
    lake.run(queue_of(lake).reset("g", GroupStart.OLDEST))
    lake.run(the_rest())
    assert removed(lake, 3) == []
    assert group(lake).state is State.ACTIVE


def test_what_table_or_text_lack_stays_though_all_groups_have_it(any_lake: Lake) -> None:
    lake = consumed(any_lake, segments=4, mark=2, text=3)
    lake.run(consume_all(queue_of(lake)))
    assert removed(lake, 100) == [3, 4]


def test_a_pipelines_group_is_evicted_by_what_it_keeps_and_never_by_age(any_lake: Lake) -> None:
    lake = consumed(any_lake, segments=3, mark=3, text=3)
    name = pipeline_group("files")
    made = ConsumerGroup(name, State.ACTIVE, GroupStart.OLDEST, 0, 0, version="v")
    made = made.at("n", GroupCursor(seq=1))

    async def kept() -> int:
        await create_group(lake.store, made)
        infos = [info async for info in lake.store.list(keys.segments_of("n"))]
        return sum(info.size for info in infos[1:])

    def removed_within(most_bytes: int, hours: float) -> list[int]:
        lake.clock.shift_ms = round(hours * HOUR)
        lake.run(remove_segments(replace(lake.compactor, pipeline_bytes=most_bytes), PassReport()))
        return left(lake)

    size = lake.run(kept())
    assert removed_within(size, 1_000) == [2, 3]
    assert removed_within(size - 1, 1_001) == []
    found = lake.run(read_group(lake.store, name))
    assert found is not None
    assert found.evicted is not None
    assert found.evicted.reason == (
        f"it kept {size} bytes of segments, and segments.max_bytes is {size - 1}"
    )


@pytest.mark.parametrize(("beyond", "kept"), [(0, [2, 3]), (-1, [])])
def test_a_pipelines_file_says_how_much_is_kept_for_it(
    any_lake: Lake, beyond: int, kept: list[int]
) -> None:
    """Whether that is more than the setting, or less."""
    lake = consumed(any_lake, segments=3, mark=3, text=3)
    made = ConsumerGroup(
        pipeline_group("files"), State.ACTIVE, GroupStart.OLDEST, 0, 0, version="v"
    )

    async def bounded() -> int:
        infos = [info async for info in lake.store.list(keys.segments_of("n"))]
        size = sum(info.size for info in infos[1:]) + beyond
        await create_group(lake.store, replace(made.at("n", GroupCursor(seq=1)), max_bytes=size))
        return size

    size = lake.run(bounded())
    setting, lake.clock.shift_ms = 1 if kept else 1 << 40, 1_000 * HOUR
    lake.run(remove_segments(replace(lake.compactor, pipeline_bytes=setting), PassReport()))
    assert left(lake) == kept
    found = lake.run(read_group(lake.store, made.name))
    assert found is not None
    assert found.max_bytes == size
    if not kept:
        assert found.evicted is not None
        assert found.evicted.reason.endswith(f"segments_max_bytes of its file is {size}")


def test_a_dead_group_is_evicted_after_its_time_and_not_before(any_lake: Lake) -> None:
    lake = consumed(any_lake, segments=3, mark=3, text=3)
    lake.run(taken(queue_of(lake)))
    assert removed(lake, 23.9) == [1, 2, 3]
    assert removed(lake, 24.1) == []
    found = group(lake)
    assert (found.state, found.evictions) == (State.EVICTED, 1)
    assert found.evicted is not None
    assert "kept segment 1 of n" in found.evicted.reason
    with pytest.raises(GroupEvicted):
        lake.run(take(queue_of(lake)))
    lake.run(queue_of(lake).reset("g", GroupStart.OLDEST))
    assert lake.run(take(queue_of(lake))) is None


def test_a_group_that_cannot_be_read_keeps_segments_and_is_an_alarm(any_lake: Lake) -> None:
    lake = consumed(any_lake, segments=2, mark=2, text=2)
    lake.run(consume_all(queue_of(lake)))
    key = keys.group("torn")
    lake.put_bytes(key, b"{}")
    lake.limits = Compaction(grace_seconds=0)
    later(lake, 1)
    report = PassReport()
    assert lake.run(remove_segments(lake.compactor, report)) == 0
    (alarm,) = report.alarms
    assert key in alarm
    assert [one.name for one in lake.run(queue_of(lake).groups())] == ["g"]
    lake.run(lake.store.delete([key]))
    assert lake.run(remove_segments(lake.compactor, PassReport())) == 2


def test_a_dead_group_is_evicted_though_the_table_is_busy(any_lake: Lake) -> None:
    """Of a table with a commit within every grace nothing could go, so no group was in its way."""
    lake = consumed(any_lake, segments=2, mark=1, text=2)
    lake.run(taken(queue_of(lake)))
    later(lake, 1)
    table, marks = lake.compactor.table, [Advance("n", 2, 2)]
    commit_segments(table, table.snapshot(), [], marks, job="K", clock=SystemClock())
    lake.limits = Compaction(grace_seconds=0)
    lake.clock = Standing(at_ms=written_ms(lake, 2) - 1)
    compactor = replace(lake.compactor, evict_after_hours=0)
    assert lake.run(remove_segments(compactor, PassReport())) == 1
    assert left(lake) == [2]
    found = group(lake)
    assert (found.state, found.evictions) == (State.EVICTED, 1)
    assert lake.run(read_watermark(lake.store, "n")).low == 2


def test_a_group_that_was_made_or_reset_lately_has_its_time_before_it(any_lake: Lake) -> None:
    lake = consumed(any_lake, segments=2, mark=2, text=2)
    lake.run(taken(queue_of(lake), "other"))
    lake.clock.shift_ms = 20 * HOUR
    lake.run(queue_of(lake).reset("other", GroupStart.OLDEST))
    lake.clock.shift_ms = 30 * HOUR
    lake.run(taken(queue_of(lake)))
    assert removed(lake, 43) == [1, 2]
    assert removed(lake, 45) == [1, 2]
    assert group(lake).state is State.ACTIVE
    assert removed(lake, 55) == []


def joined_long_ago(lake: Lake) -> None:
    """The group is there before any segment is."""
    lake.clock.shift_ms = -30 * HOUR
    assert lake.run(take(queue_of(lake))) is None
    lake.clock.shift_ms = 0


def test_a_group_that_is_old_has_its_time_for_each_segment(any_lake: Lake) -> None:
    joined_long_ago(any_lake)
    lake = consumed(any_lake, segments=2, mark=2, text=2)
    assert removed(lake, 2) == [1, 2], "they have just come"
    assert removed(lake, 23.9) == [1, 2]
    assert group(lake).state is State.ACTIVE
    assert removed(lake, 24.1) == []
    assert group(lake).state is State.EVICTED


def test_nobody_is_evicted_while_nothing_could_be_deleted_without_him(lake: Lake) -> None:
    consumed(lake, segments=2, mark=1, text=0)
    lake.run(taken(queue_of(lake)))
    assert removed(lake, 1000) == [1, 2]
    assert group(lake).state is State.ACTIVE


def test_a_failed_segment_waits_for_a_decision_and_is_then_given_up(any_lake: Lake) -> None:
    joined_long_ago(any_lake)
    lake = consumed(any_lake, segments=3, mark=3, text=3)

    async def poison() -> None:
        queue = queue_of(lake)
        given = await taken(queue)
        await queue.fail("g", given.lease.name, given.lease.epoch, "poison")
        assert len(await consume_all(queue)) == 2

    lake.clock.shift_ms = 2 * HOUR
    lake.run(poison())
    assert removed(lake, 25) == [1, 2, 3]
    assert removed(lake, 26.1) == []
    found = group(lake)
    assert (found.state, found.dropped, found.committed_segments) == (State.ACTIVE, 1, 2)


def test_a_damaged_segment_that_was_set_aside_holds_back_nothing_else(lake: Lake) -> None:
    consumed(lake, segments=3, mark=3, text=3)
    lake.put_bytes(keys.segment("n", 2), b"damaged")
    assert len(lake.run(consume_all(queue_of(lake)))) == 2
    assert removed(lake, 2) == [2, 3], "nobody has decided"
    lake.put_bytes(keys.quarantine_marker("n", 2), b"{}")
    assert removed(lake, 2) == [2]


class Between(FaultyStore):
    """Somebody else acts before one of the steps."""

    def __init__(self, inner: ObjectStore, step: int, act: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(inner, Schedule.none())
        self.left = step
        self._act = act

    async def _step(self, name: str, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self.left -= 1
        if self.left == 0:
            await self._act()
        return await super()._step(name, key, work)


def begin(queue: SegmentQueue) -> Awaitable[Any]:
    return take(queue, lease=1.0)


def reset(queue: SegmentQueue) -> Awaitable[Any]:
    return queue.reset("g", GroupStart.OLDEST)


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("joins", [begin, reset])
@pytest.mark.parametrize("deleter_first", [True, False])
def test_a_group_that_joins_while_segments_are_deleted_misses_nothing(
    lake: Lake, joins: Callable[[SegmentQueue], Awaitable[Any]], deleter_first: bool
) -> None:
    """Whoever comes in the middle of the other: what the group begins with is all there."""
    consumed(lake, segments=3, mark=3, text=3)
    bodies = {seq: lake.run(lake.store.get(keys.segment("n", seq)))[1] for seq in (1, 2, 3)}
    store, starts = lake.store, set()

    async def one(step: int) -> bool:
        """Whether there was such a step."""
        await store.delete([keys.group("g"), keys.watermark("n")])
        for seq, body in bodies.items():
            await store.put(keys.segment("n", seq), body)
        lake.store = store
        mark = {"seq": 3, "pos": 0, "low": 0, "version": ulid.encode(1)}
        await store.put(keys.watermark("n"), orjson.dumps(mark))
        if joins is reset:
            await consume_all(queue_of(lake))
        lake.clock.shift_ms = 2 * HOUR

        async def delete() -> None:
            await remove_segments(lake.compactor, PassReport())

        async def join() -> None:
            await joins(queue_of(lake, store))

        if deleter_first:
            line = lake.store = Between(store, step, join)
            await delete()
            lake.store = store
        else:
            line = Between(store, step, delete)
            await joins(queue_of(lake, line))
        if line.left > 0:
            return False
        lake.clock.shift_ms += 10_000
        await consume_all(queue_of(lake))
        found = await read_group(store, "g")
        assert found is not None
        assert found.state is State.ACTIVE
        assert found.cursor("n").decided == 3
        starts.add(found.committed_segments)
        return True

    step = 1
    while lake.run(one(step)):
        step += 1
    assert step > 5
    assert len(starts) > 1, "it made no difference who came first"
