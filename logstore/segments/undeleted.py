"""Rows of segments without those of deleted runs: cutting a segment does not apply deletions."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from logstore import ulid


def undeleted(table: pa.Table, deletions: Iterable[tuple[str, str | None, int]]) -> pa.Table:
    """The rows that no deletion covers: (fqn, run or None for all runs, highest ULID).

    Each deletion looks at every row, so callers leave out those that cannot touch the table.
    """
    for fqn, run, t in deletions:
        gone = pc.equal(table["fqn"].cast(pa.string()), fqn)
        if run is not None:
            gone = pc.and_(gone, pc.equal(table["run_id"].cast(pa.string()), run))
        gone = pc.and_(gone, pc.less_equal(table["ulid"], ulid.encode(t)))
        table = table.filter(pc.invert(gone))
    return table
