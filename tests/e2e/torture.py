"""kill -9 at random moments under load: `make torture`.

Writers post numbered lines to a few runs and retry what was not acknowledged; runs are
closed, reopened by late lines, and new ones begun; every so often the service is killed
with -9 and started again. In the end every acknowledged line must be there once and in
order, in the pages, the download, the live tail and the query.

With `--store minio` the objects are on a real S3 server, with `--store faults` on one behind a
proxy that misbehaves; some runs are then so large that they are uploaded in parts, and in
the end no upload may be left.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

import httpx

from logstore.batch import RunKey
from tests.e2e.clients import (
    Follower,
    close_run,
    differences,
    download,
    post_all,
    query_text,
    read_pages,
)
from tests.e2e.service_process import ServiceProcess
from tests.e2e.torture_store import KINDS, TorturedStore, tortured_store

WRITERS = 4
LARGE_LINE_BYTES = 20_000


class Torture:
    """One service, a few writers, and somebody who kills."""

    def __init__(self, folder: Path, store: TorturedStore, *, kills: int, seed: int) -> None:
        self._dice = random.Random(seed)
        self._kills = kills
        self._killed = 0
        self._store = store
        self._service = ServiceProcess(
            folder / "node",
            TAILRACE_FLUSH__SEGMENT_SECONDS="0.3",
            TAILRACE_FLUSH__SEGMENT_BYTES="200000",
            TAILRACE_RUNS__PARTIAL_FLUSH_INTERVAL_MINUTES="0.01",
            TAILRACE_RUNS__EARLY_FLUSH_WATERMARK_BYTES="100000",
            TAILRACE_JOURNAL__FILE_BYTES="1048576",
            store=None,
            **store.settings,
        )
        self.texts: dict[RunKey, bytes] = {}
        self.retries = 0
        self.faults: list[str] = []

    async def run(self) -> None:
        """Kills, then compares."""
        self._service.start()
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(
            base_url=self._service.url, limits=limits, timeout=30
        ) as client:
            writing = [asyncio.create_task(self._write(client, n)) for n in range(WRITERS)]
            await self._kill_again_and_again()
            await asyncio.gather(*writing)
            await asyncio.gather(*(close_run(client, key) for key in self.texts))
            await self._compare(client)
        status = self._service.stop()
        if status != 0:
            self.faults.append(f"the service ended with status {status}")
        self.faults += await self._store.faults()

    async def _kill_again_and_again(self) -> None:
        while self._killed < self._kills:
            await asyncio.sleep(self._dice.expovariate(1 / 0.7))
            self._service.kill()
            self._killed += 1
            await asyncio.to_thread(self._service.start)

    async def _write(self, client: httpx.AsyncClient, writer: int) -> None:
        """Runs, one after another, until the killing is over; each has a reader."""
        number = 0
        widest = LARGE_LINE_BYTES if self._store.large and writer == 0 else 200
        while self._killed < self._kills:
            key = RunKey(f"torture.writer-{writer}", f"run-{number}")
            number += 1
            follower = Follower(client, key)
            following = asyncio.create_task(follower.run())
            batches: list[bytes] = []
            for _ in range(self._dice.randint(1, 3)):
                more = [self._batch(key, len(batches) + i, widest) for i in range(60)]
                batches += more
                # Known before it is posted: what is acknowledged while we are cut off
                # counts as well.
                self.texts[key] = b"".join(batches)
                self.retries += await post_all(client, key, more)
                if self._dice.random() < 0.5:
                    break
                await client_close(client, key)
            await close_run(client, key)
            async with asyncio.timeout(400):
                while len(follower.text) < len(self.texts[key]):
                    if following.done():
                        follower.complete.clear()
                        following = asyncio.create_task(follower.run())
                    await asyncio.sleep(0.02)
            following.cancel()
            self._check(f"live tail of {key}", self.texts[key], follower.text)

    def _batch(self, key: RunKey, number: int, widest: int) -> bytes:
        lines = self._dice.randint(1, 30)
        return b"".join(
            f"{key.run} batch {number} line {i} {'x' * self._dice.randrange(widest)}\n".encode()
            for i in range(lines)
        )

    async def _compare(self, client: httpx.AsyncClient) -> None:
        for key, text in self.texts.items():
            self._check(f"pages of {key}", text, await read_pages(client, key, limit=500))
            self._check(f"download of {key}", text, await download(client, key))
            self._check(f"query of {key}", text, await query_text(client, key))

    def _check(self, what: str, expected: bytes, found: bytes) -> None:
        fault = differences(expected, found)
        if fault is not None:
            self.faults.append(f"{what}: {fault}")


async def client_close(client: httpx.AsyncClient, key: RunKey) -> None:
    """A close whose answer nobody waits for: the next line may reopen the run."""
    try:
        await client.post(
            f"/api/v1/services/ingestionPipelines/logs/{key.fqn}/{key.run}/close", timeout=5
        )
    except httpx.TransportError:
        return


def main() -> int:
    """0 if nothing was lost, doubled or out of order."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--store", choices=KINDS, default="local")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)  # also of a run that does not come to its end
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-torture-") as temporary,
        tortured_store(arguments.store, arguments.seed) as store,
    ):
        torture = Torture(
            arguments.folder or Path(temporary), store, kills=arguments.kills, seed=arguments.seed
        )
        asyncio.run(torture.run())
    lines = sum(text.count(b"\n") for text in torture.texts.values())
    print(
        f"seed {arguments.seed}: {arguments.kills} kills, {len(torture.texts)} runs, {lines} "
        f"lines, {torture.retries} retries, {len(torture.faults)} faults"
    )
    if store.told():
        print(store.told())
    for fault in torture.faults[:20]:
        print(fault)
    return 1 if torture.faults else 0


if __name__ == "__main__":
    sys.exit(main())
