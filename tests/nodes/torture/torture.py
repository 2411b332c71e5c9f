"""Many nodes, one log: producers, readers and consumers of three nodes, while these are harmed.

Producers write run after run, each batch to a node of their choice; other runs are deleted and
begun anew. Bits of state objects flip in the bucket. Live readers and readers of pages go from
node to node, a group of the queue takes all segments. In the end everything is healed, and each
run is closed. Every acknowledged line must then be there once: at every node in one log, in the
pages, in the query, in the queue, and in the table; in the order of its producer where the order
is that of ULIDs. Every reader must have seen each line once, and nobody a deleted one. While nodes
are harmed, no way to read a run says that it has ended and lacks lines. In the end all ways say
the same at every node.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from service.queue.catalog import SegmentName
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tailrace.logstore.segments.file_format import quarantined_segments
from tests.e2e.clients import query_text, read_pages, run_path
from tests.e2e.doors import disagreements, statements
from tests.e2e.torture_store import TorturedStore
from tests.nodes.torture.deletions import DeletedRun
from tests.nodes.torture.flips import Flips
from tests.nodes.torture.frost import Frost
from tests.nodes.torture.harm import WANTED, Harm, Tormentor
from tests.nodes.torture.network import Network
from tests.nodes.torture.nodes import Nodes, TorturedNode, three_nodes
from tests.nodes.torture.producers import Named, Nameless, Producer, Written
from tests.nodes.torture.readers import LiveReader, PageReader, QueueReader
from tests.nodes.torture.table import compacted

_NAMED = 3
_PAUSE_SECONDS = 0.05
_LOOK_SECONDS = 0.5
_THREADS = 48
_PATIENCE_SECONDS = 300.0


@dataclass(frozen=True)
class Size:
    """How many runs are written at once, and how many batches a producer sends to one."""

    writers: int = 2
    least: int = 20
    most: int = 60


SHORT = Size(writers=1, least=10, most=25)


class Torture:
    """One story; `faults` says what is wrong, `told` what happened."""

    def __init__(
        self,
        folder: Path,
        store: TorturedStore,
        network: Network,
        *,
        kills: int,
        seed: int,
        table: bool = True,
        size: Size = Size(),
    ) -> None:
        self._folder = folder
        self._store = store
        self._network = network
        self._table = table
        self._size = size
        self._dice = random.Random(seed)
        self._harm = Harm(kills, self._dice)
        self._runs: list[Written] = []
        self._deleted: list[DeletedRun] = []
        self._retries = 0
        self._segments = 0
        self._doors = 0
        self.faults: list[str] = []

    @property
    def told(self) -> str:
        """What was done, in words."""
        harms = ", ".join(f"{n} {what}" for what, n in sorted(self._harm.done.items()))
        seen = ", ".join(f"{self._harm.seen[what]} {what}" for what in WANTED)
        lines = sum(run.lines.total() for run in self._runs)
        deletions = sum(run.deletions for run in self._deleted)
        return (
            f"{harms or 'no harm'}; seen: {seen}; {len(self._runs)} runs, {lines} lines,"
            f" {deletions} deletions, {self._retries} retries,"
            f" {self._segments} segments in the queue,"
            f" {self._doors} looks at all ways to read a run,"
            f" {len(self.faults)} faults"
        )

    async def run(self) -> None:
        """Raises nothing but what is broken in the test itself."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS))
        limits = httpx.Limits(max_connections=200)
        async with (
            three_nodes(self._folder, self._network, self._dice) as nodes,
            httpx.AsyncClient(limits=limits, timeout=30) as client,
        ):
            queue = QueueReader(client, nodes)
            async with asyncio.TaskGroup() as tasks:
                for node in nodes.all:
                    tasks.create_task(Tormentor(node, nodes, self._harm).run())
                for number in range(self._size.writers):
                    tasks.create_task(self._write(client, nodes, f"torture.p{number}"))
                tasks.create_task(self._delete(client, nodes))
                if self._store.bucket is not None:
                    tasks.create_task(Flips(self._store.bucket, self._harm).run())
                assert self._store.server is not None
                frost = Frost(self._store.server, nodes, self._harm, client, self._runs)
                tasks.create_task(frost.run())
            self.faults += [*self._harm.faults, *frost.faults]
            _say("all harm is done; healing")
            await self._heal(client, nodes)
            _say("comparing")
            await self._check_all(client, nodes, queue)
            for ended in await asyncio.gather(*[node.end() for node in nodes.all]):
                self.faults += ended
        self.faults += await self._store.faults()

    # --- writing -------------------------------------------------------------------

    async def _write(self, client: httpx.AsyncClient, nodes: Nodes, fqn: str) -> None:
        """Runs, one after another, until the harm is over; each has readers."""
        for number in count():
            await self._write_run(client, nodes, RunKey(fqn, f"run-{number}"))
            if not self._harm.goes_on:
                return

    async def _write_run(self, client: httpx.AsyncClient, nodes: Nodes, key: RunKey) -> None:
        written = Written(key)
        self._runs.append(written)
        live = LiveReader(client, key, nodes, self._dice)
        pages = PageReader(client, key, nodes, self._dice)
        began = time.monotonic()
        await self._produce(client, nodes, written)
        while not await self._close_once(client, nodes, key):
            await self._check_doors(nodes, written, began)
            await asyncio.sleep(_PAUSE_SECONDS)
        await self._check_doors(nodes, written, began)
        await asyncio.gather(live.end(written.lines), pages.end(written.lines))
        self.faults += written.reader_faults(f"the live stream of {key}", live.given)
        self.faults += written.reader_faults(f"pages of {key} by cursor", pages.given)

    async def _produce(self, client: httpx.AsyncClient, nodes: Nodes, written: Written) -> None:
        producers: list[Producer] = [
            Named(f"p{number}", nodes, written, self._dice) for number in range(_NAMED)
        ]
        producers.append(Nameless("nameless", nodes, written, self._dice, client))
        size = self._size
        await asyncio.gather(
            *[
                one.write(self._dice.randint(size.least, size.most), _PAUSE_SECONDS)
                for one in producers
            ]
        )
        for producer in producers:
            self._retries += producer.retries
            producer.close()

    async def _close(self, client: httpx.AsyncClient, nodes: Nodes, key: RunKey) -> None:
        """Returns when some node said that it is closed."""
        while not await self._close_once(client, nodes, key):
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _close_once(self, client: httpx.AsyncClient, nodes: Nodes, key: RunKey) -> bool:
        """Whether some node says that it is closed."""
        url = f"{nodes.any_url()}{run_path(key, verb='close')}"
        try:
            reply = await client.post(url, timeout=20)
        except httpx.TransportError:
            return False
        return reply.status_code == 200 and reply.json()["state"] == "closed"

    async def _check_doors(self, nodes: Nodes, written: Written, began: float) -> None:
        """Whoever is told at some node that the run has ended is given all acknowledged lines.

        Lines of a node that counts as lost are excused: nobody waits for its journal.
        """
        try:
            said = await statements(nodes.any_url(), written.key)
        except (httpx.HTTPError, json.JSONDecodeError):
            return  # it is harmed just now
        wanted = written.lines.total()
        short = [one for one in said if one.ended and (one.lines or 0) < wanted]
        if short and not self._harm.may_have_lost(began):
            self.faults.append(f"{written.key} has ended, and lacks lines of {wanted}: {short}")
        self._doors += 1

    async def _delete(self, client: httpx.AsyncClient, nodes: Nodes) -> None:
        """Runs that are deleted, one after another, until the harm is over."""
        for number in count():
            key = RunKey("torture.deleted", f"run-{number}")
            self._deleted.append(DeletedRun(key, nodes, self._harm, client))
            await self._deleted[-1].live()
            if not self._harm.goes_on:
                return

    # --- comparing -----------------------------------------------------------------

    async def _heal(self, client: httpx.AsyncClient, nodes: Nodes) -> None:
        """Returns when each node is ready and hears every other one."""
        async with asyncio.timeout(_PATIENCE_SECONDS):
            for node in nodes.all:
                while not await _is_well(client, node):
                    await asyncio.sleep(_LOOK_SECONDS)
            for key in [run.key for run in self._runs]:  # again: late lines open a run
                await self._close(client, nodes, key)

    async def _check_all(self, client: httpx.AsyncClient, nodes: Nodes, queue: QueueReader) -> None:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await queue.end()
        self.faults += queue.faults
        self._segments = len(queue.taken)
        for written in self._runs:
            found = queue.lines(written.key)
            disorder = written.disorder(f"the queue of {written.key}", found)
            if disorder:
                disorder += await self._where(set(written.lines) - set(found), queue.taken)
            self.faults += disorder
            await self._compare(nodes, written)
        await self._check_deleted(nodes)
        if self._table:
            await self._check_table(nodes)

    async def _where(self, lines: set[str], taken: list[str]) -> list[str]:
        """In which segments lines are that the queue lacks, and whether it gave them."""
        found: list[str] = []
        if self._store.bucket is None:
            return found
        async with self._store.bucket.open() as store:
            quarantined = await quarantined_segments(store)
            async for info in store.list(keys.SEGMENTS):
                name = keys.parse_segment(info.key)
                if name is None:
                    continue
                table = pq.read_table(pa.BufferReader((await store.get(info.key))[1]))
                here = lines & set(table.column("message").to_pylist())
                if here:
                    node, seq = name
                    times = taken.count(SegmentName(node, seq).id)
                    out = " and is quarantined" if seq in quarantined.get(node, ()) else ""
                    found.append(
                        f"{info.key} has {len(here)} of them, was given {times} times{out}"
                    )
        return found or ["no segment has them"]

    async def _compare(self, nodes: Nodes, written: Written) -> None:
        key = written.key
        text = await self._log(key)
        self.faults += written.faults(f"logs.txt of {key}", text.decode().splitlines())
        for node in nodes.all:
            said = await statements(node.url, key)
            self.faults += disagreements(said, len(text.splitlines()))
            async with httpx.AsyncClient(base_url=node.url, timeout=60) as one:
                where = f"of {key} at {node.name}"
                self._check_same(f"the log {where}", text, await _download(one, key))
                self._check_same(f"pages {where}", text, await read_pages(one, key, limit=700))
                ordered = await _download(one, key, order="ulid")
                await self._check_order(f"the log in order {where}", written, ordered)
                await self._check_order(f"the query {where}", written, await query_text(one, key))

    async def _check_deleted(self, nodes: Nodes) -> None:
        """Deleted lines are nowhere, and what was written afterwards is everywhere."""
        for run in self._deleted:
            for node in nodes.all:
                where = f"{run.written.key} at {node.name}"
                shown = await run.shown(node)
                run.check(f"in the end {node.name}", shown)
                self.faults += run.written.faults(f"the log of {where}", shown)
                async with httpx.AsyncClient(base_url=node.url, timeout=60) as one:
                    found = await query_text(one, run.written.key)
                self.faults += run.written.disorder(f"the query of {where}", _lines(found))
            self.faults += run.faults

    async def _check_table(self, nodes: Nodes) -> None:
        """A compaction, by Spark; then the table itself, and the query that reads it."""
        table = await compacted(self._folder / "compactor", self._store)
        self.faults += table.faults
        for written in [*self._runs, *[run.written for run in self._deleted]]:
            key = written.key
            self.faults += written.disorder(f"the table of {key}", table.lines(key))
            async with httpx.AsyncClient(base_url=nodes.any_url(), timeout=60) as one:
                found = _lines(await query_text(one, key))
            self.faults += written.disorder(f"the query over the table of {key}", found)

    async def _log(self, key: RunKey) -> bytes:
        """The closed run's object in the bucket."""
        assert self._store.bucket is not None
        async with self._store.bucket.open() as store:
            return (await store.get(keys.logs(keys.PREFIX, key)))[1]

    async def _check_order(self, what: str, written: Written, text: bytes) -> None:
        self.faults += written.disorder(what, _lines(text))

    def _check_same(self, what: str, expected: bytes, found: bytes) -> None:
        if expected != found:
            self.faults.append(f"{what} is not logs.txt: {len(found)} bytes, not {len(expected)}")


async def _is_well(client: httpx.AsyncClient, node: TorturedNode) -> bool:
    """Whether it is ready and hears all others."""
    try:
        reply = await client.get(f"{node.url}/health/ready", timeout=5)
    except httpx.TransportError:
        return False
    return reply.status_code == 200 and "silent" not in reply.text


async def _download(client: httpx.AsyncClient, key: RunKey, **parameters: str) -> bytes:
    reply = await client.get(run_path(key, verb="download"), params=parameters, timeout=120)
    reply.raise_for_status()
    return reply.content


def _say(sentence: str) -> None:
    """Tells the person who watches."""
    print(sentence, flush=True)


def _lines(text: bytes) -> list[str]:
    return text.decode().splitlines()
