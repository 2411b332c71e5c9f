"""Opens a compactor from settings: the one module that distinguishes folders from other stores."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from compactor.assignment import Alone, Assigner, open_assigner
from compactor.context import Compactor
from compactor.placement import STAGING, FolderPlacement, ObjectPlacement, Placement
from compactor.settings import CompactorSettings
from compactor.spark.engine import SparkWishes
from compactor.spark.s3 import S3A
from compactor.spark.session import Session
from tailrace.logstore.clock import Clock, Entropy, SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk, FileSystem
from tailrace.logstore.objects.config import open_store
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.table.table import open_table


def make_session(settings: CompactorSettings) -> Session:
    """The Spark session of these settings, not started."""
    compaction = settings.compaction
    wishes = SparkWishes(
        compaction.driver_memory,
        compaction.master,
        compaction.spark,
        json_log=compaction.log_format == "json",
    )
    if settings.bucket:
        return Session(wishes, S3A(settings.s3, compaction.jars))
    return Session(wishes, folder=os.path.join(open_table(settings).uri, STAGING))


@asynccontextmanager
async def open_compactor(
    settings: CompactorSettings,
    session: Session,
    reached: Callable[[str], None],
    *,
    alone: bool = False,
) -> AsyncIterator[Compactor]:
    """Opens a compactor of the settings' store for the time of the block.

    With `alone` it takes no leases, as if no other existed: for one that only reads. Raises
    `InvalidInput`, `StoreUnavailable`.
    """
    clock, entropy, disk = SystemClock(), system_entropy(), Disk()
    table = open_table(settings)
    async with (
        open_store(settings, clock, entropy, disk) as store,
        _assigner(settings, store, clock, entropy, disk, alone=alone) as assigner,
    ):
        placement: Placement = (
            FolderPlacement(disk, table.uri) if settings.bucket is None else ObjectPlacement(store)
        )
        yield Compactor(
            store,
            table,
            placement,
            clock,
            entropy,
            settings.compaction,
            session,
            reached,
            settings.queue.evict_after_hours,
            assigner,
            settings.runs,
            settings.segments.max_bytes,
        )


@asynccontextmanager
async def _assigner(
    settings: CompactorSettings,
    store: ObjectStore,
    clock: Clock,
    entropy: Entropy,
    disk: FileSystem,
    *,
    alone: bool,
) -> AsyncIterator[Assigner]:
    if alone:
        yield Alone()
        return
    async with open_assigner(settings, store, clock, entropy, disk) as assigner:
        yield assigner
