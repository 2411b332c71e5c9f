"""Consuming segments over HTTP: `python -m benchmarks.queue [--megabytes 400] [--segment 4MiB]`.

So many MB of text in segments of so much text each; then groups that lease, read and commit
all of it, one consumer and four, in each format, and one that only leases and commits. The
limit beside it: reading the files of the same segments from the same disk.
"""

from __future__ import annotations

import argparse
import http.client
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson

from benchmarks.corpus import lines_of, source
from tailrace.logstore.batch import RunKey
from tests.e2e.clients import run_path
from tests.e2e.service_process import ServiceProcess

_KEY = RunKey("bench.queue", "run")
_BATCH_LINES = 2000
_PIECE = 1 << 20


@dataclass
class Consumed:
    """What consumers of a group had of the queue."""

    segments: int = 0
    stored: int = 0
    body: int = 0
    seconds: float = 0.0


def _fill(client: httpx.Client, megabytes: int) -> int:
    """Posts the text: its bytes."""
    lines = lines_of(_BATCH_LINES * 40)
    batches = [b"".join(lines[i : i + _BATCH_LINES]) for i in range(0, len(lines), _BATCH_LINES)]
    sent = turn = 0
    while sent < megabytes * 1_000_000:
        batch = batches[turn % len(batches)]
        headers = {"Content-Type": "text/plain", "Tailrace-Durability": "fast"}
        client.post(run_path(_KEY), content=batch, headers=headers).raise_for_status()
        sent += len(batch)
        turn += 1
    return sent


class Consumer:
    """One consumer: leases, reads unless `form` is None, commits, until there is nothing."""

    def __init__(self, port: int, group: str, form: str | None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._group = group
        self._form = form
        self.had = Consumed()

    def run(self) -> None:
        while (lease := self._next()) is not None:
            if self._form is not None:
                self.had.body += self._read(lease)
            self._ask("POST", f"{lease['url']}/commit?group={self._group}&epoch={lease['epoch']}")
            self.had.segments += 1
            self.had.stored += lease["bytes"]

    def _next(self) -> dict[str, Any] | None:
        body = self._ask("POST", f"/segments/next?group={self._group}")
        return orjson.loads(body) if body else None

    def _read(self, lease: dict[str, Any]) -> int:
        size = 0
        self._connection.request("GET", f"{lease['url']}?format={self._form}")
        response = self._connection.getresponse()
        while piece := response.read(_PIECE):
            size += len(piece)
        return size

    def _ask(self, method: str, path: str) -> bytes:
        self._connection.request(method, path)
        response = self._connection.getresponse()
        body = response.read()
        if response.status not in (200, 204):
            raise RuntimeError(f"{method} {path}: {response.status} {body!r}")
        return body


def _consume(port: int, form: str | None, count: int) -> Consumed:
    consumers = [Consumer(port, f"{form}-{count}", form) for _ in range(count)]
    threads = [threading.Thread(target=consumer.run) for consumer in consumers]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Consumed(
        segments=sum(c.had.segments for c in consumers),
        stored=sum(c.had.stored for c in consumers),
        body=sum(c.had.body for c in consumers),
        seconds=time.perf_counter() - began,
    )


def _read_files(folder: Path) -> Consumed:
    had = Consumed()
    began = time.perf_counter()
    for path in sorted(folder.rglob("*.parquet")):
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                had.stored += len(piece)
        had.segments += 1
    had.seconds = time.perf_counter() - began
    return had


def _report(name: str, had: Consumed, text: int) -> None:
    stored, of_text = had.stored / 1e6 / had.seconds, text / 1e6 / had.seconds
    each = had.seconds / max(had.segments, 1) * 1000
    print(
        f"{name:<24} {had.segments} segments, {each:.1f} ms each, {stored:.0f} MB/s as stored, "
        f"{of_text:.0f} MB/s of text, {had.body / 1e6 / had.seconds:.0f} MB/s of body",
        flush=True,
    )


def _measure(service: ServiceProcess, store: Path, text: int) -> None:
    files = _read_files(store / "segments")
    _report("reading the files", files, text)
    for form in (None, "parquet", "text", "ndjson"):
        for count in (1, 4):
            had = _consume(service.port, form, count)
            if (had.segments, had.stored) != (files.segments, files.stored):
                raise RuntimeError(f"{had} is not what is stored: {files}")
            _report(f"{form or 'not read'}, {count} at a time", had, text)


def main(arguments: list[str]) -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--segment", default="4MiB")
    chosen = parser.parse_args(arguments)
    print(f"{chosen.megabytes} MB of {source()}, segments of {chosen.segment} of text", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        service = ServiceProcess(
            Path(folder) / "node",
            store=store,
            TAILRACE_FLUSH__SEGMENT_BYTES=chosen.segment,
            TAILRACE_FLUSH__SEGMENT_SECONDS="3600",
        )
        service.start()
        with httpx.Client(base_url=service.url, timeout=60) as client:
            text = _fill(client, chosen.megabytes)
        service.stop()
        service.start()
        _measure(service, store, text)
        service.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
