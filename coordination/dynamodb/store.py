"""`PartitionStore` on a table of DynamoDB.

All reads but those of `acquire` are consistent. `acquire` reads the index, which follows the
table with a short delay, and decides by conditional writes. It may therefore miss a partition
that was just made or changed, but it never gives out one that is not free.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from coordination.dynamodb import item as items
from coordination.dynamodb.acquire import Acquiring
from coordination.dynamodb.requests import Requests
from coordination.dynamodb.table import Table
from coordination.dynamodb.writes import Keeping, Writes
from coordination.partitions.partition import (
    NewPartition,
    Partition,
    Status,
    check_changed,
    check_new,
)
from coordination.partitions.store import Acquired, Page
from coordination.partitions.transitions import Claim
from coordination.storetime import StoreTime
from logstore.clock import Clock, Entropy
from logstore.errors import NotFound, OutcomeUnknown, PreconditionFailed, StoreUnavailable

# What one BatchGetItem may ask for.
_BATCH: Final = 100
_LOOKS: Final = 5


class DynamoPartitions:
    """Partitions in the table of `requests`."""

    def __init__(
        self,
        requests: Requests,
        table: Table,
        clock: Clock,
        entropy: Entropy,
        keeping: Keeping,
        *,
        time: StoreTime | None = None,
    ) -> None:
        """`time` None takes the server's time from the `Date` of its answers."""
        self.requests = requests
        self._table = table
        self._entropy = entropy
        self._time = time or StoreTime(clock, lambda: requests.newest)
        self._writes = Writes(requests, self._time, clock, entropy, keeping)
        self._registered: set[str] = set()

    @property
    def time(self) -> StoreTime:
        return self._time

    async def start(self) -> None:
        await self._table.ready()
        for _ in range(_LOOKS):  # a first answer may be too slow to tell the time by
            if self._time.known:
                return
            await self.sources()

    async def close(self) -> None:
        """Does nothing: the client's opener closes it."""

    async def create(self, source: str, new: Sequence[NewPartition]) -> list[str]:
        for one in new:
            check_new(source, one)
        if not new:
            return []
        if source not in self._registered:
            await self._writes.register(source)
            self._registered.add(source)
        if not self._time.known:
            raise StoreUnavailable("the server's time is not known: its answers are too slow")
        # So early that whoever looks now finds it free, by any knowledge of the time.
        now_ms = self._time.at_least_ms()
        places: dict[str, Partition] = {}
        for place, one in enumerate(new):
            places.setdefault(one.key, _made(source, one, now_ms, place))
        keys = list(places)
        made: list[str] = []
        try:
            for start in range(0, len(keys), _BATCH):
                some = [places[key] for key in keys[start : start + _BATCH]]
                await self._create(source, some, made)
        except StoreUnavailable as error:
            if not made:
                raise
            raise OutcomeUnknown(
                f"{len(made)} partitions of {source!r} were made, then: {error}",
                hint="Make them again: those that are there stay as they are.",
            ) from error
        return made

    async def _create(self, source: str, some: Sequence[Partition], made: list[str]) -> None:
        there = await self._there(source, [one.key for one in some])
        absent = [one for one in some if one.key not in there]
        making = [self._writes.make(one) for one in absent]
        done = await asyncio.gather(*making, return_exceptions=True)
        made += [one.key for one, outcome in zip(absent, done, strict=True) if outcome is True]
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _there(self, source: str, keys: Sequence[str]) -> set[str]:
        """The partitions that certainly exist, since a read is cheaper than a refused write.

        The read is consistent, so that a partition that was deleted just now is made again.
        """
        table = self.requests.table
        wanted = {
            "ConsistentRead": True,
            "Keys": [items.key_of(source, key) for key in keys],
            "ProjectionExpression": items.RANGE,
        }
        answer = await self.requests.ask(
            "batch_get_item", f"look at keys of {source!r}", RequestItems={table: wanted}
        )
        # Keys that were not processed count as absent: the write finds out.
        return {item[items.RANGE]["S"] for item in answer["Responses"].get(table, [])}

    async def get(self, source: str, key: str) -> Partition | None:
        answer = await self.requests.ask(
            "get_item",
            f"get {key!r} of {source!r}",
            Key=items.key_of(source, key),
            ConsistentRead=True,
        )
        return items.decode(answer["Item"]) if "Item" in answer else None

    async def acquire(
        self,
        source: str,
        claim: Claim,
        count: int,
        *,
        only: str | None = None,
        random: bool = True,
    ) -> Acquired:
        acquiring = Acquiring(self.requests, self._writes, self._entropy, source, claim)
        if only is not None:
            return await acquiring.one(await self.get(source, only))
        return await acquiring.search(count, random=random)

    async def change(self, old: Partition, wanted: Partition) -> Partition:
        check_changed(wanted.progress, wanted.priority)
        return await self._writes.replace(old, wanted)

    async def delete(self, old: Partition) -> None:
        await self._writes.remove(old)

    async def page(
        self,
        source: str,
        *,
        status: Status | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> Page:
        found: list[Partition] = []
        query = _of_source(source, after or None)
        if status is not None:
            query["FilterExpression"] = "#s = :s"
            query["ExpressionAttributeNames"]["#s"] = items.STATUS
            query["ExpressionAttributeValues"][":s"] = {"S": status.value}
        while True:
            if status is None:
                query["Limit"] = limit + 1 - len(found)
            answer = await self.requests.ask("query", f"list {source!r}", **query)
            found += [items.decode(item) for item in answer["Items"]]
            if len(found) > limit:
                return Page(found[:limit], found[limit - 1].key)
            if "LastEvaluatedKey" not in answer:
                return Page(found, None)
            query["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    async def counts(self, source: str) -> Mapping[Status, int]:
        query = _of_source(source, None)
        query["ProjectionExpression"] = "#s"
        query["ExpressionAttributeNames"]["#s"] = items.STATUS
        found: dict[Status, int] = {}
        async for page in self.requests.pages(f"count {source!r}", **query):
            for item in page:
                status = Status(item[items.STATUS]["S"])
                found[status] = found.get(status, 0) + 1
        return found

    async def sources(self) -> list[str]:
        query = _of_source(items.SOURCES, None, hash_key=items.SOURCES)
        known = [
            item[items.RANGE]["S"]
            async for page in self.requests.pages("list sources", **query)
            for item in page
        ]
        has = await asyncio.gather(*[self._has_some(source) for source in known])
        return sorted(source for source, some in zip(known, has, strict=True) if some)

    async def _has_some(self, source: str) -> bool:
        query = _of_source(source, None) | {"Limit": 1, "Select": "COUNT"}
        answer = await self.requests.ask("query", f"look at {source!r}", **query)
        return int(answer["Count"]) > 0

    async def purge(self, source: str, ended_before_ms: int) -> int:
        query = _of_source(source, None)
        query["FilterExpression"] = "#s = :s AND #t < :t"
        query["ExpressionAttributeNames"] |= {"#s": items.STATUS, "#t": items.ENDED}
        query["ExpressionAttributeValues"] |= {
            ":s": {"S": Status.COMPLETED.value},
            ":t": {"N": str(ended_before_ms)},
        }
        removed = 0
        async for page in self.requests.pages(f"purge {source!r}", **query):
            gone = [self._purge(items.decode(item)) for item in page]
            removed += sum(await asyncio.gather(*gone))
        return removed

    async def _purge(self, over: Partition) -> bool:
        try:
            await self._writes.remove(over)
        except (NotFound, PreconditionFailed):  # by DynamoDB's TTL; or it was reset
            return False
        return True


def _made(source: str, new: NewPartition, now_ms: int, place: int) -> Partition:
    return Partition(
        source,
        new.key,
        version="",
        created_ms=now_ms,
        available_ms=now_ms,
        progress=new.progress,
        priority=new.priority,
        place=place,
    )


def _of_source(source: str, after: str | None, *, hash_key: str | None = None) -> dict[str, Any]:
    """A consistent query of all items of a source, by key."""
    query: dict[str, Any] = {
        "ConsistentRead": True,
        "KeyConditionExpression": "#h = :h" + (" AND #k > :k" if after else ""),
        "ExpressionAttributeNames": {"#h": items.HASH},
        "ExpressionAttributeValues": {":h": {"S": hash_key or items.hash_of(source)}},
    }
    if after:
        query["ExpressionAttributeNames"]["#k"] = items.RANGE
        query["ExpressionAttributeValues"][":k"] = {"S": after}
    return query
