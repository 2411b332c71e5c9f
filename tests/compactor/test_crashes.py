"""Real processes, really killed, and two at once: the table is the same in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from tests.compactor.drivers import leases_of
from tests.compactor.lake import HOUR, NOON, Lake, batch
from tests.seeds import seeds
from tests.servers.quick_java import quick_submit

ROOT = Path(__file__).parents[2]
JOB = str(ROOT / "compactor" / "job.py")

pytestmark = pytest.mark.spark


def start(lake: Lake, *flags: str, submit: bool = False, **settings: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        **(quick_submit() if submit else {}),
        **settings,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "TAILRACE_COMPACTION__DRIVER_MEMORY": "1g",
        "TAILRACE_COMPACTION__GATHER_SECONDS": "0",
    }
    environment.pop("PYTHONPATH", None)
    submitter = [str(Path(sys.executable).parent / "spark-submit"), JOB]
    command = submitter if submit else [sys.executable, JOB]
    return subprocess.Popen(
        [*command, "--data", str(lake.data), "--json", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd="/",
    )


def kill_at(lake: Lake, step: str) -> None:
    process = start(lake, "--kill-at", step)
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.in_turn(4, "killed before placing")
def test_killed_before_what_spark_wrote_is_placed_the_lines_are_there_once(warm: Lake) -> None:
    """Later a pass leaves the same whoever merged: `histories/test_kills.py` has every step."""
    first = [batch("f", f"r{i}", NOON + i * HOUR, 30) for i in range(3)]
    warm.put("a", first)
    warm.put("b", first[:2])
    kill_at(warm, "written")
    assert warm.snapshot().mark("a") == 0
    assert warm.table() == []
    assert any("/part-" in key for key in warm.keys("table/_staging/"))
    assert warm.compact().commits == 1
    warm.holds(first)
    second = [batch("f", "r0", NOON + 5, 30), first[2]]
    warm.put("b", second)
    warm.compact()
    warm.holds([*first, *second])


@pytest.mark.slow
@pytest.mark.in_turn(4, "submitted")
@pytest.mark.parametrize("seed", seeds(1))
def test_two_submitted_at_once_one_of_them_killed(warm: Lake, seed: int) -> None:
    """Who lives on takes over the nodes of the other when its leases have run out."""
    lease = {
        "TAILRACE_COMPACTION__LEASE_SECONDS": "15",
        "TAILRACE_SOURCE_COORDINATION__WORKER_SECONDS": "10",
    }
    sent = [batch("f", f"r{i % 3}", NOON + i * 1_000, 40) for i in range(8)]
    for i, one in enumerate(sent):
        warm.put("abcd"[i % 4], [one, sent[0]])
    step = Random(seed).choice(["written", "placed", "committed"])
    killed = start(warm, "--kill-at", step, submit=True, **lease)
    while not any(entry.held for entry in warm.run(leases_of(warm.store))):
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.1)
    living = start(warm, "--every", "1s", submit=True, **lease)
    assert living.stdout is not None
    for _ in living.stdout:  # a line for each pass
        if set(warm.snapshot().marks("abcd").values()) == {2} and killed.poll() is not None:
            break
    living.terminate()
    living.communicate(timeout=300)
    assert killed.communicate(timeout=300) is not None
    assert killed.returncode != 0
    warm.holds(sent)
