"""The promise, shown: `make demo`.

Thirteen logs are posted as thirteen runs, each with a reader on its live tail. In the
middle the service is killed with -9 and started again. Then the runs are closed, the
segments compacted twice, and every way to read a run is compared with what was posted,
byte for byte. After that the data folder is cloned and both copies go on against one
store, and an older copy is restored over a newer one. Exits non-zero if a line is lost,
doubled or out of order.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Final

import duckdb
import httpx
from deltalake import DeltaTable

from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.progress import Line, ProgressLine
from tests.e2e.clients import (
    Follower,
    batches_of,
    close_run,
    differences,
    download,
    post_all,
    query_text,
    read_pages,
    whole_lines,
)
from tests.e2e.logs import demo_logs
from tests.e2e.service_process import ServiceProcess
from tests.servers.quick_java import QUICK

Texts = dict[RunKey, bytes]


class Demo:
    """The scenario of one folder, and the list of what went wrong."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._dice = random.Random(seed)
        self._store = folder / "store"
        self._service = self._make("node")
        self.faults: list[str] = []
        self._clock = SystemClock()
        self._began = self._step_began = self._clock.monotonic()
        self._act = ""
        self.texts: Texts = {
            RunKey(f"demo.{name}", "run-1"): whole_lines(data) for name, data in demo_logs()
        }

    def _make(self, name: str) -> ServiceProcess:
        return ServiceProcess(
            self._folder / name,
            store=self._store,
            TAILRACE_FLUSH__SEGMENT_SECONDS="1",
            TAILRACE_RUNS__PARTIAL_FLUSH_INTERVAL_MINUTES="0.03",
        )

    def _step(self, sentence: str) -> None:
        """Says what begins now, which a terminal shows with its time until the next step."""
        say(sentence)
        self._act, self._step_began = sentence, self._clock.monotonic()

    def _progress(self) -> str:
        now = self._clock.monotonic()
        step, whole = now - self._step_began, now - self._began
        return self._act and f"{self._act}: {step:.0f} s of {whole:.0f} s"

    async def play(self) -> None:
        """All acts."""
        with ProgressLine(_LINE, self._progress, self._clock, say):
            await self._play()

    async def _play(self) -> None:
        self._service.start()
        await self._write_and_kill()
        await self._close_and_compact()
        await self._check_all(self._service)
        self._check_table()
        await self._clone()
        await self._restore()
        self._service.stop()

    # --- act one: write, watch, kill -------------------------------------------------

    async def _write_and_kill(self) -> None:
        self._step(f"posting {len(self.texts)} runs, a reader on each live tail")
        async with self._client(self._service) as client:
            followers = {key: Follower(client, key) for key in self.texts}
            following = [asyncio.create_task(f.run()) for f in followers.values()]
            posting = [
                asyncio.create_task(post_all(client, key, batches_of(text, self._dice), pause=0.03))
                for key, text in self.texts.items()
            ]
            await asyncio.sleep(0.8)
            self._step("kill -9, and start again")
            self._service.kill()
            await asyncio.to_thread(self._service.start)
            retries = sum(await asyncio.gather(*posting))
            self._step(f"all posted, with {retries} repeated tries; closing the runs")
            await asyncio.gather(*(close_run(client, key) for key in self.texts))
            async with asyncio.timeout(300):
                await asyncio.gather(*following)
            for key, follower in followers.items():
                self._compare(f"live tail of {key.fqn}", self.texts[key], follower.text)

    async def _close_and_compact(self) -> None:
        for _ in range(2):
            self._step("compacting")
            self._act = ""  # it shows how far it is itself
            await asyncio.to_thread(self._compact)

    def _compact(self) -> None:
        subprocess.run(
            [sys.executable, "-m", "tailrace", "compact", "--data", str(self._folder / "node")],
            check=True,
            env={**os.environ, "TAILRACE_STORE": str(self._store)},
        )

    # --- checking --------------------------------------------------------------------

    async def _check_all(self, service: ServiceProcess) -> None:
        self._step("comparing pages, download and query with what was posted")
        async with self._client(service) as client:
            for key, text in self.texts.items():
                limit = self._dice.choice([7, 100, 1000, 5000])
                self._compare(
                    f"pages of {key.fqn}", text, await read_pages(client, key, limit=limit)
                )
                self._compare(f"download of {key.fqn}", text, await download(client, key))
                self._compare(f"query of {key.fqn}", text, await query_text(client, key))

    def _check_table(self) -> None:
        self._step("comparing the table")
        files = DeltaTable(str(self._store / "table")).file_uris()
        for key, text in self.texts.items():
            rows = duckdb.execute(
                "select message from read_parquet(?, hive_partitioning = true) "
                "where fqn = ? and run_id = ? order by ulid",
                [files, key.fqn, key.run],
            ).fetchall()
            found = "".join(f"{message}\n" for (message,) in rows).encode()
            self._compare(f"table of {key.fqn}", text, found)

    def _compare(self, what: str, expected: bytes, found: bytes) -> None:
        fault = differences(expected, found)
        if fault is not None:
            self.faults.append(f"{what}: {fault}")
            say(f"WRONG {what}: {fault}")

    # --- acts two and three: copies of the folder --------------------------------------

    async def _clone(self) -> None:
        self._step("cloning the data folder: both copies go on against one store")
        await self._post_more(self._service, "before-clone")
        self._service.kill()
        shutil.copytree(self._folder / "node", self._folder / "clone")
        clone = self._make("clone")
        self._service.start()
        clone.start()
        await asyncio.gather(
            self._post_more(self._service, "original"), self._post_more(clone, "clone")
        )
        await self._settle(clone)
        clone.stop()
        await self._settle(self._service)
        await self._check_all(self._service)

    async def _restore(self) -> None:
        self._step("restoring an older copy of the data folder")
        self._service.kill()
        shutil.copytree(self._folder / "node", self._folder / "older")
        self._service.start()
        await self._post_more(self._service, "before-restore")
        await self._settle(self._service)
        self._service.stop()
        shutil.rmtree(self._folder / "node")
        shutil.move(self._folder / "older", self._folder / "node")
        self._service.start()
        await self._post_more(self._service, "after-restore")
        await self._settle(self._service)
        await asyncio.to_thread(self._compact)
        await self._check_all(self._service)
        self._check_table()

    async def _post_more(self, service: ServiceProcess, run: str) -> None:
        key = RunKey("demo.copies", run)
        text = b"".join(b"%s line %d\n" % (run.encode(), i) for i in range(2000))
        async with self._client(service) as client:
            await post_all(client, key, batches_of(text, self._dice))
        self.texts[key] = text

    async def _settle(self, service: ServiceProcess) -> None:
        """Closes the runs of the copies, so that all their lines are in the store."""
        async with self._client(service) as client:
            for key in [key for key in self.texts if key.fqn == "demo.copies"]:
                await close_run(client, key)

    def _client(self, service: ServiceProcess) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=100)
        return httpx.AsyncClient(base_url=service.url, limits=limits, timeout=120)


_LINE: Final = Line(sys.stdout)


def say(sentence: str) -> None:
    """Tells the person who watches."""
    _LINE.write(f"{sentence}\n")
    _LINE.flush()


def in_folder(folder: Path | None, play: Callable[[Path], Coroutine[None, None, int]]) -> int:
    """Plays in `folder`, or in a temporary one that goes afterwards."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        return asyncio.run(play(folder))
    with tempfile.TemporaryDirectory(prefix="tailrace-demo-") as temporary:
        return asyncio.run(play(Path(temporary)))


def main() -> int:
    """Plays the demo: 0 if every line was where it belongs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path, help="where to keep what it makes")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    os.environ.update(QUICK)

    async def play(folder: Path) -> int:
        demo = Demo(folder, arguments.seed)
        await demo.play()
        lines = sum(text.count(b"\n") for text in demo.texts.values())
        if demo.faults:
            say(f"FAILED: {len(demo.faults)} comparisons differ")
            return 1
        say(f"every one of {lines} lines is where it belongs, once and in order")
        return 0

    return in_folder(arguments.folder, play)


if __name__ == "__main__":
    sys.exit(main())
