"""A start of Spark that fails says why, and what to do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_WITHOUT = """
import sys
sys.modules["pyspark"] = sys.modules["py4j"] = None
import compactor.cli
from compactor.spark.session import Session
from tailrace.logstore.errors import Unavailable
try:
    Session("512m").get()
except Unavailable as error:
    print(error.hint)
"""


def test_a_start_without_pyspark_says_what_to_install() -> None:
    command = [sys.executable, "-c", _WITHOUT]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "Install pyspark 4.1.1 in the environment of this program.\n"


_STARTING = """
import sys
from compactor.spark.session import Session
from tailrace.logstore.errors import Unavailable
try:
    Session(sys.argv[1]).get()
except Unavailable as error:
    print(error, "|", error.hint)
"""


@pytest.mark.spark
@pytest.mark.in_turn(2, "Spark that does not start")
@pytest.mark.parametrize(
    ("memory", "java", "said", "hint"),
    [
        ("1g", "/nowhere", "JAVA_HOME is /nowhere", "Java 17 or newer"),
        ("16m", "", "Java gateway process exited", "`compaction.driver_memory` is 16m"),
    ],
)
def test_no_java_and_too_small_a_heap_are_told_apart(
    memory: str, java: str, said: str, hint: str
) -> None:
    command = [sys.executable, "-c", _STARTING, memory]
    more = {"JAVA_HOME": java} if java else {}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=True, env=os.environ | more
    )
    reason, _, advice = ended.stdout.partition("|")
    assert said in reason
    assert hint in advice
    assert ("Java 17" in ended.stdout) == bool(java)
