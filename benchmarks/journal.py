"""Acks of the journal alone, on a quiet disk and beside somebody who writes and syncs large files.

    python -m benchmarks.journal [--seconds 4] [--file-mib 16] [--spares 2] [--folder FOLDER]

Eight writers, each with one batch under way. The neighbour writes 8 MiB files and syncs
each, ten a second at most, in the same file system, as flushes and segments do. A file
goes as soon as it is full. `--spares 0` deletes it, so that every new one grows.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import threading
import time

import numpy as np

from service.journal.journal import Journal
from service.journal.recovery import recover
from service.journal.state import JournalState
from service.runtime.process import in_thread
from service.settings import JournalSettings
from tailrace.logstore.batch import RunKey, digest
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk, Syncer, syncer_for

WRITERS = 8
SIZES = (120, 12_000, 126_000)
NODE = "node-01J00000000000000000000000"
_STEP = 1 << 25  # from one batch's id to the next


class Neighbour:
    """A thread that writes and syncs files; a context manager."""

    def __init__(self, folder: str, *, at_work: bool) -> None:
        self._folder = folder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work) if at_work else None

    def __enter__(self) -> None:
        if self._thread is not None:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        piece = os.urandom(1 << 20)
        while not self._stop.wait(0.1):
            fd = os.open(f"{self._folder}/neighbour", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            try:
                for _ in range(8):
                    os.write(fd, piece)
                os.fsync(fd)
            finally:
                os.close(fd)


class Bench:
    """A journal, and what its writers waited."""

    def __init__(
        self, folder: str, settings: JournalSettings, spares: int, syncer: Syncer, size: int
    ) -> None:
        fs = Disk()
        self.journal = Journal(
            fs,
            folder,
            syncer,
            SystemClock(),
            random.Random(1),
            settings,
            recover(fs, folder),
            JournalState(NODE),
            lambda _: None,
            offload=in_thread,
            spare_files=spares,
        )
        self.seconds: list[float] = []
        self._text = b"x" * (size - 1) + b"\n"
        self._digest = digest(self._text)
        self._ids = iter(range(_STEP, 1 << 80, _STEP))

    async def run(self, seconds: float) -> None:
        until = time.perf_counter() + seconds
        await asyncio.gather(self._ship(until), *[self._write(until) for _ in range(WRITERS)])

    async def _write(self, until: float) -> None:
        key = RunKey("service", "run")
        while (start := time.perf_counter()) < until:
            _, done = self.journal.append(
                key, next(self._ids), self._text, records=1, lines=1, digest=self._digest
            )
            await done
            self.seconds.append(time.perf_counter() - start)

    async def _ship(self, until: float) -> None:
        while time.perf_counter() < until:
            await asyncio.sleep(0.02)
            if len(self.journal.files) > 1:
                last = self.journal.state.last_cut()
                cut = await self.journal.record_cut(last.seq + 1, last.end)
                self.journal.confirm(cut)
                self.journal.release(cut.end)


async def measure(arguments: argparse.Namespace, size: int, *, loaded: bool) -> None:
    settings = JournalSettings(file_bytes=arguments.file_mib << 20)
    syncer = syncer_for(asyncio.get_running_loop())
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        bench = Bench(f"{folder}/journal", settings, arguments.spares, syncer, size)
        with Neighbour(folder, at_work=loaded):
            await bench.run(arguments.seconds / 2)  # until there are spares
            bench.seconds.clear()
            await bench.run(arguments.seconds)
        await bench.journal.close()
    syncer.close()
    micros = np.array(bench.seconds) * 1e6
    half, most, rare = np.percentile(micros, [50, 99, 99.9])
    print(
        f"{size:>7} B  {'beside a neighbour' if loaded else 'quiet':<18} "
        f"{len(micros) / arguments.seconds:>7.0f} acks/s  "
        f"p50 {half:>6.0f}  p99 {most:>6.0f}  p99.9 {rare:>6.0f} µs",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--file-mib", type=int, default=16)
    parser.add_argument("--spares", type=int, default=2)
    parser.add_argument("--folder", default=None, help="on the disk to measure")
    arguments = parser.parse_args()
    for loaded in (False, True):
        for size in SIZES:
            asyncio.run(measure(arguments, size, loaded=loaded))


if __name__ == "__main__":
    main()
