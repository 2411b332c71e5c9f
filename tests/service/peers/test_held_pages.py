"""Readers go on while the store is silent, and count each line once when it answers again."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest

from service.node import Node
from service.run_log.cursors import After, LinePage
from service.run_log.lines import HeldPlace
from service.run_log.read_text import LogPiece
from tailrace.logstore import ulid as ulids
from tailrace.logstore.errors import NotFound, Unavailable
from tailrace.logstore.position import Cursor
from tests.service.client_model import Sent
from tests.service.cluster import OTHER, RUN
from tests.service.peers.worlds import cluster
from tests.simulation.virtual_time import VirtualClock


def test_a_page_of_held_lines_gives_no_line_again_that_another_node_has_flushed() -> None:
    """The reader has a line number of the closed log. Both nodes' journals still hold its lines."""
    world, _ = cluster(1, lazy=True)

    async def go(clock: VirtualClock) -> None:
        a, b = [await world.start(clock, name) for name in "ab"]
        await clock.sleep(1.0)
        for node in (a, b, a, b):
            await world.clients.send(node, clock, RUN)
        assert await b.close_run(RUN) == "closed"
        for node in (a, b):  # nothing of it waits for a flush any more
            await world.clients.send(node, clock, OTHER, durability="bulk")
            await node.run_logs.flusher.flush(OTHER)
        closed = (await a.run_logs.reader.size(RUN)).total_lines
        late = [await world.clients.send(node, clock, RUN) for node in (a, b)]
        first = await a.run_logs.reader.page(RUN, after=None, limit=closed)
        assert (first.lines, first.after) == (closed, str(closed))
        world.lines["a"].cut = True
        text, place = b"", first.after
        while place is not None:
            held = await a.run_logs.reader.page(RUN, after=place, limit=1000)
            assert held.held
            text, place = text + held.text, held.after
        assert text == b"".join([sent.text for sent in late])
        world.lines["a"].cut = False
        await clock.sleep(60.0)
        rest = await a.run_logs.reader.page(RUN, after=held.resume, limit=1000)
        assert (rest.held, rest.text) == (False, b"")
        world.clients.check(RUN, first.text + text, where="pages", ordered=False)

    world.play(go)


class Reader:
    """Reads pages by cursor, and keeps the lines that count.

    Those from pages without the store count unless a page that follows them begins `again`.
    """

    def __init__(self) -> None:
        self.text = b""
        self._held = b""
        self._place: str | None = None

    async def read(self, node: Node, limit: int = 1000) -> LinePage:
        """Reads the next page at the node."""
        page = await node.run_logs.reader.page(RUN, after=self._place, limit=limit)
        if page.held:
            self._held += page.text
        else:
            self.text += page.text if page.again else self._held + page.text
            self._held = b""
        self._place = page.after or page.resume or self._place
        return page


class StreamReader:
    """Does the same with the pieces of live streams; it is at another place in each call."""

    def __init__(self) -> None:
        self.text = b""
        self._held = b""
        self._place: Cursor | int | HeldPlace | None = None

    async def read(self, node: Node, limit: int = 1000) -> After[LogPiece]:
        """Reads the next piece at the node."""
        after = await node.run_logs.reader.batches_after(RUN, self._place, max_bytes=limit)
        text = b"" if after.piece is None else after.piece.text
        if after.held:
            self._held += text
        else:
            self.text += text if after.again else self._held + text
            self._held = b""
            self._place = after.settled
        if after.piece is not None:
            self._place = after.piece.cursor
        return after


@pytest.mark.parametrize("answers", [True, False])
def test_a_batch_that_came_to_another_node_as_well_is_read_once(answers: bool) -> None:
    """The reader has it from a chunk of a; b holds it while the store hangs, and a may answer."""
    world, board = cluster(2, lazy=True)

    async def go(clock: VirtualClock) -> None:
        a, b = [await world.start(clock, name) for name in "ab"]
        await clock.sleep(1.0)
        sent = await world.clients.send(a, clock, RUN)
        await world.clients.send(a, clock, OTHER, durability="bulk")
        await a.run_logs.flusher.flush(RUN)
        reader = Reader()
        assert (await reader.read(b)).text == sent.text
        world.lines["b"].cut = True
        if not answers:
            board.kill("a-1")
        await world.clients.repeat(b, sent)
        held = await reader.read(b)
        assert (held.held, held.text) == (True, b"" if answers else sent.text)
        world.lines["b"].cut = False
        await clock.sleep(60.0)
        rest = await reader.read(b)
        assert (rest.held, rest.again, rest.text) == (False, not answers, b"")
        world.clients.check(RUN, reader.text, where="pages", ordered=False)

    world.play(go)


def test_no_other_line_is_taken_for_one_that_came_while_the_store_was_silent() -> None:
    """b gives the reader's own line again; the store has another one of b that nobody gave."""
    world, board = cluster(3, lazy=True)

    async def go(clock: VirtualClock) -> None:
        a, b = [await world.start(clock, name) for name in "ab"]
        await clock.sleep(1.0)
        for number, node in enumerate((a, b)):
            text, ulid = b"%05d 0/1 line\n" % number, ulids.lowest_at(clock.now_ms())
            world.clients.sent.append(Sent(number, RUN, text, ulid, "bulk"))
            await world.clients.repeat(node, world.clients.sent[number])
            await node.run_logs.flusher.flush(RUN)
            await clock.sleep(1.0)
        for _ in range(20):
            await world.clients.send(b, clock, OTHER, durability="bulk")
        await b.run_logs.flusher.flush(OTHER)
        await clock.sleep(60.0)
        with b.writer.journal.pin() as pin:
            assert len(pin.batches(run=RUN).rows) == 0, "b has let the line go"
        first = replace(world.clients.sent[0], durability="durable")
        reader = Reader()
        assert (await reader.read(a, limit=1)).text == first.text
        world.lines["b"].cut = True
        board.kill("a-1")
        await world.clients.repeat(b, first)
        held = await reader.read(b)
        assert (held.held, held.text) == (True, first.text)
        world.lines["b"].cut = False
        await clock.sleep(60.0)
        assert (await reader.read(b)).again
        world.clients.check(RUN, reader.text, where="pages")

    world.play(go)


@pytest.mark.parametrize("seed", range(4))
def test_readers_count_each_line_once_while_nodes_lose_the_store(seed: int) -> None:
    """Batches come to any node, some of them to both; each reader goes from node to node."""
    world, board = cluster(seed, lazy=True)
    dice = Random(f"held pages {seed}")

    async def go(clock: VirtualClock) -> None:
        nodes = {name: await world.start(clock, name) for name in "ab"}
        await clock.sleep(1.0)
        readers: list[Reader | StreamReader] = [Reader(), Reader(), StreamReader(), StreamReader()]
        held = 0
        for _ in range(60):
            name = dice.choice("ab")
            node, line = nodes[name], world.lines[name]
            match dice.randrange(10):
                case 0 | 1:
                    await world.clients.send(node, clock, RUN)
                case 2:
                    if ours := [sent for sent in world.clients.sent if sent.key == RUN]:
                        await world.clients.repeat(node, dice.choice(ours[-3:]))
                case 3 if not line.cut:
                    await world.clients.send(node, clock, OTHER, durability="bulk")
                    await node.run_logs.flusher.flush(RUN)
                case 4:
                    line.cut = not line.cut
                case 5:
                    board.sever("a-1", "b-2") if dice.random() < 0.5 else board.heal()
                case _:
                    with suppress(Unavailable, NotFound):
                        page = await dice.choice(readers).read(node, dice.choice([1, 3, 1000]))
                        held += page.held
        assert held
        for line in world.lines.values():
            line.cut = False
        board.heal()
        await clock.sleep(60.0)
        lines = b"".join([sent.text for sent in world.clients.sent if sent.key == RUN])
        for reader in readers:
            while _goes_on(await reader.read(nodes[dice.choice("ab")])):
                pass
            assert sorted(reader.text.splitlines()) == sorted(lines.splitlines())

    world.play(go)


def _goes_on(read: LinePage | After[LogPiece]) -> bool:
    return read.after is not None if isinstance(read, LinePage) else read.piece is not None
