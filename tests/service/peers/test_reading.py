"""Runs that are written through several nodes, read at any of them."""

from __future__ import annotations

from collections import Counter

import pytest

from service.node import Node
from tailrace.logstore.position import Cursor
from tests.seeds import seeds, some
from tests.service.client_model import batches_in, downloaded, paged
from tests.service.cluster import RUN
from tests.service.peers.readers import CursorReader
from tests.service.peers.worlds import cluster
from tests.simulation.virtual_time import VirtualClock


def test_lines_in_the_journal_of_another_node_are_read_at_once() -> None:
    world, _ = cluster(1, lazy=True)

    async def go(clock: VirtualClock) -> None:
        nodes = [await world.start(clock, name) for name in ("a", "b", "c")]
        await clock.sleep(1.0)
        for number in range(12):
            await world.clients.send(nodes[number % 2], clock, RUN)
        for node in nodes:
            assert (await node.run_logs.reader.size(RUN)).state == "open"
            text = await downloaded(node, RUN)
            world.clients.check(RUN, text, where="download", ordered=False)
            assert await paged(node, RUN, 3) == text
            page = await node.run_logs.reader.page(RUN, after=None, limit=5, tail=5)
            assert text.endswith(page.text)

    world.play(go)


def test_a_node_alone_asks_nobody() -> None:
    world, board = cluster(2)

    async def go(clock: VirtualClock) -> None:
        node = await world.start(clock, "a")
        await world.clients.send(node, clock, RUN)
        text = await downloaded(node, RUN)
        world.clients.check(RUN, text, where="download")
        assert board.asked == 0

    world.play(go)


def test_a_batch_sent_to_two_nodes_is_read_once_by_a_reader_that_changes_nodes() -> None:
    world, _ = cluster(3, lazy=True)

    async def go(clock: VirtualClock) -> None:
        a, b = [await world.start(clock, name) for name in "ab"]
        await clock.sleep(1.0)
        reader = CursorReader(RUN)
        for number in range(6):
            sent = await world.clients.send((a, b)[number % 2], clock, RUN)
            await reader.read_all((a, b)[number % 2])
            await world.clients.repeat((b, a)[number % 2], sent)
            await reader.read_all((b, a)[number % 2])
        world.clients.check(RUN, reader.text, where="pages")
        assert len(batches_in(await downloaded(a, RUN))) == 6

    world.play(go)


def test_a_copy_is_known_by_its_id_while_the_node_that_had_it_is_away() -> None:
    world, board = cluster(4, lazy=True)

    async def go(clock: VirtualClock) -> None:
        a, b = [await world.start(clock, name) for name in "ab"]
        await clock.sleep(1.0)
        reader = CursorReader(RUN)
        sent = [await world.clients.send(b, clock, RUN) for _ in range(3)]
        await reader.read_all(b)
        board.kill("b-2")
        await world.clients.repeat(a, sent[2])
        await reader.read_all(a)
        await world.clients.send(a, clock, RUN)
        await reader.read_all(a)
        assert batches_in(reader.text) == [0, 1, 2, 3]

    world.play(go)


@pytest.mark.parametrize("begun", ["a", "b"])
def test_a_batch_that_was_begun_at_one_node_and_ended_at_another_is_not_repeated(
    begun: str,
) -> None:
    """The reader's cursor names the batch twice, with more of its records for one node."""
    world, board = cluster(5, lazy=True)

    async def go(clock: VirtualClock) -> None:
        nodes = {name: await world.start(clock, name) for name in "ab"}
        urls = {"a": "a-1", "b": "b-2"}
        first, then = nodes[begun], nodes["b" if begun == "a" else "a"]
        await clock.sleep(1.0)
        reader = CursorReader(RUN)
        await world.clients.send(nodes["b"], clock, RUN)
        await reader.read_all(nodes["b"])
        while (sent := await world.clients.send(first, clock, RUN)).text.count(b"\n") < 4:
            await reader.read_all(first)
        assert await reader._page(first, 2)
        await world.clients.repeat(then, sent)
        board.kill(urls[begun])
        await reader.read_all(then)
        board.kill(urls["b" if begun == "a" else "a"])
        await reader.read_all(first)
        await world.clients.send(first, clock, RUN)
        await reader.read_all(first)
        world.clients.check(RUN, reader.text, where="pages")

    world.play(go)


@pytest.mark.parametrize("seed", some(seeds(6), 3, "read over nodes"))
def test_readers_get_each_line_once_whatever_happens(seed: int) -> None:
    """Producers change nodes and send again elsewhere; nodes die, return, and cannot be reached."""
    world, board = cluster(seed)
    dice = world.dice
    readers = [CursorReader(RUN, seed=seed * 10 + n) for n in range(3)]

    async def stretch(clock: VirtualClock) -> None:
        nodes: dict[str, Node] = {}
        for name in "abc":
            nodes[name] = await world.start(clock, name)
        urls = {name: url for url in board.nodes for name in nodes if url.startswith(name)}
        alive = list(nodes)
        for _ in range(dice.randint(15, 40)):
            name = dice.choice(alive)
            sent = await world.clients.send(nodes[name], clock, RUN)
            if dice.random() < 0.3:  # its answer was lost
                await world.clients.repeat(nodes[dice.choice(alive)], sent)
            for reader in readers:
                if dice.random() < 0.5:
                    await reader.read(nodes[dice.choice(alive)], dice.choice([1, 3, 50]))
            if dice.random() < 0.05 and len(alive) > 1:
                gone = alive.pop(dice.randrange(len(alive)))
                board.kill(urls[gone])
                world.lines[gone].cut = True
                if dice.random() < 0.7:  # it did not answer any more
                    await world.clients.repeat(nodes[dice.choice(alive)], sent)
            if dice.random() < 0.1:
                board.sever(*dice.sample([urls[n] for n in nodes], 2))
            if dice.random() < 0.1:
                board.heal()
            await clock.sleep(dice.choice([0.0, 0.2, 2.0]))

    for _ in range(3):
        world.play(stretch)
        board.heal()

    async def end(clock: VirtualClock) -> None:
        nodes = [await world.start(clock, name) for name in "abc"]
        await clock.sleep(30.0)
        for _ in range(20):
            if await nodes[0].close_run(RUN) == "closed":
                await clock.sleep(5.0)
        await clock.sleep(60.0)
        text = await downloaded(nodes[1], RUN)
        world.clients.check(RUN, text, where="closed log", ordered=False)
        for reader in readers:
            await reader.read_all(nodes[2])
            # Lines of others may come between those of a batch of which it had read a part.
            assert Counter(reader.text.splitlines()) == Counter(text.splitlines())
        manifest = (await nodes[1].run_logs.manifests.get(RUN)).manifest
        assert manifest.state == "closed"
        assert manifest.sealed

    world.play(end)


def test_cursors_of_earlier_versions_are_read() -> None:
    old = Cursor.decode("c2.eyJuIjpbImYiLDRdfQ")
    assert (old.seen("n"), old.complete, old.newest) == (4, True, {})
    assert Cursor.decode(old.encode()) == old
    assert not Cursor.decode("c1.eyJuIjpbImYiLDRdfQ").complete
