"""Several nodes on one store, several processes on one machine: `python -m benchmarks.nodes`.

| `--only` | what is measured | beside it, in the same run |
| --- | --- | --- |
| `producers` | 2,000 producers on three nodes, a small batch a second each: latency of the acknowledgement, memory, segments a minute | a bare ASGI app in place of each node |
| `live` | from the acknowledgement at one node to the event at readers of another | readers of the same node |
| `workers` | `serve --workers` 1 and 2: requests and MB a second | a bare ASGI app with as many processes |
| `query` | searches over three nodes, each with records in its journal | one node with the same records |

The store is MinIO, with its data in memory. Load, nodes and store share the machine.
"""  # noqa: E501

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import httpx

from benchmarks.across import ack_to_event
from benchmarks.corpus import lines_of
from benchmarks.ingest import CONNECTIONS, PATHS, Case, make_case, until_up
from benchmarks.process import Load, Watched, load
from benchmarks.producers import produce
from tailrace.logstore import keys
from tailrace.logstore.batch import RunKey
from tests.e2e.service_process import BASE, ServiceProcess
from tests.servers.minio import Bucket, memory_folder, running_minio
from tests.servers.ports import free_port

SECRET: Final = "the secret of all nodes of the benchmark"
_UVICORN: Final = ("--loop", "uvloop", "--http", "httptools", "--no-access-log")
_LAZY: Final = {
    "TAILRACE_FLUSH__SEGMENT_SECONDS": "3600",
    "TAILRACE_FLUSH__SEGMENT_BYTES": str(1 << 30),
}
"""Nothing leaves a journal unless it is sent as `bulk`."""


@contextmanager
def cluster(
    folder: Path, names: str, bucket: Bucket, **more: str
) -> Iterator[list[ServiceProcess]]:
    """Nodes of these names on one bucket."""
    settings = bucket.environment | {"TAILRACE_NODES__SECRET": SECRET} | more
    nodes = [
        ServiceProcess(folder / bucket.name / name, store=None, TAILRACE_NODE_ID=name, **settings)
        for name in names
    ]
    try:
        with ThreadPoolExecutor() as starts:
            list(starts.map(ServiceProcess.start, nodes))
        yield nodes
    finally:
        for node in nodes:
            if node.running:
                node.kill()


@contextmanager
def bare_apps(count: int, processes: int = 1) -> Iterator[list[str]]:
    """So many apps that do nothing, each with so many processes."""
    ports = [free_port() for _ in range(count)]
    options = ["--log-level", "error", "--workers", str(processes), *_UVICORN]
    command = [sys.executable, "-m", "uvicorn", "benchmarks.bare_asgi:app", *options]
    running = [subprocess.Popen([*command, "--port", str(port)]) for port in ports]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    try:
        for url in urls:
            until_up(url)
        yield urls
    finally:
        for process in running:
            process.terminate()
            process.wait()


async def _segments(bucket: Bucket) -> int:
    async with bucket.open() as store:
        return len([info async for info in store.list(keys.SEGMENTS)])


def producers(folder: Path, bucket: Bucket, arguments: argparse.Namespace) -> None:
    """Many producers on three nodes."""
    count, seconds = arguments.producers, arguments.seconds
    with cluster(folder, "abc", bucket) as nodes:
        watched = [Watched(node.pid) for node in nodes]
        before, begin = asyncio.run(_segments(bucket)), time.monotonic()
        acks = asyncio.run(produce(_urls(nodes), count, seconds))
        minutes = (time.monotonic() - begin) / 60
        rate = (asyncio.run(_segments(bucket)) - before) / minutes
        cpu = sum(one.end() for one in watched)
        peaks = ", ".join(f"{one.peak_mb:.0f}" for one in watched)
    with bare_apps(3) as urls:
        bare = asyncio.run(produce(urls, count, seconds / 2))
    print(
        f"{count} producers on three nodes: {acks.told()}; {rate:.0f} segments a minute;"
        f" {cpu:.1f} s of CPU, {peaks} MB. The bare app: {bare.told()}"
    )


def _urls(nodes: Sequence[ServiceProcess]) -> list[str]:
    return [node.url for node in nodes]


def live(folder: Path, bucket: Bucket, arguments: argparse.Namespace) -> None:
    """Readers at the node that takes the lines, and at another one."""
    with cluster(folder, "abc", bucket) as nodes:
        urls = _urls(nodes)
        for turn in range(arguments.rounds):
            for where, reader in (("the same node", urls[0]), ("another node", urls[1])):
                key = RunKey("bench.across", f"{turn} {where}")
                delays = asyncio.run(
                    ack_to_event(
                        *(urls[0], reader, key),
                        readers=arguments.readers,
                        seconds=arguments.seconds / 2,
                    )
                )
                print(f"{arguments.readers} readers at {where}: {delays.told()}", flush=True)


def workers(folder: Path, bucket: Bucket, arguments: argparse.Namespace) -> None:
    """One process and two, for small batches and large ones."""
    for lines in (1, 1000):
        case = make_case(folder, lines, "raw")
        for count in (1, 2):
            seen = _of_service(folder, case, count, arguments.seconds / 2, bucket)
            with bare_apps(1, count) as (url,):
                bare = _loaded(url, case, arguments.seconds / 4, folder)
            speed = seen.rate * case.text_bytes / 1e6
            print(
                f"{count} workers, {lines} lines a batch: {seen.rate:.0f} requests/s,"
                f" {speed:.1f} MB/s, p50 {seen.p50_ms:.2f} ms, p99 {seen.p99_ms:.2f} ms,"
                f" {seen.errors} errors; {seen.rate / bare.rate:.2f} of the bare app's"
                f" {bare.rate:.0f}/s",
                flush=True,
            )


def _of_service(folder: Path, case: Case, count: int, seconds: float, bucket: Bucket) -> Load:
    settings = bucket.environment | {"TAILRACE_SERVER__WORKERS": str(count)}
    service = ServiceProcess(folder / f"workers-{count}-{case.lines}", store=None, **settings)
    service.start()
    try:
        return _loaded(service.url, case, seconds, folder)
    finally:
        service.kill()


def _loaded(url: str, case: Case, seconds: float, folder: Path) -> Load:
    return load(
        url,
        PATHS,
        case.bodies,
        seconds=seconds,
        connections=2 * CONNECTIONS,
        content_type=case.content_type,
        folder=folder,
    )


SEARCHES: Final = {
    "a rare word": {"q": "zzrareneedle"},
    "newest 1,000": {"limit": "1000"},
    "a common word, newest 1,000": {"q": "error", "limit": "1000"},
}


def query(folder: Path, buckets: Callable[[], Bucket], arguments: argparse.Namespace) -> None:
    """The same records on one node and on three, searched in turn."""
    with ExitStack() as stack:
        one, three = [
            _urls(stack.enter_context(cluster(folder, names, buckets(), **_LAZY)))
            for names in ("a", "abc")
        ]
        for urls in (one, three):
            _fill(urls, arguments.megabytes)
        for what, parameters in SEARCHES.items():
            times: dict[str, list[float]] = {one[0]: [], three[0]: []}
            for _ in range(arguments.rounds * 5):
                for url, seconds in times.items():
                    seconds.append(_searched(url, parameters))
            alone, over = (statistics.median(seconds) * 1000 for seconds in times.values())
            print(
                f"{what}: {over:.1f} ms over three nodes, {alone:.1f} ms on one:"
                f" {over / alone:.2f} times",
                flush=True,
            )


def _fill(urls: Sequence[str], megabytes: int) -> None:
    """As many bytes in segments as it says, in a few of them, and a tenth as much in journals."""
    batches = 30
    size = megabytes * 1_000_000 // batches // 120
    text = lines_of(size * batches)
    with httpx.Client(timeout=120) as client:
        for number in range(batches):
            body = b"".join(text[number * size : (number + 1) * size])
            # The last batches stay in the journals; each of the others is a segment at once.
            mode = "durable" if number >= batches - 3 else "bulk"
            client.post(
                f"{urls[number % len(urls)]}{BASE}/bench.query/run-{number}",
                content=body,
                headers={"Content-Type": "text/plain", "Tailrace-Durability": mode},
            ).raise_for_status()


def _searched(url: str, parameters: dict[str, str]) -> float:
    begin = time.monotonic()
    reply = httpx.get(f"{url}/query", params={"format": "ndjson", **parameters}, timeout=120)
    seconds = time.monotonic() - begin
    assert reply.status_code == 200, reply.text[:500]
    return seconds


def main() -> int:
    """Always 0: it measures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--only", choices=("producers", "live", "workers", "query"))
    parser.add_argument("--producers", type=int, default=2000)
    parser.add_argument("--readers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=60)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=".") as temporary,
        running_minio(memory_folder()) as minio,
    ):
        folder = Path(temporary).resolve()
        for part in (producers, live, workers):
            if arguments.only in (None, part.__name__):
                part(folder, minio.bucket(), arguments)
        if arguments.only in (None, "query"):
            query(folder, minio.bucket, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
