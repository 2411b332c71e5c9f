"""Where pyspark is not installed, what needs no Spark works, and a start says what to install."""

from __future__ import annotations

import subprocess
import sys

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
    assert ended.stdout == "Install pyspark 4.1.1 beside this program.\n"
