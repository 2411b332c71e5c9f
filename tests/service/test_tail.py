"""Channels: what a reader is given, decided by marks and positions alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from service.journal.journal import Appended
from service.tail import Channel, SseSettings, Tail, Watcher
from tailrace.logstore.batch import RunKey
from tailrace.logstore.position import Cursor, Position
from tests.settings import changed

KEY = RunKey("p", "r")
QUICK = changed(SseSettings(), coalesce_milliseconds=0)


def seen(pos: int, node: str = "n") -> Cursor:
    return Cursor({node: Position("f", pos)})


def published(text: bytes, last: int) -> Appended:
    """A batch whose last record has this position."""
    records = max(text.count(b"\n"), 1)
    done = asyncio.get_running_loop().create_future()
    pos = last - records + 1
    return Appended(b"", 0, text, b"", KEY, None, 1 << 80, pos, records, records, 0, False, done)


def channel_with(*batches: tuple[int, int]) -> Channel:
    """A channel with one tick for each (last position, records)."""
    channel = Channel(KEY, QUICK)
    for last, records in batches:
        channel.publish("n", published(b"x\n" * records, last), Position("f", last))
        channel.mark()
    return channel


async def test_what_the_cursor_has_passed_is_left_out() -> None:
    channel = channel_with((4, 5), (9, 5), (14, 5))
    taken = channel.take(0, seen(9))
    assert [tick.last.pos for tick in taken.ticks] == [14]
    assert (taken.next_tick, taken.behind) == (3, False)
    assert channel.take(3, seen(14)).ticks == []


async def test_a_tick_that_was_passed_in_part_is_read_from_storage() -> None:
    channel = channel_with((4, 5), (9, 5))
    assert channel.take(0, seen(6)).behind
    assert channel.take(0, seen(5)).behind, "its first line only"
    assert not channel.take(0, seen(4)).behind


async def test_what_gathers_when_the_run_ends_is_given_before_the_end() -> None:
    channel = Channel(
        KEY, changed(SseSettings(), coalesce_milliseconds=1e6), max_coalesce_seconds=1000.0
    )
    channel.publish("n", published(b"x\n", 0), Position("f", 0))
    channel.mark()
    channel.publish("n", published(b"y\n", 1), Position("f", 1))
    channel.end("runFinished")
    assert [tick.text for tick in channel.take(0, None).ticks] == [b"x\n", b"y\n"]


async def test_another_nodes_positions_say_nothing() -> None:
    channel = channel_with((4, 5))
    assert len(channel.take(0, seen(100, node="other")).ticks) == 1
    assert len(channel.take(0, None).ticks) == 1


async def test_the_ring_forgets_the_oldest_and_says_so() -> None:
    channel = Channel(KEY, changed(SseSettings(), ring_bytes=10))
    for last in range(5):
        channel.publish("n", published(b"xxx\n", last), Position("f", last))
        channel.mark()
    assert channel.take(0, None).behind
    assert [tick.last.pos for tick in channel.take(3, None).ticks] == [3, 4]
    channel.publish("n", published(b"x" * 50, 5), Position("f", 5))
    mark = channel.mark()
    assert channel.take(mark - 1, None).behind
    assert not channel.take(mark, None).behind


async def test_what_comes_within_one_interval_is_one_tick() -> None:
    tail = Tail("n", changed(SseSettings(), coalesce_milliseconds=10))
    watcher = tail.watch(KEY)
    for last in range(50):
        tail.publish(KEY, published(b"x\n", last), Position("f", last))
    assert await watcher.wait() == "news"
    [tick] = watcher.channel.take(0, None).ticks
    assert (tick.text, tick.first_pos, tick.last.pos) == (b"x\n" * 50, 0, 49)
    tail.unwatch(watcher)


async def test_a_node_that_starts_again_begins_a_new_tick() -> None:
    channel = Channel(KEY, QUICK)
    channel.publish("a", published(b"x\n", 9), Position("f", 9))
    channel.publish("b", published(b"y\n", 3), Position("g", 3))
    channel.mark()
    ticks = channel.take(0, None).ticks
    assert [(tick.node, tick.first_pos) for tick in ticks] == [("a", 9), ("b", 3)]


async def test_an_end_wakes_and_the_next_watcher_has_a_channel_of_its_own() -> None:
    tail = Tail("n", QUICK)
    first = tail.watch(KEY)
    waiting = asyncio.create_task(first.wait())
    await asyncio.sleep(0)
    tail.ended(KEY)
    assert await waiting == "news"
    assert first.channel.ended == "runFinished"
    second = tail.watch(KEY)
    assert second.channel is not first.channel
    tail.unwatch(first)
    assert tail.watched == {KEY: second.channel}
    tail.unwatch(second)
    assert (tail.watched, tail.readers) == ({}, 0)


@pytest.mark.parametrize("change", [Channel.miss, Channel.wake_all])
async def test_lines_without_a_tick_wake_all_readers(change: Callable[[Channel], None]) -> None:
    """Each reader then reads storage: nothing else would wake it before the heartbeat."""
    tail = Tail("n", QUICK)
    watchers = [tail.watch(KEY), tail.watch(KEY)]
    waiting = [asyncio.create_task(watcher.wait()) for watcher in watchers]
    await asyncio.sleep(0)
    change(watchers[0].channel)
    assert await asyncio.gather(*waiting) == ["news", "news"]
    for watcher in watchers:
        tail.unwatch(watcher)


async def test_nobody_waits_once_it_is_stopped() -> None:
    tail = Tail("n", QUICK)
    before = tail.watch(KEY)
    tail.stop()
    assert await before.wait() == "gone"
    assert await tail.watch(KEY).wait() == "gone"


async def test_a_reader_that_waits_is_given_a_tick_without_being_woken() -> None:
    channel = Channel(KEY, QUICK)
    given: list[int] = []

    def push(to: int, result: bool) -> bool:
        given.append(to)
        return result

    def fails() -> bool:
        raise OSError("this reader's own")

    fast, slow, broken = (Watcher(channel) for _ in range(3))
    fast.push, slow.push, broken.push = partial(push, 1, True), partial(push, 2, False), fails
    channel.watchers |= {fast, slow, broken}
    waiting = [asyncio.create_task(watcher.wait()) for watcher in (fast, slow, broken)]
    await asyncio.sleep(0)
    channel.publish("n", published(b"x\n", 0), Position("f", 0))
    channel.mark()
    assert await asyncio.gather(*waiting[1:]) == ["news", "news"]
    assert sorted(given) == [1, 2]
    assert not waiting[0].done()
    fast.wake("heartbeat")
    channel.publish("n", published(b"y\n", 1), Position("f", 1))
    channel.mark()
    assert await waiting[0] == "heartbeat"
    assert sorted(given) == [1, 2], "a reader that is awake takes what is new by itself"
