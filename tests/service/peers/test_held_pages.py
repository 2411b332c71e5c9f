"""Pages go on while the store is silent, and give no line again that the reader has from it."""

from __future__ import annotations

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
