"""The place of the table and delta-rs's options for it, from the settings of the store.

On S3 a commit is a put of the next version's log entry under `If-None-Match: *`
(`aws_conditional_put` = `etag`), which S3 and MinIO honour: several drivers are safe without a
lock service. delta-rs writes the log only. Data files come from Spark and the object store,
so the storage class of large objects does not concern it, and its objects are STANDARD.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from logstore import keys
from logstore.objects.s3.settings import S3Settings
from logstore.objects.settings import StoreSettings
from logstore.table.table import LOG, Table

if TYPE_CHECKING:
    from logstore.objects.s3.credentials import Credentials


def open_table(settings: StoreSettings) -> Table:
    """The table of the store that the settings name; nothing is read or made yet.

    Raises `InvalidInput` for a profile that does not exist.
    """
    bucket = settings.bucket
    if bucket is None:
        return Table(os.path.join(settings.store_folder, keys.TABLE))
    from logstore.objects.s3.blocking import BlockingBucket
    from logstore.objects.s3.credentials import Credentials
    from logstore.table.log_bucket import BucketLogFolder

    credentials = Credentials(settings.s3)
    prefix = f"{bucket.prefix}/{keys.TABLE}/{LOG}/".removeprefix("/")
    return Table(
        f"{bucket.uri}/{keys.TABLE}",
        lambda: storage_options(settings.s3, credentials),
        BucketLogFolder(BlockingBucket(settings.s3, credentials, bucket.name), prefix),
    )


def storage_options(settings: S3Settings, credentials: Credentials) -> dict[str, str]:
    """delta-rs's options, with the current key. Raises `StoreUnavailable`, `InvalidInput`."""
    key = credentials.frozen()
    wanted = {
        "aws_endpoint_url": settings.endpoint_url.rstrip("/"),
        "aws_server_side_encryption": settings.encryption,
        "aws_sse_kms_key_id": settings.kms_key_id,
        "aws_allow_http": "true" if settings.endpoint_url.startswith("http://") else "",
    }
    return {name: value for name, value in wanted.items() if value} | {
        "aws_access_key_id": key.access_key_id,
        "aws_secret_access_key": key.secret_access_key,
        # Said even when it is empty: delta-rs would take the environment's for it.
        "aws_session_token": key.session_token,
        "aws_region": credentials.region,
        "aws_conditional_put": "etag",
        "aws_virtual_hosted_style_request": str(not settings.path_style).lower(),
        "connect_timeout": f"{settings.connect_timeout_seconds:g}s",
        "timeout": f"{settings.read_timeout_seconds:g}s",
        "max_retries": str(settings.attempts - 1),
        "backoff_config.init_backoff": f"{settings.backoff_milliseconds}ms",
    }
