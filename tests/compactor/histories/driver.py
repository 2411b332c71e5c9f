"""A driver to be killed: `python -m tests.compactor.histories.driver STORE NOW_MS STEP`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from random import Random

from compactor.settings import Compaction
from tests.compactor.histories.dated import MovedClock
from tests.compactor.histories.world import Troubles, World


class Deadly(Troubles):
    """Ends this process at the step that the command line names."""

    def reached(self, step: str) -> None:
        if step == sys.argv[3]:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    clock = MovedClock(int(sys.argv[2]))
    world = World(Path(sys.argv[1]), Random(), limits=Compaction(batch_bytes=1), clock=clock)
    world.attempt(Deadly())


if __name__ == "__main__":
    main()
