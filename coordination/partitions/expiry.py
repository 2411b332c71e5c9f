"""Removes COMPLETED partitions after their `ttl`, in stores that do not do so themselves.

Each process checks at intervals; several that do so cost requests and nothing else. A partition
that cannot be removed now is removed later, since nothing depends on its removal.
"""

from __future__ import annotations

from typing import Final

from coordination.partitions.store import PartitionStore
from logstore.clock import Clock
from logstore.errors import TailraceError

_LONGEST_PAUSE_SECONDS: Final = 3600.0


async def expire_for_ever(store: PartitionStore, clock: Clock, ttl_ms: int) -> None:
    """Runs until it is cancelled."""
    pause = min(ttl_ms / 1000, _LONGEST_PAUSE_SECONDS)
    while True:
        await clock.sleep(pause)
        await expire(store, ttl_ms)


async def expire(store: PartitionStore, ttl_ms: int) -> int:
    """Removes expired partitions and returns how many.

    Unreadable sources wait for the next time.
    """
    removed = 0
    try:
        for source in await store.sources():
            before_ms = store.time.at_least_ms() - ttl_ms
            removed += await _purged(store, source, before_ms)
    except TailraceError:  # the store is away: whoever works with it is told
        pass
    return removed


async def _purged(store: PartitionStore, source: str, before_ms: int) -> int:
    try:
        return await store.purge(source, before_ms)
    except TailraceError:  # one that is damaged keeps no other from being seen to
        return 0
