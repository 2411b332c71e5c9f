"""Many runs open at once on S3: `python -m benchmarks.runs [--runs 1000] [--seconds 360]`.

Each run posts a batch every `--every` seconds. A proxy counts what goes to MinIO; every five
seconds the service is asked how far the runs' texts are behind. Printed: seconds behind,
memory, puts per run and minute, the ack's p99. Then all runs are closed, and their
lines counted.

The limits beside them: a line waits for its segment and then for its run's flush, so texts
may be behind by the sum of those two intervals and what the flushes take; and
OpenMetadata's design puts a mark at each post and an object at each flush.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.corpus import lines_of, source
from benchmarks.process import Watched
from benchmarks.wire import PUTS, Traffic, counted
from tailrace.logstore.batch import RunKey
from tests.e2e.clients import run_path
from tests.e2e.service_process import ServiceProcess
from tests.servers.minio import running_minio, why_no_minio

_LINES = 10
_LOOK_SECONDS = 5.0
_SEGMENT_SECONDS = 10.0
_FLUSH_SECONDS = 120.0
_SPARE_SECONDS = 60.0  # all flushes are due within seconds, and three run at once
_LAG = "tailrace_run_log_lag_seconds"


@dataclass
class Seen:
    """What the clients and the scrapes saw."""

    acks: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    sent: dict[int, int] = field(default_factory=dict)


class Runs:
    """The clients of all runs, in one task each."""

    def __init__(self, service: ServiceProcess, count: int, every: float) -> None:
        self.keys = [RunKey(f"bench.pipeline-{n % 50}", f"run-{n}") for n in range(count)]
        self._url = service.url
        self._every = every
        lines = lines_of(_LINES * 100)
        self._batches = [b"".join(lines[at : at + _LINES]) for at in range(0, len(lines), _LINES)]
        self.seen = Seen()

    async def post(self, seconds: float) -> None:
        """Posts for so long, and looks at the service meanwhile."""
        until = time.monotonic() + seconds
        limits = httpx.Limits(max_connections=50, max_keepalive_connections=50)
        async with (
            httpx.AsyncClient(base_url=self._url, limits=limits, timeout=60) as client,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(self._look(client, until))
            for number in range(len(self.keys)):
                group.create_task(self._one(client, number, until))

    async def close(self) -> int:
        """Closes all runs; how many have all their lines."""
        async with httpx.AsyncClient(base_url=self._url, timeout=120) as client:
            places = asyncio.Semaphore(20)

            async def close(number: int) -> bool:
                async with places:
                    return await self._closed(client, number)

            return sum(await asyncio.gather(*[close(n) for n in range(len(self.keys))]))

    async def _one(self, client: httpx.AsyncClient, number: int, until: float) -> None:
        # Evenly spread, so that the load is even too.
        await asyncio.sleep(number / len(self.keys) * self._every)
        while (began := time.monotonic()) < until:
            count = self.seen.sent.get(number, 0)
            reply = await client.post(
                run_path(self.keys[number]),
                content=self._batches[(number + count) % len(self._batches)],
                headers={"Content-Type": "text/plain"},
            )
            reply.raise_for_status()
            self.seen.acks.append(time.monotonic() - began)
            self.seen.sent[number] = count + 1
            await asyncio.sleep(max(began + self._every - time.monotonic(), 0))

    async def _look(self, client: httpx.AsyncClient, until: float) -> None:
        while time.monotonic() < until:
            metrics = (await client.get("/metrics")).text
            self.seen.lags.append(_value(metrics, _LAG))
            await asyncio.sleep(_LOOK_SECONDS)

    async def _closed(self, client: httpx.AsyncClient, number: int) -> bool:
        path = run_path(self.keys[number])
        while (await client.post(f"{path}/close")).json()["state"] != "closed":
            await asyncio.sleep(0.5)
        page = (await client.get(path, params={"limit": 1})).json()
        return bool(page["totalLines"] == self.seen.sent.get(number, 0) * _LINES)


def _value(metrics: str, name: str) -> float:
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == name:
                return float(sample.value)
    raise KeyError(name)


def _report(runs: Runs, traffic: Traffic, watched: Watched, seconds: float) -> bool:
    seen, count = runs.seen, len(runs.keys)
    per_run_minute = count * seconds / 60
    posts = sum(seen.sent.values())
    puts = traffic.count(*PUTS) / per_run_minute
    marks = traffic.count(*PUTS, what="active") / per_run_minute
    peer = posts / per_run_minute + 60 / _FLUSH_SECONDS
    most = _SEGMENT_SECONDS + _FLUSH_SECONDS + _SPARE_SECONDS
    behind = max(seen.lags)
    print("\n".join(traffic.rows(posts * _LINES, "line")))
    print(
        f"{count} runs, {posts / seconds:.0f} posts/s of {_LINES} lines ({source()}): at most "
        f"{behind:.0f} s behind (limit {most:g}), RSS at most {watched.peak_mb:.0f} MB, drift "
        f"{watched.late_growth_mb:+.0f} MB; {puts:.2f} puts per run and minute, {marks:.2f} of "
        f"them marks (upstream's design {peer:.2f}); ack p99 "
        f"{np.percentile(seen.acks, 99) * 1000:.1f} ms"
    )
    return behind <= most and puts <= peer


def _run(folder: Path, asked: argparse.Namespace) -> bool:
    with running_minio() as minio, counted(minio.endpoint_url) as wire:
        service = ServiceProcess(
            folder / "data", store=None, **minio.bucket().through(wire.url).environment
        )
        service.start()
        runs = Runs(service, asked.runs, asked.every)
        watched, before = Watched(service.pid), wire.traffic()
        asyncio.run(runs.post(asked.seconds))
        good = _report(runs, wire.traffic() - before, watched, asked.seconds)
        began = time.monotonic()
        whole = asyncio.run(runs.close())
        watched.end()
        print(f"{whole} of {asked.runs} runs whole, closed in {time.monotonic() - began:.0f} s")
        service.stop()
    return good and whole == asked.runs


def main() -> int:
    """0 if every limit holds and every line is there."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--every", type=float, default=10, help="seconds from batch to batch")
    parser.add_argument("--seconds", type=float, default=360)
    asked = parser.parse_args()
    reason = why_no_minio()
    if reason is not None:
        print(f"no MinIO here: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=".") as folder:
        return 0 if _run(Path(folder).resolve(), asked) else 1


if __name__ == "__main__":
    sys.exit(main())
