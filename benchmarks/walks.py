"""Counts the modules of this repository that a request enters: how far a newcomer has to read.

    python -m benchmarks.walks            requests to a service, a lease, a forwarded line, an event
    python -m benchmarks.walks --table    also from the POST to the commit of the table (needs Java)
    python -m benchmarks.walks --list     also names them

A request enters a module if it calls one of its functions. Code that runs while a module is
imported does not count. Each request is made several times, and a module counts if every one of
them enters it; this leaves out the background tasks of the service. `calls` are calls from one
module to another, of the request that has the fewest.

The forwarder and a pipeline are programs of their own. Each waits for lines until a signal makes it
record; then one line comes, and the next signal ends the record when the line has arrived.

The way to the table has two processes: the service, until the batch's segment is in the store, and
the compactor with its Spark workers, in one pass over the segments.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple
from urllib.parse import urlsplit

ROOT = str(Path(__file__).parents[1]) + os.sep
PACKAGES = ("service", "compactor", "tailrace", "client")
TIMES, SEGMENTS = 8, 5
PATIENCE_SECONDS, SETTLED_SECONDS = 60.0, 1.5
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


def trace_between_signals(file: str) -> None:
    """As `trace_into`, but from one SIGUSR1 to the next."""
    visits = Visits(file)
    visits.on = False

    def change(_signal: int, _frame: FrameType | None) -> None:
        visits.on = not visits.on

    signal.signal(signal.SIGUSR1, change)
    visits.trace()


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


async def _served(
    data: Path, ways: Callable[[Visits, str], dict[str, Walk]], *, segment_seconds: float = 3600
) -> dict[str, Walk]:
    """What `ways` finds at the address of a service that runs in this process."""
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
            "flush": {"segment_seconds": segment_seconds},
        }
    )
    service = asyncio.create_task(run(settings, stop, on_listening=listening.set_result))
    url = await listening
    try:
        return await asyncio.to_thread(ways, visits, url)
    finally:
        stop.set()
        await service


def _traced(folder: Path, trace: Callable[[str], None]) -> tuple[dict[str, str], Path]:
    """Variables that make every Python program trace itself, and the file that it writes."""
    folder.mkdir(exist_ok=True)
    name, visited = trace.__name__, folder / "visited"
    hook = f"import os\nfrom benchmarks.walks import {name}\n{name}(os.environ['WALKS'])\n"
    (folder / "sitecustomize.py").write_text(hook)
    return {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "WALKS": str(visited)}, visited


def _compacted(data: Path, folder: Path) -> set[str]:
    """The modules that a pass of the compactor visits, in its driver and in Spark's workers."""
    from service.compaction import job_path

    environment, visited = _traced(folder / "compactor", trace_into)
    command = [sys.executable, job_path(), "--data", str(data)]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return set(visited.read_text().split())


async def _leased() -> Walk:
    """What acquiring a lease does, in a store in a folder, as the first thing of a process."""
    from random import Random

    from tailrace.coordination.lease import StoreTime
    from tailrace.coordination.object_store.store import ObjectPartitions
    from tailrace.coordination.partitions import NewPartition
    from tailrace.coordination.work_queue import Coordinator
    from tailrace.logstore.clock import SystemClock
    from tailrace.logstore.filesystem import Disk
    from tailrace.logstore.objects.local import LocalStore

    clock, dice, walks, visits = SystemClock(), Random(1), [], Visits()
    visits.trace()
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(folder, Disk(), clock, dice)
        for number in range(TIMES):
            partitions = ObjectPartitions(store, clock, dice, StoreTime(clock, None), shards=1)
            await partitions.start()
            coordinator = Coordinator(
                partitions, clock, dice, name="walks", identity=f"worker-{number}"
            )
            queue = coordinator.work("files")
            await queue.create([NewPartition(f"file-{number}")])
            visits.begin()
            leases = await queue.acquire()
            walks.append(visits.end())
            assert len(leases) == 1
            await leases[0].complete()
            await partitions.close()
    return Walk(
        set.intersection(*[walk.modules for walk in walks]), min([walk.calls for walk in walks])
    )


@contextmanager
def _program(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def _comes(holds: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _one_line(
    process: subprocess.Popen[bytes],
    visited: Path,
    write: Callable[[int], object],
    lines: Callable[[], int],
) -> Walk:
    """What a program does with one line, from its write until it has arrived."""
    for number in range(TIMES):  # the program may begin with the lines that come later
        write(number)
        if _comes(lambda: lines() > 0, SETTLED_SECONDS * 2):
            break
    time.sleep(SETTLED_SECONDS * 2)
    before = lines()
    process.send_signal(signal.SIGUSR1)
    write(TIMES)
    if not _comes(lambda: lines() > before, PATIENCE_SECONDS):
        raise TimeoutError("the line did not arrive")
    time.sleep(SETTLED_SECONDS)
    process.send_signal(signal.SIGUSR1)
    time.sleep(SETTLED_SECONDS)
    return Walk(set(visited.read_text().split()), 0)


def _forwarded(folder: Path, url: str) -> Walk:
    """What the forwarder does with one line, until the service has it."""
    environment, visited = _traced(folder / "forwarder", trace_between_signals)
    log, config = folder / "shop.log", folder / "forward.yaml"
    keys = {"include": [str(log)], "targets": [url], "storage": str(folder / "checkpoints")}
    config.write_text(json.dumps({**keys, "start_at": "beginning", "fqn": "walks.{stem}"}))
    connection = _connected(url)

    def write(_: int) -> None:
        with log.open("ab") as file:
            file.write(TEXT.partition(b"\n")[0] + b"\n")

    def lines() -> int:
        connection.request("GET", "/query?q=text&fqn=walks.shop&limit=10")
        return connection.getresponse().read().count(b"a line of text")

    command = [sys.executable, "-m", "tailrace", "forward", "--config", str(config)]
    with _program(command, environment) as process:
        return _one_line(process, visited, write, lines)


def _delivered(folder: Path, data: Path, url: str) -> Walk:
    """What a pipeline does with one event, from the segment to the rolled file, with polling."""
    environment, visited = _traced(folder / "pipelines", trace_between_signals)
    definitions, out = folder / "definitions", folder / "out"
    definitions.mkdir()
    appender = {"type": "rolling_file", "name": "files", "dir": str(out), "path": "{fqn}.log"}
    pipeline = {"name": "walks", "idle_node_ms": 1000, "appenders": [appender]}
    (definitions / "walks.yaml").write_text(json.dumps(pipeline))
    connection = _connected(url)

    def write(number: int) -> None:
        _send(connection, Ask("", "POST", PIPELINE + "/{n}", b"a line of text\n"), number)

    def lines() -> int:
        return sum([path.read_bytes().count(b"\n") for path in out.rglob("*.log")])

    arguments = ["--data", str(data), "--dir", str(definitions)]
    command = [sys.executable, "-m", "tailrace", "pipelines", *arguments]
    with _program(command, environment) as process:
        return _one_line(process, visited, write, lines)


def _programs(folder: Path, data: Path, url: str) -> dict[str, Walk]:
    return {
        "forwarded line": _forwarded(folder, url),
        "pipeline event": _delivered(folder, data, url),
    }


def main() -> None:
    """Prints the number of modules of each way."""
    parser = argparse.ArgumentParser(description="Modules that a request enters.")
    parser.add_argument("--table", action="store_true", help="also the way to the table")
    parser.add_argument("--list", action="store_true", help="also name the modules")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        walks = asyncio.run(
            _served(Path(folder) / "a", lambda visits, url: _each(visits, url, ASKS))
        )
        walks["lease acquired"] = asyncio.run(_leased())
        programs = partial(_programs, Path(folder), Path(folder) / "c")
        walks |= asyncio.run(
            _served(Path(folder) / "c", lambda _, url: programs(url), segment_seconds=0.5)
        )
        if arguments.table:
            data = Path(folder) / "b"
            segments = data / "store" / "segments"
            walks |= asyncio.run(
                _served(
                    data,
                    lambda visits, url: {"POST to segment": _until_stored(visits, url, segments)},
                    segment_seconds=0.5,
                )
            )
            compacted = _compacted(data, Path(folder))
            walks["segment to table"] = Walk(compacted, 0)
    for name, walk in walks.items():
        calls = f", {walk.calls} calls" if walk.calls else ""
        print(f"{name}: {len(walk.modules)} modules{calls}")
        if arguments.list:
            print("".join(f"    {module}\n" for module in sorted(walk.modules)), end="")


if __name__ == "__main__":
    main()
