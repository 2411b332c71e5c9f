"""Backlogs of unusual shape, really merged: very many hours, and one run that is nearly all."""

from __future__ import annotations

import random
from typing import Any

import pytest

from compactor.ingest import ingest_all
from compactor.report import PassReport
from compactor.settings import Compaction
from compactor.spark.session import Session
from tests.compactor.lake import HOUR, NOON, Batch, Lake, batch

pytestmark = pytest.mark.spark

HOURS = 40


@pytest.mark.in_turn(4, "many hours")
def test_many_hours_with_few_rows_are_files_of_a_few_tasks(warm: Lake, session: Session) -> None:
    dice = random.Random(1)
    every = list(range(HOURS))
    dice.shuffle(every)
    batches = [
        batch(dice.choice("fgh"), f"r{dice.randrange(9)}", NOON + hour * HOUR, 3) for hour in every
    ]
    warm.put("a", batches[:30])
    warm.put("b", batches[10:])
    warm.limits = Compaction(bucket_bytes=3_000)
    report = taken_in(warm)
    warm.holds(batches)
    assert (report.hours, report.files, report.duplicates) == (HOURS, HOURS, 60)
    (planned,) = report.batches
    assert planned.hours == HOURS
    assert 1 < planned.tasks < HOURS // 3
    assert sorts(session) == 1
    late = [batch("f", "late", NOON + hour * HOUR + 1, 2) for hour in every[:34]]
    warm.put("b", batches[:20] + late)
    report = taken_in(warm)
    warm.holds(batches + late)
    assert (report.rows_out, report.duplicates) == (68, 60)
    assert warm.keys("table/_staging/") == []


def test_a_run_that_is_nearly_all_of_a_batch_is_cut_into_files(warm: Lake) -> None:
    """90 % of the rows are one run's, most of those of one minute of the hour."""
    dice = random.Random(2)
    large = [batch("f", "large", NOON + index * 20, 60, salt=index) for index in range(300)]
    small = [batch("g", f"r{i}", NOON + dice.randrange(HOUR), 20) for i in range(100)]
    mixed: list[Batch] = large + small
    dice.shuffle(mixed)
    for start in range(0, len(mixed), 50):
        warm.put("ab"[start // 50 % 2], mixed[start : start + 50] + mixed[:5])
    warm.limits = Compaction(bucket_bytes=100_000)
    report = taken_in(warm)
    warm.holds(mixed)
    rows = sorted(file.rows for file in warm.snapshot().files)
    assert [(one.hours, one.tasks) for one in report.batches] == [(1, len(rows))]
    assert len(rows) > 8
    assert rows[-1] < 2.5 * report.rows_out / len(rows)


def taken_in(lake: Lake) -> PassReport:
    """Without the rewriting of hours, which would make one file of an hour's."""
    report = PassReport()
    lake.run(ingest_all(lake.compactor, report))
    return report


def sorts(session: Session) -> int:
    """How often the last job of Spark sorted each line, by the plan that ran in the end."""
    spark: Any = session.get()
    done = spark._jsparkSession.sharedState().statusStore().executionsList().last()
    final = done.physicalPlanDescription().partition("Initial Plan")[0]
    return int(final.count("Sort ("))
