"""One service under load that is killed with -9 again and again, and copied while it is dead.

Writers of every kind post numbered lines, each to one run after another, and readers follow
them; runs are closed, opened again by late lines, deleted and begun anew. Every so often the
service is killed and started again; now and then its folder is copied first, and the copy goes
on against the same store, takes a run of its own and is stopped. In the end every acknowledged
line must be there once and in order, in the pages, the download, the live tail and the query.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from itertools import count
from pathlib import Path

import httpx

from tailrace.logstore.batch import RunKey
from tests.e2e.clients import (
    Follower,
    close_run,
    differences,
    download,
    query_text,
    read_pages,
    run_path,
)
from tests.e2e.service_process import BASE, ServiceProcess
from tests.e2e.torture.writers import FirstGeneration, Named, Nameless, Sent, Writer, explain
from tests.e2e.torture_store import TorturedStore

LARGE_LINE_BYTES = 20_000
_PATIENCE_SECONDS = 400
_RETRY_SECONDS = 0.05
_CLONE_ODDS = 0.3
_CLONE_BATCHES = 30
SETTINGS = {
    "TAILRACE_FLUSH__SEGMENT_SECONDS": "0.3",
    "TAILRACE_FLUSH__SEGMENT_BYTES": "200000",
    "TAILRACE_RUNS__PARTIAL_FLUSH_INTERVAL_MINUTES": "0.01",
    "TAILRACE_RUNS__EARLY_FLUSH_WATERMARK_BYTES": "100000",
    "TAILRACE_JOURNAL__FILE_BYTES": "1048576",
}


class Torture:
    """One service, its writers and readers, and somebody who kills."""

    def __init__(self, folder: Path, store: TorturedStore, *, kills: int, seed: int) -> None:
        self._folder = folder
        self._dice = random.Random(seed)
        self._kills = kills
        self._killed = 0
        self._clones = 0
        self._clones_over = 0
        self._store = store
        self._made: list[ServiceProcess] = []
        self._service = self._make("node")
        self._sent: dict[RunKey, list[Sent]] = {}
        self.retries = 0
        self.deletions = 0
        self.faults: list[str] = []

    @property
    def told(self) -> str:
        """What was done, in words."""
        batches = [batch for sent in self._sent.values() for batch in sent]
        lines = sum(batch.text.count(b"\n") for batch in batches)
        unknown = sum(not batch.acknowledged for batch in batches)
        return (
            f"{self._killed} kills, {self._clones} clones, {len(self._sent)} runs, {lines} lines, "
            f"{self.retries} retries, {self.deletions} deletions, {unknown} batches without an "
            f"answer, {len(self.faults)} faults"
        )

    async def run(self) -> None:
        """Kills, then compares. No process is left, so that an error is what the caller sees."""
        try:
            await self._run()
        finally:
            with ExitStack() as left:  # each, though one may say what it had to repair
                for service in self._made:
                    if service.running:
                        left.callback(service.kill)

    async def _run(self) -> None:
        self._service.start()
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(
            base_url=self._service.url, limits=limits, timeout=30
        ) as client:
            async with asyncio.TaskGroup() as tasks:
                for number in range(2):
                    tasks.create_task(self._write(client, f"named-{number}", number == 0))
                tasks.create_task(self._write(client, "nameless-0"))
                tasks.create_task(self._write(client, "first-generation-0"))
                tasks.create_task(self._delete_and_begin_anew(client))
                await self._kill_again_and_again()
            await asyncio.gather(*(close_run(client, key) for key in self._sent))
            await self._compare(client)
        self._stopped(self._service)
        self.faults += await self._store.faults()

    def _make(self, name: str) -> ServiceProcess:
        made = ServiceProcess(self._folder / name, store=None, **SETTINGS, **self._store.settings)
        self._made.append(made)
        return made

    def _stopped(self, service: ServiceProcess) -> None:
        status = service.stop()
        if status != 0:
            self.faults.append(f"the service ended with status {status}")
        if "Traceback" in service.output():
            self.faults.append(f"{service.data.name} logged: {_first_traceback(service)}")

    # --- killing -------------------------------------------------------------------

    @property
    def _going_on(self) -> bool:
        return self._killed < self._kills

    async def _kill_again_and_again(self) -> None:
        while self._going_on:
            await asyncio.sleep(self._dice.expovariate(1 / 0.7))
            self._service.kill()
            # At least one of a torture that is long enough.
            late = self._clones == 0 and self._killed + 2 == self._kills
            cloned = self._killed > 0 and (late or self._dice.random() < _CLONE_ODDS)
            if cloned:
                await self._live_with_a_clone()
            else:
                await asyncio.to_thread(self._service.start)
            self._killed += 1

    async def _live_with_a_clone(self) -> None:
        """The copy takes a run of its own beside the original, and is stopped in good order."""
        self._clones += 1
        name = f"clone-{self._clones}"
        await asyncio.to_thread(shutil.copytree, self._folder / "node", self._folder / name)
        clone = self._make(name)
        # Both at once, so that either may be the first with a segment of the next number.
        await asyncio.gather(*[asyncio.to_thread(one.start) for one in (clone, self._service)])
        key = RunKey("torture.clones", f"run-{self._clones}")
        async with httpx.AsyncClient(base_url=clone.url, timeout=30) as client:
            writer = Named(client, key, self._dice, self._store.holds)
            await self._send(writer, key, 200, batches=_CLONE_BATCHES)
            self.faults += writer.faults
            await close_run(client, key)
        await asyncio.to_thread(self._stopped, clone)
        # Which of both the segments' numbers belong to is known once the next one is shipped.
        await _shipped(self._service.url, RunKey("torture.clones", f"after-{self._clones}"))
        self._clones_over += 1

    # --- writing -------------------------------------------------------------------

    async def _write(self, client: httpx.AsyncClient, name: str, wide: bool = False) -> None:
        """Runs, one after another, until the killing is over; each has a reader."""
        widest = LARGE_LINE_BYTES if self._store.large and wide else 200
        for number in count():
            if not self._going_on:
                return
            key = RunKey(f"torture.{name}", f"run-{number}")
            before = (self._clones, self._clones_over)
            async with (
                self._writer(client, key, name) as writer,
                self._reader(client, key) as reader,
            ):
                for _ in range(self._dice.randint(1, 3)):
                    await self._send(writer, key, widest, batches=self._dice.choice((6, 60)))
                    if self._dice.random() < 0.5:
                        break
                    await _close_without_answer(client, key)
                await close_run(client, key)
                text = await _whole_text(client, key)
                await reader.catch_up(text)
                # A copy of the folder is another writer of the same lines: see the guarantees.
                alone = before == (self._clones, self._clones_over) == (before[0], before[0])
                seen = reader.text if alone else reader.text_once
                self._check_same(f"live tail of {key}", text, seen)

    async def _delete_and_begin_anew(self, client: httpx.AsyncClient) -> None:
        """Two runs of a pipeline; one or both are deleted, and go on under their names."""
        for number in count():
            if not self._going_on:
                return
            keys = [RunKey(f"torture.deleted-{number}", run) for run in ("a", "b")]
            writers = [Named(client, key, self._dice, self._store.holds) for key in keys]
            for _ in range(self._dice.randint(1, 3)):
                for writer, key in zip(writers, keys, strict=True):
                    await self._send(writer, key, 200, batches=15)
                gone = self._dice.choice([keys[:1], keys])
                await self._delete(client, gone)
                for key in gone:
                    self._sent[key] = []
                    left = await _whole_text(client, key, none=b"")
                    self._check_same(f"{key} after its deletion", b"", left)
            for writer, key in zip(writers, keys, strict=True):
                await self._send(writer, key, 200, batches=15)
                self.faults += writer.faults
                self.retries += writer.retries

    async def _delete(self, client: httpx.AsyncClient, keys: list[RunKey]) -> None:
        """One run, or, given two, their pipeline."""
        path = run_path(keys[0]) if len(keys) == 1 else f"{BASE}/{keys[0].fqn}"
        self.deletions += 1
        while True:
            try:
                reply = await client.delete(path)
            except httpx.TransportError:
                pass
            else:
                if reply.status_code == 200:
                    return
                if reply.status_code not in (503, 507):
                    raise RuntimeError(f"{reply.status_code}: {reply.text}")
            await asyncio.sleep(_RETRY_SECONDS)

    @asynccontextmanager
    async def _writer(
        self, client: httpx.AsyncClient, key: RunKey, name: str
    ) -> AsyncIterator[Writer]:
        writer: Named | Nameless | FirstGeneration
        if name.startswith("named"):
            writer = Named(client, key, self._dice, self._store.holds)
        elif name.startswith("nameless"):
            writer = Nameless(client, key, self._dice)
        else:
            writer = FirstGeneration(self._service.url, key, self._dice)
        try:
            yield writer
        finally:
            await writer.end()
        self.retries += writer.retries
        if isinstance(writer, Named):
            self.faults += writer.faults

    @asynccontextmanager
    async def _reader(self, client: httpx.AsyncClient, key: RunKey) -> AsyncIterator[Reader]:
        reader = Reader(client, key)
        try:
            yield reader
        finally:
            reader.end()

    async def _send(self, writer: Writer, key: RunKey, widest: int, *, batches: int) -> None:
        sent = self._sent.setdefault(key, [])
        for _ in range(batches):
            # Known before it is posted: what is acknowledged while we are cut off counts as well.
            sent.append(Sent(self._batch(key, len(sent), widest)))
            await writer.send(sent[-1])

    def _batch(self, key: RunKey, number: int, widest: int) -> bytes:
        lines = self._dice.randint(1, 30)
        return b"".join(
            f"{key.run} batch {number} line {i} {'x' * self._dice.randrange(widest)}\n".encode()
            for i in range(lines)
        )

    # --- comparing -----------------------------------------------------------------

    async def _compare(self, client: httpx.AsyncClient) -> None:
        for key, sent in self._sent.items():
            text = await download(client, key)
            fault = explain(sent, text)
            if fault is not None:
                self.faults.append(f"download of {key}: {fault}")
            self._check_same(f"pages of {key}", text, await read_pages(client, key, limit=500))
            self._check_same(f"query of {key}", text, await query_text(client, key))

    def _check_same(self, what: str, expected: bytes, found: bytes) -> None:
        fault = differences(expected, found)
        if fault is not None:
            self.faults.append(f"{what}: {fault}")


class Reader:
    """Follows a run, also when it was complete and went on."""

    def __init__(self, client: httpx.AsyncClient, key: RunKey) -> None:
        self._follower = Follower(client, key)
        self._following = asyncio.create_task(self._follower.run())

    @property
    def text(self) -> bytes:
        """All that came so far."""
        return self._follower.text

    @property
    def text_once(self) -> bytes:
        """The same, each line where it came first; no two lines of a run are equal."""
        return b"".join(dict.fromkeys(self.text.splitlines(keepends=True)))

    async def catch_up(self, text: bytes) -> None:
        """Returns when it has as much, repetitions aside; an error says what it never gets."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._follow_until(len(text))
        except TimeoutError as error:
            raise RuntimeError(
                f"{self._follower} does not get all: {differences(text, self.text_once)}"
            ) from error

    async def _follow_until(self, size: int) -> None:
        while len(self.text_once) < size:
            if self._following.done():
                self._following.result()
                self._follower.complete.clear()
                self._following = asyncio.create_task(self._follower.run())
            await asyncio.sleep(_RETRY_SECONDS)

    def end(self) -> None:
        """Follows no more."""
        self._following.cancel()


async def _close_without_answer(client: httpx.AsyncClient, key: RunKey) -> None:
    """A close whose answer nobody waits for: the next line may open the run again."""
    try:
        await client.post(run_path(key, verb="close"), timeout=5)
    except httpx.TransportError:
        return


async def _shipped(url: str, key: RunKey) -> None:
    """Returns when a line that was sent just now is in the object store."""
    headers = {"Content-Type": "text/plain", "Tailrace-Durability": "bulk"}
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        while (await client.post(run_path(key), content=b"one\n", headers=headers)).is_error:
            await asyncio.sleep(_RETRY_SECONDS)


async def _whole_text(
    client: httpx.AsyncClient, key: RunKey, *, none: bytes | None = None
) -> bytes:
    """The log of a run that nobody writes to, from a service that may be killed meanwhile.

    `none` is what stands for a run that does not exist; without it that is an error.
    """
    while True:
        try:
            return await download(client, key)
        except httpx.TransportError:
            await asyncio.sleep(_RETRY_SECONDS)
        except httpx.HTTPStatusError as error:
            if error.response.status_code == 404 and none is not None:
                return none
            if error.response.status_code != 503:
                raise
            await asyncio.sleep(_RETRY_SECONDS)


def _first_traceback(service: ServiceProcess) -> str:
    return service.output().partition("Traceback")[2][:2000]
