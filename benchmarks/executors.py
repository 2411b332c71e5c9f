"""Speed-up of a merge from one executor to two: `python -m benchmarks.executors [--rounds 3]`.

Executors are processes with one core each (`local-cluster[n,1,2048]`), the driver's own process
does no task. Warm, on the same segments of 64 MiB of text. Phases beside the merge (planning,
checking the segments, placing, commit) are the driver's alone and are in the time of the pass.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from benchmarks.backlog import Backlog, Shape, make
from benchmarks.corpus import source
from benchmarks.passes import executor_memory, ingest
from compactor.spark.engine import SparkWishes
from compactor.spark.session import Session

MEMORY_MB = 2_048  # of an executor: heap 1.5 GB, the rest is what Spark reckons for the JVM
HEAP = "1536m"


def run(backlog: Backlog, executors: int, rounds: int) -> tuple[float, float]:
    """Median seconds of the pass, and of its merges, with so many executors."""
    master = f"local-cluster[{executors},1,{MEMORY_MB}]"
    session = Session(SparkWishes("1g", master, {"spark.executor.memory": HEAP}))
    ingest(backlog, session)
    passes, merges = [], []
    for _ in range(rounds):
        seconds, report = ingest(backlog, session)
        passes.append(seconds)
        merges.append(report.seconds["merge"])
    mb = backlog.text / 1e6
    print(
        f"{executors}: {mb / statistics.median(passes):.1f} MB/s; passes"
        f" {', '.join(f'{s:.1f}' for s in passes)} s, of it merges"
        f" {', '.join(f'{s:.1f}' for s in merges)} s; executor's peak: {executor_memory(session)}",
        flush=True,
    )
    session.stop()
    return statistics.median(passes), statistics.median(merges)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=600, help="text without duplicates, MB")
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as made:
        os.environ["SPARK_WORKER_DIR"] = f"{made}/work"  # else beside Spark's own files
        backlog = make(Path(made) / "data", Shape(flags.megabytes))
        print(f"{backlog.text / 1e6:.0f} MB of text ({source()}), {os.cpu_count()} CPUs")
        one = run(backlog, 1, flags.rounds)
        two = run(backlog, 2, flags.rounds)
    print(f"from one executor to two: merge {one[1] / two[1]:.2f}, pass {one[0] / two[0]:.2f}")


if __name__ == "__main__":
    main()
