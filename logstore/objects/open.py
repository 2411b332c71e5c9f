"""From settings to the object store that they name: a folder, or a place on S3."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from logstore import keys
from logstore.clock import Clock
from logstore.entropy import Entropy
from logstore.filesystem import FileSystem
from logstore.objects.dates import DateSample
from logstore.objects.local import LocalStore
from logstore.objects.s3 import S3Store
from logstore.objects.s3_client import open_client
from logstore.objects.s3_credentials import Credentials
from logstore.objects.s3_place import Keeping, Place
from logstore.objects.s3_plan import PartLimits
from logstore.objects.s3_requests import Tries
from logstore.objects.s3_settings import S3Settings
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
    credentials = Credentials(settings.s3)
    async with open_client(settings.s3, credentials, clock) as client:
        place = Place(settings.bucket.name, settings.bucket.prefix)
        yield S3Store(
            client,
            place,
            clock,
            entropy,
            keeping=keeping_of(settings.s3),
            tries=Tries(settings.s3.attempts, settings.s3.backoff_milliseconds / 1000),
            limits=PartLimits(single_put=settings.s3.multipart_bytes),
            uploads_by_prefix=not settings.s3.endpoint_url,
        )


def keeping_of(settings: S3Settings) -> Keeping:
    """Encryption for all, a class for what is large, read seldom and never rewritten."""
    large = settings.large_class

    def class_of(key: str) -> str | None:
        chosen = key.endswith("/logs.txt") or key.startswith(f"{keys.TABLE}/date=")
        return large if large != "STANDARD" and chosen else None

    return Keeping(settings.encryption, settings.kms_key_id, class_of)


def requests_of(store: ObjectStore) -> Mapping[str, int]:
    """The requests that it has made to S3, counted on, by operation; none of a folder."""
    return store.requests.made if isinstance(store, S3Store) else {}


def newest_date_of(store: ObjectStore) -> Callable[[], DateSample | None] | None:
    """Asks for the last sample of the store's clock; None if it has none, as a folder."""
    return (lambda: store.newest_date) if isinstance(store, S3Store) else None
