"""The short form of `make torture OF=compactor`: a real Spark, killed for real, then a warm one.

Which steps and moments it are, the seed says.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from compactor.settings import Compaction
from compactor.spark.session import Session
from tests.compactor.lake import Lake
from tests.compactor.torture.__main__ import SETTINGS
from tests.compactor.torture.checker import vacuumed
from tests.compactor.torture.processes import Place, Victim, Way
from tests.compactor.torture.simulation import KEPT_DAYS
from tests.compactor.torture.torture import STEPS, Torture
from tests.seeds import seeds

pytestmark = [pytest.mark.spark, pytest.mark.slow]
LIMITS = Compaction(
    batch_bytes=20_000,
    file_bytes=10_000,
    grace_seconds=0,
    purge_seconds=0,
    retention_days=KEPT_DAYS,
    settle_seconds=0,
)


@pytest.mark.in_turn(4, "a torture")
@pytest.mark.parametrize("seed", seeds(1))
def test_killed_for_real_each_line_is_there_once(
    lake: Lake, session: Session, tmp_path: Path, seed: int
) -> None:
    lake.session, lake.limits = session, LIMITS
    dice = Random(seed)
    torture = Torture(lake, Place(lake.data, tmp_path / "passes", SETTINGS), dice, lines=30)
    try:
        torture.simulation.write()
        torture.simulation.write()
        lake.compact()
        torture.kill_after(dice.choice((Victim.DRIVER, Victim.JVM, Victim.ALL)), Way.SUBMIT)
        torture.simulation.delete()
        torture.kill_at(dice.choice([step for step in STEPS if "rewrite" in step.name]), Way.JOB)
        torture.settle(lake.compact)
    finally:
        torture.end()
    assert torture.faults == []
    assert vacuumed(lake) is None
