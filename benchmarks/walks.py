"""Counts the modules of this repository that a batch visits: how far a newcomer has to read.

    python -m benchmarks.walks            from a small durable POST to its 200
    python -m benchmarks.walks --table    also from the POST to the commit of the table (needs Java)
    python -m benchmarks.walks --list     also names them

A module is visited if one of its functions is called. What runs while a module is imported does not
count. In the service several batches are followed, and a module counts if each of them visits it,
which leaves out what the service does beside. The first way is that of the fast path. The second
has two processes: the service, until the batch's segment is in the store, and the compactor with
its Spark workers, in one pass over the segments.
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
from pathlib import Path
from types import CodeType, FrameType
from urllib.parse import urlsplit

ROOT = str(Path(__file__).parents[1]) + os.sep
PACKAGES = ("service", "compactor", "tailrace")
BATCHES, SEGMENTS = 20, 5
PATH = "/api/v1/services/ingestionPipelines/logs/walks/run-1"
TEXT = b"2026-11-20 12:00:00,000 INFO [shop] a line of text\n" * 20
_FUNCTION = 0x1  # CO_OPTIMIZED: the body of a function, not that of a module or class


class Visits:
    """Modules of this repository of which a function was called while `on`.

    With a `file`, each is also appended there when it is first visited: Spark ends its workers
    without notice.
    """

    def __init__(self, file: str | None = None) -> None:
        self.on = file is not None
        self.modules: set[str] = set()
        self._file = file
        self._codes: dict[CodeType, str | None] = {}

    def trace(self) -> None:
        """Follows this thread, and every thread that begins later."""
        threading.settrace(self._called)
        sys.settrace(self._called)

    def begin(self) -> None:
        """Begins to record, from nothing."""
        self.modules.clear()
        self.on = True

    def end(self) -> set[str]:
        """Ends recording; the modules that were visited since it began."""
        self.on = False
        return set(self.modules)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if not self.on or event != "call":
            return
        code = frame.f_code
        module = self._codes[code] if code in self._codes else self._module(code)
        if module is None or module in self.modules or _is_importing(frame):
            return
        self.modules.add(module)
        if self._file is not None:
            with open(self._file, "a") as file:
                file.write(f"{module}\n")

    def _module(self, code: CodeType) -> str | None:
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


def _post(connection: http.client.HTTPConnection) -> None:
    connection.request("POST", PATH, TEXT, {"Content-Type": "text/plain"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    answer.read()


def _until_acknowledged(visits: Visits, url: str) -> set[str]:
    """The modules that each batch visits until its 200."""
    connection, each = _connected(url), []
    _post(connection)
    for _ in range(BATCHES):
        visits.begin()
        _post(connection)
        each.append(visits.end())
    return set.intersection(*each)


def _until_stored(visits: Visits, url: str, segments: Path) -> set[str]:
    """The modules that the service visits for each batch until its segment is in the store."""
    connection, each = _connected(url), []
    _post(connection)
    for _ in range(SEGMENTS):
        before = len(list(segments.rglob("*.parquet")))
        visits.begin()
        _post(connection)
        while len(list(segments.rglob("*.parquet"))) == before:
            time.sleep(0.01)
        time.sleep(1)  # the shipper confirms it to the journal and to the run logs
        each.append(visits.end())
    return set.intersection(*each)


async def _served(data: Path, table: bool) -> set[str]:
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
        walk = asyncio.to_thread(_until_stored, visits, url, data / "store" / "segments")
    else:
        walk = asyncio.to_thread(_until_acknowledged, visits, url)
    found = await walk
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
    parser = argparse.ArgumentParser(description="Modules that a batch visits.")
    parser.add_argument("--table", action="store_true", help="also the way to the table")
    parser.add_argument("--list", action="store_true", help="also name the modules")
    arguments = parser.parse_args()
    walks = {}
    with tempfile.TemporaryDirectory() as folder:
        walks["POST to 200"] = asyncio.run(_served(Path(folder) / "a", False))
        if arguments.table:
            data = Path(folder) / "b"
            stored = asyncio.run(_served(data, True))
            walks["POST to segment"] = stored
            walks["POST to table"] = stored | _compacted(data, Path(folder))
    for name, modules in walks.items():
        print(f"{name}: {len(modules)} modules")
        if arguments.list:
            print("".join(f"    {module}\n" for module in sorted(modules)), end="")


if __name__ == "__main__":
    main()
