"""Opens the object store that the settings name: a folder, or a place on S3."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from logstore.clock import Clock, Entropy
from logstore.filesystem import FileSystem
from logstore.objects.local import LocalStore
from logstore.objects.s3.place import Place
from logstore.objects.settings import StoreSettings
from logstore.objects.store import ObjectStore

_OPEN_SECONDS = 1.0


@asynccontextmanager
async def open_store(
    settings: StoreSettings, clock: Clock, entropy: Entropy, fs: FileSystem
) -> AsyncIterator[ObjectStore]:
    """The store while the block runs, in the loop that runs the block.

    Sends nothing to the server, so it opens while the server is unreachable; a folder that hangs
    takes a second. Raises `InvalidInput` for invalid settings, `StoreUnavailable` for a folder that
    cannot be made.
    """
    if settings.bucket is None:
        folder = LocalStore(settings.store_folder, fs, clock, entropy, made=False)
        await folder.open(_OPEN_SECONDS)
        yield folder
        return
    from logstore.objects.s3.store import open_s3

    place = Place(settings.bucket.name, settings.bucket.prefix)
    async with open_s3(settings.s3, place, clock, entropy) as store:
        yield store
