"""A compactor as operators start it, killed with -9 whole or in part, at a step or at any moment.

What belongs to one has its own `TEST_FOLDER`: the driver, its JVM, executors. Once the driver or
its JVM is gone nothing of it may stay.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson

from tests.compactor.spark.executors import commands_below, executors_below, first_of, until
from tests.servers.quick_java import quick_executors

JOB = str(Path(__file__).parents[3] / "compactor" / "job.py")
_JVM = b"org.apache.spark.deploy.SparkSubmit"
_PATIENCE_SECONDS = 400.0


def _cluster() -> dict[str, str]:
    """Settings of two executors on this machine."""
    spark = {"spark.executor.memory": "512m", **quick_executors()}
    return {
        "TAILRACE_COMPACTION__MASTER": "local-cluster[2,1,1024]",
        "TAILRACE_COMPACTION__SPARK": orjson.dumps(spark).decode(),
    }


class Way(StrEnum):
    """How it is started."""

    JOB = "job.py"
    SUBMIT = "spark-submit"
    TAILRACE = "tailrace compact"
    CLUSTER = "job.py on a local cluster"


class Victim(StrEnum):
    """What of it is killed."""

    DRIVER = "driver"
    JVM = "its JVM"
    ALL = "all of it"
    EXECUTOR = "an executor"


@dataclass(frozen=True)
class Place:
    """Where compactors work: their data folder, their settings, jars for `spark-submit`."""

    data: Path
    scratch: Path
    settings: Mapping[str, str]
    jars: str = ""

    def start(self, way: Way, name: str, *flags: str) -> Running:
        """One that makes a pass and ends. `name` is not used twice."""
        mark = self.scratch / name
        mark.mkdir(parents=True)
        more = _cluster() if way is Way.CLUSTER else {}
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        known = {name: it for name, it in os.environ.items() if name != "PYTHONPATH"}
        with (mark / "out").open("wb") as out, (mark / "errors").open("wb") as errors:
            process = subprocess.Popen(
                [*self._command(way), "--data", str(self.data), "--json", *flags],
                env={**known, **python, **self.settings, **more, "TEST_FOLDER": str(mark)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
            )
        return Running(process, mark, way)

    def _command(self, way: Way) -> list[str]:
        bin_ = Path(sys.executable).parent
        if way is Way.SUBMIT:
            return [str(bin_ / "spark-submit"), *(["--jars", self.jars] * bool(self.jars)), JOB]
        if way is Way.TAILRACE:
            return [str(bin_ / "tailrace"), "compact"]
        return [sys.executable, JOB]


@dataclass
class Running:
    """One that was started."""

    process: subprocess.Popen[bytes]
    mark: Path
    way: Way

    def kill_after(self, seconds: float, victim: Victim) -> bool:
        """Kills then; False if there was nothing to kill any more, or not yet."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=seconds)
            return False
        if victim is Victim.ALL:
            os.killpg(self.process.pid, signal.SIGKILL)
            return True
        for pid in self._pids(victim)[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    def end(self) -> int:
        """Waits for its end, and that of all that it started; its exit status."""
        try:
            status = self.process.wait(timeout=_PATIENCE_SECONDS)
            until(lambda: not list(commands_below(self.mark)))
        finally:
            self.kill()
        return status

    def kill(self) -> None:
        """All that is left of it."""
        for pid, _ in commands_below(self.mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def summary(self) -> dict[str, Any]:
        """What it said of its pass; empty if it did not come to that."""
        lines = [line for line in self._read("out").splitlines() if line.startswith("{")]
        found: dict[str, Any] = orjson.loads(lines[-1]) if lines else {}
        return found

    def words(self) -> str:
        """The last that it said on stderr."""
        return self._read("errors")[-3_000:]

    def _read(self, name: str) -> str:
        return (self.mark / name).read_text(errors="replace")

    def _pids(self, victim: Victim) -> list[int]:
        if victim is Victim.EXECUTOR:
            return [one.pid for one in executors_below(self.mark)]
        found = dict(commands_below(self.mark))
        jvms = {pid: words for pid, words in found.items() if _JVM in words}
        if victim is Victim.JVM:
            return list(first_of(jvms))
        return [p for p, words in found.items() if JOB.encode() in words and p not in jvms]
