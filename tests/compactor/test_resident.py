"""A compactor that stays, as a process, on executors that come with the work and go without."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.compactor.lake import HOUR, NOON, Lake, batch
from tests.compactor.spark.executors import executors_below, until
from tests.servers.quick_java import quick_executors

JOB = str(Path(__file__).parents[2] / "compactor" / "job.py")
SPARK = {
    "spark.executor.memory": "512m",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
}

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.in_turn(4, "residents")]


@pytest.fixture
def resident(lake: Lake) -> Iterator[subprocess.Popen[str]]:
    settings = {
        "MASTER": "local-cluster[1,1,1024]",
        "SPARK": orjson.dumps(SPARK | quick_executors()).decode(),
        "DRIVER_MEMORY": "1g",
        "POLL_SECONDS": "1",
        "LAG_SEGMENTS": "2",
    }
    process = subprocess.Popen(
        [sys.executable, JOB, "--data", str(lake.data), "--every", "1h", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            **{f"TAILRACE_COMPACTION__{name}": value for name, value in settings.items()},
            "PYSPARK_PYTHON": "/nowhere/python",
            "TEST_FOLDER": str(lake.data),
        },
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=300)


def test_much_that_waits_brings_executors_and_none_stays(
    lake: Lake, resident: subprocess.Popen[str]
) -> None:
    assert resident.stdout is not None
    assert orjson.loads(resident.stdout.readline())["segments"] == 0
    sent = []
    for again in range(2):  # an hour is not over: what waits starts both
        new = [batch("f", f"r{i}", NOON + again + i * HOUR, 2_000) for i in range(4)]
        lake.put("a", new[:2])
        lake.put("b", new[2:])
        sent += new
        assert orjson.loads(resident.stdout.readline())["rows_out"] == 8_000
        lake.holds(sent)
        until(lambda: executors_below(lake.data) == [])
