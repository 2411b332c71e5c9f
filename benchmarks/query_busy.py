"""Searches beside ingest at full speed and compaction, and ingest beside searches.

    python -m benchmarks.query_busy [--gigabytes 0.4] [--fill 50] [--seconds 30] [--pause 0]

A service with a table of that much text answers searches of it over HTTP, one after the other,
first alone, then while wrk posts batches of 1,000 lines over eight connections as fast as they are
taken and what was posted is compacted every ten seconds. Without a `--pause` between two searches
they want all cores as well, as long as they last. The same posts are measured without searches,
before and after. All that is behind `--fill` seconds of posts: by then the journal has filled to
where it slows its clients to what the store takes, which would else come in between. Client, load,
service and compactor share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks import query
from benchmarks.ingest import CONNECTIONS, PATHS, Case, make_case
from benchmarks.process import Load, load
from benchmarks.query_peer import Search, Tailrace, searches

_LINES = 1_000
_COMPACTION = {"TAILRACE_COMPACTION__ENABLED": "true", "TAILRACE_COMPACTION__EVERY_SECONDS": "10"}
_TABLE = {"to": "2026-11-21T00:59:59.999Z"}  # not what is posted meanwhile


def _post(service: Tailrace, case: Case, seconds: float, folder: Path) -> Load:
    return load(
        *(service.url, PATHS, case.bodies),
        seconds=seconds,
        connections=CONNECTIONS,
        content_type=case.content_type,
        folder=folder,
    )


def _search(
    service: Tailrace, asked: Sequence[Search], ends: threading.Event, pause: float = 0
) -> dict[str, float]:
    """Medians in ms. Asks all at least once, and again until it `ends`, with pauses between."""
    taken: dict[str, list[float]] = {search.name: [] for search in asked}
    while True:
        for search in asked:
            taken[search.name].append(service.ask(search).ms)
            ends.wait(pause)
        if ends.is_set():
            return {name: statistics.median(each) for name, each in taken.items()}


def _alone(
    service: Tailrace, asked: Sequence[Search], seconds: float, pause: float = 0
) -> Mapping[str, float]:
    ends = threading.Event()
    threading.Timer(seconds, ends.set).start()
    return _search(service, asked, ends, pause)


def main() -> None:
    """Prints a line for each search, and one for the posts."""
    parser = argparse.ArgumentParser(description="Search beside ingest and compaction.")
    parser.add_argument("--gigabytes", type=float, default=0.4, help="text in the table")
    parser.add_argument("--fill", type=float, default=50, help="seconds of posts before")
    parser.add_argument("--seconds", type=float, default=30, help="of each part")
    parser.add_argument("--pause", type=float, default=0, help="seconds between two searches")
    arguments = parser.parse_args()
    arguments.hours, arguments.rounds = 1, 1
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        folder = Path(root)
        asyncio.run(query.measure(root, arguments))
        asked = [
            replace(search, ours={**search.ours, **_TABLE})
            for search in searches(query.RUNS[7].fqn, query.NEEDLE)
        ]
        case = make_case(folder, _LINES, "raw")
        service = Tailrace(folder / "data", folder / "store", **_COMPACTION)
        service.start()
        stack.callback(service.stop)
        for _ in range(2):  # the first pass of the compactor rewrites what the first loop copied
            _alone(service, asked, 0)
            _alone(service, asked, 0)
            service.wait_for_copies()
        quiet = _alone(service, asked, arguments.seconds, arguments.pause)
        _post(service, case, arguments.fill, folder)
        before = _post(service, case, arguments.seconds, folder)
        found: dict[str, float] = {}
        ends = threading.Event()
        searching = threading.Thread(
            target=lambda: found.update(_search(service, asked, ends, arguments.pause))
        )
        searching.start()
        beside = _post(service, case, arguments.seconds, folder)
        ends.set()
        searching.join()
        after = _post(service, case, arguments.seconds, folder)
    print(f"{'search':<20}{'alone ms':>10}{'beside ingest':>15}{'ratio':>7}")
    for name, ms in quiet.items():
        print(f"{name:<20}{ms:>10.1f}{found[name]:>15.1f}{found[name] / ms:>7.2f}")
    for name, seen in (("alone", before), ("beside searches", beside), ("alone again", after)):
        speed = seen.rate * case.text_bytes / 1e6
        print(f"posts {name:<16}{speed:6.0f} MB/s, p99 {seen.p99_ms:.0f} ms, errors {seen.errors}")


if __name__ == "__main__":
    main()
