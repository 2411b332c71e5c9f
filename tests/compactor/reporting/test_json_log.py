"""With `--log-format json` all that is on standard error is lines of JSON, Spark's words too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from tests.compactor.lake import HOUR, NOON, Lake, batch

JOB = str(Path(__file__).parents[3] / "compactor" / "job.py")
COMMON = {"time", "level", "logger", "message"}


def run(lake: Lake, *flags: str, **settings: str) -> tuple[int, list[dict[str, str]]]:
    done = subprocess.run(
        [sys.executable, JOB, "--data", str(lake.data), "--log-format", "json", *flags],
        env={**os.environ, "TAILRACE_COMPACTION__DRIVER_MEMORY": "1g", **settings},
        capture_output=True,
        check=False,
        timeout=300,
    )
    lines = [orjson.loads(line) for line in done.stderr.splitlines()]
    assert [line for line in lines if not line.keys() >= COMMON] == []
    return done.returncode, lines


@pytest.mark.spark
def test_what_java_and_spark_say_is_json_with_its_stack_traces(lake: Lake) -> None:
    lake.put("a", [batch("f", "r", NOON - HOUR, 3)])
    code, lines = run(lake, TAILRACE_COMPACTION__SPARK='{"spark.driver.maxResultSize": "much"}')
    assert code == 3
    traces = [line for line in lines if "traceback" in line]
    assert {line["level"] for line in traces} == {"ERROR"}
    assert all("\n\tat org.apache.spark." in line["traceback"] for line in traces)
    assert "org.apache.spark.SparkContext" in [line["logger"] for line in traces]
    # Java's own, before anybody could tell it how to speak.
    assert any(line["logger"] == "spark" and "incubator" in line["message"] for line in lines)
    assert lines[-1]["logger"] == "tailrace.compactor"


def test_what_is_refused_at_the_start_is_json(lake: Lake) -> None:
    code, lines = run(lake, TAILRACE_COMPACTION__POLL_SECONDS="never")
    assert (code, len(lines), lines[0]["level"]) == (2, 1, "ERROR")
    assert "compaction.poll_seconds" in lines[0]["message"]
