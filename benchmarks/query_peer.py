"""Searches over HTTP beside VictoriaLogs, over the same records, in turn in one run.

    VICTORIA_LOGS=victoria-logs python -m benchmarks.query

VictoriaLogs is a binary that its repository builds (`go build ./app/victoria-logs`). It gets the
records of the table as JSON lines, with pipeline and run as its stream. Each search is asked of
both, the whole reply is read, and the medians are compared.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import orjson
import pyarrow.parquet as pq

from tests.e2e.service_process import ServiceProcess

BINARY: Final = "VICTORIA_LOGS"
_LOADED_ROWS: Final = 50_000  # in a request
_PATIENCE_SECONDS: Final = 60


@dataclass(frozen=True)
class Search:
    """One search in both languages."""

    name: str
    ours: Mapping[str, str]
    theirs: str
    limit: int | None = None


def searches(fqn: str, needle: str) -> Sequence[Search]:
    """Those of the table in `docs/benchmarks.md`."""
    regex = r"blk_-?\d*77\d*99 "
    return [
        Search("rare token", {"q": needle}, needle),
        Search("word in a pipeline", {"q": "Exception", "fqn": fqn}, f'{{fqn="{fqn}"}} Exception'),
        Search("word, limit 1,000", {"q": "Exception"}, "Exception", 1_000),
        Search("word, all hits", {"q": "Exception"}, "Exception"),
        Search("regex", {"q": f"/{regex}/"}, f"~{orjson.dumps(regex).decode()}"),
        Search("within words", {"q": "xceptio"}, '~"xceptio"'),
        Search("newest 1,000", {}, "*", 1_000),
    ]


def report(
    data: Path, store: Path, files: Sequence[str], fqn: str, needle: str, rounds: int
) -> None:
    """Prints a line for each search: ms of both, ratio, records of both."""
    binary = os.environ.get(BINARY)
    if not binary:
        print(f"not beside VictoriaLogs: {BINARY} does not name its binary")
        return
    service = ServiceProcess(data, store=store)
    service.start()
    try:
        with _victoria_logs(binary, data.parent / "victoria-logs") as peer:
            _load(peer, files)
            _compare(service.url, peer, searches(fqn, needle), rounds)
    finally:
        service.stop()


def _compare(ours: str, theirs: str, asked: Sequence[Search], rounds: int) -> None:
    print(
        f"{'over HTTP':<18} {'ours ms':>10} {'peer ms':>9} {'ratio':>6} {'records':>9} {'peer':>9}"
    )
    with httpx.Client(timeout=300, headers={"Accept-Encoding": "identity"}) as client:
        for one in asked:
            limit = {} if one.limit is None else {"limit": str(one.limit)}
            here = f"{ours}/query", {"from": "0"} | dict(one.ours) | limit
            there = f"{theirs}/select/logsql/query", {"query": one.theirs} | limit
            taken: dict[str, list[float]] = {here[0]: [], there[0]: []}
            found = {url: _lines(client, url, asking) for url, asking in (here, there)}
            for _ in range(rounds):
                for url, asking in (here, there):
                    began = time.perf_counter()
                    _lines(client, url, asking)
                    taken[url].append((time.perf_counter() - began) * 1000)
            mine, other = (statistics.median(taken[url]) for url in (here[0], there[0]))
            records = found[here[0]] - 1  # the last line has the stats
            print(
                f"{one.name:<18} {mine:>10.1f} {other:>9.1f} {mine / other:>6.2f}"
                f" {records:>9,} {found[there[0]]:>9,}"
            )


def _lines(client: httpx.Client, url: str, asking: Mapping[str, str]) -> int:
    with client.stream("GET", url, params=dict(asking)) as reply:
        reply.raise_for_status()
        return sum(piece.count(b"\n") for piece in reply.iter_raw())


@contextmanager
def _victoria_logs(binary: str, folder: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [
        *(binary, f"-storageDataPath={folder}", f"-httpListenAddr={address}"),
        *("-retentionPeriod=100y", "-loggerLevel=ERROR", "-futureRetention=100y"),
    ]
    with subprocess.Popen(command) as process:
        try:
            _wait_for(f"http://{address}/health")
            yield f"http://{address}"
        finally:
            process.terminate()


def _wait_for(url: str) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            httpx.get(url).raise_for_status()
        except httpx.HTTPError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
        else:
            return


def _load(peer: str, files: Sequence[str]) -> None:
    asked = {"_stream_fields": "fqn,run_id", "_msg_field": "message", "_time_field": "time"}
    with httpx.Client(timeout=300) as client:
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(
                _LOADED_ROWS, columns=["ts", "fqn", "run_id", "level", "message", "ulid"]
            ):
                times = batch.column("ts").cast("int64").to_pylist()
                rows = batch.drop_columns(["ts"]).to_pylist()
                body = b"".join(
                    orjson.dumps(row | {"time": str(at * 1000)}, option=orjson.OPT_APPEND_NEWLINE)
                    for row, at in zip(rows, times, strict=True)
                )
                client.post(
                    f"{peer}/insert/jsonline", params=asked, content=body
                ).raise_for_status()
        client.get(f"{peer}/internal/force_flush").raise_for_status()
        client.get(f"{peer}/internal/force_merge")
