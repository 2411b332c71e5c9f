"""From settings to the object store that they name: a folder, or a place on S3."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from logstore.clock import Clock
from logstore.entropy import Entropy
from logstore.filesystem import FileSystem
from logstore.objects.local import LocalStore
from logstore.objects.s3_place import Place
from logstore.objects.settings import StoreSettings
from logstore.objects.store import ObjectStore


@asynccontextmanager
async def open_store(
    settings: StoreSettings, clock: Clock, entropy: Entropy, fs: FileSystem
) -> AsyncIterator[ObjectStore]:
    """The store, as long as the block runs, in the loop that runs it.

    Asks the server nothing, so it opens while the server cannot be reached. Raises
    `InvalidInput` for settings that cannot be, `StoreUnavailable` for a folder that cannot.
    """
    if settings.bucket is None:
        yield LocalStore(settings.store_folder, fs, clock, entropy)
        return
    from logstore.objects.s3_open import open_s3

    place = Place(settings.bucket.name, settings.bucket.prefix)
    async with open_s3(settings.s3, place, clock, entropy) as store:
        yield store
