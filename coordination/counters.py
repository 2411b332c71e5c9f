"""What coordination counts for each source, and the names of its metrics.

Counters are plain numbers that metrics read at a scrape. The metrics have the same names wherever
leases are exported, and all have the label `source`. Counters have the last words of Data Prepper's
names, and some exist only here. Names lack the prefix `tailrace_`, and the suffix `_total` that the
text format adds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

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


class Count(NamedTuple):
    """A counter: the field of `CoordinationCounters`, its name and its help text."""

    field: str
    name: str
    help: str


_HELP: Final = {
    "supplied": "Runs of the supplier of new partitions.",
    "none_acquired": "Acquires that found no partition.",
    "created": "Partitions created.",
    "acquired": "Leases acquired.",
    "completed": "Partitions done for good.",
    "closed": "Partitions done until they are due again.",
    "deleted": "Partitions and named leases removed by their owner.",
    "given_up": "Leases given up before the end of the work.",
    "saved": "Saves of progress.",
    "not_found": "Leases lost because somebody deleted the item.",
    "not_owned": "Leases lost to another owner, or to time.",
}


def _snake(upstream: str) -> str:
    return re.sub("([A-Z])", r"_\1", upstream).lower()


UPSTREAMS: Final = tuple(Count(field, _snake(NAMES[field]), _HELP[field]) for field in NAMES)

OURS: Final = (
    Count(
        "failures",
        "partition_failures",
        "Failures that workers reported, also those tried again.",
    ),
    Count("failed", "partitions_failed", "Partitions that became FAILED: tried too often."),
    Count(
        "supplies_lost",
        "partition_supplies_lost",
        "Runs of the supplier that outlived their lease, and were broken off.",
    ),
    Count(
        "held_back",
        "partitions_held_back",
        "Acquires refused because this process holds its fair share.",
    ),
    Count("asked_back", "partitions_asked_back", "Partitions that were asked back for others."),
    Count(
        "renewal_errors",
        "lease_renewal_errors",
        "Heartbeats of a lease that the store refused.",
    ),
)

UPDATE_ERRORS: Final = (
    "partition_update_errors",
    "Writes of a held partition that failed, by `saveState`, `close` and `complete`.",
)
"""The one with a second label, `action`."""
