"""How this driver shares nodes with others, by its settings: who it is, and where leases are.

A driver that was killed and starts again takes its own leases back at once, if it is sure that
the earlier one is gone: it holds `compactor.lock` in the data folder, which dies with its
process. Its identity is the host and that folder. A second driver on the same folder, or one
where there is no such folder, is nobody's successor: what it leaves behind runs out.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from compactor.settings import CompactorSettings
from compactor.sharing.shares import NAME, Leased, Patience, Sharing
from coordination.coordinator.coordinator import Coordinator
from coordination.open import open_partitions
from logstore.clock import Clock
from logstore.entropy import Entropy
from logstore.filesystem import FileSystem, Lock
from logstore.objects.remote import newest_date_of
from logstore.objects.store import ObjectStore

_LOCK = "compactor.lock"
_SHARDS = 1
"""All nodes in one object: they are few, and one write takes or gives back all of them."""


@asynccontextmanager
async def open_sharing(
    settings: CompactorSettings,
    store: ObjectStore,
    clock: Clock,
    entropy: Entropy,
    fs: FileSystem,
) -> AsyncIterator[Sharing]:
    """As long as the block lasts. Raises `InvalidInput`, `StoreUnavailable`."""
    coordination = settings.source_coordination
    # A node's segments are never given up on, however often a driver died over them.
    limits = replace(
        coordination.limits, lease_seconds=settings.compaction.lease_seconds, max_attempts=0
    )
    identity, lock = _identity(settings.data, fs)
    opening = open_partitions(
        coordination.store,
        store,
        clock,
        entropy,
        newest_date=newest_date_of(store),
        ageing_ms=limits.ageing_ms,
        shards=_SHARDS,
    )

    try:
        async with opening as partitions:
            await partitions.start()

            def coordinator() -> Coordinator:
                return Coordinator(
                    partitions,
                    clock,
                    entropy,
                    name=NAME,
                    identity=identity,
                    configured=lock is not None,
                    prefix=coordination.prefix,
                    limits=limits,
                )

            yield Leased(coordinator, Patience(clock, settings.compaction.lease_seconds))
    finally:
        if lock is not None:
            lock.release()


def _identity(data: str, fs: FileSystem) -> tuple[str, Lock | None]:
    """Who we are, and the lock that says that nobody else is, if there can be one."""
    host, folder = socket.gethostname(), os.path.abspath(data)
    try:
        lock = fs.lock(f"{folder}/{_LOCK}", wait=False)
    except OSError:  # there is no such folder, or it is not ours to write in
        lock = None
    return (host, None) if lock is None else (f"{host}:{folder}", lock)
