"""Counts the modules of this repository that a request enters: how far a newcomer has to read.

    python -m benchmarks.walks            requests to a service: appends, pages, a search, a close
    python -m benchmarks.walks --table    also from the POST to the commit of the table (needs Java)
    python -m benchmarks.walks --list     also names them

A request enters a module if it calls one of its functions. Code that runs while a module is
imported does not count. Each request is made several times, and a module counts if every one of
them enters it; this leaves out the background tasks of the service. `calls` are calls from one
module to another, of the request that has the fewest.

The way to the table has two processes: the service, until the batch's segment is in the store, and
the compactor with its Spark workers, in one pass over the segments.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple
from urllib.parse import urlsplit

ROOT = str(Path(__file__).parents[1]) + os.sep
PACKAGES = ("service", "compactor", "tailrace")
TIMES, SEGMENTS = 8, 5
PIPELINE = "/api/v1/services/ingestionPipelines/logs/walks"
RUN = f"{PIPELINE}/run-1"
TEXT = b"2026-11-20 12:00:00,000 INFO [shop] a line of text\n" * 20
RECORDS = b'{"message": "a line of text", "level": "INFO", "ts": "2026-11-20T12:00:00Z"}\n' * 1000
NDJSON = "application/x-ndjson"
_FUNCTION = 0x1  # CO_OPTIMIZED: the body of a function, not that of a module or class


class Walk(NamedTuple):
    """The modules that a request entered, and its calls from one module to another."""

    modules: set[str]
    calls: int


class Ask(NamedTuple):
    """A request that is made several times; `{n}` in its path is the number of the time."""

    name: str
    method: str
    path: str
    body: bytes = b""
    content_type: str = "text/plain"


ASKS = (
    Ask("POST, first of a run", "POST", f"{PIPELINE}/first-{{n}}", TEXT),
    Ask("POST of 20 lines", "POST", RUN, TEXT),
    Ask("POST of 1,000 records", "POST", RUN, RECORDS, NDJSON),
    Ask("page as text", "GET", f"{RUN}?limit=100"),
    Ask("page as records", "GET", f"{RUN}?limit=100&format=ndjson"),
    Ask("search", "GET", "/query?q=text&limit=20"),
    Ask("list of runs", "GET", PIPELINE),
    Ask("close of a run", "POST", f"{PIPELINE}/first-{{n}}/close"),
)


class Visits:
    """Modules of this repository of which a function was called while `on`.

    With a `file`, each is also appended there when it is first visited: Spark ends its workers
    without notice.
    """

    def __init__(self, file: str | None = None) -> None:
        self.on = file is not None
        self.modules: set[str] = set()
        self.calls = 0
        self._file = file
        self._codes: dict[CodeType, str | None] = {}

    def trace(self) -> None:
        """Follows this thread, and every thread that begins later."""
        threading.settrace(self._called)
        sys.settrace(self._called)

    def begin(self) -> None:
        """Begins to record, from nothing."""
        self.modules.clear()
        self.calls = 0
        self.on = True

    def end(self) -> Walk:
        """Ends recording, and gives what it saw since it began."""
        self.on = False
        return Walk(set(self.modules), self.calls)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if not self.on or event != "call":
            return
        code = frame.f_code
        module = self._module(code)
        if module is None:
            return
        caller = frame.f_back
        self.calls += caller is None or self._module(caller.f_code) != module
        if module in self.modules or _is_importing(frame):
            return
        self.modules.add(module)
        if self._file is not None:
            with open(self._file, "a") as file:
                file.write(f"{module}\n")

    def _module(self, code: CodeType) -> str | None:
        if code in self._codes:
            return self._codes[code]
        name = code.co_filename.removeprefix(ROOT)
        ours = name != code.co_filename and name.split(os.sep)[0] in PACKAGES
        self._codes[code] = name if ours and code.co_flags & _FUNCTION else None
        return self._codes[code]


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals["__name__"] != "__main__":
            return True
        frame = frame.f_back
    return False


def trace_into(file: str) -> None:
    """Records what this process visits in `file`; called before anything else is imported."""
    Visits(file).trace()


def _connected(url: str) -> http.client.HTTPConnection:
    address = urlsplit(url)
    return http.client.HTTPConnection(str(address.hostname), address.port)


def _send(connection: http.client.HTTPConnection, ask: Ask, number: int) -> None:
    headers = {"Content-Type": ask.content_type} if ask.body else {}
    connection.request(ask.method, ask.path.format(n=number), ask.body or None, headers)
    answer = connection.getresponse()
    body = answer.read()
    assert answer.status == 200, body


def _each(visits: Visits, url: str, asks: Sequence[Ask]) -> dict[str, Walk]:
    """What every one of some equal requests does, by the request's name."""
    connection, found = _connected(url), {}
    for ask in asks:
        walks = []
        for number in range(TIMES):
            visits.begin()
            _send(connection, ask, number)
            walks.append(visits.end())
        modules = set.intersection(*[walk.modules for walk in walks])
        found[ask.name] = Walk(modules, min([walk.calls for walk in walks]))
    return found


def _until_stored(visits: Visits, url: str, segments: Path) -> Walk:
    """What the service does for each batch until its segment is in the store."""
    connection, walks = _connected(url), []
    _send(connection, ASKS[1], 0)
    for _ in range(SEGMENTS):
        before = len(list(segments.rglob("*.parquet")))
        visits.begin()
        _send(connection, ASKS[1], 0)
        while len(list(segments.rglob("*.parquet"))) == before:
            time.sleep(0.01)
        time.sleep(1)  # the shipper confirms it to the journal and to the run logs
        walks.append(visits.end())
    modules = set.intersection(*[walk.modules for walk in walks])
    return Walk(modules, min([walk.calls for walk in walks]))


async def _served(data: Path, table: bool) -> dict[str, Walk]:
    from service.main import run
    from service.settings import Settings

    visits, stop = Visits(), asyncio.Event()
    visits.trace()
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    settings = Settings.model_validate(
        {
            "data": str(data),
            "server": {"port": 0},
            "compaction": {"enabled": False},
            "flush": {"segment_seconds": 0.5 if table else 3600},
        }
    )
    service = asyncio.create_task(run(settings, stop, on_listening=listening.set_result))
    url = await listening
    if table:
        segments = data / "store" / "segments"
        stored = await asyncio.to_thread(_until_stored, visits, url, segments)
        found = {"POST to segment": stored}
    else:
        found = await asyncio.to_thread(_each, visits, url, ASKS)
    stop.set()
    await service
    return found


def _compacted(data: Path, folder: Path) -> set[str]:
    """The modules that a pass of the compactor visits, in its driver and in Spark's workers."""
    from service.compaction import job_path

    visited = folder / "visited"
    hook = "import os\nfrom benchmarks.walks import trace_into\ntrace_into(os.environ['WALKS'])\n"
    (folder / "sitecustomize.py").write_text(hook)
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "WALKS": str(visited)}
    command = [sys.executable, job_path(), "--data", str(data)]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return set(visited.read_text().split())


def main() -> None:
    """Prints the number of modules of each way."""
    parser = argparse.ArgumentParser(description="Modules that a request enters.")
    parser.add_argument("--table", action="store_true", help="also the way to the table")
    parser.add_argument("--list", action="store_true", help="also name the modules")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        walks = asyncio.run(_served(Path(folder) / "a", False))
        if arguments.table:
            data = Path(folder) / "b"
            walks |= asyncio.run(_served(data, True))
            compacted = _compacted(data, Path(folder))
            walks["segment to table"] = Walk(compacted, 0)
    for name, walk in walks.items():
        calls = f", {walk.calls} calls" if walk.calls else ""
        print(f"{name}: {len(walk.modules)} modules{calls}")
        if arguments.list:
            print("".join(f"    {module}\n" for module in sorted(walk.modules)), end="")


if __name__ == "__main__":
    main()
