"""Opens the store on S3 that the settings name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from logstore import keys
from logstore.clock import Clock
from logstore.entropy import Entropy
from logstore.objects.s3.client import open_client
from logstore.objects.s3.credentials import Credentials
from logstore.objects.s3.place import Keeping, Place
from logstore.objects.s3.plan import PartLimits
from logstore.objects.s3.requests import Tries
from logstore.objects.s3.settings import S3Settings
from logstore.objects.s3.store import S3Store
from logstore.table.names import level_of


@asynccontextmanager
async def open_s3(
    settings: S3Settings, place: Place, clock: Clock, entropy: Entropy
) -> AsyncIterator[S3Store]:
    """The store at `place` while the block runs, in the loop that runs the block.

    Sends nothing to the server. Raises `InvalidInput` for invalid settings.
    """
    credentials = Credentials(settings)
    async with open_client(settings, credentials, clock) as client:
        yield S3Store(
            client,
            place,
            clock,
            entropy,
            keeping=keeping_of(settings),
            tries=Tries(settings.attempts, settings.backoff_milliseconds / 1000),
            limits=PartLimits(single_put=settings.multipart_bytes),
            uploads_by_prefix=not settings.endpoint_url,
        )


def keeping_of(settings: S3Settings) -> Keeping:
    """Encryption for all objects, and a storage class for large ones that are rarely read.

    Fresh files of the table are rewritten when their hour is over. Where a class is paid
    for by the month, an object that lives for an hour costs more in it than in STANDARD.
    """
    large = settings.large_class

    def class_of(key: str) -> str | None:
        old = key.startswith(f"{keys.TABLE}/date=") and level_of(key) > 0
        return large if large != "STANDARD" and (old or key.endswith("/logs.txt")) else None

    return Keeping(settings.encryption, settings.kms_key_id, class_of)
