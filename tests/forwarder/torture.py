"""`make torture OF=forwarder`: real processes under real rotation, killed at random moments.

A writer appends numbered lines to a log, which is rotated by rename, by copy and truncate, or by
real logrotate, compressed or not. The forwarder sends through a proxy that drops and refuses, and
is killed with -9; so is the service. At the end each line must be in the run once, in the order in
which it was written: no rotation deletes a file here, so nothing may be lost.

`writing`: the writer goes on while logrotate works. Then lines that come between copy and
truncation are in no file any more, and may be missing; every line that a file has must be in the
run.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

from tests.e2e.service_process import ServiceProcess
from tests.faults.kinds import KNOWABLE, Kind
from tests.faults.schedule import Schedule, evenly
from tests.faults.thread import fault_proxy
from tests.forwarder.forwarder_process import ForwarderProcess, stored
from tests.servers.logrotate import logrotate

_RATE = 0.15
_LINE_SECONDS = 0.005
_ROTATE = """{log} {{
  rotate 1000
  size 1
  missingok
  nodateext
  {how}
}}
"""
_HOW = ["create", "copytruncate"]
_COMPRESS = ["", "\n  compress", "\n  compress\n  delaycompress"]


class Torture:
    """One log, one forwarder, one service, and what was written."""

    def __init__(
        self, folder: Path, seed: int, *, with_logrotate: bool, writing: bool = False
    ) -> None:
        self._dice = Random(seed)
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self._logrotate = with_logrotate
        self._writing = writing
        self._lock = threading.Lock()
        self._service = ServiceProcess(folder / "node")
        self._schedule = Schedule(
            seed, evenly(_RATE, [kind for kind in KNOWABLE if kind is not Kind.ERROR_IN_200])
        )
        self._compress = self._dice.choice(_COMPRESS)  # mixed, logrotate's names would collide
        self._written: list[str] = []
        self._rotations = 0

    def run(self, kills: int) -> dict[str, int]:
        """Kills so often, then compares: what was done, by its name. Raises `AssertionError`."""
        done = {"lines": 0, "rotations": 0, "forwarder kills": 0, "service kills": 0}
        self._service.start()
        with fault_proxy(self._service.url, self._schedule) as url:
            forwarder = ForwarderProcess(
                self._folder / "forwarder", url, run="{stem}", batch_bytes="32KiB"
            )
            self._log = forwarder.logs / "a.log"
            forwarder.start()
            with self._writer():
                for _ in range(kills):
                    for _ in range(self._dice.randrange(2, 6)):
                        self._append(self._dice.choice([1, 10, 200, 2000]))
                        time.sleep(self._dice.random() * 0.15)
                        if self._dice.random() < 0.6:
                            self._rotate()
                    if self._dice.random() < 0.2:
                        self._service.kill()
                        self._service.start()
                        done["service kills"] += 1
                    forwarder.kill()
                    done["forwarder kills"] += 1
                    if self._dice.random() < 0.5:
                        self._append(self._dice.choice([1, 100]))
                        self._rotate()
                    forwarder.start()
            self._schedule.calm()
            there = self._there()
            forwarder.until(lambda: there <= set(self._stored()))
            assert forwarder.stop() == 0, forwarder.said()
        found = self._stored()
        self._service.stop()
        expected = [line for line in self._written if line in there or line in set(found)]
        assert found == expected, _difference(found, expected)
        if len(found) == len(self._written):
            assert "before they were read" not in forwarder.said()
        destroyed = len(self._written) - len(found)
        return {**done, "lines": len(found), "rotations": self._rotations, "destroyed": destroyed}

    @contextmanager
    def _writer(self) -> Iterator[None]:
        """Appends a line each 5 ms, if it is to go on while logrotate works."""
        stop = threading.Event()

        def write() -> None:
            while not stop.wait(_LINE_SECONDS):
                self._append(1)

        thread = threading.Thread(target=write, name="writer", daemon=True)
        if self._writing:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            if self._writing:
                thread.join(timeout=10)

    def _there(self) -> set[str]:
        """The lines that a file has."""
        if not self._writing:
            return set(self._written)
        lines: set[str] = set()
        for path in self._log.parent.iterdir():
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            lines.update(data.decode().splitlines())
        return lines

    def _stored(self) -> list[str]:
        return stored(self._service.url, "a")

    def _append(self, lines: int) -> None:
        with self._lock, self._log.open("a") as file:
            for _ in range(lines):
                line = f"{len(self._written):08} {'x' * (len(self._written) * 7919 % 97 + 1)}"
                self._written.append(line)
                file.write(f"{line}\n")

    def _rotate(self) -> None:
        if not self._log.exists() or not self._log.stat().st_size:
            return
        self._rotations += 1
        if self._logrotate:
            self._by_logrotate()
            return
        backups = [path for path in self._log.parent.iterdir() if path != self._log]
        for path in sorted(backups, key=_number, reverse=True):
            ending = ".gz" if path.suffix == ".gz" else ""
            path.rename(path.with_name(f"a.log.{_number(path) + 1}{ending}"))
        first = self._log.with_name("a.log.1")
        if self._dice.random() < 0.5:
            self._log.rename(first)
        else:
            shutil.copy(self._log, first)
            os.truncate(self._log, 0)
        if self._dice.random() < 0.4:
            packed = first.with_name("a.log.1.gz")
            packed.write_bytes(gzip.compress(first.read_bytes()))
            shutil.copystat(first, packed)
            first.unlink()

    def _by_logrotate(self) -> None:
        config = self._folder / "logrotate.conf"
        config.write_text(
            _ROTATE.format(log=self._log, how=self._dice.choice(_HOW) + self._compress)
        )
        config.chmod(0o600)
        logrotate(config, self._folder / "logrotate.state")


def _number(path: Path) -> int:
    return int(path.name.removeprefix("a.log.").removesuffix(".gz"))


def _difference(found: Sequence[str], written: Sequence[str]) -> str:
    for number, (mine, its) in enumerate(zip(found, written, strict=False)):
        if mine != its:
            return f"line {number} is {mine[:20]!r} instead of {its[:20]!r}"
    return f"{len(found)} lines instead of {len(written)}"


def main() -> int:
    """Runs as the flags say."""
    parser = argparse.ArgumentParser(description=__doc__, prog="make torture OF=forwarder")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", choices=["local"], default="local")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("rename and copy", "logrotate", "logrotate under a writer"):
            done = Torture(
                Path(folder) / name,
                flags.seed,
                with_logrotate=name != "rename and copy",
                writing=name == "logrotate under a writer",
            ).run(flags.kills)
            print(f"seed {flags.seed}, {name}: {done}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
