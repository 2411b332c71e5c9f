"""Rows that the tasks wrote and that are not there when they are to be committed: none is lost."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from compactor.ingest import ingest_all
from compactor.placement import STAGING
from compactor.report import PassReport
from compactor.rewrite import rewrite_hours
from compactor.settings import Compaction
from tailrace.logstore.errors import Unavailable
from tests.compactor.files import add_files
from tests.compactor.lake import HOUR, NOON, Lake, batch
from tests.compactor.plain_engine import PlainEngine


@pytest.fixture(params=["plain", pytest.param("spark", marks=pytest.mark.spark)])
def either(request: pytest.FixtureRequest, lake: Lake) -> Lake:
    plain = request.param == "plain"
    lake.session = PlainEngine() if plain else request.getfixturevalue("session")
    return lake


def lose(lake: Lake, at: str, left: int) -> list[str]:
    """One file that a task wrote holds `left` rows at that step, or is gone; its name, then."""
    lost: list[str] = []

    def reached(step: str) -> None:
        if step == at and not lost:
            staging = Path(lake.compactor.table.uri) / STAGING
            part = min(staging.rglob("part-*.parquet"))
            rows = pq.ParquetFile(part).read()
            part.unlink()
            (part.parent / f".{part.name}.crc").unlink(missing_ok=True)
            if left:
                pq.write_table(rows.slice(0, left), part)
            lost.append(part.name)

    lake.reached = reached
    return lost


@pytest.mark.parametrize("left", [0, 19])
def test_an_intake_is_not_committed(either: Lake, left: int) -> None:
    either.put("a", [batch("f", "r", NOON + i * HOUR, 20) for i in range(2)])
    assert lose(either, "written", left) == []
    with pytest.raises(Unavailable, match=f"wrote 40 rows, and its files hold {20 + left}"):
        either.run(ingest_all(either.compactor, PassReport()))
    assert either.snapshot().files == ()
    assert either.snapshot().mark("a") == 0
    either.compact()
    either.holds(either.taken)


@pytest.mark.parametrize("left", [0, 19])
def test_an_hour_is_not_replaced(either: Lake, left: int) -> None:
    files = [[batch("f", "r", NOON - 5 * HOUR + i, 20)] for i in range(5)]
    add_files(either, *files)
    before = either.snapshot()
    either.limits = Compaction(settle_seconds=0)
    lose(either, "rewrite written", left)
    with pytest.raises(Unavailable, match=f"wrote 100 rows, and its files hold {left}"):
        either.run(rewrite_hours(either.compactor, PassReport()))
    assert either.snapshot().version == before.version
    report = PassReport()
    either.run(rewrite_hours(either.compactor, report))
    assert report.hours_rewritten == 1
    either.holds(one for file in files for one in file)
