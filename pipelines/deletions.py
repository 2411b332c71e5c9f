"""What is deleted, which events that covers, and of which generation a run is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from logstore.segments.undeleted import undeleted
from pipelines.events import runs_of

Deleted: TypeAlias = Mapping[tuple[str, str | None], int]
"""Up to which ULID the lines of (fqn, run) are deleted; run None: of all the pipeline's runs."""


def kept(events: pa.Table, deleted: Deleted) -> pa.Table:
    """The events that no deletion covers."""
    if not deleted or not events.num_rows:
        return events
    runs = runs_of(events)
    names: set[tuple[str, str | None]] = {*runs, *((run.fqn, None) for run in runs)}
    touching = [(*name, deleted[name]) for name in names if name in deleted]
    return undeleted(events, touching)


def parted(events: pa.Table, owner: tuple[str, str | None]) -> tuple[pa.Table, pa.Table]:
    """The events of everybody else, and those of a run, or of a pipeline's runs."""
    names = [one == owner[0] and owner[1] in (None, run) for one, run in runs_of(events)]
    if not any(names):
        return events, events.slice(0, 0)
    theirs = pc.equal(events.column("fqn"), owner[0])
    if owner[1] is not None:
        theirs = pc.and_(theirs, pc.equal(events.column("run_id"), owner[1]))
    return events.filter(pc.invert(theirs)), events.filter(theirs)


def generation(deleted: Deleted, fqn: str, run: str | None) -> int:
    """The ULID up to which lines of this run, or of the pipeline, were deleted; 0: never."""
    whole = deleted.get((fqn, None), 0)
    return whole if run is None else max(whole, deleted.get((fqn, run), 0))
