"""A store that refuses every write, at full load.

    python -m benchmarks.outage [--seconds 120] [--lines 100]

The store's folder is taken away for `--seconds` while 8 connections post; then it comes
back. Clients must see no error, memory must stay flat, and everything that was
acknowledged must arrive: the runs are closed, and their lines counted and compared.
"""

from __future__ import annotations

import argparse
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
    """Takes the store's folder away and brings it back."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._away = store.with_name("store.away")

    def begin(self) -> None:
        """From here on no write succeeds: a file stands in the folder's place."""
        self._store.rename(self._away)
        self._store.write_bytes(b"")

    def end(self) -> None:
        """The store is back as it was."""
        self._store.unlink()
        self._away.rename(self._store)


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
    service.start()
    outage = Outage(store)
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
    delivered, needed = _deliver(service)
    expected = seen.requests * lines
    print(
        f"{seconds:g} s without a store: {seen.requests} batches at {seen.rate:.0f}/s, "
        f"{seen.errors} errors, p99 {seen.p99_ms:.1f} ms, RSS at most {watched.peak_mb:.0f} MB, "
        f"drift {watched.late_growth_mb:+.0f} MB; {delivered} lines delivered {needed:.0f} s "
        f"after its return, at least {expected} acknowledged"
    )
    service.stop()
    # wrk leaves with up to one unanswered request a connection.
    right = 0 <= delivered - expected <= CONNECTIONS * lines
    return 0 if right and seen.errors == 0 else 1


def _deliver(service: ServiceProcess) -> tuple[int, float]:
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
