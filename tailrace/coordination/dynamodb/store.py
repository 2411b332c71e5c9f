"""`PartitionStore` on a table of DynamoDB, and `open_dynamodb`, which opens it from settings.

All reads but those of `acquire` are consistent. `acquire` reads the index, which follows the table
with a short delay, and decides by conditional writes. It may therefore miss a partition that was
just made or changed, but it never gives out one that is not free.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import aiobotocore.session
from aiobotocore.config import AioConfig

from tailrace.coordination.dynamodb import item as items
from tailrace.coordination.dynamodb.item import SHARDS, DynamoTable
from tailrace.coordination.dynamodb.requests import CONNECTIONS, TRIES, DynamoRequests, Refused
from tailrace.coordination.lease import MARGIN_MS, StoreTime
from tailrace.coordination.partitions import (
    AGEING_MS,
    Acquired,
    Claim,
    NewPartition,
    Partition,
    PartitionPage,
    Status,
    acquired,
    check_changed,
    check_new,
    chosen,
    exhausted,
    free,
    worn_out,
)
from tailrace.coordination.settings import DynamoDbSettings
from tailrace.logstore import ulid as ulids
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import (
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
    TailraceError,
)
from tailrace.logstore.objects.s3.client import KEEP_SECONDS, OneSend, client_of
from tailrace.logstore.objects.s3.credentials import Credentials
from tailrace.logstore.objects.s3.settings import S3Settings
from tailrace.logstore.retry import Tries

# Conditional writes of partitions, and of the counters of their epochs.
#
# Each version is a fresh ULID, so a write whose answer was lost can be recognised: the second try
# is refused, and the stored item has the version that was to be written.


@dataclass(frozen=True, slots=True)
class ItemRetention:
    """How partitions are stored: the weight of a priority step, and the TTL of COMPLETED ones."""

    ageing_ms: int
    ttl_ms: int | None = None


class TableWrites:
    """Writes to one table.

    Writes of partitions raise `OutcomeUnknown` if the outcome stays unclear.
    """

    def __init__(
        self,
        requests: DynamoRequests,
        time: StoreTime,
        clock: Clock,
        entropy: Entropy,
        keeping: ItemRetention,
    ) -> None:
        self._requests = requests
        self._time = time
        self._clock = clock
        self._entropy = entropy
        self.keeping = keeping

    async def make(self, new: Partition) -> bool:
        """Makes a partition; returns False if it existed already."""
        stored = self._fresh(new)
        try:
            await self._requests.write(
                "put_item",
                _name("create", new),
                Item=self._encode(stored),
                ConditionExpression="attribute_not_exists(#h)",
                ExpressionAttributeNames={"#h": items.HASH},
            )
        except Refused as refused:
            return _is_in(refused, stored.version)
        return True

    async def replace(self, old: Partition, wanted: Partition) -> Partition:
        """Replaces `old` by `wanted`. Raises `NotFound`, `PreconditionFailed`."""
        assert (old.source, old.key) == (wanted.source, wanted.key)
        stored = self._fresh(wanted)
        try:
            await self._requests.write(
                "put_item",
                _name("change", old),
                Item=self._encode(stored) | {items.PREVIOUS: {"S": old.version}},
                **_unchanged(old),
            )
        except Refused as refused:
            if not _is_in(refused, stored.version):
                raise _lost(old, refused) from None
        return stored

    async def remove(self, old: Partition) -> None:
        """Removes `old`. Raises `NotFound`, `PreconditionFailed`."""
        try:
            await self._requests.write(
                "delete_item",
                _name("delete", old),
                Key=items.key_of(old.source, old.key),
                **_unchanged(old),
            )
        except Refused as refused:
            if not refused.unclear or not _is_gone(old, refused):
                raise _lost(old, refused) from None

    async def register(self, source: str) -> None:
        """Records the name of the source; its counter stays as it is."""
        await self._count(source, 0)

    async def epochs(self, source: str, count: int, above: int) -> range:
        """Returns `count` epochs that were never given out, all higher than `above`.

        The source has its own counter, which outlives its partitions. Gaps do no harm, so a lost
        answer does none. If somebody removed the counter, it is restored.
        """
        last = await self._count(source, count)
        if last - count < above:
            last = await self._count(source, above - last + count)
        return range(last - count + 1, last + 1)

    async def _count(self, source: str, count: int) -> int:
        answer = await self._requests.ask(
            "update_item",
            f"count the epochs of {source!r}",
            Key=items.counter_key(source),
            UpdateExpression="ADD #e :n",
            ExpressionAttributeNames={"#e": items.EPOCH},
            ExpressionAttributeValues={":n": {"N": str(count)}},
            ReturnValues="UPDATED_NEW",
        )
        return int(answer["Attributes"][items.EPOCH]["N"])

    def _fresh(self, partition: Partition) -> Partition:
        version = ulids.fresh_text(self._clock, self._entropy)
        return replace(partition, version=version)

    def _encode(self, partition: Partition) -> items.Item:
        if not self._time.known:
            raise StoreUnavailable("the server's time is not known: its answers are too slow")
        now_ms = self._time.at_most_ms()
        return items.encode(partition, now_ms, self.keeping.ageing_ms, self.keeping.ttl_ms)


def _unchanged(old: Partition) -> dict[str, Any]:
    """The condition that the item has the version of `old`, and thereby its owner and epoch."""
    condition = "#v = :v AND #e = :e AND "
    values = {":v": {"S": old.version}, ":e": {"N": str(old.epoch)}}
    if old.owner is None:
        condition += "attribute_not_exists(#o)"
    else:
        condition += "#o = :o"
        values[":o"] = {"S": old.owner}
    return {
        "ConditionExpression": condition,
        "ExpressionAttributeNames": {"#v": items.VERSION, "#e": items.EPOCH, "#o": items.OWNER},
        "ExpressionAttributeValues": values,
    }


def _lost(old: Partition, refused: Refused) -> Exception:
    """Why a write on `old` that is not there was refused."""
    what = f"{old.key!r} of {old.source!r}"
    if refused.item is None:
        return NotFound(f"there is no partition {what}")
    instead = _text(refused, items.PREVIOUS) == old.version
    if refused.unclear and not instead and not _is_gone(old, refused):
        return OutcomeUnknown(f"{what} was changed several times, perhaps by this write first")
    return PreconditionFailed(f"{what} was changed meanwhile")


def _is_gone(old: Partition, refused: Refused) -> bool:
    """Whether the partition was deleted, by anybody, and perhaps made again.

    Epochs only rise; a new partition has none.
    """
    if refused.item is None:
        return True
    return int(refused.item.get(items.EPOCH, {}).get("N", "0")) < old.epoch


def _is_in(refused: Refused, version: str) -> bool:
    """Whether an earlier try wrote this version: the item has it, or replaced it."""
    return version in (_text(refused, items.VERSION), _text(refused, items.PREVIOUS))


def _text(refused: Refused, name: str) -> str | None:
    found: str | None = (refused.item or {}).get(name, {}).get("S")
    return found


def _name(verb: str, partition: Partition) -> str:
    return f"{verb} {partition.key!r} of {partition.source!r}"


# A search for free partitions: queries of the index, then conditional writes in parallel.
#
# An acquire of `count` leases without competition makes three queries at a time, one addition to
# the counter of epochs, and `count` writes.
#
# With `random`, READY is one of `SHARDS` parts, chosen at random. Partitions to try are chosen at
# random within each head too, at most half of them at a time. A worker that loses a race to another
# keeps the leases that it won and asks for no more, so that workers seldom meet and then separate.
# If one part has too few partitions, the others are searched.
#
# Without `random`, READY is all parts, and the order is that of
# `tailrace.coordination.partitions.chosen`; but only some hundreds of those WAITING and ASSIGNED
# partitions that were due first are compared.
#
# A search returns the leases that it won even if other parts of it failed. A search that won
# nothing and failed raises.
#
# The heads of the index's queues are partitions that are free. The index follows the table with a
# delay, so an entry is a hint: the item may have another version by now, or be gone or not visible
# yet. The conditional write on the version that was seen decides.


_FEWEST, _MOST = 64, 400
# The number of partitions from which a worker picks one: others pick at the same time.
_ROOM: Final = 16


class IndexHead:
    """One range of the index, read from its lowest entry on as far as it is needed."""

    def __init__(
        self,
        requests: DynamoRequests,
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


def left_heads(requests: DynamoRequests, source: str, claim: Claim) -> list[IndexHead]:
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
    requests: DynamoRequests, source: str, claim: Claim, shard: int, *, ordered: bool
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
        self,
        requests: DynamoRequests,
        writes: TableWrites,
        entropy: Entropy,
        source: str,
        claim: Claim,
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


# The largest number of items in one BatchGetItem.
_BATCH: Final = 100
_LOOKS: Final = 5


class DynamoPartitions:
    """Partitions in the table of `requests`."""

    def __init__(
        self,
        requests: DynamoRequests,
        table: DynamoTable,
        clock: Clock,
        entropy: Entropy,
        keeping: ItemRetention,
        *,
        time: StoreTime | None = None,
    ) -> None:
        """`time` None takes the server's time from the `Date` of its answers."""
        self.requests = requests
        self._table = table
        self._entropy = entropy
        self._time = time or StoreTime(clock, lambda: requests.newest)
        self._writes = TableWrites(requests, self._time, clock, entropy, keeping)
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
        # So early that every process finds it free now, by any knowledge of the time.
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
                hint="Create them again: existing partitions do not change.",
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
        self, source: str, claim: Claim, count: int, *, only: str | None = None, random: bool = True
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
    ) -> PartitionPage:
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
                return PartitionPage(found[:limit], found[limit - 1].key)
            if "LastEvaluatedKey" not in answer:
                return PartitionPage(found, None)
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


# Opening the store from settings.
#
# The client is opened inside the running loop and closed with it. It sends each request once, as
# the client of S3 does, for the same reason: the first try of a conditional write would make the
# server refuse the second.


_CONNECT_SECONDS: Final = 5
_READ_SECONDS: Final = 5
_HINT: Final = "Set AWS_ACCESS_KEY_ID and its like, or run where a role is given to the machine."


@asynccontextmanager
async def open_client(
    settings: DynamoDbSettings, clock: Clock, connections: int
) -> AsyncIterator[Any]:
    """A client of `dynamodb`. Raises `InvalidInput` for settings that botocore refuses."""
    session, credentials = aiobotocore.session.AioSession(), credentials_of(settings)
    place, config = (settings.endpoint_url, settings.region), _config(connections)
    async with client_of("dynamodb", session, credentials, clock, *place, config) as client:
        yield client


def credentials_of(settings: DynamoDbSettings) -> Credentials:
    """The credentials of environment or machine, or of the role that is assumed with them."""
    return Credentials(
        S3Settings(
            region=settings.region,
            role_arn=settings.sts_role_arn,
            role_external_id=settings.sts_external_id,
        ),
        of="dynamodb",
        hint=_HINT,
    )


def _config(connections: int) -> AioConfig:
    return AioConfig(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        max_pool_connections=connections,
        connector_args={"keepalive_timeout": KEEP_SECONDS},
        http_session_cls=OneSend,
        retries={"total_max_attempts": 1, "mode": "standard"},
        user_agent_extra="tailrace",
    )


@asynccontextmanager
async def open_dynamodb(
    settings: DynamoDbSettings,
    clock: Clock,
    entropy: Entropy,
    *,
    ageing_ms: int = AGEING_MS,
    tries: Tries = TRIES,
    time: StoreTime | None = None,
) -> AsyncIterator[DynamoPartitions]:
    """The store while the block runs, in the loop that runs the block; the caller starts it.

    Sends nothing to the server. Raises `InvalidInput` for invalid settings.
    """
    async with open_client(settings, clock, CONNECTIONS) as client:
        requests = DynamoRequests(client, settings.table_name, clock, entropy, tries)
        table = DynamoTable(requests, settings, clock)
        keeping = ItemRetention(ageing_ms, settings.ttl_ms)
        yield DynamoPartitions(requests, table, clock, entropy, keeping, time=time)
