"""The fixed cost of a search, over HTTP: what it takes beside reading what it asks for.

    empty      an hour that nothing is in: no file is read
    regex      the same by a regular expression, which has a process of its own
    first      the first of each kind, which opens a database
    newest     limit=1 over everything: one file or row group at the least

Each is sent many times over one connection. `health` is the same for a route that does nothing.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Final

import httpx

from tests.e2e.service_process import ServiceProcess

_ROUNDS: Final = 100
_EMPTY: Final = {"from": "2026-11-01T00:00:00Z", "to": "2026-11-01T00:59:59Z", "limit": "1"}
_SEARCHES: Final = {
    "empty": _EMPTY,
    "regex": _EMPTY | {"q": "/a+b/"},
    "newest": {"from": "0", "limit": "1"},
}


def report(data: Path, store: Path) -> None:
    """Serves the store and prints a line for each search: the first, p50 and p95 in ms."""
    service = ServiceProcess(data, store=store)
    service.start()
    try:
        with httpx.Client(base_url=service.url, timeout=60) as client:
            print(f"{'over HTTP':<18} {'first ms':>10} {'p50 ms':>9} {'p95 ms':>9}")
            _print("health", _times(client, "/health/live", {}))
            for name, parameters in _SEARCHES.items():
                _print(name, _times(client, "/query", parameters))
    finally:
        service.stop()


def _times(client: httpx.Client, path: str, parameters: dict[str, str]) -> list[float]:
    taken = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        client.get(path, params=parameters).raise_for_status()
        taken.append((time.perf_counter() - began) * 1000)
    return taken


def _print(name: str, taken: list[float]) -> None:
    p95 = statistics.quantiles(taken, n=20)[-1]
    print(f"{name:<18} {taken[0]:>10.1f} {statistics.median(taken):>9.1f} {p95:>9.1f}")
