"""What people read of Spark's JVM: nothing of a start that succeeds, all of one that does not."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compactor.spark.jvm import _READY, _Relay
from tests.compactor.lake import NOON, Lake, batch

JOB = str(Path(__file__).parents[3] / "compactor" / "job.py")
START = [b"WARNING: Using incubator modules", b":: loading settings :: url = jar:file:ivy.jar"]
LOST = b'{"level":"WARNING","logger":"TaskSetManager","message":"Lost task 1"}'
FAILED = (
    b'{"level":"ERROR","logger":"Executor","message":"Exception in task","traceback":"a\\n\\tat b"}'
)
BROKEN = b"java.lang.OutOfMemoryError: Java heap space"


def heard(
    lines: list[bytes], caplog: pytest.LogCaptureFixture, *, all_of_it: bool = False
) -> list[tuple[str, str]]:
    reading, writing = os.pipe()
    relay = _Relay(os.fdopen(reading, "rb"), all_of_it=all_of_it)
    relay.start()
    with os.fdopen(writing, "wb") as jvm:
        jvm.write(b"".join(line + b"\n" for line in lines))
    relay.join(60)
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_a_start_that_succeeds_is_silent_and_what_comes_then_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    assert heard([*START, _READY, LOST, FAILED, BROKEN], caplog) == [
        ("WARNING", "TaskSetManager: Lost task 1"),
        ("ERROR", "Executor: Exception in task\na\n\tat b"),
        ("WARNING", BROKEN.decode()),
    ]


def test_all_is_said_of_a_jvm_that_ends_before_it_is_ready(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said = heard([*START, BROKEN], caplog)
    assert said == [("WARNING", line.decode()) for line in [*START, BROKEN]]


def test_lines_of_json_have_all_that_was_said(caplog: pytest.LogCaptureFixture) -> None:
    said = heard([START[0], _READY, LOST], caplog, all_of_it=True)
    assert said == [("WARNING", START[0].decode()), ("WARNING", "Lost task 1")]


def compacted(lake: Lake, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, JOB, "--data", str(lake.data)],
        env={**os.environ, "TAILRACE_COMPACTION__DRIVER_MEMORY": "1g", **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.spark
@pytest.mark.in_turn(4, "words of a pass")
def test_a_pass_says_what_it_did_and_no_word_of_the_jvm(lake: Lake) -> None:
    lake.put("a", [batch("f", "r", NOON, 3)])
    done = compacted(lake)
    first, second = done.stderr.splitlines()
    assert first.startswith("INFO ingested 1 segments of ")
    assert second.startswith("INFO pass done in ")
    assert second.endswith(" s: 1 segments, 3 rows in, 3 out, 0 duplicates")
    assert done.stdout.startswith('{"began"')


@pytest.mark.spark
def test_a_jvm_that_does_not_start_says_why(lake: Lake) -> None:
    lake.put("a", [batch("f", "r", NOON, 3)])
    done = compacted(lake, SPARK_SUBMIT_OPTS="--add-modules=no.such.module")
    assert done.returncode == 3
    *before, last = done.stderr.splitlines()
    assert any("no.such.module" in line for line in before)
    assert last.startswith("ERROR Spark does not start: ")
