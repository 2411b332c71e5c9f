"""What is deleted, which events that covers, and of which generation a run is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import pyarrow as pa

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


def generation(deleted: Deleted, fqn: str, run: str | None) -> int:
    """The ULID up to which lines of this run, or of the pipeline, were deleted; 0: never."""
    whole = deleted.get((fqn, None), 0)
    return whole if run is None else max(whole, deleted.get((fqn, run), 0))
