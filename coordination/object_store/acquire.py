"""Acquiring partitions of a source with few requests and few conflicts of workers.

`RandomAcquire`: a worker tries its current shard first, then the others in a random order.

    the current shard, without reading it     one put, if no other process changed it
    LIST; shards that may have something      a get of each that changed, a put where one is free
    races were lost and nothing was won       those shards once more, with retries

If nothing is free and nothing changed, the acquire costs that LIST alone. Each worker visits all
shards in an order of its own. It stays at a shard as long as the shard has free partitions, so that
its next acquire needs no read, but at most for `STAY_SECONDS`, so that partitions in other shards
do not wait for ever. It leaves a shard where it met another worker.

`OrderedAcquire` keeps the one order of the whole source. Each shard's summary gives a lower bound
of the order of its partitions. Shards are read from the lowest bound on, until the partitions that
were found come before all remaining bounds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

import xxhash

from coordination.object_store.directory import AT_ONCE, ShardDirectory, each
from coordination.object_store.operations import Take
from coordination.object_store.summary import Due
from coordination.object_store.writer import ShardWriter, WriterContext
from coordination.partitions.partition import Partition, Status
from coordination.partitions.store import Acquired
from coordination.partitions.transitions import Claim, chosen
from logstore.clock import Clock
from logstore.errors import Damaged, PreconditionFailed, StoreUnavailable, TailraceError

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
        self._routes: OrderedDict[str, ShardRoute] = OrderedDict()

    def of(self, owner: str) -> ShardRoute:
        """The route of an owner."""
        route = self._routes.pop(owner, None) or ShardRoute(owner, self._shards)
        self._routes[owner] = route
        if len(self._routes) > _OWNERS:
            self._routes.popitem(last=False)
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
        found.error = StoreUnavailable(f"others always took {self._directory.source.name}'s first")
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
