"""A store that refuses every write, at full load.

    python -m benchmarks.outage [--seconds 120] [--lines 100]

The store's folder is read-only for `--seconds` while 8 connections post; then it takes
writes again. Clients must see no error, memory must stay flat, and everything that was
acknowledged must arrive: the runs are closed, and their lines counted and compared.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx

from benchmarks.ingest import CONNECTIONS, PATHS, make_case
from benchmarks.process import Watched, load
from tests.e2e.service_process import ServiceProcess


class Outage:
    """Makes the store's folder read-only by a mount of its own; needs root on Linux."""

    def __init__(self, store: Path) -> None:
        self._store = str(store)
        store.mkdir()
        _mount("--bind", self._store, self._store)

    def begin(self) -> None:
        """From here on no write succeeds. Repeated while a file is just being written."""
        while True:
            try:
                _mount("-o", "remount,ro,bind", self._store)
            except subprocess.CalledProcessError:
                time.sleep(0.01)
            else:
                return

    def end(self) -> None:
        """The store takes writes again."""
        _mount("-o", "remount,rw,bind", self._store)

    def remove(self) -> None:
        """Takes the mount away."""
        subprocess.run(["umount", "--lazy", self._store], check=True)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def main() -> int:
    """0 if nobody noticed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--lines", type=int, default=100)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=".") as temporary:
        return _run(Path(temporary).resolve(), arguments.seconds, arguments.lines)


def _run(folder: Path, seconds: float, lines: int) -> int:
    case = make_case(folder, lines, "raw")
    store = folder / "store"
    service = ServiceProcess(
        folder / "data", store=store, TAILRACE_JOURNAL__MAX_BYTES=str(60 << 30)
    )
    outage = Outage(store)
    service.start()
    before = 10.0
    threading.Timer(before, outage.begin).start()
    watched = Watched(service.pid)
    seen = load(
        service.url,
        PATHS,
        case.bodies,
        seconds=before + seconds,
        connections=CONNECTIONS,
        content_type="text/plain",
        folder=folder,
    )
    watched.end()
    outage.end()
    delivered, needed = deliver(service)
    expected = seen.requests * lines
    print(
        f"{seconds:g} s without a store: {seen.requests} batches at {seen.rate:.0f}/s, "
        f"{seen.errors} errors, p99 {seen.p99_ms:.1f} ms, RSS at most {watched.peak_mb:.0f} MB, "
        f"drift {watched.late_growth_mb:+.0f} MB; {delivered} lines delivered {needed:.0f} s "
        f"after its return, at least {expected} acknowledged"
    )
    service.stop()
    outage.remove()
    # wrk leaves with up to one unanswered request a connection.
    right = 0 <= delivered - expected <= CONNECTIONS * lines
    return 0 if right and seen.errors == 0 else 1


def deliver(service: ServiceProcess) -> tuple[int, float]:
    """Closes the runs: their lines, and the seconds that it took."""
    start = time.monotonic()
    total = 0
    with httpx.Client(base_url=service.url, timeout=60) as client:
        for path in PATHS:
            while client.post(f"{path}/close").json()["state"] != "closed":
                time.sleep(0.5)
            total += client.get(path, params={"limit": 1}).json()["totalLines"]
    return total, time.monotonic() - start


if __name__ == "__main__":
    sys.exit(main())
