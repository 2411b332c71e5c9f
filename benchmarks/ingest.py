"""Ingest: MB/s of text, latency of the ack, CPU and memory, beside what the machine leaves.

    python -m benchmarks.ingest [--seconds 60] [--sizes 1,100,1000,10000] [--forms raw,gzip]

For each batch size and form: the service with its defaults (`durable`, segments and run
chunks being written meanwhile), 8 connections over 8 runs, real lines. Peers in the same
run: a bare loop that writes, syncs and encodes the same (batches of 1,000 lines and
more), and a bare ASGI app under the same uvicorn, and under uvicorn's own defaults
(batches of up to 100 lines).
"""

from __future__ import annotations

import argparse
import base64
import gzip
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson

from benchmarks.corpus import lines_of
from benchmarks.process import Load, Watched, load
from tests.e2e.service_process import BASE, ServiceProcess
from tests.servers.ports import free_port

CONNECTIONS = 8
BODIES = 16
PATHS = [f"{BASE}/bench.pipeline-{i}/run-{i}" for i in range(CONNECTIONS)]
_SAME_UVICORN = ["--loop", "uvloop", "--http", "httptools"]
_DEFAULT_UVICORN = ["--loop", "asyncio", "--http", "h11"]


@dataclass(frozen=True, slots=True)
class Case:
    """A batch size and a form; `text_bytes` is the mean text of a body."""

    lines: int
    form: str
    bodies: list[Path]
    texts: list[Path]
    text_bytes: float

    @property
    def content_type(self) -> str:
        """Of the bodies."""
        return "text/plain" if self.form == "raw" else "application/json"


def make_case(folder: Path, lines: int, form: str) -> Case:
    """Writes the bodies of a case below `folder`."""
    source = lines_of(lines * BODIES)
    bodies, texts, total = [], [], 0
    for number in range(BODIES):
        text = b"".join(source[number * lines : (number + 1) * lines])
        total += len(text)
        texts.append(_write(folder / f"text-{lines}-{number}", text))
        body = text if form == "raw" else _packed(text, lines)
        bodies.append(_write(folder / f"body-{lines}-{form}-{number}", body))
    return Case(lines, form, bodies, texts, total / BODIES)


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _packed(text: bytes, lines: int) -> bytes:
    packed = base64.b64encode(gzip.compress(text, 6)).decode()
    return orjson.dumps(
        {"logs": packed, "compressed": True, "connectorId": "host-1", "lineCount": lines}
    )


def measure_service(case: Case, seconds: float, folder: Path) -> tuple[Load, float, Watched]:
    """The service under load: what wrk saw, CPU seconds, memory."""
    service = ServiceProcess(folder / f"data-{case.lines}-{case.form}")
    service.start()
    try:
        watched = Watched(service.pid)
        seen = load(
            service.url,
            PATHS,
            case.bodies,
            seconds=seconds,
            connections=CONNECTIONS,
            content_type=case.content_type,
            folder=folder,
        )
        return seen, watched.end(), watched
    finally:
        service.kill()
        subprocess.run(["rm", "-rf", str(service.data)], check=True)


def measure_bare_asgi(case: Case, seconds: float, folder: Path, options: Sequence[str]) -> Load:
    """The same load on an app that does nothing."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "benchmarks.bare_asgi:app", "--port", str(port)]
    with subprocess.Popen(
        [*command, "--log-level", "error", "--no-access-log", *options]
    ) as process:
        url = f"http://127.0.0.1:{port}"
        until_up(url)
        try:
            return load(
                url,
                PATHS,
                case.bodies,
                seconds=seconds,
                connections=CONNECTIONS,
                content_type=case.content_type,
                folder=folder,
            )
        finally:
            process.terminate()


def until_up(url: str) -> None:
    """Returns when somebody answers there."""
    for _ in range(200):
        try:
            httpx.post(url, content=b"x")
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"{url} did not come up")


def measure_bare_loop(case: Case, seconds: float, folder: Path) -> float:
    """MB/s of the loop."""
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.bare_loop", str(folder), f"{seconds:g}"],
        input="".join(f"{path}\n" for path in case.texts),
        capture_output=True,
        text=True,
        check=True,
    )
    return float(result.stdout)


def report(case: Case, seconds: float, peer_seconds: float, folder: Path) -> None:
    """Measures one case and prints its row."""
    seen, cpu, watched = measure_service(case, seconds, folder)
    speed = seen.rate * case.text_bytes / 1e6
    row = (
        f"{case.lines:>6} {case.form:<5} {seen.rate:>8.0f} {speed:>7.1f} {seen.p50_ms:>7.2f} "
        f"{seen.p99_ms:>8.2f} {cpu / seen.seconds:>5.2f} {watched.peak_mb:>6.0f} "
        f"{watched.late_growth_mb:>+6.0f} {seen.errors:>4}"
    )
    if case.lines >= 1000:
        loop = measure_bare_loop(case, peer_seconds, folder)
        row += f"  {speed / loop:.2f} of the bare loop's {loop:.0f} MB/s"
    else:
        same = measure_bare_asgi(case, peer_seconds, folder, _SAME_UVICORN)
        plain = measure_bare_asgi(case, peer_seconds, folder, _DEFAULT_UVICORN)
        row += (
            f"  {seen.rate / same.rate:.2f} of bare ASGI's {same.rate:.0f}/s, "
            f"{seen.rate / plain.rate:.2f} of its {plain.rate:.0f}/s under uvicorn's defaults"
        )
    print(row, flush=True)


def main() -> None:
    """Prints a table, a row a case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--peer-seconds", type=float, default=15)
    parser.add_argument("--sizes", default="1,100,1000,10000")
    parser.add_argument("--forms", default="raw,gzip")
    arguments = parser.parse_args()
    print(" lines form     req/s    MB/s  p50 ms   p99 ms   CPU RSS MB  drift errs  ratio")
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=".") as temporary:
        folder = Path(temporary).resolve()
        for form in arguments.forms.split(","):
            for lines in map(int, arguments.sizes.split(",")):
                case = make_case(folder, lines, form)
                report(case, arguments.seconds, arguments.peer_seconds, folder)


if __name__ == "__main__":
    main()
