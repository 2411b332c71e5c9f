"""Many nodes, one log: producers, readers and consumers of three nodes, while these are harmed.

Producers write run after run, each batch to a node of their choice; live readers and readers of
pages go from node to node, a group of the queue takes all segments. In the end everything is
healed, and each run is closed. Every acknowledged line must then be there once: at every node in
one log, in the pages, in the query, in the queue; in the order of its producer where the order
is that of ULIDs. Every reader must have seen each line once.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import httpx

from logstore import keys
from logstore.batch import RunKey
from tests.e2e.clients import close_run, query_text, read_pages, run_path
from tests.e2e.torture_store import TorturedStore
from tests.nodes.torture.nodes import Nodes, TorturedNode, three_nodes
from tests.nodes.torture.producers import Producer, Written
from tests.nodes.torture.readers import LiveReader, PageReader, QueueReader

_PRODUCERS = 3
_WRITERS = 2
_PAUSE_SECONDS = 0.05
_THREADS = 48
_PATIENCE_SECONDS = 300.0


class Torture:
    """One story; `faults` says what is wrong, `told` what happened."""

    def __init__(self, folder: Path, store: TorturedStore, *, kills: int, seed: int) -> None:
        self._folder = folder
        self._store = store
        self._kills = kills
        self._dice = random.Random(seed)
        self._harms: Counter[str] = Counter()
        self._runs: list[Written] = []
        self._retries = 0
        self._segments = 0
        self.faults: list[str] = []

    @property
    def told(self) -> str:
        """What was done, in words."""
        harms = ", ".join(f"{n} {what}" for what, n in sorted(self._harms.items())) or "no harm"
        lines = sum(len(run.lines) for run in self._runs)
        return (
            f"{harms}; {len(self._runs)} runs, {lines} lines, {self._retries} retries,"
            f" {self._segments} segments in the queue, {len(self.faults)} faults"
        )

    async def run(self) -> None:
        """Raises nothing but what is broken in the test itself."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS))
        limits = httpx.Limits(max_connections=200)
        async with (
            three_nodes(self._folder, self._store, self._dice) as nodes,
            httpx.AsyncClient(limits=limits, timeout=30) as client,
        ):
            queue = QueueReader(client, nodes)
            async with asyncio.TaskGroup() as tasks:
                for number in range(_WRITERS):
                    tasks.create_task(self._write(client, nodes, f"torture.p{number}"))
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await queue.end()
            self.faults += queue.faults
            self._segments = queue.segments
            for written in self._runs:
                await self._compare(client, nodes, written)
                self._check_lines(f"the queue of {written.key}", written, queue.lines(written.key))
            await asyncio.gather(*[asyncio.to_thread(self._stop, node) for node in nodes.all])
        self.faults += await self._store.faults()

    @property
    def _going_on(self) -> bool:
        return self._harms.total() < self._kills

    # --- writing -------------------------------------------------------------------

    async def _write(self, client: httpx.AsyncClient, nodes: Nodes, fqn: str) -> None:
        """Runs, one after another, until the harm is over; each has readers."""
        for number in count():
            await self._write_run(client, nodes, RunKey(fqn, f"run-{number}"))
            if not self._going_on:
                return

    async def _write_run(self, client: httpx.AsyncClient, nodes: Nodes, key: RunKey) -> None:
        written = Written(key)
        self._runs.append(written)
        live = LiveReader(client, key, nodes, self._dice)
        pages = PageReader(client, key, nodes, self._dice)
        await self._produce(nodes, written)
        await self._close(nodes, key)
        await live.end(len(written.lines))
        self._check_lines(f"the live stream of {key}", written, live.seen)
        await pages.end()
        self._check_lines(f"pages of {key} by cursor", written, pages.seen)

    async def _produce(self, nodes: Nodes, written: Written) -> None:
        urls = [node.url for node in nodes.all]
        producers = [
            Producer(f"p{number}", urls, written, self._dice) for number in range(_PRODUCERS)
        ]
        await asyncio.gather(
            *[one.write(self._dice.randint(20, 60), _PAUSE_SECONDS) for one in producers]
        )
        for producer in producers:
            self._retries += producer.retries
            producer.close()

    async def _close(self, nodes: Nodes, key: RunKey) -> None:
        url = self._dice.choice(nodes.all).url
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            await close_run(client, key)

    # --- comparing -----------------------------------------------------------------

    async def _compare(self, client: httpx.AsyncClient, nodes: Nodes, written: Written) -> None:
        key = written.key
        text = await self._log(key)
        self._check_lines(f"logs.txt of {key}", written, Counter(text.decode().splitlines()))
        for node in nodes.all:
            async with httpx.AsyncClient(base_url=node.url, timeout=60) as one:
                where = f"of {key} at {node.name}"
                self._check_same(f"the log {where}", text, await _download(one, key))
                self._check_same(f"pages {where}", text, await read_pages(one, key, limit=700))
                ordered = await _download(one, key, order="ulid")
                self._check_order(f"the log in order {where}", written, ordered)
                self._check_order(f"the query {where}", written, await query_text(one, key))

    async def _log(self, key: RunKey) -> bytes:
        """The closed run's object in the bucket."""
        assert self._store.bucket is not None
        async with self._store.bucket.open() as store:
            return (await store.get(keys.logs(keys.PREFIX, key)))[1]

    def _check_lines(self, what: str, written: Written, found: Counter[str]) -> None:
        wanted = Counter(written.lines)
        for kind, lines in (("lacks", wanted - found), ("has too often", found - wanted)):
            if lines:
                some = [line[:40] for line in sorted(lines)[:3]]
                self.faults.append(f"{what} {kind} {lines.total()} of {wanted.total()}: {some}")

    def _check_order(self, what: str, written: Written, text: bytes) -> None:
        """Each line once, and those of a producer in its order."""
        lines = text.decode().splitlines()
        self._check_lines(what, written, Counter(lines))
        for name, its_lines in written.by_producer.items():
            found = [line for line in lines if line.split()[1] == name]
            if sorted(found) == its_lines != found:
                self.faults.append(f"{what}: lines of {name} are out of order")

    def _check_same(self, what: str, expected: bytes, found: bytes) -> None:
        if expected != found:
            self.faults.append(f"{what} is not logs.txt: {len(found)} bytes, not {len(expected)}")

    def _stop(self, node: TorturedNode) -> None:
        status = node.service.stop()
        if status != 0:
            self.faults.append(f"node {node.name} ended with status {status}")
        _, found, trace = node.service.output().partition("Traceback")
        if found:
            self.faults.append(f"node {node.name} logged: {trace[:2000]}")


async def _download(client: httpx.AsyncClient, key: RunKey, **parameters: str) -> bytes:
    reply = await client.get(run_path(key, verb="download"), params=parameters, timeout=120)
    reply.raise_for_status()
    return reply.content
