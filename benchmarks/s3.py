"""One run through a real S3 server: `python -m benchmarks.s3 [--megabytes 1000]`.

The run is posted at 10 MB/s, and the service's intervals are shortened by as much as if that
were 167 kB/s, 1 GB in 100 minutes: every 5 MiB are flushed, and `partial.txt` is published
as often as its rule allows. Then it is closed, downloaded, and read page by page. A proxy
between service and MinIO counts requests and bytes.

The peer is computed, not run. OpenMetadata's server marks a run as active with a put at each
post, copies all of `partial.txt` at each flush and once more at the close, and reads a run
from its beginning for each page.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.corpus import lines_of, source
from benchmarks.wire import Traffic, Wire, counted
from tailrace.logstore.batch import RunKey
from tests.e2e.clients import run_path
from tests.e2e.service_process import ServiceProcess
from tests.servers.minio import running_minio, why_no_minio

_KEY = RunKey("bench.s3", "run")
_BATCH_LINES = 10_000
_PAGE_LINES = 1000
_FLUSH_BYTES = 5 << 20
_HASTE = 60
_MOST_SENT = 1.5
_MOST_COPIED = 4.0
_MOST_GETS = 1.05  # a page at the border of two pieces of the index is two


@dataclass(frozen=True)
class Run:
    """What was posted."""

    posts: int
    lines: int
    size: int


def _fill(client: httpx.Client, megabytes: int, pace: float) -> Run:
    lines = lines_of(_BATCH_LINES * 8)
    batches = [b"".join(lines[i : i + _BATCH_LINES]) for i in range(0, len(lines), _BATCH_LINES)]
    sent = posts = 0
    began = time.monotonic()
    while sent < megabytes * 1_000_000:
        body = batches[posts % len(batches)]
        reply = client.post(run_path(_KEY), content=body, headers={"Content-Type": "text/plain"})
        reply.raise_for_status()
        sent += len(body)
        posts += 1
        time.sleep(max(began + sent / 1e6 / pace - time.monotonic(), 0))
    return Run(posts, posts * _BATCH_LINES, sent)


def _close(client: httpx.Client) -> None:
    while client.post(run_path(_KEY, verb="close")).json()["state"] != "closed":
        time.sleep(0.5)


def _download(client: httpx.Client) -> int:
    """The bytes of the text."""
    with client.stream("GET", run_path(_KEY, verb="download")) as reply:
        reply.raise_for_status()
        return sum(len(piece) for piece in reply.iter_bytes())


def _read_pages(client: httpx.Client, run: Run, pages: int) -> tuple[int, int]:
    """Reads so many pages, evenly over the run: how many, and the bytes of their lines."""
    count = min(pages, run.lines // _PAGE_LINES)
    step = run.lines // _PAGE_LINES / count
    read = 0
    for number in range(count):
        after = int(number * step) * _PAGE_LINES
        reply = client.get(run_path(_KEY), params={"after": after, "limit": _PAGE_LINES})
        text = reply.raise_for_status().json()["logs"]
        assert text.count("\n") == _PAGE_LINES - 1
        read += len(text.encode()) + 1
    return count, read


def _sums(traffic: Traffic, size: int) -> tuple[float, float, float]:
    """Bytes sent, got and copied by the server per byte of log."""
    parts = (traffic.sent, traffic.got, traffic.copied)
    sent, got, copied = (sum(part.values()) / size for part in parts)
    return sent, got, copied


def _report_writing(traffic: Traffic, run: Run) -> bool:
    sent, got, copied = _sums(traffic, run.size)
    flushes = run.size / _FLUSH_BYTES
    peer_copied = flushes / 2 + 1
    peer_requests = run.posts + 5 * flushes + 4
    print("\n".join(traffic.rows(run.size, "byte of log")))
    print(
        f"written: {sent:.2f} bytes sent per byte of log (limit {_MOST_SENT}; upstream's design "
        f"1.00, with up to {_FLUSH_BYTES >> 20} MiB in memory only), {got:.2f} got, "
        f"{copied:.2f} copied by the server (limit {_MOST_COPIED:g}; upstream's "
        f"{peer_copied:.0f}), {traffic.count()} requests (upstream's {peer_requests:.0f})"
    )
    return sent <= _MOST_SENT and copied <= _MOST_COPIED


def _report_download(traffic: Traffic, run: Run, size: int) -> bool:
    _, got, _ = _sums(traffic, run.size)
    print(f"download: {got:.3f} bytes got per byte of log, {traffic.count()} requests (limit 1.01)")
    return size == run.size and got <= 1.01


def _report_pages(traffic: Traffic, run: Run, count: int, read: int) -> bool:
    gets = traffic.count("GetObject", what="logs.txt") / count
    others = traffic.count() / count - gets
    sent_back = sum(traffic.got.values()) / read
    peer = run.size / 2 / (run.size / run.lines * _PAGE_LINES)
    print(
        f"{count} pages of {_PAGE_LINES} lines: {gets:.3f} ranged gets of text a page (limit "
        f"{_MOST_GETS}), {others:.2f} other requests, {sent_back:.2f} bytes got per byte of page "
        f"(upstream's, from the start each time, {peer:.0f})"
    )
    return gets <= _MOST_GETS


def _measure(service: ServiceProcess, wire: Wire, asked: argparse.Namespace) -> bool:
    with httpx.Client(base_url=service.url, timeout=600) as client:
        start, began = wire.traffic(), time.monotonic()
        run = _fill(client, asked.megabytes, asked.megabytes_per_second)
        posted = time.monotonic()
        _close(client)
        closed = time.monotonic()
        written = wire.traffic()
        size = _download(client)
        downloaded = wire.traffic()
        count, read = _read_pages(client, run, asked.pages)
        paged = wire.traffic()
    print(
        f"{run.size / 1e6:.0f} MB of {source()}, posted in {posted - began:.0f} s, "
        f"closed {closed - posted:.1f} s later"
    )
    # Each is printed, whatever the others say.
    found = [
        _report_writing(written - start, run),
        _report_download(downloaded - written, run, size),
        _report_pages(paged - downloaded, run, count, read),
    ]
    return all(found)


def main() -> int:
    """0 if every limit holds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--megabytes-per-second", type=float, default=10)
    parser.add_argument("--pages", type=int, default=1000)
    arguments = parser.parse_args()
    reason = why_no_minio()
    if reason is not None:
        print(f"no MinIO here: {reason}", file=sys.stderr)
        return 2
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=".") as folder,
        running_minio() as minio,
        counted(minio.endpoint_url) as wire,
    ):
        environment = minio.bucket().through(wire.url).environment
        service = ServiceProcess(
            Path(folder).resolve() / "data",
            store=None,
            **environment,
            TAILRACE_FLUSH__SEGMENT_SECONDS=str(10 / _HASTE),
            TAILRACE_RUNS__PARTIAL_FLUSH_INTERVAL_MINUTES=str(2 / _HASTE),
        )
        service.start()
        try:
            return 0 if _measure(service, wire, arguments) else 1
        finally:
            service.stop()


if __name__ == "__main__":
    sys.exit(main())
