"""Drivers to be killed: `python -m tests.compactor.histories.driver STORE`.

Each line on stdin is of one driver: JSON with the time (`now_ms`), when the table's versions came
to be (`made`), and the step at which it is killed (`step`). The answer is its exit code. Each
is a process of its own, forked from one that has imported all there is and started nothing.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import orjson

from compactor.settings import Compaction
from tailrace.logstore.runs.deletions import RunRetention
from tests.compactor.histories.dated import MovedClock
from tests.compactor.histories.troubles import Troubles
from tests.compactor.histories.world import World

LIMITS: Final = Compaction(batch_bytes=1, retention_days=30, away_days=0, index_min_bytes=1)
RUNS: Final = RunRetention(expiration_days=20)
FIRST: Final = "a"
"""The node that it is at when another driver ingests all the others, if that is asked for."""


@dataclass
class Deadly(Troubles):
    """Ends this process at the step `last`."""

    last: str = ""

    def reached(self, step: str) -> None:
        super().reached(step)
        if step == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


def drive(root: Path, told: Mapping[str, Any]) -> None:
    """One pass that is not to come to its end."""
    world = World(root, Random(), limits=LIMITS, runs=RUNS, clock=MovedClock(told["now_ms"]))
    world.versions.made.extend(told["made"])
    deadly = Deadly(last=told["step"])
    if deadly.last == "rebased":
        deadly.left = [node for node in world.nodes() if node != FIRST]
        deadly.meanwhile[1] = lambda: world.attempt(Troubles(left=[FIRST]))
    world.attempt(deadly)


def main() -> None:
    root = Path(sys.argv[1])
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                drive(root, orjson.loads(line))
            finally:
                os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
