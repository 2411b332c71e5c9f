"""A world whose records lie in every source, and requests of every kind."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from service.query.request import QueryRequest
from tailrace.logstore import ulid
from tailrace.logstore.search.conditions import Contains
from tests.batches import Entry
from tests.service.query.world import HOUR_MS, NODE, NOW_MS, RUNS, World, entry

ALL = QueryRequest()


async def scattered(
    world: World, seed: int, written: Callable[[Entry], Entry] = lambda given: given
) -> World:
    """Batches in the table, in segments of two nodes and in the journal, many of them in several.

    What `written` makes of each is put there.
    """
    rng = random.Random(seed)
    entries: list[Entry] = [entry(rng) for _ in range(90)]
    # The same batch id in two runs: nobody hides another run's lines.
    entries += [(RUNS[0], entries[0][1], b"mine\n"), (RUNS[5], entries[0][1], b"yours\n")]
    entries = [written(given) for given in entries]

    def some(share: float) -> list[Entry]:
        return sorted((e for e in entries if rng.random() < share), key=lambda e: e[1])

    merged = some(0.5)
    await world.segment(merged[:20])
    await world.segment(merged[20:])
    if seed % 3:
        world.merge(merged, {NODE: 2})
    for _ in range(rng.randrange(3)):
        await world.segment(some(0.3))
    await world.segment(some(0.3), "node-02")
    world.unflushed(some(0.2))
    return world


def some_requests(rng: random.Random) -> list[QueryRequest]:
    """Of each kind one."""
    low = NOW_MS - rng.randrange(5 * HOUR_MS)
    high = low + rng.randrange(3 * HOUR_MS)
    within = replace(ALL, low=ulid.lowest_at(low), high=ulid.highest_at(high))
    run = rng.choice(RUNS)
    return [
        ALL,
        replace(ALL, condition=Contains("ERROR")),
        replace(ALL, condition=Contains("späße 🎉 1")),
        replace(ALL, condition=Contains("100% not' there;--")),
        within,
        replace(within, limit=7),
        replace(ALL, limit=rng.randrange(1, 60), fqn=run.fqn),
        replace(ALL, run=run.run, condition=Contains("x=1")),
        replace(ALL, fqn=run.fqn, run=run.run, limit=3),
    ]
