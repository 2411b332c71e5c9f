"""Real processes, killed with -9 at every step that a pass has; then one more that is not.

The engine is the plain one: what is killed is the driver, and what it leaves is on a real disk.
`tests/compactor/test_crashes.py` kills one whose Spark has written.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import orjson

from tests.compactor.histories.consumers import queue_of
from tests.compactor.histories.dated import HOUR_MS
from tests.compactor.histories.driver import LIMITS, RUNS
from tests.compactor.histories.steps import STEPS
from tests.compactor.histories.world import DAY_MS, World
from tests.compactor.lake import batch
from tests.service.queue.world import taken

ROOT: Final = Path(__file__).parents[3]
TAKING_IN: Final = ("written", "placed", "committed", "rebased", "file indexed")
LATER: Final = ("hour purged", "purged", "rewrite written", "rewrite placed", "hour committed")
NEXT_DAY: Final = ("group settled", "low raised", "segment removed")
NEXT_MONTH: Final = ("expired", "deletion removed")


@contextmanager
def killing(world: World) -> Iterator[Callable[[str], None]]:
    """What kills a driver at a step, and then looks what it has left."""
    command = [sys.executable, "-m", "tests.compactor.histories.driver", str(world.root)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        to, answers = process.stdin, process.stdout
        assert to is not None
        assert answers is not None

        def kill(step: str) -> None:
            told = {"now_ms": world.clock.ms, "made": world.versions.made, "step": step}
            to.write(orjson.dumps(told) + b"\n")
            to.flush()
            assert int(answers.readline()) == -signal.SIGKILL, step
            world.check()

        yield kill


def test_killed_at_every_step_it_goes_on(tmp_path: Path) -> None:
    assert sorted([*TAKING_IN, *LATER, *NEXT_DAY, *NEXT_MONTH]) == STEPS
    world = World(tmp_path, Random(1), limits=LIMITS, runs=RUNS)
    sent = [batch("f", f"r{i % 3}", world.clock.ms + i, 9, salt=i) for i in range(6)]
    for one in sent:
        world.put("a", [one, sent[0]])
    world.put("b", [batch("g", "r", world.clock.ms, 9)])
    world.run(taken(queue_of(world.store, world.clock, world.dice)))
    world.texts_made("a")
    with killing(world) as kill:
        for step in TAKING_IN:
            kill(step)
        world.delete("f", "r0", sent[3][1] - 1)
        world.pass_time(3 * HOUR_MS)
        for step in LATER:
            kill(step)
        world.pass_time(26 * HOUR_MS)
        for step in NEXT_DAY:
            kill(step)
        for _ in range(2):  # the runs expire, and then what is known of them
            world.pass_time(21 * DAY_MS)
            world.sweep()
        for step in NEXT_MONTH:
            kill(step)
    for node in ("a", "b"):
        world.texts_made(node)
    for _ in range(2):
        world.pass_time(26 * HOUR_MS)
        assert world.drive() is not None
    world.check_settled()
    assert world.left_segments() == set()
