"""Live readers of every form that leave at any event and go on at any node, over a close that sorts
the lines of several nodes: each gets each line once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from service.http.live import Form
from service.ingest.batch import IncomingBatch
from service.journal.format import encode_meta
from service.node import Node
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RecordMeta
from tests.seeds import seeds
from tests.service.client_model import downloaded
from tests.service.cluster import RUN
from tests.service.peers.followers import Follower
from tests.service.peers.readers import CursorReader
from tests.service.peers.worlds import cluster
from tests.settings import settings_with
from tests.simulation.virtual_time import VirtualClock

FORMS: tuple[Form, ...] = ("text", "text", "text", "ndjson", "ndjson", "json")


class InPlace(ThreadPoolExecutor):
    """Does its work at once, so that time does not leap meanwhile."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*args, **more))
        return done


class Writer:
    """Writes batches of plain lines, or of records that have several, with clocks apart."""

    def __init__(self, seed: int) -> None:
        self._dice = Random(f"writer {seed}")
        self.batches: list[tuple[int, list[str]]] = []

    @property
    def records(self) -> list[str]:
        """All records, in the order of their ULIDs."""
        return [record for _, records in sorted(self.batches) for record in records]

    async def write(self, node: Node, clock: VirtualClock, again: Node | None = None) -> None:
        """Writes a batch, and sends it to another node as well, as if the answer was lost."""
        dice, number = self._dice, len(self.batches)
        records = [f"{number:04}.{n}" for n in range(dice.randint(1, 4))]
        if dice.random() < 0.4:
            records = [f"{r}\n{r} at\n{r} by" if dice.random() < 0.6 else r for r in records]
        text = "".join(f"{record}\n" for record in records).encode()
        ms = clock.now_ms() + dice.choice([0, 0, 0, -3000, 5000])
        meta = None
        if text.count(b"\n") > len(records):
            ends = [len("".join(f"{r}\n" for r in records[: n + 1])) for n in range(len(records))]
            meta = RecordMeta(ends, *[[None] * len(ends)] * 3)
        batch = IncomingBatch(
            RUN,
            text,
            len(records),
            text.count(b"\n"),
            ulids.lowest_at(ms) | (number + 1) << ulids.LINE_BITS,
            meta=encode_meta(meta),
            durability=dice.choice(("durable", "bulk")),
        )
        receipt = await node.append(batch)
        if again is not None:
            await again.append(batch)
        self.batches.append((receipt.ulid, records))
        await clock.sleep(dice.choice([0.0, 0.1, 1.0]))


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("seed", seeds(4))
def test_readers_leave_anywhere_and_get_each_line_once_over_a_close(seed: int) -> None:
    world, _ = cluster(seed)
    world.settings = settings_with(world.settings, sse={"heartbeat_seconds": 0.05})
    dice, writer = world.dice, Writer(seed)
    followers = [Follower(RUN, form) for form in FORMS]
    pages = [CursorReader(RUN, seed=seed * 10 + number) for number in range(2)]

    async def go(clock: VirtualClock) -> None:
        asyncio.get_running_loop().set_default_executor(InPlace())
        nodes = [await world.start(clock, name) for name in "ab"]
        await clock.sleep(1.0)

        async def write_and_read(count: int) -> None:
            for _ in range(count):
                first, then = dice.sample(nodes, 2)
                await writer.write(first, clock, then if dice.random() < 0.1 else None)
                for follower in followers:
                    if dice.random() < 0.15:
                        await follower.follow(dice.choice(nodes), dice.randint(1, 9))
                if dice.random() < 0.2:
                    await dice.choice(pages).read(dice.choice(nodes), dice.randint(1, 9))

        for count in (30, 8):
            await write_and_read(count)
            while await dice.choice(nodes).close_run(RUN) != "closed":
                await clock.sleep(1.0)
            for follower in followers:
                if dice.random() < 0.5:
                    await follower.follow(dice.choice(nodes), dice.randint(1, 9))
        for follower in followers:
            while not follower.complete:
                await follower.follow(dice.choice(nodes), dice.randint(1, 30))
            expected = writer.records
            if follower.form != "ndjson":
                expected = [line for record in expected for line in record.split("\n")]
            assert sorted(follower.texts) == sorted(expected), follower.form
        lines = sorted(line for record in writer.records for line in record.split("\n"))
        for reader in pages:
            await reader.read_all(dice.choice(nodes))
            assert sorted(reader.text.decode().splitlines()) == lines
        for node in nodes:
            assert sorted((await downloaded(node, RUN)).decode().splitlines()) == lines

    world.play(go)
