"""The JVM of `spark-submit` logs before the driver does, as `docs/operate/compaction.md` says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from compactor.spark.jvm import CONFIGURATION
from tests.compactor.lake import Lake
from tests.servers.quick_java import quick_submit

ROOT = Path(__file__).parents[3]
JOB = str(ROOT / "compactor" / "job.py")
PROPERTIES = ROOT / "deploy" / "spark" / "json-log.properties"
OPTION = f"-Dlog4j2.configurationFile=file:{PROPERTIES}"
COMMON = {"time", "level", "logger", "message"}
JAVA = b"WARNING: Using incubator modules"


def test_the_file_says_what_the_driver_would() -> None:
    lines = [line for line in PROPERTIES.read_text().splitlines() if not line.startswith("#")]
    assert dict(line.split(" = ", 1) for line in lines) == CONFIGURATION


def said(lake: Lake, *flags: str) -> list[bytes]:
    """On stderr, of a driver that needs no Spark; a jar that is not there is a warning."""
    submit = str(Path(sys.executable).parent / "spark-submit")
    command = [submit, "--jars", "/nowhere.jar", *flags, JOB, "--data", str(lake.data)]
    done = subprocess.run(
        [*command, "--dry-run", "--log-format", "json"],
        env={**os.environ, **quick_submit(), "PYSPARK_DRIVER_PYTHON": sys.executable},
        capture_output=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if not line.startswith(JAVA)]


@pytest.mark.in_turn(4)
@pytest.mark.spark
def test_with_that_file_it_says_json_from_its_beginning(lake: Lake) -> None:
    lines = [orjson.loads(line) for line in said(lake, "--driver-java-options", OPTION)]
    assert [line for line in lines if not line.keys() >= COMMON] == []
    (about,) = [line for line in lines if "/nowhere.jar" in line["message"]]
    assert about["level"] == "WARNING"
    assert any(b"/nowhere.jar" in line and not line.startswith(b"{") for line in said(lake))
