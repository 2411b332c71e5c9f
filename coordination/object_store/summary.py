"""The summary of a shard's version, by which an acquire skips the shard without reading it.

All times are milliseconds of the store's clock. A summary never says that nothing is free
where something is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from coordination.lease import identity_of, is_over
from coordination.object_store.shard import Shard, status_of
from coordination.partitions.partition import Status
from coordination.partitions.transitions import Claim
from logstore.errors import Damaged

NEVER_MS: Final = 1 << 62

_FREE: Final = frozenset({Status.UNASSIGNED.value, Status.CLOSED.value})

Due: TypeAlias = tuple[bool, tuple[float, int, int, str]]
"""What `transitions.chosen` sorts by: left-behind ones first, then by order."""
FIRST: Final[Due] = (False, (float("-inf"), 0, 0, ""))


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of one version of a shard."""

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
        """A lower bound of the order of partitions free for the claimant; None if none is."""
        if self._left_behind(claim):
            return FIRST
        if claim.at_least_ms < self.waiting_ms:
            return None
        return (True, self.order if claim.ageing_ms == self.ageing_ms else FIRST[1])

    def _left_behind(self, claim: Claim) -> bool:
        if is_over(self.until_ms, claim.at_least_ms):
            return True
        return claim.restarted and any(
            owner != claim.owner and identity_of(owner) == claim.identity for owner in self.owners
        )


def summarized(shard: Shard, ageing_ms: int) -> Summary:
    """The summary of a shard, for claims with that ageing. Raises `Damaged`.

    It is computed from stored rows: making partitions of thousands of rows takes much longer.
    """
    try:
        return _summarized(shard, ageing_ms)
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"a row of shard {shard.number} of {shard.source}: {error!r}") from error


def _summarized(shard: Shard, ageing_ms: int) -> Summary:
    counts: Counter[str] = Counter()
    waiting_ms, until_ms, ended_ms, order = NEVER_MS, NEVER_MS, NEVER_MS, None
    owners = set()
    for key, stored in shard.rows.items():
        status = status_of(stored)
        counts[status] += 1
        if status in _FREE:
            created_ms = stored["created_at"]
            available_ms = stored.get("available_at", created_ms)
            waiting_ms = min(waiting_ms, available_ms)
            rank_ms = available_ms + stored.get("priority", 0.0) * ageing_ms
            if order is None or rank_ms <= order[0]:
                found = (rank_ms, created_ms, stored.get("place", 0), key)
                order = found if order is None else min(order, found)
        elif status == Status.ASSIGNED.value:
            until_ms = min(until_ms, stored.get("owner_timeout", 0))
            owners.add(stored.get("owner", ""))
        elif status == Status.COMPLETED.value:
            ended_ms = min(ended_ms, stored.get("ended_at", 0))
    return Summary(
        {Status(name): count for name, count in counts.items()},
        waiting_ms,
        order or FIRST[1],
        ageing_ms,
        until_ms,
        frozenset(owners),
        ended_ms,
    )
