"""Real processes, killed with -9 at every step that a pass has; then one more that is not.

The engine is the plain one: what is killed is the driver, and what it leaves is on a real disk.
`tests/compactor/test_crashes.py` kills Spark's.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from random import Random

from compactor.settings import Compaction
from tests.compactor.histories.dated import HOUR_MS
from tests.compactor.histories.world import World
from tests.compactor.lake import batch

ROOT = Path(__file__).parents[3]
STEPS = (
    "written",
    "placed",
    "committed",
    "hour purged",
    "purged",
    "rewrite written",
    "rewrite placed",
    "hour committed",
)
LIMITS = Compaction(batch_bytes=1)


def killed_at(world: World, step: str) -> int:
    command = [sys.executable, "-m", "tests.compactor.histories.driver", str(world.root)]
    return subprocess.run(
        [*command, str(world.clock.ms), step], cwd=ROOT, capture_output=True, check=False
    ).returncode


def test_killed_at_every_step_it_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path, Random(1), limits=LIMITS)
    sent = [batch("f", f"r{i % 3}", world.clock.ms + i, 9, salt=i) for i in range(6)]
    for one in sent:
        world.put("a", [one, sent[0]])
    world.texts_made("a")
    for step in STEPS:
        if step == "hour purged":
            world.delete("f", "r0", sent[3][1] - 1)
            world.pass_time(3 * HOUR_MS)
        assert killed_at(world, step) == -signal.SIGKILL, step
        world.check()
    world.pass_time(26 * HOUR_MS)
    assert world.drive() is not None
    world.pass_time(26 * HOUR_MS)
    assert world.drive() is not None
    world.check_settled()
    assert world.left_segments() == set()
