"""Appends, flushes, crashes, closes, copies, deletions in any order: like a list of lines."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.settings import Tuning
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import NotFound, TailraceError
from tests.seeds import some
from tests.service.runs.world import World
from tests.simulation.backing import on_disk
from tests.simulation.faulty_store import Crash, Fault, FaultyStore, Schedule

RUN = RunKey("a pipeline", "a/run")
OTHER = RunKey("a pipeline", "другой")
TUNING = Tuning(merge_above=3, merge_width=2, chunk_bytes=100, partial_seconds=0.0)

STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 6)),
    st.tuples(st.just("copy"), st.integers(0, 9)),
    st.tuples(st.just("confirm"), st.just(0)),
    st.tuples(st.just("flush"), st.just(0)),
    st.tuples(st.just("close"), st.just(0)),
    st.tuples(st.just("delete"), st.just(0)),
    st.tuples(st.just("restart"), st.just(0)),
    st.tuples(st.just("release"), st.just(0)),
    st.tuples(st.just("sweep"), st.just(0)),
    st.tuples(st.just("crash flush"), st.integers(1, 25)),
    st.tuples(st.just("crash close"), st.integers(1, 25)),
    st.tuples(st.just("fault"), st.integers(1, 25)),
    st.tuples(st.just("token"), st.integers(1, 40)),
)


@dataclass
class Model:
    """What is true: the text, the batches that made it, and a token with what follows it."""

    text: bytes = b""
    batches: list[tuple[int, bytes]] = field(default_factory=list)
    token: str | None = None
    token_line: int = 0
    count: int = 0


async def play(steps: list[tuple[str, int]], seed: int) -> None:
    world = World(tuning=TUNING, seed=seed)
    await world.run_logs.start()
    model = Model()
    for turn, (name, number) in enumerate(steps):
        await step(world, model, name, number)
        if on_disk() or turn % 5 == 0:
            await look(world, model)
    await world.run_logs.close_run(RUN)
    await look(world, model)


async def step(world: World, model: Model, name: str, number: int) -> None:
    if name == "append":
        above = world.run_logs.deletions.horizon(RUN)
        ulid = max(world.mint(), world.mint_above(above) if above else 0)
        text = b"".join(b"%d\n" % (model.count + i) for i in range(number))
        model.count += number
        world.append(RUN, text, ulid)
        world.append(OTHER, b"other\n")
        model.text += text
        model.batches.append((ulid, text))
    elif name == "copy" and model.batches:
        ulid, text = model.batches[number % len(model.batches)]
        world.append(RUN, text, ulid)
    elif name == "confirm":
        await world.confirm(upload=True)
    elif name == "flush":
        await world.run_logs.flusher.drain()
    elif name == "close":
        assert await world.run_logs.close_run(RUN) == "closed"
    elif name == "delete":
        await world.run_logs.delete_run(RUN)
        model.text, model.batches, model.token = b"", [], None
    elif name == "release":
        world.journal.first = world.journal.confirmed
    elif name == "restart":
        await world.run_logs.stop()
        await world.restart()
    elif name == "sweep":
        world.clock.pass_seconds(100_000)
        await world.run_logs.sweeper.sweep()
    elif name == "token" and model.text:
        limit = number % model.text.count(b"\n") + 1
        model.token = (await world.run_logs.reader.page(RUN, after=None, limit=limit)).after
        model.token_line = limit
    elif name.startswith("crash") or name == "fault":
        await faulty(world, name, number)


async def faulty(world: World, name: str, number: int) -> None:
    fault = Fault.UNKNOWN_DONE if name == "fault" else Fault.CRASH_AFTER
    await world.run_logs.stop()
    await world.restart(FaultyStore(world.disk_store, Schedule.none()))
    world.store.schedule = Schedule({number: fault})  # type: ignore[attr-defined]
    try:
        if name == "crash close":
            pos = await world.record_close(RUN)
            await world.run_logs.closer.finish(RUN, pos)
        else:
            await world.run_logs.flusher.drain()
    except (Crash, TailraceError):
        pass
    await world.run_logs.stop()
    await world.restart()


async def look(world: World, model: Model) -> None:
    assert (await world.run_logs.reader.size(RUN)).total_bytes == len(model.text)
    if not model.text:
        with pytest.raises(NotFound):
            await world.run_logs.reader.page(RUN, after=None, limit=3)
        return
    assert await world.whole(RUN) == model.text
    assert await world.paged(RUN, 4) == model.text
    assert await world.caught_up(RUN) == model.text
    if model.token is not None:
        page = await world.run_logs.reader.page(RUN, after=model.token, limit=10_000)
        rest = b"".join(model.text.splitlines(keepends=True)[model.token_line :])
        assert page.text == rest
    page = await world.run_logs.reader.page(RUN, after=None, limit=3, tail=3)
    assert page.text == b"".join(model.text.splitlines(keepends=True)[-3:])


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEPS, max_size=25), seed=st.integers(0, 1000))
def test_like_a_list_of_lines(steps: list[tuple[str, int]], seed: int) -> None:
    asyncio.run(play(steps, seed))


NAMES = ["append"] * 6 + ["confirm"] * 3 + ["flush"] * 2
NAMES += ["copy", "close", "delete", "restart", "release", "sweep"]
NAMES += ["crash flush", "crash close", "fault", "token"]


# 3 and 58: a close forgot lines that the journal had let go and only a segment held.
@pytest.mark.parametrize("seed", [3, 58, *some(range(100, 106), 3, "long lives")])
@pytest.mark.on_servers(seed=(58,))
@pytest.mark.usefixtures("every_store")
def test_long_lives(seed: int) -> None:
    random = Random(seed)
    steps = [(random.choice(NAMES), random.randint(1, 25)) for _ in range(60)]
    asyncio.run(play([(n, (v - 1) % 6 + 1 if n == "append" else v) for n, v in steps], seed))


@pytest.mark.usefixtures("every_store")
def test_a_close_keeps_what_only_a_segment_holds() -> None:
    async def live() -> None:
        world = World(tuning=TUNING)
        await world.run_logs.start()
        world.append(RUN, b"before\n")
        pos = await world.record_close(RUN)
        world.append(RUN, b"after\n")
        await world.confirm()
        world.journal.first = world.journal.confirmed
        world.run_logs.flusher.hold_at(RUN, pos)
        await world.run_logs.closer.finish(RUN, pos)
        await world.run_logs.drain()
        assert await world.whole(RUN) == b"before\nafter\n"

    asyncio.run(live())
