"""Deletions and closes reach every node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from service.node import Node
from service.run_log.listing import RunFilter
from service.runtime.health import STALL_SECONDS, StallDetector
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import RunDeleted, StoreUnavailable
from tests.seeds import seeds, some
from tests.service.client_model import batches_in, downloaded, exists
from tests.service.cluster import OTHER, RUN
from tests.service.peers.worlds import LAZY, PATIENT, cluster
from tests.settings import settings_with
from tests.simulation.faulty_store import Fault, Schedule
from tests.simulation.virtual_time import VirtualClock


async def until_closed(nodes: list[Node], clock: Clock, key: RunKey) -> None:
    for _ in range(200):
        manifest = (await nodes[0].run_logs.manifests.get(key)).manifest
        if manifest.state == "closed" and manifest.sealed:
            return
        await clock.sleep(0.5)
    raise AssertionError("it stays open")


async def text_of(node: Node, key: RunKey) -> bytes:
    return await downloaded(node, key) if await exists(node, key) else b""


def test_a_close_is_of_the_lines_of_all_nodes() -> None:
    world, _ = cluster(1)

    async def go(clock: VirtualClock) -> None:
        nodes = [await world.start(clock, name) for name in "abc"]
        await clock.sleep(1.0)
        watched = [node.tail.watch(RUN) for node in nodes]
        for number in range(9):
            await world.clients.send(nodes[number % 3], clock, RUN)
        assert await nodes[2].close_run(RUN) == "closed"
        manifest = (await nodes[0].run_logs.manifests.get(RUN)).manifest
        assert (manifest.state, manifest.sealed) == ("closed", True)
        world.clients.check(RUN, await downloaded(nodes[1], RUN), where="log", ordered=False)
        await clock.sleep(1.0)
        assert [watcher.channel.ended for watcher in watched] == ["runFinished"] * 3

    world.play(go)


@pytest.mark.parametrize("seed", seeds(4))
def test_readers_at_a_node_without_a_line_hear_of_the_end(seed: int) -> None:
    """It has nothing to close and says so long before the run's log is made."""
    world, _ = cluster(seed)

    async def go(clock: VirtualClock) -> None:
        a, b = [await world.start(clock, name) for name in "ab"]
        await clock.sleep(1.0)
        watcher = b.tail.watch(RUN)
        for _ in range(world.dice.randint(1, 9)):
            await world.clients.send(a, clock, RUN)
        assert await a.close_run(RUN) == "closed"
        await clock.sleep(1.0)
        assert watcher.channel.ended == "runFinished"

    world.play(go)


def test_two_nodes_close_at_once() -> None:
    world, _ = cluster(2)

    async def go(clock: VirtualClock) -> None:
        nodes = [await world.start(clock, name) for name in "ab"]
        await clock.sleep(1.0)
        for node in nodes:
            await world.clients.send(node, clock, RUN)
        states = await asyncio.gather(*[node.close_run(RUN) for node in nodes])
        assert states == ["closed", "closed"]
        assert not any(node.run_logs.closer.unfinished for node in nodes)

    world.play(go)


def test_a_close_waits_for_a_node_that_is_silent_and_goes_on_when_it_returns() -> None:
    world, board = cluster(3)

    async def go(clock: VirtualClock) -> None:
        a, b = [await world.start(clock, name) for name in "ab"]
        await clock.sleep(1.0)
        await world.clients.send(b, clock, RUN)
        await world.clients.send(a, clock, RUN)
        board.sever("a-1", "b-2")
        assert await a.close_run(RUN) == "closing"
        assert a.writer.journal.state.closes
        board.heal()
        await until_closed([a, b], clock, RUN)
        await clock.sleep(30.0)
        assert not a.writer.journal.state.closes
        assert len(batches_in(await downloaded(b, RUN))) == 2

    world.play(go)


def test_a_close_that_nobody_could_be_told_goes_on_after_a_start() -> None:
    world, board = cluster(4)

    async def first(clock: VirtualClock) -> None:
        a, b = [await world.start(clock, name) for name in "ab"]
        await clock.sleep(1.0)
        await world.clients.send(b, clock, RUN)
        board.sever("a-1", "b-2")
        assert await a.close_run(RUN) == "closing"

    async def then(clock: VirtualClock) -> None:
        a, b = [await world.start(clock, name) for name in "ab"]
        await until_closed([a, b], clock, RUN)

    world.play(first)
    board.heal()
    world.play(then)


async def states_of(nodes: Sequence[Node], clock: Clock, key: RunKey) -> set[str]:
    """What pages and lists of these nodes say of a run."""
    found = set()
    for node in nodes:
        found.add((await node.run_logs.reader.size(key)).state)
        page = await node.run_logs.listing.run_page(
            key.fqn, RunFilter(), 10, None, now_ms=clock.now_ms(), reported=node.status
        )
        found |= {listed.run.state for listed in page.runs if listed.run.run == key.run}
    return found


@pytest.mark.parametrize("own_line", [False, True])
def test_no_node_says_that_a_run_is_closed_before_all_have_closed_it(own_line: bool) -> None:
    """The node that answers closes its lines first, and does not know who is silent."""
    world, board = cluster(10)
    world.settings = settings_with(PATIENT, runs={"close_wait_seconds": 15.0})

    async def go(clock: VirtualClock) -> None:
        a, b, c = [await world.start(clock, name) for name in "abc"]
        await clock.sleep(1.0)
        for node in (a, b, c) if own_line else (b, c):
            await world.clients.send(node, clock, RUN)
        board.sever("a-1", "c-3")
        board.sever("b-2", "c-3")  # else b, which closes it again by itself, reaches all
        watched = [node.tail.watch(RUN) for node in (a, b, c)]
        assert await a.close_run(RUN) == "closing"  # a and b have written down that it is
        assert await states_of((a, b, c), clock, RUN) == {"closing"}
        assert [watcher.channel.ended for watcher in watched] == [None] * 3
        board.heal()
        await until_closed([a], clock, RUN)
        await clock.sleep(1.0)
        assert await states_of((a, b, c), clock, RUN) == {"closed"}
        assert [watcher.channel.ended for watcher in watched] == ["runFinished"] * 3
        world.clients.check(RUN, await downloaded(b, RUN), where="log", ordered=False)

    world.play(go)


@pytest.mark.parametrize("asked_again", [False, True])
def test_a_close_whose_node_is_killed_for_good_is_finished_by_others(asked_again: bool) -> None:
    """Either a client closes the run at another node, or a sweeper finds it."""
    world, board = cluster(11)
    world.settings = settings_with(PATIENT, runs={"close_wait_seconds": 5.0})

    async def go(clock: VirtualClock) -> None:
        a, b, c = [await world.start(clock, name) for name in "abc"]
        await clock.sleep(1.0)
        for node in (a, b, c):
            await world.clients.send(node, clock, RUN, durability="bulk")
        board.sever("a-1", "c-3")
        assert await a.close_run(RUN) == "closing"
        board.kill("a-1")
        world.lines["a"].cut = True
        board.heal()
        assert await states_of((b, c), clock, RUN) == {"closing"}
        if asked_again:
            said = []
            for _ in range(5):  # until the lease is over, and longer than the slow store takes
                said.append(await b.close_run(RUN))
                await clock.sleep(15.0)
            assert said[-1] == "closed"
        else:
            await until_closed([b], clock, RUN)
        assert await states_of((b, c), clock, RUN) == {"closed"}
        world.clients.check(RUN, await downloaded(c, RUN), where="log", ordered=False)

    world.play(go)


@pytest.mark.parametrize("whole_pipeline", [False, True])
def test_deleted_lines_are_gone_at_every_node_when_the_deletion_is_answered(
    whole_pipeline: bool,
) -> None:
    world, _ = cluster(5, lazy=True)

    async def go(clock: VirtualClock) -> None:
        nodes = [await world.start(clock, name) for name in "abc"]
        await clock.sleep(1.0)
        sent = [await world.clients.send(nodes[n % 3], clock, RUN) for n in range(6)]
        watcher = nodes[1].tail.watch(RUN)
        if whole_pipeline:
            await nodes[0].delete_pipeline(RUN.fqn)
        else:
            await nodes[0].delete_run(RUN)
        assert nodes[0].unacknowledged(RUN.fqn, None if whole_pipeline else RUN.run) == ()
        assert watcher.channel.ended == "runFinished"
        for node in nodes:
            assert not await exists(node, RUN)
            assert node.run_logs.deletions.horizon(RUN) >= max(one.ulid or 0 for one in sent)
            with pytest.raises(RunDeleted):
                await node.append(sent[0].incoming())
        await clock.sleep(1.0)
        again = await world.clients.send(nodes[2], clock, RUN)
        for node in nodes:
            assert batches_in(await downloaded(node, RUN)) == [again.number]

    world.play(go)


def test_a_deletion_names_who_is_silent_and_reaches_it_when_it_returns() -> None:
    world, board = cluster(6, lazy=True)

    async def go(clock: VirtualClock) -> None:
        a, b = [await world.start(clock, name) for name in "ab"]
        await clock.sleep(1.0)
        ahead = await world.clients.send(b, clock, RUN)
        board.sever("a-1", "b-2")
        now = clock.now_ms()
        await a.delete_run(RUN)
        assert a.unacknowledged(*RUN) == (b.identity.node,)
        horizon = a.run_logs.deletions.horizon(RUN)
        assert horizon >> 80 >= now + 11 * 60_000
        board.heal()
        for _ in range(100):
            if not a.unacknowledged(*RUN):
                break
            await clock.sleep(1.0)
        assert a.unacknowledged(*RUN) == ()
        await world.clients.send(a, clock, OTHER)  # with whose entry the end is written
        await clock.sleep(1.0)
        assert not a.writer.journal.state.tombstones
        assert b.run_logs.deletions.horizon(RUN) == horizon
        assert not await exists(b, RUN)
        assert ahead.ulid is not None

    world.play(go)


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("whole_pipeline", [False, True])
def test_a_deletion_that_is_repeated_elsewhere_takes_nothing_that_came_after_it(
    whole_pipeline: bool,
) -> None:
    """The first try is in a journal, of all ids of the next minutes, and goes on by itself."""
    world, board = cluster(9, lazy=True)

    async def delete(node: Node) -> None:
        if whole_pipeline:
            await node.delete_pipeline(RUN.fqn)
        else:
            await node.delete_run(RUN)

    async def go(clock: VirtualClock) -> None:
        a, b, c = [await world.start(clock, name) for name in "abc"]
        await clock.sleep(1.0)
        await world.clients.send(b, clock, RUN)
        board.sever("a-1", "b-2")
        world.lines["a"].schedule = Schedule(
            dict.fromkeys(range(1, 1000), Fault.UNAVAILABLE),
            applies=lambda call: call.startswith("put") and keys.DELETED in call,
        )
        with pytest.raises(StoreUnavailable):
            await delete(a)
        board.heal()
        await clock.sleep(60.0)  # `b` is asked again
        await delete(c)
        assert c.unacknowledged(RUN.fqn, None if whole_pipeline else RUN.run) == ()
        with pytest.raises(RunDeleted):  # what is taken would be deleted by the first try
            await world.clients.send(c, clock, RUN)
        await clock.sleep(12 * 60.0)
        kept = await world.clients.send(c, clock, RUN)
        world.lines["a"].schedule = Schedule.none()
        await clock.sleep(30.0)
        for node in (a, b, c):
            assert batches_in(await text_of(node, RUN)) == [kept.number]

    world.play(go)


def test_a_node_that_was_away_reads_the_deletions_before_it_shows_a_line() -> None:
    """It has no way to the others, and none to the store for a while."""
    world, board = cluster(7, lazy=True)

    async def go(clock: VirtualClock) -> None:
        a, b = [await world.start(clock, name) for name in "ab"]
        await clock.sleep(1.0)
        await world.clients.send(b, clock, RUN)
        await world.clients.send(b, clock, OTHER)
        board.sever("a-1", "b-2")
        world.lines["b"].cut = True
        await a.delete_run(RUN)
        await clock.sleep(60.0)
        world.lines["b"].cut = False
        assert not await exists(b, RUN)
        assert await exists(b, OTHER)

    world.play(go)


class LateClock:
    """A monotonic clock of which the process slept through `slept` seconds."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.slept = 0.0
        self.sleep = clock.sleep

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic(self) -> float:
        return self._clock.monotonic() + self.slept


def test_a_node_that_stood_still_for_a_moment_reads_the_deletions_before_it_searches() -> None:
    """So short that its next look at the register is not due yet."""
    world, board = cluster(8, lazy=True)
    world.settings = settings_with(
        LAZY, runs={"cleanup_interval_minutes": 60.0}, nodes={"refresh_seconds": 60.0}
    )

    async def go(clock: VirtualClock) -> None:
        a, b = [await world.start(clock, name) for name in "ab"]
        await clock.sleep(1.0)
        await world.clients.send(b, clock, RUN)
        late = LateClock(clock)
        b.members.stall_detector = StallDetector(late)
        await b.members.current(b.run_logs.deletions)
        board.sever("a-1", "b-2")
        await a.delete_run(RUN)
        assert b.run_logs.deletions.horizon(RUN) == 0
        late.slept = STALL_SECONDS + 1.0
        await b.members.current(b.run_logs.deletions)
        assert b.run_logs.deletions.horizon(RUN) == a.run_logs.deletions.horizon(RUN) > 0

    world.play(go)


@pytest.mark.parametrize("seed", some(seeds(5), 3, "deleted over nodes"))
def test_what_is_deleted_stays_deleted_whoever_is_killed(seed: int) -> None:
    world, board = cluster(seed)
    dice = world.dice

    async def stretch(clock: VirtualClock) -> None:
        nodes = {name: await world.start(clock, name) for name in "abc"}
        urls = {name: url for url in board.nodes for name in nodes if url.startswith(name)}
        alive = list(nodes)
        for _ in range(dice.randint(10, 25)):
            key = dice.choice([RUN, OTHER])
            await world.clients.send(nodes[dice.choice(alive)], clock, key)
            if dice.random() < 0.1:
                await world.clients.delete(nodes[dice.choice(alive)], key)
                for name in alive:
                    text = (
                        await downloaded(nodes[name], key)
                        if await exists(nodes[name], key)
                        else b""
                    )
                    assert not [n for n in batches_in(text) if n <= world.clients.deleted[key]]
                # What a silent node may have taken has ids of eleven minutes to come.
                await clock.sleep(12 * 60.0 if len(alive) < 3 else 0.1)
            if dice.random() < 0.05 and len(alive) > 1:
                gone = alive.pop(dice.randrange(len(alive)))
                board.kill(urls[gone])
                world.lines[gone].cut = True
            if dice.random() < 0.1:
                await nodes[dice.choice(alive)].close_run(key)
            await clock.sleep(dice.choice([0.0, 0.5, 4.0]))

    for _ in range(2):
        world.play(stretch)

    async def end(clock: VirtualClock) -> None:
        nodes = [await world.start(clock, name) for name in "abc"]
        await clock.sleep(60.0)
        for key in (RUN, OTHER):
            for node in nodes:
                world.clients.check(key, await text_of(node, key), where="log", ordered=False)
        assert not any(node.writer.journal.state.tombstones for node in nodes)

    world.play(end)
