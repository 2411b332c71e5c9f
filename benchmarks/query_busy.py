"""Searches beside ingest at full speed and compaction, and ingest beside searches.

    python -m benchmarks.query_busy [--gigabytes 0.4] [--fill 50] [--seconds 30] [--pause 0]

A service with a table of that much text answers searches of it over HTTP, one after the other,
first alone, then while wrk posts batches of 1,000 lines over eight connections as fast as they are
taken and what was posted is compacted every ten seconds. Without a `--pause` between two searches
they want all cores as well, as long as they last. The same posts are measured without searches,
before and after. All that is behind `--fill` seconds of posts: by then the journal has filled to
where it slows its clients to what the store takes, which would else come in between. Client, load,
service and compactor share the machine.

With `VICTORIA_LOGS=` its binary, VictoriaLogs goes through the same afterwards: the same records
and searches, and the same lines posted to it, as JSON with a time of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import orjson

from benchmarks import query
from benchmarks.ingest import CONNECTIONS, PATHS, Case, make_case
from benchmarks.process import Load, load
from benchmarks.query_peer import (
    BINARY,
    Place,
    Search,
    Tailrace,
    VictoriaLogs,
    load_peer,
    searches,
)

_LINES = 1_000
_COMPACTION = {"TAILRACE_COMPACTION__ENABLED": "true", "TAILRACE_COMPACTION__EVERY_SECONDS": "10"}
_TABLE = {"to": "2026-11-21T00:59:59.999Z"}  # not what is posted meanwhile
_TABLE_OF_PEER = "_time:<2026-11-21T01:00:00Z"
_PATH_OF_PEER = "/insert/jsonline?_stream_fields=fqn,run_id&_msg_field=message"


@dataclass(frozen=True)
class Posts:
    """Where batches go, which, and how much text one has on average."""

    paths: Sequence[str]
    bodies: Sequence[Path]
    content_type: str
    text_bytes: float


def _ours(case: Case) -> Posts:
    return Posts(PATHS, case.bodies, case.content_type, case.text_bytes)


def _of_peer(case: Case, folder: Path) -> Posts:
    """The same lines, as many in a body, which are one of eight runs'."""
    bodies = []
    for number, text in enumerate(case.texts):
        names = {"fqn": f"bench.pipeline-{number % 8}", "run_id": f"run-{number % 8}"}
        lines = text.read_text("utf-8", "replace").splitlines()
        body = b"".join(
            orjson.dumps(names | {"message": line}, option=orjson.OPT_APPEND_NEWLINE)
            for line in lines
        )
        bodies.append(folder / f"peer-{number}")
        bodies[-1].write_bytes(body)
    return Posts([_PATH_OF_PEER], bodies, "application/json", case.text_bytes)


def _post(url: str, posts: Posts, seconds: float, folder: Path) -> Load:
    return load(
        *(url, posts.paths, posts.bodies),
        seconds=seconds,
        connections=CONNECTIONS,
        content_type=posts.content_type,
        folder=folder,
    )


def _search(
    place: Place, asked: Sequence[Search], ends: threading.Event, pause: float = 0
) -> dict[str, float]:
    """Medians in ms. Asks all at least once, and again until it `ends`, with pauses between."""
    taken: dict[str, list[float]] = {search.name: [] for search in asked}
    while True:
        for search in asked:
            taken[search.name].append(place.ask(search).ms)
            ends.wait(pause)
        if ends.is_set():
            return {name: statistics.median(each) for name, each in taken.items()}


def _alone(
    place: Place, asked: Sequence[Search], seconds: float, pause: float = 0
) -> Mapping[str, float]:
    ends = threading.Event()
    threading.Timer(seconds, ends.set).start()
    return _search(place, asked, ends, pause)


def _report(
    name: str, place: Place, asked: Sequence[Search], posts: Posts, given: argparse.Namespace
) -> None:
    """Measures a place that runs, and prints a line for each search, and one for the posts."""
    url, folder = place.url, posts.bodies[0].parent
    quiet = _alone(place, asked, given.seconds, given.pause)
    _post(url, posts, given.fill, folder)
    before = _post(url, posts, given.seconds, folder)
    found: dict[str, float] = {}
    ends = threading.Event()
    searching = threading.Thread(
        target=lambda: found.update(_search(place, asked, ends, given.pause))
    )
    searching.start()
    beside = _post(url, posts, given.seconds, folder)
    ends.set()
    searching.join()
    after = _post(url, posts, given.seconds, folder)
    print(f"{name:<20}{'alone ms':>10}{'beside ingest':>15}{'ratio':>7}")
    for search, ms in quiet.items():
        print(f"{search:<20}{ms:>10.1f}{found[search]:>15.1f}{found[search] / ms:>7.2f}")
    for when, seen in (("alone", before), ("beside searches", beside), ("alone again", after)):
        speed = seen.rate * posts.text_bytes / 1e6
        print(f"posts {when:<16}{speed:6.0f} MB/s, p99 {seen.p99_ms:.0f} ms, errors {seen.errors}")


def main() -> None:
    """Measures ours, then the peer."""
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
            replace(
                search,
                ours={**search.ours, **_TABLE},
                theirs=f"{_TABLE_OF_PEER} {search.theirs}",
            )
            for search in searches(query.RUNS[7].fqn, query.NEEDLE)
        ]
        case = make_case(folder, _LINES, "raw")
        files = [str(path) for path in sorted((folder / "store" / "table").rglob("*.parquet"))]
        if peer := os.environ.get(BINARY):
            theirs = VictoriaLogs(peer, folder / "victoria-logs")
            theirs.start()
            load_peer(theirs.url, files)
            theirs.stop()
        service = Tailrace(folder / "data", folder / "store", **_COMPACTION)
        service.start()
        stack.callback(service.stop)
        for _ in range(2):  # the first pass of the compactor rewrites what the first loop copied
            _alone(service, asked, 0)
            _alone(service, asked, 0)
            service.wait_for_copies()
        _report("search", service, asked, _ours(case), arguments)
        stack.close()
        if not peer:
            print(f"not beside VictoriaLogs: {BINARY} does not name its binary")
            return
        theirs.start()
        stack.callback(theirs.stop)
        for _ in range(2):
            _alone(theirs, asked, 0)
        _report("VictoriaLogs", theirs, asked, _of_peer(case, folder), arguments)


if __name__ == "__main__":
    main()
