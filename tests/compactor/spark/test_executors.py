"""Which processes tests halt and kill."""

from __future__ import annotations

import subprocess
import sys

from tests.compactor.spark.executors import commands, first_of

FORKS = """
import os, sys
if os.fork():
    sys.stdin.read()
else:
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""


def test_one_that_has_just_forked_is_one() -> None:
    command = [sys.executable, "-S", "-c", FORKS]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        seen = {pid: words for pid, words in commands() if FORKS.encode() in words}
        assert seen.keys() == {process.pid, child}
        assert first_of(seen).keys() == {process.pid}
        process.communicate("")
