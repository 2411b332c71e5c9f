"""`PartitionStore` over an object store: acquires partitions with few requests, lists them.

A source has a fixed number of shards, each an object (`shard.py`). Processes that change one shard
at the same time lose races, so a source should have several times as many shards as workers.
Changes that one process makes to one shard at the same time become one write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, chain, count
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

import orjson
import xxhash

from tailrace.coordination.lease import StoreTime
from tailrace.coordination.object_store.shard import (
    Due,
    Make,
    Purge,
    Remove,
    Replace,
    Shard,
    Stored,
    Summary,
    Take,
    fresh_row,
    shard_of,
    status_of,
)
from tailrace.coordination.object_store.writer import (
    EXPANSION,
    RowCache,
    ShardWriter,
    WriterContext,
)
from tailrace.coordination.partitions import (
    Acquired,
    Claim,
    NewPartition,
    Partition,
    PartitionPage,
    Status,
    check_changed,
    check_new,
    chosen,
)
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.cas import Document, swap
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import (
    Damaged,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
    TailraceError,
    UnsupportedVersion,
)
from tailrace.logstore.keys import decode
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.state import decode_checked, encode_checked

# The object that describes a source of partitions: `coordination/partitions/{source}/source.json`.
#
#   format        1
#   source        the source's name, since the key may hold only a hash of it
#   shards        the number of objects that hold its partitions; it never changes
#   created_at    milliseconds of the store's clock
#
# The process that makes the first partition puts the object if it is absent; nobody changes it.


FORMAT: Final = 1
MAX_SHARDS: Final = 4096


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """A source's name and its number of shards."""

    name: str
    shards: int
    created_ms: int


async def read_source(store: ObjectStore, key: str) -> PartitionSource | None:
    """The source whose object is `key`; None if there is none.

    Raises `StoreUnavailable`, `Damaged`, and the latter's subclass `UnsupportedVersion`.
    """
    found = await _document(store, key).read()
    return None if found is None else found.value


async def make_source(store: ObjectStore, key: str, wanted: PartitionSource) -> PartitionSource:
    """The source as stored after the call; another process may have made it.

    Raises as `read_source`, and `OutcomeUnknown`.
    """

    async def change(found: PartitionSource | None) -> PartitionSource | None:
        return wanted if found is None else None

    stored = await swap(_document(store, key), change)
    assert stored is not None
    return stored.value


def _document(store: ObjectStore, key: str) -> Document[PartitionSource]:
    return Document(store, key, partial(decode_source, key), encode_source)


def encode_source(source: PartitionSource) -> bytes:
    """The bytes of a source."""
    return encode_checked(
        {
            "format": FORMAT,
            "source": source.name,
            "shards": source.shards,
            "created_at": source.created_ms,
        }
    )


def decode_source(key: str, body: bytes) -> PartitionSource:
    """The source that `body` holds. Raises `Damaged`, `UnsupportedVersion`."""
    try:
        value = decode_checked(body)
        if int(value["format"]) > FORMAT:
            raise UnsupportedVersion(f"{key} has format {value['format']}")
        found = PartitionSource(
            str(value["source"]), int(value["shards"]), int(value["created_at"])
        )
    except (ValueError, TypeError, KeyError) as error:
        raise Damaged(f"{key} is not a source of partitions: {error!r}") from error
    if not 0 < found.shards <= MAX_SHARDS:
        raise Damaged(f"{key} has {found.shards} shards")
    return found


# The directory of a source's shards, from one LIST.
#
# A listing has every shard's ETag. A shard that did not change since it was read needs no request,
# and a shard without an object has no partitions.


T = TypeVar("T")
U = TypeVar("U")

AT_ONCE: Final = 8
"""Requests that are under way at the same time, for one call."""


class ShardDirectory:
    """The shards of a source as this process knows them."""

    def __init__(self, context: WriterContext, source: PartitionSource) -> None:
        self.source = source
        self.writers = [
            ShardWriter(context, Shard(source.name, number, source.shards))
            for number in range(source.shards)
        ]
        self._context = context
        self._prefix = keys.partitions_of(source.name)

    def writer_of(self, key: str) -> ShardWriter:
        """The writer of the shard that holds a key."""
        return self.writers[shard_of(key, self.source.shards)]

    def forget(self) -> None:
        """Drops what is kept in memory."""
        for writer in self.writers:
            writer.forget()

    async def refresh(self) -> Sequence[str | None]:
        """Lists the shards' current ETags, None for a shard without an object.

        Raises `StoreUnavailable`.
        """
        began = next(self._context.moments)
        found = {info.key: info async for info in self._context.store.list(self._prefix)}
        newest = [found.get(writer.key) for writer in self.writers]
        for writer, info in zip(self.writers, newest, strict=True):
            writer.listed(info, began)
        return [None if info is None else info.etag for info in newest]

    async def summaries(self, ageing_ms: int | None = None) -> Sequence[Summary]:
        """The summaries of all shards, as of some time since the call.

        Raises `StoreUnavailable`, `Damaged`.
        """
        await self.refresh()

        async def known(writer: ShardWriter) -> Summary:
            while (found := writer.summary(ageing_ms)) is None:
                await writer.look()
            return found

        return good(await each(known, self.writers))

    async def is_empty(self) -> bool:
        """Whether the source has no partition; reads no more than it must.

        Raises `StoreUnavailable`, `Damaged`.
        """
        await self.refresh()
        known = [writer.summary() for writer in self.writers]
        if any(summary is not None and summary.counts for summary in known):
            return False
        for writer, summary in zip(self.writers, known, strict=True):
            if summary is None and (await writer.look()).shard.rows:
                return False
        return True


async def each(
    work: Callable[[T], Awaitable[U]], items: Iterable[T], at_once: int = AT_ONCE
) -> list[U | BaseException]:
    """Runs `work` on each item, some at a time; returns when all have ended. Raises nothing."""
    places = asyncio.Semaphore(at_once)

    async def one(item: T) -> U:
        async with places:
            return await work(item)

    return await asyncio.gather(*[one(item) for item in items], return_exceptions=True)


def good(results: Iterable[U | BaseException]) -> list[U]:
    """The results. Raises the first error, if there is one."""
    found = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        found.append(result)
    return found


def written(results: Sequence[U | BaseException]) -> list[U]:
    """As `good`, for writes that belong together.

    Raises `OutcomeUnknown` for `StoreUnavailable`, since other writes may have changed something.
    """
    try:
        return good(results)
    except StoreUnavailable as error:
        if all(isinstance(result, StoreUnavailable) for result in results):
            raise
        raise OutcomeUnknown(f"a part of it was written: {error}") from error


# Acquiring partitions with few requests and few conflicts of workers.
#
# `RandomAcquire`: a worker tries its current shard first, then the others in a random order.
#
#   the current shard, without reading it     one put, if no other process changed it
#   LIST; shards that may have something      a get of each that changed, a put where one is free
#   races were lost and nothing was won       those shards once more, with retries
#
# If nothing is free and nothing changed, the acquire costs that LIST alone. Each worker visits all
# shards in an order of its own. It stays at a shard as long as the shard has free partitions, so
# that its next acquire needs no read, but at most for `STAY_SECONDS`, so that partitions in other
# shards do not wait for ever. It leaves a shard where it met another worker.
#
# `OrderedAcquire` keeps the one order of the whole source. Each shard's summary gives a lower bound
# of the order of its partitions. Shards are read from the lowest bound on, until the partitions
# read so far come before all remaining bounds.


STAY_SECONDS: Final = 10.0
_OWNERS: Final = 256  # whose routes are remembered
_BUSY_MS: Final = 3000
"""A shard that was written so shortly before the newest one has another worker, it is assumed."""
_ROUNDS: Final = 40  # of lost races, in the order of the whole source


class AcquireResult:
    """Up to `count` leases for the claim, and the first error so far."""

    def __init__(self, claim: Claim, count: int) -> None:
        self.claim = claim
        self.count = count
        self.taken: list[Partition] = []
        self.failed: list[Partition] = []
        self.error: BaseException | None = None

    @property
    def missing(self) -> int:
        """How many leases are still wanted."""
        return self.count - len(self.taken)

    def result(self) -> Acquired:
        """The result so far. Raises the error if there is no lease.

        Leases are returned in spite of an error: nobody else would give them back.
        """
        if self.error is not None and not self.taken:
            raise self.error
        return Acquired(self.taken, self.failed)


class ShardRoute:
    """The order in which one owner visits the shards."""

    def __init__(self, owner: str, shards: int) -> None:
        self._order = sorted(
            range(shards), key=lambda number: xxhash.xxh3_64_intdigest(f"{owner} {number}".encode())
        )
        self._at = -1
        self._since: float | None = None

    def here(self, now: float) -> int | None:
        """The current shard; None if it is time to look at others. `now` in seconds."""
        if self._since is not None and now - self._since >= STAY_SECONDS:
            self._since = None
        return None if self._since is None else self._order[self._at]

    def ahead(self) -> list[int]:
        """All shards, the next one first and the last visited last."""
        return self._order[self._at + 1 :] + self._order[: self._at + 1]

    def arrive(self, number: int, now: float) -> None:
        """Records that the shard `number` had a free partition at `now`."""
        at = self._order.index(number)
        if self._since is None or at != self._at:
            self._at, self._since = at, now


class ShardRoutes:
    """The routes of a source's recent owners."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._routes: BoundedCache[str, ShardRoute] = BoundedCache(_OWNERS)

    def of(self, owner: str) -> ShardRoute:
        """The route of an owner."""
        route = self._routes.get(owner)
        if route is None:
            route = ShardRoute(owner, self._shards)
            self._routes.put(owner, route)
        return route


class RandomAcquire:
    """Acquires from one source, so that workers begin in different shards."""

    def __init__(self, directory: ShardDirectory, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._routes = ShardRoutes(directory.source.shards)

    async def acquire(self, claim: Claim, count: int) -> Acquired:
        """As `PartitionStore.acquire`."""
        found, route = AcquireResult(claim, count), self._routes.of(claim.owner)
        here = route.here(self._clock.monotonic())
        if here is not None:
            await self._take(found, route, [self._directory.writers[here]])
        if found.missing and found.error is None:
            await self._look_around(found, route, quiet_first=here is not None)
        return found.result()

    async def _look_around(
        self, found: AcquireResult, route: ShardRoute, *, quiet_first: bool
    ) -> None:
        """Searches the other shards; with `quiet_first`, those without other workers first.

        `quiet_first` is not always set: otherwise a worker that is present at a shard would keep
        all others from the partitions that wait there.
        """
        ahead = [self._directory.writers[number] for number in route.ahead()]
        try:
            await self._directory.refresh()
        except TailraceError as error:
            found.error = error
            return
        ahead = [writer for writer in ahead if _may_have(writer, found.claim)]
        if quiet_first:
            newest_ms = max([writer.modified_ms for writer in ahead], default=0)
            ahead.sort(key=lambda writer: writer.modified_ms > newest_ms - _BUSY_MS)
        lost: list[ShardWriter] = []
        # The first shard mostly has enough. Where little is free, doubling visits all of them soon.
        wave = 1
        while ahead and found.missing:
            these, ahead = ahead[:wave], ahead[wave:]
            await self._read(found, [writer for writer in these if writer.summary() is None])
            due = [writer for writer in these if _may_have(writer, found.claim)]
            lost += await self._take(found, route, due)
            wave = min(wave * 2, AT_ONCE)
        if not found.taken:
            await self._take(found, route, lost, patient=True)

    async def _read(self, found: AcquireResult, writers: Sequence[ShardWriter]) -> None:
        for result in await each(ShardWriter.look, writers):
            if isinstance(result, BaseException):
                found.error = found.error or result

    async def _take(
        self,
        found: AcquireResult,
        route: ShardRoute,
        writers: Sequence[ShardWriter],
        *,
        patient: bool = False,
    ) -> list[ShardWriter]:
        """Acquires a part of what is missing from each shard.

        Returns shards where a race was lost.
        """
        lost: list[ShardWriter] = []
        writers = list(writers)
        while writers and found.missing:
            few, writers = writers[: found.missing], writers[found.missing :]
            part, more = divmod(found.missing, len(few))
            asked = [(one, part + (at < more)) for at, one in enumerate(few)]

            async def take(ask: tuple[ShardWriter, int]) -> Acquired:
                return await ask[0].submit(Take(found.claim, ask[1], patient=patient))

            for (writer, share), result in zip(asked, await each(take, asked), strict=True):
                if isinstance(result, PreconditionFailed):
                    lost.append(writer)
                elif isinstance(result, BaseException):
                    found.error = found.error or result
                elif result.partitions:
                    route.arrive(writer.number, self._clock.monotonic())
                if isinstance(result, Acquired):
                    found.taken += result.partitions
                    found.failed += result.failed
                    if len(result.partitions) == share:
                        writers.append(writer)  # it may have more than its part
        return lost


def _may_have(writer: ShardWriter, claim: Claim) -> bool:
    try:
        summary = writer.summary()
    except Damaged:
        return True  # who takes from it hears why
    return summary is None or summary.due(claim) is not None


class _Pick(NamedTuple):
    due: Due
    shard: int
    key: str


class OrderedAcquire:
    """Acquires from one source in order."""

    def __init__(self, directory: ShardDirectory, context: WriterContext) -> None:
        self._directory = directory
        self._context = context

    async def acquire(self, claim: Claim, count: int) -> Acquired:
        """As `PartitionStore.acquire`; also raises `StoreUnavailable` after too many lost races."""
        found = AcquireResult(claim, count)
        for tries in range(_ROUNDS):
            picks = await self._picked(claim, found.missing)
            before = found.missing
            await self._take(found, picks)
            if not picks or not found.missing or found.error is not None:
                return found.result()
            if found.missing == before:
                await self._context.pause(tries)
        found.error = StoreUnavailable(
            f"other workers always took the shards of {self._directory.source.name} first"
        )
        return found.result()

    async def _picked(self, claim: Claim, count: int) -> list[_Pick]:
        """The first `count` that are free, in order."""
        summaries = await self._directory.summaries(claim.ageing_ms)
        bounds = [
            (due, number)
            for number, summary in enumerate(summaries)
            if (due := summary.due(claim)) is not None
        ]
        picks: list[_Pick] = []
        for bound, number in sorted(bounds):
            if len(picks) == count and bound > picks[-1].due:
                break
            shard = (await self._directory.writers[number].look()).shard
            found = chosen(shard.unended(), claim, count)
            picks = sorted([*picks, *[_pick(one, number, claim) for one in found]])[:count]
        return picks

    async def _take(self, found: AcquireResult, picks: Sequence[_Pick]) -> None:
        by_shard: dict[int, list[str]] = {}
        for pick in picks:
            by_shard.setdefault(pick.shard, []).append(pick.key)

        async def take(item: tuple[int, list[str]]) -> Acquired:
            number, keys = item
            return await self._directory.writers[number].submit(Take(found.claim, len(keys), keys))

        place = {pick.key: at for at, pick in enumerate(picks)}
        taken: list[Partition] = []
        for result in await each(take, by_shard.items()):
            if isinstance(result, BaseException):
                found.error = found.error or result
            else:
                taken += result.partitions
                found.failed += result.failed
        found.taken += sorted(taken, key=lambda one: place[one.key])


def _pick(one: Partition, shard: int, claim: Claim) -> _Pick:
    due = (one.status is not Status.ASSIGNED, one.order(claim.ageing_ms))
    return _Pick(due, shard, one.key)


# Pages of partitions in the order of keys, although each shard has a part of all keys.
#
#   first page     all shards are read; rows after the page are kept as JSON, as many as fit into
#                  their part of the memory
#   next pages     one LIST; only those shards are read again that changed
#   end of rows    all shards are read again
#
# A source of a million partitions is thus read some ten times, not once for each page. A store
# keeps the rows of one listing: the last one.


_PART: Final = 4
"""Of the memory for shards, a fourth."""
_ROW_BYTES: Final = 250
"""What Python takes for a row beside its key and its JSON."""

_UNREAD: Final = ""
"""What is no ETag, and not that of a shard without an object."""
_KEY: Final = itemgetter(0)


class _Row(NamedTuple):
    key: str
    shard: int
    json: str

    def size(self) -> int:
        """The size of the row in memory, in bytes."""
        return len(self.key) + len(self.json) + _ROW_BYTES


@dataclass(frozen=True)
class _Ahead:
    """All rows of a source with a status, from after the key `start` up to the key `end`."""

    source: str
    status: Status | None
    start: str | None
    end: str | None = None
    """None: there are no more."""
    rows: Sequence[_Row] = ()
    versions: Mapping[int, str | None] = field(default_factory=dict)
    """The ETag of each shard that was read for it."""

    def behind(self, after: str | None) -> _Ahead:
        """The rows without those up to `after`, which is not before `start`."""
        rows = [row for row in self.rows if after is None or row.key > after]
        return replace(self, start=after, rows=rows)

    def serves(self, source: str, status: Status | None, after: str | None) -> bool:
        """Whether these rows include those behind `after`."""
        if (source, status) != (self.source, self.status):
            return False
        begins = self.start is None or (after is not None and after >= self.start)
        return begins and (self.end is None or after is None or after < self.end)

    def fills(self, source: str, status: Status | None, after: str | None, limit: int) -> bool:
        """Whether they include a page behind `after`, and show whether another page follows."""
        enough = self.end is None or len(self.rows) > limit
        return self.start == after and enough and self.serves(source, status, after)

    def holds(self, key: str, stored: Mapping[str, object]) -> bool:
        """Whether such a row belongs to these rows."""
        behind = self.start is None or key > self.start
        before = self.end is None or key <= self.end
        return behind and before and (self.status is None or status_of(stored) == self.status.value)

    def of_shard(self, shard: Shard, etag: str | None) -> _Ahead:
        """These rows, with those of one shard as in that version. Raises `Damaged`."""
        try:
            fresh = [
                _Row(key, shard.number, orjson.dumps(stored).decode())  # its bytes fill a page
                for key, stored in shard.rows.items()
                if self.holds(key, stored)
            ]
        except (ValueError, TypeError) as error:
            raise Damaged(f"a row of shard {shard.number} of {shard.source}: {error!r}") from error
        others = [row for row in self.rows if row.shard != shard.number]
        versions = {**self.versions, shard.number: etag}
        return replace(self, rows=sorted([*others, *fresh], key=_KEY), versions=versions)

    def cut(self, most_bytes: int, least: int) -> _Ahead:
        """The first rows, as many as fit into that memory, and not fewer than `least`."""
        sizes = accumulate(row.size() for row in self.rows)
        kept = max(sum(size <= most_bytes for size in sizes), least)
        if kept >= len(self.rows):
            return self
        return replace(self, rows=self.rows[:kept], end=self.rows[kept - 1].key)


class PartitionPages:
    """Pages of all sources of a store."""

    def __init__(self, cache: RowCache) -> None:
        self._cache = cache
        self._ahead: _Ahead | None = None

    def forget_rows(self) -> None:
        """Drops all rows; the next page reads all shards."""
        self._ahead = None

    async def page(
        self, directory: ShardDirectory, status: Status | None, after: str | None, limit: int
    ) -> PartitionPage:
        """As `PartitionStore.page`."""
        newest = await directory.refresh()
        ahead, self._ahead = self._ahead, None
        self._cache.dropped(self)
        if ahead is not None and ahead.serves(directory.source.name, status, after):
            ahead = await self._renewed(ahead.behind(after), directory, newest, limit)
        if ahead is None or not ahead.fills(directory.source.name, status, after, limit):
            fresh = _Ahead(directory.source.name, status, after)
            ahead = await self._renewed(fresh, directory, newest, limit)
        rows = ahead.rows[:limit]
        more = len(ahead.rows) > limit
        if more:
            self._keep(ahead)
        return PartitionPage(
            [_read(directory, row) for row in rows], rows[-1].key if more else None
        )

    async def _renewed(
        self, ahead: _Ahead, directory: ShardDirectory, newest: Sequence[str | None], limit: int
    ) -> _Ahead:
        """The rows as of the shards' newest versions, or later. Raises as `ShardWriter.look`."""

        most_bytes = self._cache.limit_bytes // _PART

        async def read(writer: ShardWriter) -> None:
            nonlocal ahead
            version = await writer.look()
            ahead = ahead.of_shard(version.shard, version.etag).cut(most_bytes, limit + 1)

        changed = [
            writer
            for writer, etag in zip(directory.writers, newest, strict=True)
            if ahead.versions.get(writer.number, _UNREAD) != etag
        ]
        good(await each(read, changed))
        return ahead

    def _keep(self, ahead: _Ahead) -> None:
        self._ahead = ahead
        self._cache.used(self, sum(row.size() for row in ahead.rows) // EXPANSION)


def _read(directory: ShardDirectory, row: _Row) -> Partition:
    """The partition in a row. Raises `Damaged`."""
    rows = {row.key: orjson.loads(row.json)}
    found = Shard(directory.source.name, row.shard, directory.source.shards, rows=rows).get(row.key)
    assert found is not None
    return found


SHARDS: Final = 64
CACHE_BYTES: Final = 64 << 20
_SOURCES: Final = 1024
_MADE_AT_ONCE: Final = 4


class _Opened:
    """A source that exists."""

    def __init__(self, context: WriterContext, source: PartitionSource) -> None:
        self.directory = ShardDirectory(context, source)
        self.random = RandomAcquire(self.directory, context.clock)
        self.ordered = OrderedAcquire(self.directory, context)
        self.places = 0


@dataclass(frozen=True, slots=True)
class _Birth:
    """The partitions to make in one shard, with consecutive versions from `version` on."""

    writer: ShardWriter
    now_ms: int
    version: int
    items: Sequence[tuple[int, NewPartition]]
    """Each with its place."""

    def rows(self) -> list[tuple[str, Stored]]:
        """The keys and rows of the new partitions.

        They take several times as much memory, so they are made only when needed.
        """
        versions = ulids.encode_many(self.version, len(self.items))
        return [
            (one.key, fresh_row(one, version, self.now_ms, place))
            for version, (place, one) in zip(versions, self.items, strict=True)
        ]


class ObjectPartitions:
    """`PartitionStore` over `store`. The caller closes `store` and owns its clock, `time`.

    `shards` is the number of objects of a source that is made here; `cache_bytes` is the limit of
    memory for decoded shards.
    """

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        time: StoreTime,
        *,
        shards: int = SHARDS,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        if not 0 < shards <= MAX_SHARDS:
            raise InvalidInput(f"a source has 1 to {MAX_SHARDS} shards", field="shards")
        cache = RowCache(cache_bytes)
        self._context = WriterContext(store, clock, entropy, cache, count())
        self._pages = PartitionPages(cache)
        self._time = time
        self._shards = shards
        self._sources: BoundedCache[str, _Opened] = BoundedCache(_SOURCES)

    @property
    def time(self) -> StoreTime:
        return self._time

    async def start(self) -> None:
        """Makes one request, so that the store's time becomes known."""
        async for _ in self._context.store.folders(keys.PARTITIONS):
            break

    async def close(self) -> None:
        writers = [one for opened in self._sources.values() for one in opened.directory.writers]
        await asyncio.gather(*[writer.settle() for writer in writers])

    async def create(self, source: str, new: Sequence[NewPartition]) -> list[str]:
        for one in new:
            check_new(source, one)
        if not new:
            return []
        moment = next(self._context.moments)
        opened = await self._made(source)
        births = self._births(opened, new)
        if len(births) > 1:
            await opened.directory.refresh()  # saves a read of each shard that we know

        async def make(birth: _Birth) -> list[str]:
            return await birth.writer.submit(Make(birth.rows()), moment)

        made = set(chain.from_iterable(written(await each(make, births, _MADE_AT_ONCE))))
        return [key for key in dict.fromkeys([one.key for one in new]) if key in made]

    async def get(self, source: str, key: str) -> Partition | None:
        moment = next(self._context.moments)
        opened = await self._opened(source)
        if opened is None:
            return None
        return (await opened.directory.writer_of(key).look(moment)).shard.get(key)

    async def acquire(
        self, source: str, claim: Claim, count: int, *, only: str | None = None, random: bool = True
    ) -> Acquired:
        opened = await self._opened(source)
        if opened is None or count < 1:
            return Acquired([])
        if only is not None:
            return await opened.directory.writer_of(only).submit(Take(claim, 1, [only]))
        way = opened.random if random else opened.ordered
        return await way.acquire(claim, count)

    async def change(self, old: Partition, wanted: Partition) -> Partition:
        check_changed(wanted.progress, wanted.priority)
        return await (await self._writer_of(old)).submit(Replace(old, wanted))

    async def delete(self, old: Partition) -> None:
        await (await self._writer_of(old)).submit(Remove(old))

    async def page(
        self,
        source: str,
        *,
        status: Status | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> PartitionPage:
        opened = await self._opened(source)
        if opened is None:
            return PartitionPage([], None)
        return await self._pages.page(opened.directory, status, after, limit)

    async def counts(self, source: str) -> Mapping[Status, int]:
        opened = await self._opened(source)
        totals: dict[Status, int] = {}
        for summary in [] if opened is None else await opened.directory.summaries():
            for status, number in summary.counts.items():
                totals[status] = totals.get(status, 0) + number
        return totals

    async def sources(self) -> list[str]:
        found = []
        for folder in [name async for name in self._context.store.folders(keys.PARTITIONS)]:
            try:
                opened = await self._at(f"{keys.PARTITIONS}{folder}/")
                if opened is not None and not await opened.directory.is_empty():
                    found.append(opened.directory.source.name)
            except Damaged:  # whoever asks for its partitions hears of it
                if (name := decode(folder)) is None:
                    raise
                found.append(name)
        return sorted(found)

    async def purge(self, source: str, ended_before_ms: int) -> int:
        opened = await self._opened(source)
        if opened is None:
            return 0
        summaries = await opened.directory.summaries()
        over = [
            writer
            for writer, summary in zip(opened.directory.writers, summaries, strict=True)
            if summary.ended_ms < ended_before_ms
        ]

        async def purged(writer: ShardWriter) -> int:
            return await writer.submit(Purge(ended_before_ms))

        return sum(written(await each(purged, over)))

    # --- sources ---------------------------------------------------------------------

    async def _writer_of(self, one: Partition) -> ShardWriter:
        opened = await self._opened(one.source)
        if opened is None:
            raise NotFound(f"there is no source {one.source!r}")
        return opened.directory.writer_of(one.key)

    async def _opened(self, source: str) -> _Opened | None:
        return await self._at(keys.partitions_of(source))

    async def _at(self, prefix: str) -> _Opened | None:
        """The source below `prefix`; None if it does not exist."""
        known = self._sources.get(prefix)
        if known is not None:
            return known
        found = await read_source(self._context.store, f"{prefix}source.json")
        return None if found is None else self._keep(prefix, found)

    async def _made(self, source: str) -> _Opened:
        opened = await self._opened(source)
        if opened is not None:
            return opened
        wanted = PartitionSource(source, self._shards, self._now_ms())
        made = await make_source(self._context.store, keys.partition_source(source), wanted)
        return self._keep(keys.partitions_of(source), made)

    def _now_ms(self) -> int:
        # The earliest that it can be: what is made now may be taken now, by every claim.
        if not self._time.known:
            raise StoreUnavailable("what time it is in the store is not known yet")
        return self._time.at_least_ms()

    def _births(self, opened: _Opened, new: Sequence[NewPartition]) -> list[_Birth]:
        now_ms = self._now_ms()
        first = ulids.fresh(self._context.clock, self._context.entropy) - len(new)
        by_writer: dict[ShardWriter, list[tuple[int, NewPartition]]] = {}
        # Places go on from call to call: several may come in one millisecond.
        for item in enumerate(new, opened.places):
            by_writer.setdefault(opened.directory.writer_of(item[1].key), []).append(item)
        opened.places += len(new)
        versions = accumulate(map(len, by_writer.values()), initial=first)
        return [
            _Birth(writer, now_ms, version, items)
            for (writer, items), version in zip(by_writer.items(), versions, strict=False)
        ]

    def _keep(self, prefix: str, source: PartitionSource) -> _Opened:
        # Two calls may come here for one source: one of them made it already.
        opened = self._sources.get(prefix) or _Opened(self._context, source)
        for _, oldest in self._sources.put(prefix, opened):
            oldest.directory.forget()
        return opened
