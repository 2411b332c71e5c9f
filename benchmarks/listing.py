"""What a pass asks a distant store for small segments: `python -m benchmarks.listing`.

Segments of a few lines are put into a real S3 server (MinIO). Between it and the compactor stands a
proxy that lets each request wait (`--milliseconds`) and counts them. A pass takes in the first
one, with Spark's start, and another one so many more, on each master. The requests for
segments, of the driver and of Spark, are told by kind and per segment, and the seconds by phase.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

from compactor.spark.engine import SparkWishes
from compactor.spark.s3 import S3A
from compactor.spark.session import Session
from tailrace.logstore import keys
from tests.compactor.lake import NOON, Lake, batch, lake_in
from tests.faults.kinds import Kind
from tests.faults.requests import Request
from tests.faults.schedule import Schedule
from tests.faults.thread import fault_proxy
from tests.servers.jars import jars_folder, why_no_jars
from tests.servers.minio import running_minio

MASTERS = ("local[2, 4]", "local-cluster[1,2,1024]")
_LINES = 20


class Distant(Schedule):
    """Every request waits; those for segments are counted by what they are."""

    def __init__(self, seconds: float) -> None:
        super().__init__(0, {Kind.DELAY: 1.0}, most_in_a_row=1 << 62, delay_seconds=seconds)
        self.counted: Counter[str] = Counter()

    def next(self, request: Request) -> Kind | None:
        target = request.head.request_line()[1]
        if f"/{keys.SEGMENTS}" in target or "segments%2F" in target:
            listed = "prefix" in request.query
            self.counted["LIST" if listed else request.method] += 1
        return super().next(request)


def _fill(lake: Lake, first: int, count: int) -> None:
    for i in range(first, first + count):
        lake.put("a", [batch("f", f"r{i}", NOON + i, _LINES)], seq=i + 1)


def run(master: str, direct: Lake, behind: Lake, distant: Distant, count: int) -> None:
    """Compacts one segment and then so many, `behind` the proxy, and prints what that took."""
    more = {"spark.executor.memory": "512m"} if "cluster" in master else {}
    s3a = S3A(behind.settings.s3, str(jars_folder()))
    behind.session = session = Session(SparkWishes("1g", master, more), s3a)
    try:
        for first, some in (0, 1), (1, count):
            _fill(direct, first, some)
            distant.counted.clear()
            start = time.monotonic()
            report = behind.compact()
            took = time.monotonic() - start
            each = {kind: n / some for kind, n in sorted(distant.counted.items())}
            phases = {name: round(seconds, 1) for name, seconds in report.seconds.items()}
            print(
                f"{master}: {some} segments in {took:.1f} s;"
                f" {sum(each.values()):.2f} requests each:"
                f" {', '.join(f'{kind} {n:.2f}' for kind, n in each.items())}; {phases}",
                flush=True,
            )
    finally:
        session.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--segments", type=int, default=300)
    parser.add_argument("--milliseconds", type=float, default=50)
    parser.add_argument("--master", action="append", help=f"default: {', '.join(MASTERS)}")
    flags = parser.parse_args()
    assert why_no_jars() is None, why_no_jars()
    distant = Distant(flags.milliseconds / 1000)
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as made, running_minio() as minio:
        os.environ["SPARK_WORKER_DIR"] = f"{made}/work"
        with fault_proxy(minio.endpoint_url, distant) as url:
            for master in flags.master or MASTERS:
                bucket = minio.bucket()
                with (
                    lake_in(bucket, Path(made)) as direct,
                    lake_in(bucket.through(url), Path(made)) as behind,
                ):
                    run(master, direct, behind, distant, flags.segments)


if __name__ == "__main__":
    main()
