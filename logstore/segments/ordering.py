"""In which order batches become rows, and where a run's batches are not in that order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from logstore.batch import Indexes, Rows, RunKey


def by_ulid(rows: Rows, runs: Sequence[RunKey]) -> Indexes:
    """Indexes in order of (ULID, fqn, run, `pos`), exact duplicates and empty batches left out.

    A duplicate has the run, id, size and checksum of another; the one with the lowest `pos`
    stays.
    """
    ranks = np.empty(len(runs), dtype=np.int64)
    ranks[sorted(range(len(runs)), key=runs.__getitem__)] = np.arange(len(runs))
    run = ranks[rows["run"]] if len(rows) else np.empty(0, dtype=np.int64)
    order = np.lexsort((rows["pos"], run, rows["ulid_lo"], rows["ulid_hi"]))
    order = order[rows["records"][order] > 0]
    sorted_rows = rows[order]
    same = np.ones(max(len(order) - 1, 0), dtype=np.bool_)
    for column in ("ulid_lo", "ulid_hi", "digest", "size", "records"):
        same &= sorted_rows[column][1:] == sorted_rows[column][:-1]
    same &= run[order][1:] == run[order][:-1]
    kept: Indexes = order[np.concatenate((np.ones(min(len(order), 1), dtype=np.bool_), ~same))]
    return kept


def out_of_order(rows: Rows, order: Indexes) -> NDArray[np.bool_]:
    """By run index: whether `order` puts batches of the run in another order than `pos`."""
    run, pos = rows["run"][order], rows["pos"][order]
    grouped = np.argsort(run, kind="stable")
    run, pos = run[grouped], pos[grouped]
    backwards = (run[1:] == run[:-1]) & (pos[1:] < pos[:-1])
    marks = np.zeros(int(rows["run"].max(initial=0)) + 1, dtype=np.bool_)
    marks[run[1:][backwards]] = True
    return marks
