"""What is remembered of a shard's version, so that it need not be read again to be passed over.

All times are milliseconds of the store's clock. A summary never says that there is nothing
free where there is something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from coordination.object_store.shard import Shard
from coordination.partition import Status
from coordination.transitions import MARGIN_MS, Claim

NEVER_MS: Final = 1 << 62

Due: TypeAlias = tuple[bool, tuple[float, int, int, str]]
"""What `transitions.chosen` sorts by: left-behind ones first, then by order."""
FIRST: Final[Due] = (False, (float("-inf"), 0, 0, ""))


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one version of a shard."""

    counts: Mapping[Status, int]
    waiting_ms: int
    """From when at the earliest an UNASSIGNED or CLOSED one may be taken."""
    order: tuple[float, int, int, str]
    """Before all of those in the order of `ageing_ms`."""
    ageing_ms: int
    until_ms: int
    """When the first of the ASSIGNED runs out."""
    owners: frozenset[str]
    """Whose those are."""
    ended_ms: int
    """When the first of the COMPLETED ended."""

    def due(self, claim: Claim) -> Due | None:
        """No partition of the shard comes before this for the claimant; None: none is free."""
        if self._left_behind(claim):
            return FIRST
        if claim.at_least_ms < self.waiting_ms:
            return None
        return (True, self.order if claim.ageing_ms == self.ageing_ms else FIRST[1])

    def _left_behind(self, claim: Claim) -> bool:
        if claim.at_least_ms >= self.until_ms + MARGIN_MS:
            return True
        return claim.restarted and any(
            owner != claim.owner and owner.rpartition("/")[0] == claim.identity
            for owner in self.owners
        )


EMPTY: Final = Summary({}, NEVER_MS, FIRST[1], 0, NEVER_MS, frozenset(), NEVER_MS)


def summarized(shard: Shard, ageing_ms: int) -> Summary:
    """The summary of a shard, for claims with that ageing. Raises `Damaged`."""
    counts = Counter([row.status for row in shard.rows.values()])
    waiting_ms, until_ms, order = NEVER_MS, NEVER_MS, None
    owners = set()
    for one in shard.unended():
        if one.status is Status.ASSIGNED:
            until_ms = min(until_ms, one.until_ms)
            owners.add(one.owner or "")
            continue
        waiting_ms = min(waiting_ms, one.available_ms)
        rank = one.order(ageing_ms)
        order = rank if order is None or rank < order else order
    ended = [
        row.stored.get("ended_at", 0)
        for row in shard.rows.values()
        if row.status == Status.COMPLETED.value
    ]
    return Summary(
        {Status(name): count for name, count in counts.items()},
        waiting_ms,
        FIRST[1] if order is None else order,
        ageing_ms,
        until_ms,
        frozenset(owners),
        min(ended, default=NEVER_MS),
    )
