"""The parameters of a process of pipelines: its settings, store, partitions and identity.

`World` has all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from tailrace.coordination.lease import process_identity
from tailrace.coordination.open import open_partitions
from tailrace.coordination.partitions import PartitionStore
from tailrace.coordination.pipelines import PipelinesAdmin, damaged_part
from tailrace.coordination.settings import CoordinatorLimits, SourceCoordination
from tailrace.logstore import ulid
from tailrace.logstore.clock import Clock, Entropy, SystemClock, system_entropy
from tailrace.logstore.errors import Damaged, NotFound
from tailrace.logstore.filesystem import Disk, FileSystem
from tailrace.logstore.objects.config import PipelineSettings, StoreSettings, open_store
from tailrace.logstore.objects.store import ObjectStore, newest_date_of
from tailrace.logstore.openmetadata_settings import translate
from tailrace.logstore.settings import load, read_file
from tailrace.logstore.table.table import Table, open_table
from tailrace.pipelines.sources.segments import SegmentFeed
from tailrace.pipelines.sources.service import ServiceClient, ServiceSegments
from tailrace.pipelines.sources.stored import StoredSegments

# The settings of `tailrace pipelines`: those of the store, and its own part of the shared file.


class PipelinesSettings(StoreSettings):
    """Where the store is, and how its pipelines are run."""

    pipelines: PipelineSettings = PipelineSettings()
    source_coordination: SourceCoordination = SourceCoordination()

    @property
    def limits(self) -> CoordinatorLimits:
        """The limits of a coordinator. Whoever is silent for a lease has no share of the work."""
        limits, lease_seconds = self.source_coordination.limits, self.pipelines.lease_seconds
        silent = min(limits.worker_seconds, lease_seconds)
        return replace(limits, lease_seconds=lease_seconds, worker_seconds=silent, max_attempts=0)


def load_settings(flags: Mapping[str, Any], config: str | None) -> PipelinesSettings:
    """Settings from flags, environment and file. Raises `InvalidInput`."""
    return load(PipelinesSettings, flags=flags, file=translate(read_file(config))[0], strict=False)


_LOCK: Final = "pipelines.lock"
_SHARDS: Final = 1


@dataclass(frozen=True, slots=True)
class World:
    """The parts with which a process works."""

    store: ObjectStore
    table: Table
    partitions: PartitionStore
    clock: Clock
    entropy: Entropy
    fs: FileSystem
    settings: PipelinesSettings
    identity: str
    configured: bool
    segments: SegmentFeed
    """Where segments come from: `store`, unless they are read over HTTP."""

    def fresh_id(self) -> str:
        """A new ULID, as text."""
        return ulid.fresh_text(self.clock, self.entropy)


def open_segments(settings: PipelineSettings, store: ObjectStore, clock: Clock) -> SegmentFeed:
    """The source of segments that the settings name. Raises `InvalidInput`."""
    if not settings.source_url:
        return StoredSegments(store)
    client = ServiceClient(
        settings.source_url, token_file=settings.source_token_file, ca_file=settings.source_ca_file
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


# The status of appenders, read from the store: no process needs to be asked.


async def rows(world: World, names: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each part of each appender of these pipelines. Raises `StoreUnavailable`.

    A pipeline that never ran has none. One that cannot be read has a row that says why.
    """
    admin = admin_of(world)
    found: list[dict[str, Any]] = []
    for name in names:
        try:
            found += [one.spelled() for one in (await admin.show(name)).parts]
        except NotFound:
            continue
        except Damaged as error:
            found.append(damaged_part(name, str(error)).spelled())
    return found


def admin_of(world: World) -> PipelinesAdmin:
    """The administration of the world's pipelines."""
    prefix = world.settings.source_coordination.prefix
    return PipelinesAdmin(world.store, world.partitions, world.clock, world.fresh_id, prefix=prefix)
