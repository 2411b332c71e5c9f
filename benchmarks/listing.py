"""What Spark asks a distant store for small segments: `python -m benchmarks.listing`.

Segments of a few lines are put into a real S3 server (MinIO). Between it and Spark stands a
proxy that lets each request wait (`--milliseconds`) and counts them. A merge of all of them
runs on each master, warm; the requests for segments are told by kind and per segment.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from compactor.spark.conf import SparkWishes
from compactor.spark.engine import MergeInput
from compactor.spark.s3a import S3A
from compactor.spark.session import Session
from logstore import keys, ulid
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


def _work(segments: Mapping[str, int]) -> MergeInput:
    return MergeInput(
        segments=segments,
        held={},
        bounds=[ulid.lowest_at(NOON)],
        tasks=[0],
        deletions=[],
        low=ulid.lowest_at(NOON),
        high=ulid.highest_at(NOON + 3_600_000 - 1),
    )


def _fill(lake: Lake, count: int) -> dict[str, int]:
    """Bytes by address."""
    for i in range(count):
        lake.put("a", [batch("f", f"r{i}", NOON + i, _LINES)])

    async def listed() -> dict[str, int]:
        found = lake.store.list(keys.SEGMENTS)
        return {lake.store.uri(info.key): info.size async for info in found}

    return lake.run(listed())


def run(master: str, lake: Lake, url: str, distant: Distant, segments: dict[str, int]) -> None:
    """Merges the first and then all of them, and prints what that took."""
    assert lake.bucket is not None
    more = {"spark.executor.memory": "512m"} if "cluster" in master else {}
    settings = lake.bucket.through(url).settings
    session = Session(SparkWishes("1g", master, more), S3A(settings.s3, str(jars_folder())))
    staging = lake.store.uri(f"{keys.TABLE}/_staging")
    try:
        for some in dict(list(segments.items())[:1]), segments:
            distant.counted.clear()
            start = time.monotonic()
            session.merge(_work(some), f"{staging}/{lake.compactor.fresh_id()}")
            took = time.monotonic() - start
            each = {kind: n / len(some) for kind, n in sorted(distant.counted.items())}
            print(
                f"{master}: {len(some)} segments in {took:.1f} s;"
                f" {sum(each.values()):.2f} requests each:"
                f" {', '.join(f'{kind} {n:.2f}' for kind, n in each.items())}",
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
        with (
            lake_in(minio.bucket(), Path(made)) as lake,
            fault_proxy(minio.endpoint_url, distant) as url,
        ):
            segments = _fill(lake, flags.segments)
            for master in flags.master or MASTERS:
                run(master, lake, url, distant, segments)


if __name__ == "__main__":
    main()
