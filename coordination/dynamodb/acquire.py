"""A search for free partitions: queries of the index, then conditional writes in parallel.

An acquire of `count` leases without competition makes three queries at a time, one addition to
the counter of epochs, and `count` writes.

With `random`, READY is one of `SHARDS` parts, chosen at random. Partitions to try are chosen at
random within each head too, at most half of them at a time. A worker that meets another keeps
what it won and asks for no more, so that workers seldom meet and then separate. Where one part
has too little, the others are searched.

Without `random`, READY is all parts, and the order is that of `transitions.chosen`; but only
some hundreds of those WAITING and ASSIGNED partitions that were due first are compared.

A search returns what it won even if other parts of it failed. A search that won nothing and
failed raises.

The heads of the index's queues are partitions that are free. The index follows the table with
a delay, so an entry is a hint: the item may have another version by now, or be gone or not
visible yet. The conditional write on the version that was seen decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from coordination.dynamodb import item as items
from coordination.dynamodb.item import SHARDS
from coordination.dynamodb.requests import Requests
from coordination.dynamodb.writes import Writes
from coordination.lease import MARGIN_MS
from coordination.partitions.partition import Partition, Status
from coordination.partitions.store import Acquired
from coordination.partitions.transitions import (
    Claim,
    acquired,
    chosen,
    exhausted,
    free,
    worn_out,
)
from logstore.clock import Entropy
from logstore.errors import NotFound, PreconditionFailed, TailraceError

_FEWEST, _MOST = 64, 400
# So many that a worker picks from for one that it wants: others pick at the same time.
_ROOM: Final = 16


class IndexHead:
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
        """Reads entries up to `upto` whose owner begins with `owner`.

        With `ordered` no more is read than is wanted, since the index has the wanted order.
        """
        self._requests = requests
        self._claim = claim
        self._ordered = ordered
        self._query = _query(hash_key, upto, owner)
        self.found: list[Partition] = []
        self.drained = False

    async def fill(self, count: int, *, whole: bool = False) -> None:
        """Reads until `count` free ones are found, or the `whole` range is read.

        Raises as `ask`.
        """
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
        """Removes keys that were tried."""
        self.found = [one for one in self.found if one.key not in taken]

    def _limit(self, count: int) -> int:
        return count if self._ordered else min(max(count * _ROOM, _FEWEST), _MOST)


def left_heads(requests: Requests, source: str, claim: Claim) -> list[IndexHead]:
    """Heads of partitions whose owners have stopped, and of those that became due."""
    over = items.sortable(claim.at_least_ms - MARGIN_MS) + items.LAST
    due = items.sortable(claim.at_least_ms) + items.LAST
    found = [
        IndexHead(requests, claim, items.assigned(source), upto=over),
        IndexHead(requests, claim, items.waiting(source), upto=due),
    ]
    if claim.restarted:
        mine = f"{claim.identity}/"
        found.append(IndexHead(requests, claim, items.assigned(source), owner=mine))
    return found


def ready_head(
    requests: Requests, source: str, claim: Claim, shard: int, *, ordered: bool
) -> IndexHead:
    """The head of one part of what has been free for long, by rank."""
    return IndexHead(requests, claim, items.ready(source, shard), ordered=ordered)


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


T = TypeVar("T")


@dataclass(slots=True)
class SearchResult:
    """The partitions that a search has acquired so far."""

    partitions: list[Partition] = field(default_factory=list)
    failed: list[Partition] = field(default_factory=list)
    errors: list[TailraceError] = field(default_factory=list)

    def result(self) -> Acquired:
        """The result. Raises the first error of a search that won nothing."""
        if self.errors and not (self.partitions or self.failed):
            raise self.errors[0]
        return Acquired(self.partitions, self.failed)


class Acquiring:
    """One acquire of one claimant."""

    def __init__(
        self, requests: Requests, writes: Writes, entropy: Entropy, source: str, claim: Claim
    ) -> None:
        self._requests = requests
        self._writes = writes
        self._entropy = entropy
        self._source = source
        self._claim = claim
        # The index has ranks of our own ageing: for another everything is compared.
        self._whole = claim.ageing_ms != writes.keeping.ageing_ms
        self._brought = SearchResult()
        self._met = False

    async def one(self, found: Partition | None) -> Acquired:
        """Acquires that partition, if it is free."""
        await self._take(chosen([] if found is None else [found], self._claim, 1))
        return self._brought.result()

    async def search(self, count: int, *, random: bool) -> Acquired:
        """Acquires up to `count` partitions. Raises as `PartitionStore.acquire`."""
        left = left_heads(self._requests, self._source, self._claim)
        shards = [
            ready_head(self._requests, self._source, self._claim, shard, ordered=not random)
            for shard in self._shuffled(range(SHARDS))
        ]
        parts = [[*left, shards[0]], shards[1:]] if random else [[*left, *shards]]
        try:
            for heads in parts:
                while wanted := self._wanted(count, random=random):
                    picked = await self._pick(heads, wanted, random=random)
                    if not picked:
                        break
                    await self._take(picked)
        except TailraceError as error:
            self._brought.errors.append(error)
        return self._brought.result()

    async def _pick(
        self, heads: Sequence[IndexHead], count: int, *, random: bool
    ) -> list[Partition]:
        filling = [head.fill(count, whole=self._whole) for head in heads]
        for done in await asyncio.gather(*filling, return_exceptions=True):
            if isinstance(done, BaseException):
                raise done
        seen: dict[str, Partition] = {}
        for head in heads:
            few = min(count, (len(head.found) + 1) // 2)
            some = self._shuffled(head.found)[:few] if random else head.found
            seen |= {one.key: one for one in some}
        picked = chosen(seen.values(), self._claim, count)
        for head in heads:
            head.remove({one.key for one in picked})
        return picked

    async def _take(self, picked: Sequence[Partition]) -> None:
        worn = [worn_out(one, self._claim) for one in picked if exhausted(one, self._claim)]
        able = [one for one in picked if not exhausted(one, self._claim)]
        wanted = dict(zip([one.key for one in worn], worn, strict=True))
        if able:
            above = max(one.epoch for one in able)
            epochs = await self._writes.epochs(self._source, len(able), above)
            for one, epoch in zip(able, epochs, strict=True):
                wanted[one.key] = acquired(one, self._claim, epoch)
        await asyncio.gather(*[self._decide(one, wanted[one.key]) for one in picked])
        self._brought.partitions.sort(key=lambda one: one.epoch)

    async def _decide(self, seen: Partition, wanted: Partition) -> None:
        try:
            stored = await self._writes.replace(seen, wanted)
        except (PreconditionFailed, NotFound):  # another was first, or the index was behind
            self._met = True
            return
        except TailraceError as error:
            self._brought.errors.append(error)
            return
        won = stored.status is Status.ASSIGNED
        (self._brought.partitions if won else self._brought.failed).append(stored)

    def _wanted(self, count: int, *, random: bool) -> int:
        """How many more to acquire; none after a conflict with another worker, once one is won."""
        won = len(self._brought.partitions)
        parted = random and self._met and won > 0
        return 0 if parted or self._brought.errors else count - won

    def _shuffled(self, of: Sequence[T]) -> list[T]:
        return sorted(of, key=lambda _: self._entropy.getrandbits(32))
