"""A real service takes lines; two processes share a pipeline and are killed; then files are read.

Each line says who wrote it, its number, and the time that its record carries. The files must have
every acknowledged line once, and each file's lines in order of time, but for as many as the
checkpoints count as late. Lines of one writer are a millisecond apart, and come in batches.

Some writers delete their run now and then, and go on with it. A file has lines of one generation
of it; those of earlier ones may be missing, and are there once at most.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.e2e.service_process import BASE, ServiceProcess
from tests.e2e.torture_store import TorturedStore

_PATIENCE_SECONDS = 180.0
_PARTS = 3
_MOST_BATCH = 200
_LINE = 56
_ROLLED_BYTES = 40_000
_WRITERS = 5
_DELETING = (3, 4)
_DELETIONS = 0.01  # of batches


class Writer(threading.Thread):
    """Posts records of one run, batch by batch, until it is told to stop."""

    def __init__(self, url: str, number: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.fqn = f"shop.p{number}"
        self.lines: list[str] = []
        self.deleted: list[str] = []
        self.generation = 0
        self._deletes = number in _DELETING
        self.stopped = threading.Event()
        self._url = f"{url}{BASE}/{self.fqn}/run1"
        self._dice = random.Random(seed * 1000 + number)

    def run(self) -> None:
        with httpx.Client(timeout=60) as client:
            while not self.stopped.is_set():
                begin, count = time.time(), self._dice.randrange(1, _MOST_BATCH)
                lines, records = [], []
                for number in range(count):
                    moment = datetime.fromtimestamp(begin + number * 1e-5, UTC).isoformat()
                    what = f"g{self.generation:03d} {len(self.lines) + number:06d}"
                    lines.append(f"{moment} {self.fqn} {what}")
                    records.append(json.dumps({"message": lines[-1], "ts": moment}))
                answer = client.post(
                    self._url,
                    content="\n".join(records).encode() + b"\n",
                    headers={"Content-Type": "application/x-ndjson"},
                )
                answer.raise_for_status()
                self.lines += lines
                if self._deletes and self._dice.random() < _DELETIONS:
                    client.delete(self._url).raise_for_status()
                    self.deleted += self.lines
                    self.lines = []
                    self.generation += 1
                time.sleep(self._dice.random() * 0.05)


class PipelinesProcess:
    """`tailrace pipelines`, started and killed."""

    def __init__(
        self,
        folder: Path,
        pipelines: Path,
        settings: Mapping[str, str],
        *,
        libraries: Path | None = None,
    ) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._pipelines = str(pipelines)
        self._arguments = ["pipelines", "--data", str(folder), "--dir", self._pipelines]
        self._arguments += [] if libraries is None else ["--lib", str(libraries)]
        self._environment = {
            **os.environ,
            **settings,
            "TAILRACE_PIPELINES__LEASE_SECONDS": "10",
            "TAILRACE_PIPELINES__POLL_SECONDS": "0.5",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it; does not wait for it."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tailrace", *self._arguments],
                env=self._environment,
                stderr=log,
                stdout=log,
            )

    @property
    def pid(self) -> int:
        """The process that runs."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=_PATIENCE_SECONDS)

    def status(self) -> list[dict[str, Any]]:
        """What `tailrace pipelines status --json` says."""
        said = self.ask("status", "--json", "--dir", self._pipelines)
        return [json.loads(line) for line in said.splitlines()]

    def ask(self, *words: str) -> str:
        """What `tailrace pipelines` with these words prints, beside the process."""
        done = subprocess.run(
            [sys.executable, "-m", "tailrace", "pipelines", *words, "--data", str(self._folder)],
            env=self._environment,
            capture_output=True,
            check=True,
            text=True,
        )
        return done.stdout

    def output(self) -> str:
        """What it wrote."""
        return (self._folder / "log").read_text(errors="replace")


class Torture:
    """One story; `faults` says what is wrong, `told` what happened.

    With `http` the processes read from the service, and have a store of their own; `patient` waits
    for the leases of those that died, a minute, and looks whether the service lets all segments go.
    """

    def __init__(
        self,
        folder: Path,
        *,
        kills: int,
        seed: int,
        store: TorturedStore | None = None,
        http: bool = False,
        patient: bool = False,
    ) -> None:
        self.faults: list[str] = []
        self.told = ""
        self._store = store or TorturedStore({"TAILRACE_STORE": str(folder / "store")})
        self._http = http
        self._patient = patient
        self._folder = folder
        self._kills = kills
        self._seed = seed
        self._dice = random.Random(seed)

    def run(self) -> None:
        """Raises nothing but what is broken in the test itself."""
        folder = self._folder
        (folder / "pipelines").mkdir(parents=True)
        (folder / "pipelines" / "files.yaml").write_text(yaml.safe_dump(self._pipeline()))
        service = ServiceProcess(folder / "node", TAILRACE_FLUSH__SEGMENT_SECONDS="0.4")
        service.settings |= {**self._store.settings, "TAILRACE_QUEUE__MAX_ATTEMPTS": "2"}
        service.start()
        settings = dict(self._store.settings)
        if self._http:
            settings = {
                "TAILRACE_STORE": str(folder / "own"),
                "TAILRACE_PIPELINES__SOURCE_URL": service.url,
            }
        writers = [Writer(service.url, number, self._seed) for number in range(_WRITERS)]
        processes = [
            PipelinesProcess(folder / name, folder / "pipelines", settings)
            for name in ("first", "second")
        ]
        try:
            for writer in writers:
                writer.start()
            for process in processes:
                process.start()
            for _ in range(self._kills):
                self._wait_for_work()
                process = self._dice.choice(processes)
                process.kill()
                process.start()
            for writer in writers:
                writer.stopped.set()
                writer.join()
            self._wait(processes[0], writers)
            if self._http and self._patient:
                self._let_go(service.url)
            for process in processes:
                if process.stop() != 0:
                    self.faults.append(f"a process did not stop well: {process.output()[-2000:]}")
        finally:
            for process in processes:
                process.kill()
            service.stop()
        self._judge(writers, processes[0].status())
        for process in processes:
            if "Traceback" in process.output():
                self.faults.append(process.output()[-3000:])

    def _pipeline(self) -> dict[str, Any]:
        return {
            "name": "files",
            "parts": _PARTS,
            "event_delay_ms": 200,
            "idle_node_ms": 3000,
            "checkpoint_interval_ms": 700,
            "appenders": [
                {
                    "type": "rolling_file",
                    "name": "plain",
                    "dir": str(self._folder / "out"),
                    "path": "{service}/{fqn}.log",
                    "layout": {"type": "raw"},
                    "max_file_size": _ROLLED_BYTES,
                    "compress": "gzip",
                }
            ],
        }

    def _wait_for_work(self) -> None:
        """Until lines were written that no checkpoint has, or a moment later."""
        end = time.monotonic() + _PATIENCE_SECONDS
        before = self._written()
        while self._written() - before < 2 * _MOST_BATCH * _LINE and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(self._dice.random() * 0.5)

    def _written(self) -> int:
        """Bytes that were written, about: of files that were rolled the size that they had."""
        total = len(list(self._folder.glob("out/shop/*.??????.log*"))) * _ROLLED_BYTES
        for path in self._folder.glob("out/shop/shop.p?.log"):
            with suppress(FileNotFoundError):  # just renamed
                total += path.stat().st_size
        return total

    def _wait(self, process: PipelinesProcess, writers: list[Writer]) -> None:
        """Until the files have all that was not deleted, or for long enough."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            rows = process.status()
            behind = any(row["segments_behind"] for row in rows)
            if not behind and all(self._has_all(one) for one in writers):
                return
            if time.monotonic() > end:
                self.faults.append(f"not all lines come: {rows}")
                return
            time.sleep(1)

    def _has_all(self, writer: Writer) -> bool:
        found = {line for file in self._files_of(writer.fqn) for line in file}
        return found.issuperset(writer.lines)

    def _let_go(self, url: str) -> None:
        """Leases of dead processes run out, and the group lets all segments go: none has failed."""
        end, group = time.monotonic() + _PATIENCE_SECONDS, {"lag": {"segments": -1}}
        while group["lag"]["segments"] and time.monotonic() < end:
            time.sleep(1)
            group = httpx.get(f"{url}/segments/groups/pipeline%3Afiles%40http", timeout=60).json()
        if group["lag"]["segments"]:
            self.faults.append(f"the group keeps what the pipeline has: {group}")

    def _judge(self, writers: list[Writer], rows: list[dict[str, Any]]) -> None:
        late = sum(row["late"] for row in rows)
        backward = total = 0
        for writer in writers:
            files = self._files_of(writer.fqn)
            mixed = sum(len({line.split()[2] for line in file}) > 1 for file in files)
            if mixed:
                self.faults.append(f"{writer.fqn}: {mixed} files have several generations")
            found = [line for file in files for line in file]
            total += len(found)
            wanted, have = Counter(writer.lines), Counter(found)
            missing, more = wanted - have, have - wanted - Counter(writer.deleted)
            if missing:
                self.faults.append(f"{writer.fqn} lacks {len(missing)}: {sorted(missing)[:3]}")
            if more:
                self.faults.append(f"{writer.fqn} has {len(more)} too many: {sorted(more)[:3]}")
            backward += sum(one > other for one, other in pairwise(found))
        if backward > late:
            self.faults.append(f"{backward} lines are out of order, {late} were counted as late")
        deletions = sum(one.generation for one in writers)
        told = f"{total} lines, {self._kills} kills, {deletions} deletions, {late} late"
        self.told = f"{told}, {len(self.faults)} faults"

    def _files_of(self, fqn: str) -> list[list[str]]:
        """The lines of each file, the oldest first; one that is being rolled may be missing."""
        found: list[list[str]] = []
        folder = self._folder / "out" / "shop"
        rolled = sorted(folder.glob(f"{fqn}.??????.log*"))
        for path in [*rolled, folder / f"{fqn}.log"]:
            with suppress(FileNotFoundError):
                data = path.read_bytes()
                text = gzip.decompress(data) if path.suffix == ".gz" else data
                found.append(text.decode().splitlines())
        return found
