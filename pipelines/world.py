"""What a process of pipelines works with: the store, the partitions, and who it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from coordination.identity import process_identity
from coordination.open import open_partitions
from coordination.partitions.store import PartitionStore
from logstore import ulid
from logstore.clock import Clock, Entropy, SystemClock, system_entropy
from logstore.disk import Disk
from logstore.filesystem import FileSystem
from logstore.objects.open import open_store
from logstore.objects.remote import newest_date_of
from logstore.objects.settings import PipelineSettings
from logstore.objects.store import ObjectStore
from logstore.table.options import open_table
from logstore.table.table import Table
from pipelines.settings import PipelinesSettings
from pipelines.sources.client import ServiceClient
from pipelines.sources.contract import Segments
from pipelines.sources.service import ServiceSegments
from pipelines.sources.stored import StoredSegments

_LOCK: Final = "pipelines.lock"
_SHARDS: Final = 1


@dataclass(frozen=True, slots=True)
class World:
    """What a process works with."""

    store: ObjectStore
    table: Table
    partitions: PartitionStore
    clock: Clock
    entropy: Entropy
    fs: FileSystem
    settings: PipelinesSettings
    identity: str
    configured: bool
    segments: Segments
    """Where segments come from: `store`, unless they are read over HTTP."""

    def fresh_id(self) -> str:
        """A new ULID, as text."""
        return ulid.fresh_text(self.clock, self.entropy)


def open_segments(settings: PipelineSettings, store: ObjectStore, clock: Clock) -> Segments:
    """The source of segments that the settings name. Raises `InvalidInput`."""
    if not settings.source_url:
        return StoredSegments(store)
    client = ServiceClient(
        settings.source_url,
        token_file=settings.source_token_file,
        ca_file=settings.source_ca_file,
    )
    return ServiceSegments(client, clock)


@asynccontextmanager
async def open_world(settings: PipelinesSettings) -> AsyncIterator[World]:
    """The store and the partitions of the settings. Raises `InvalidInput`, `StoreUnavailable`."""
    clock, entropy, fs = SystemClock(), system_entropy(), Disk(private=True)
    identity, lock = process_identity(fs, settings.data, _LOCK)
    try:
        async with (
            open_store(settings, clock, entropy, Disk()) as store,
            open_partitions(
                settings.source_coordination.store,
                store,
                clock,
                entropy,
                newest_date=newest_date_of(store),
                shards=_SHARDS,
            ) as partitions,
        ):
            await partitions.start()
            segments = open_segments(settings.pipelines, store, clock)
            try:
                yield World(
                    store,
                    open_table(settings),
                    partitions,
                    clock,
                    entropy,
                    fs,
                    settings,
                    identity,
                    lock is not None,
                    segments,
                )
            finally:
                await segments.close()
    finally:
        if lock is not None:
            lock.release()
