"""Acquiring in the one order of a whole source.

Each shard's summary gives a lower bound of the order of its partitions. Shards are read from
the lowest bound on, until the partitions that were found come before all remaining bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from coordination.object_store.directory import ShardDirectory, each
from coordination.object_store.found import Found
from coordination.object_store.operations import Take
from coordination.object_store.summary import Due
from coordination.object_store.writer import Means
from coordination.partitions.partition import Partition, Status
from coordination.partitions.store import Acquired
from coordination.partitions.transitions import Claim, chosen
from logstore.errors import StoreUnavailable

_ROUNDS: Final = 40


class _Pick(NamedTuple):
    due: Due
    shard: int
    key: str


class Ordered:
    """Acquires from one source in order."""

    def __init__(self, directory: ShardDirectory, means: Means) -> None:
        self._directory = directory
        self._means = means

    async def acquire(self, claim: Claim, count: int) -> Acquired:
        """As `PartitionStore.acquire`; also raises `StoreUnavailable` after too many lost races."""
        found = Found(claim, count)
        for tries in range(_ROUNDS):
            picks = await self._picked(claim, found.missing)
            before = found.missing
            await self._take(found, picks)
            if not picks or not found.missing or found.error is not None:
                return found.result()
            if found.missing == before:
                await self._means.pause(tries)
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

    async def _take(self, found: Found, picks: Sequence[_Pick]) -> None:
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
