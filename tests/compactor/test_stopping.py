"""Told to stop, a compactor ends soon and without a word of failure, whatever Spark is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compactor.lake import HOUR, NOON, Batch, Lake, batch, merging
from tests.compactor.plain_engine import PlainEngine
from tests.compactor.spark.executors import commands_below, until
from tests.servers.quick_java import quick_submit

JOB = str(Path(__file__).parents[2] / "compactor" / "job.py")
SUBMIT = str(Path(sys.executable).parent / "spark-submit")
LINES = 2_000  # a JVM that has merged nothing yet takes a second for any
JVM = b"org.apache.spark.deploy.SparkSubmit"

pytestmark = pytest.mark.spark


def start(lake: Lake, *command: str, **more: str) -> subprocess.Popen[str]:
    """A compactor that stays, the first of a process group."""
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    settings = {"DRIVER_MEMORY": "1g", "GATHER_SECONDS": "0"}
    ours = {f"TAILRACE_COMPACTION__{name}": value for name, value in settings.items()}
    return subprocess.Popen(
        [*command, JOB, "--data", str(lake.data), "--every", "1h"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **python, **ours, **more, "TEST_FOLDER": str(lake.data)},
        start_new_session=True,
    )


def starting(lake: Lake) -> bool:
    return any(JVM in words for _, words in commands_below(lake.data))


@pytest.fixture
def sent(lake: Lake) -> list[Batch]:
    batches = [batch("f", f"r{i}", NOON + i * HOUR, LINES) for i in range(4)]
    lake.put("a", batches)
    return batches


def goes_on_elsewhere(lake: Lake, sent: list[Batch]) -> None:
    until(lambda: list(commands_below(lake.data)) == [])
    lake.session = PlainEngine()
    lake.compact()
    lake.holds(sent)


@pytest.mark.in_turn(4, "stopped while busy")
@pytest.mark.parametrize("all_of_it", [False, True], ids=["the driver is told", "all are told"])
@pytest.mark.parametrize("doing", [starting, merging])
def test_it_ends_clean_while_spark_is_busy(
    lake: Lake, sent: list[Batch], doing: Callable[[Lake], bool], all_of_it: bool
) -> None:
    process = start(lake, sys.executable)
    until(lambda: doing(lake) or process.poll() is not None)
    if all_of_it:  # as systemd tells them
        os.killpg(process.pid, signal.SIGTERM)
    else:
        process.terminate()
    _, errors = process.communicate(timeout=300)
    assert (process.returncode, "INFO stopped" in errors) == (0, True), errors
    for word in ("Traceback", "py4j", "pass failed", " failed: ", "\tat ", "Exception"):
        assert word not in errors, errors
    goes_on_elsewhere(lake, sent)


@pytest.mark.in_turn(4, "submitted and stopped")
def test_submitted_it_ends_with_its_jvm(lake: Lake, sent: list[Batch]) -> None:
    """The signal goes to spark-submit, which is the JVM, and the driver is a child of that."""
    process = start(lake, SUBMIT, **quick_submit())
    assert process.stdout is not None
    assert any('"commits":1' in line for line in process.stdout)  # our log goes there as well
    process.terminate()
    out, errors = process.communicate(timeout=300)
    assert "INFO stopped" in out or process.returncode == 128 + signal.SIGTERM
    for word in ("Traceback", "py4j", "pass failed", " failed: "):
        assert word not in out + errors
    goes_on_elsewhere(lake, sent)
