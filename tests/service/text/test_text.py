"""Runs through their lives: every line once and in order, on every way of reading."""

from __future__ import annotations

import pytest

from logstore.batch import RunKey
from logstore.errors import NotFound
from tests.service.text.world import World

pytestmark = pytest.mark.anyio

RUN = RunKey("service.pipeline", "run-1")
OTHER = RunKey("service.pipeline", "run-2")


def lines(first: int, count: int) -> bytes:
    return b"".join(b"line %06d\n" % number for number in range(first, first + count))


async def agree(world: World, key: RunKey, expected: bytes) -> None:
    """Download, pages and catching up give the same, and sizes say so."""
    assert await world.whole(key) == expected
    for limit in (1, 7, 1000):
        if len(expected) < 5000 or limit > 1:
            assert await world.paged(key, limit) == expected
    assert await world.caught_up(key) == expected
    size = await world.text.size(key)
    assert (size.total_bytes, size.total_lines) == (len(expected), expected.count(b"\n"))


async def test_text_is_the_same_hot_confirmed_flushed_and_closed() -> None:
    world = World()
    await world.text.start()
    for number in range(20):
        world.append(RUN, lines(number * 3, 3))
        world.append(OTHER, b"other\n")
    await agree(world, RUN, lines(0, 60))
    await world.confirm()
    await agree(world, RUN, lines(0, 60))
    await world.text.flusher.flush(RUN)
    await agree(world, RUN, lines(0, 60))
    world.append(RUN, lines(60, 5))
    await agree(world, RUN, lines(0, 65))
    assert await world.text.close_run(RUN) == "closed"
    await agree(world, RUN, lines(0, 65))
    assert (await world.text.size(RUN)).state == "closed"
    await agree(world, OTHER, b"other\n" * 20)
    assert [run.run for run in await world.text.runs(RUN.fqn, 10)] == ["run-2", "run-1"]
    assert await world.text.pipelines() == [RUN.fqn]


async def test_a_late_batch_reopens_and_idleness_closes_again() -> None:
    world = World()
    await world.text.start()
    world.append(RUN, lines(0, 3))
    await world.text.close_run(RUN)
    world.append(RUN, lines(3, 2))
    assert (await world.text.size(RUN)).state == "open"
    await world.confirm()
    await agree(world, RUN, lines(0, 5))
    await world.text.flusher.flush(RUN)
    assert (await world.text.size(RUN)).state == "open"
    await agree(world, RUN, lines(0, 5))
    world.clock.pass_seconds(61)
    await world.text.closer.close_idle()
    assert (await world.text.size(RUN)).state == "closed"
    await agree(world, RUN, lines(0, 5))


async def test_deleted_is_gone_and_recreated_starts_empty() -> None:
    world = World()
    await world.text.start()
    world.append(RUN, lines(0, 3))
    await world.confirm()
    await world.text.flusher.flush(RUN)
    world.append(RUN, lines(3, 3))
    await world.text.delete_run(RUN)
    with pytest.raises(NotFound):
        await world.text.page(RUN, after=None, limit=10)
    assert await world.text.runs(RUN.fqn, 10) == []
    world.append(RUN, b"new\n", ulid=world.mint_above(world.text.deletions.horizon(RUN)))
    await agree(world, RUN, b"new\n")
    await world.confirm()
    await world.text.flusher.flush(RUN)
    await agree(world, RUN, b"new\n")
    await world.restart()
    await agree(world, RUN, b"new\n")


async def test_folding_keeps_the_text() -> None:
    world = World()
    await world.text.start()
    expected = b""
    for number in range(130):
        world.append(RUN, lines(number, 1))
        expected += lines(number, 1)
        await world.confirm()
        await world.text.flusher.flush(RUN)
        assert world.text.flusher.last_error is None
    assert world.text.folder.folds > 0
    await agree(world, RUN, expected)
    await world.text.close_run(RUN)
    await agree(world, RUN, expected)


async def test_large_batches_page_within_blocks() -> None:
    world = World()
    await world.text.start()
    text = b"".join(b"x" * (number % 300) + b"\n" for number in range(5000))
    world.append(RUN, text)
    world.append(RUN, b"y" * 200_000 + b"\n\n\nz\n")
    expected = text + b"y" * 200_000 + b"\n\n\nz\n"
    await agree(world, RUN, expected)
    await world.confirm()
    await world.text.flusher.flush(RUN)
    await agree(world, RUN, expected)
    page = await world.text.page(RUN, after=None, limit=3, tail=3)
    assert page.text == b"\n\nz\n"
    page = await world.text.page(RUN, after=None, limit=10, before=page.before)
    assert page.text == b"".join(expected.splitlines(keepends=True)[-13:-3])


async def test_tokens_hold_while_lines_move() -> None:
    world = World()
    await world.text.start()
    world.append(RUN, lines(0, 50))
    world.append(RUN, lines(50, 50))
    token = (await world.text.page(RUN, after=None, limit=73)).after
    await world.confirm()
    assert (await world.text.page(RUN, after=token, limit=99)).text == lines(73, 27)
    await world.text.flusher.flush(RUN)
    assert (await world.text.page(RUN, after=token, limit=99)).text == lines(73, 27)
    await world.text.close_run(RUN)
    assert (await world.text.page(RUN, after=token, limit=99)).text == lines(73, 27)


async def test_copies_are_left_out() -> None:
    world = World()
    await world.text.start()
    first = world.append(RUN, lines(0, 3))
    world.append(RUN, lines(0, 3), ulid=first)
    await agree(world, RUN, lines(0, 3))
    await world.confirm()
    await world.text.flusher.flush(RUN)
    world.append(RUN, lines(0, 3), ulid=first)
    await agree(world, RUN, lines(0, 3))
    await world.confirm()
    await world.text.flusher.flush(RUN)
    await agree(world, RUN, lines(0, 3))
    assert await world.text.find_batch(RUN, first) is not None
    assert await world.text.last_ulid(RUN) == first
