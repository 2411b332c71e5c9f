"""What a coordinator counts for each source: plain numbers that metrics read at a scrape."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

Action: TypeAlias = Literal["saveState", "close", "complete"]

NAMES: Final = {
    "supplied": "partitionCreationSupplierInvocations",
    "none_acquired": "noPartitionsAcquired",
    "created": "partitionsCreatedCount",
    "acquired": "partitionsAcquired",
    "completed": "partitionsCompleted",
    "closed": "partitionsClosed",
    "deleted": "partitionsDeleted",
    "given_up": "partitionsGivenUp",
    "saved": "savePartitionProgressStateInvocationsSuccess",
    "not_found": "partitionNotFoundErrors",
    "not_owned": "partitionNotOwnedErrors",
}
"""Data Prepper's names of those that it has; `update_errors` are its `partitionUpdateErrors`."""


@dataclass(slots=True)
class CoordinationCounters:
    """The counters of one source in one process. All of them only grow."""

    supplied: int = 0
    none_acquired: int = 0
    created: int = 0
    acquired: int = 0
    completed: int = 0
    closed: int = 0
    deleted: int = 0
    given_up: int = 0
    saved: int = 0
    not_found: int = 0
    not_owned: int = 0
    failures: int = 0
    """Failures that workers reported, also those that are tried again."""
    failed: int = 0
    """Partitions that became FAILED."""
    supplies_lost: int = 0
    """Runs of the supplier that outlived their lease, and were broken off."""
    held_back: int = 0
    """Acquires that were refused as this worker holds its fair share."""
    asked_back: int = 0
    """Partitions that were asked back for others."""
    renewal_errors: int = 0
    update_errors: dict[Action, int] = field(
        default_factory=lambda: {"saveState": 0, "close": 0, "complete": 0}
    )
