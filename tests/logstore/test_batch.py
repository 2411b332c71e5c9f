"""What is found out about many batches at once."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import cast

import numpy as np

from tailrace.logstore.batch import (
    BATCH,
    Batches,
    Rows,
    RunKey,
    lowest_and_highest,
    newest_of_runs,
)


@dataclass
class Columns:
    rows: Rows
    runs: list[RunKey]


def columns(count: int, of: int, seed: int) -> Columns:
    """`count` batches of runs, not all of which have one."""
    random = Random(seed)
    rows = np.zeros(count, BATCH)
    rows["run"] = [random.randrange(of) for _ in range(count)]
    # Many share their upper half, as ids of one millisecond do.
    rows["ulid_hi"] = [(1 << 63) + random.randrange(3) for _ in range(count)]
    rows["ulid_lo"] = [random.randrange(1 << 64) for _ in range(count)]
    return Columns(rows, [RunKey("p", f"r{number}") for number in range(of)])


def test_the_newest_id_of_each_run_is_found_among_all() -> None:
    for seed in range(20):
        given = columns(count=seed * 10, of=15, seed=seed)
        expected = {
            given.runs[number]: lowest_and_highest(given.rows[given.rows["run"] == number])[1]
            for number in set(given.rows["run"].tolist())
        }
        assert newest_of_runs(cast("Batches", given)) == expected


def test_it_takes_the_rows_once_however_many_runs_there_are() -> None:
    """Each look at all rows for each run would be 10,000 million of them, which takes minutes."""
    given = columns(count=100_000, of=100_000, seed=1)
    assert len(newest_of_runs(cast("Batches", given))) > 60_000
