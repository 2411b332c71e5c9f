"""The leases of the store that settings name, without a service."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from coordination.named.locks import Locks
from coordination.open import open_partitions
from coordination.oversight.oversight import Oversight
from coordination.settings import SourceCoordination
from coordination.storetime import StoreTime
from logstore.clock import Clock, SystemClock
from logstore.disk import Disk
from logstore.entropy import Entropy, system_entropy
from logstore.errors import InvalidInput
from logstore.log_storage import translate
from logstore.objects.open import open_store
from logstore.objects.remote import newest_date_of
from logstore.objects.settings import StoreSettings
from logstore.objects.store import ObjectStore
from logstore.settings import load, read_file


class OperatorSettings(StoreSettings):
    """Where the store is, and that of partitions."""

    source_coordination: SourceCoordination = SourceCoordination()


@dataclass(frozen=True, slots=True)
class Opened:
    """A store, and what oversees the leases in it."""

    oversight: Oversight
    store: ObjectStore
    clock: Clock
    entropy: Entropy
    time: StoreTime


def load_settings(data: str | None, config: str | None) -> OperatorSettings:
    """Settings from a flag, environment and file.

    Raises `InvalidInput`, also for a folder that is not there: opening it would make it.
    """
    flags = {} if data is None else {"data": data}
    file = translate(read_file(config))[0]
    settings = load(OperatorSettings, flags=flags, file=file, strict=False)
    if settings.bucket is None and not os.path.isdir(settings.store_folder):
        raise InvalidInput(
            f"there is no store at {settings.store_folder}",
            hint="Say --data or --config of the service, or --url to ask it.",
        )
    return settings


@asynccontextmanager
async def open_leases(*, data: str | None, config: str | None) -> AsyncIterator[Opened]:
    """All of the settings' leases, as long as the block lasts.

    Raises `InvalidInput`, `StoreUnavailable`.
    """
    settings = load_settings(data, config)
    coordination = settings.source_coordination
    clock, entropy = SystemClock(), system_entropy()
    async with open_store(settings, clock, entropy, Disk()) as store:
        newest_date = newest_date_of(store)
        opening = open_partitions(
            coordination.store,
            store,
            clock,
            entropy,
            newest_date=newest_date,
            ageing_ms=coordination.limits.ageing_ms,
        )
        async with opening as partitions:
            await partitions.start()
            time = StoreTime(clock, newest_date)
            oversight = Oversight(partitions, Locks(store, clock, entropy, time))
            yield Opened(oversight, store, clock, entropy, time)
