"""What the index says of partitions that are free: the heads of its queues.

The index follows the table with a delay, so what it says is a hint: an item may have another
version by now, or not be there yet. The conditional write on the version that was seen decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from coordination.partitions.dynamodb import item as items
from coordination.partitions.dynamodb.requests import Requests
from coordination.partitions.partition import Partition
from coordination.partitions.transitions import MARGIN_MS, Claim, free

_FEWEST, _MOST = 64, 400
# So many that a worker picks from for one that it wants: others pick at the same time.
_ROOM: Final = 16


class Head:
    """One range of the index, read from its lowest entry on as far as it is needed."""

    def __init__(
        self,
        requests: Requests,
        claim: Claim,
        hash_key: str,
        *,
        upto: str | None = None,
        owner: str | None = None,
        ordered: bool = False,
    ) -> None:
        """Entries up to `upto`; of those whose owner begins with `owner`.

        With `ordered` no more is read than is wanted: it stands in the order it is wanted in.
        """
        self._requests = requests
        self._claim = claim
        self._ordered = ordered
        self._query = _query(hash_key, upto, owner)
        self.found: list[Partition] = []
        self.drained = False

    async def fill(self, count: int, *, whole: bool = False) -> None:
        """Reads until `count` free ones are found, or the `whole` range is. Raises as `ask`."""
        while not self.drained and (whole or len(self.found) < count):
            answer = await self._requests.ask(
                "query", "look for partitions", Limit=self._limit(count), **self._query
            )
            page = [items.decode(item) for item in answer["Items"]]
            able = [one for one in page if free(one, self._claim)]
            self.found += able
            if "LastEvaluatedKey" not in answer or (page and not able):
                # A page of nothing that is free: just made, and not yet free by our clock.
                self.drained = True
            else:
                self._query["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def remove(self, taken: set[str]) -> None:
        """These keys were tried."""
        self.found = [one for one in self.found if one.key not in taken]

    def _limit(self, count: int) -> int:
        return count if self._ordered else min(max(count * _ROOM, _FEWEST), _MOST)


def left_heads(requests: Requests, source: str, claim: Claim) -> list[Head]:
    """What owners left behind, and what became due."""
    over = items.sortable(claim.at_least_ms - MARGIN_MS) + items.LAST
    due = items.sortable(claim.at_least_ms) + items.LAST
    found = [
        Head(requests, claim, items.assigned(source), upto=over),
        Head(requests, claim, items.waiting(source), upto=due),
    ]
    if claim.restarted:
        mine = f"{claim.identity}/"
        found.append(Head(requests, claim, items.assigned(source), owner=mine))
    return found


def ready_head(requests: Requests, source: str, claim: Claim, shard: int, *, ordered: bool) -> Head:
    """What is free for long, one part of it, by rank."""
    return Head(requests, claim, items.ready(source, shard), ordered=ordered)


def _query(hash_key: str, upto: str | None, owner: str | None) -> dict[str, Any]:
    condition = "#h = :h"
    names: dict[str, str] = {"#h": items.INDEX_HASH}
    values: dict[str, Mapping[str, str]] = {":h": {"S": hash_key}}
    query: dict[str, Any] = {"IndexName": items.INDEX}
    if upto is not None:
        condition += " AND #r <= :r"
        names["#r"], values[":r"] = items.INDEX_RANGE, {"S": upto}
    if owner is not None:
        query["FilterExpression"] = "begins_with(#o, :o)"
        names["#o"], values[":o"] = items.OWNER, {"S": owner}
    query["KeyConditionExpression"] = condition
    query["ExpressionAttributeNames"], query["ExpressionAttributeValues"] = names, values
    return query
