"""Opens the store of partitions in a table of DynamoDB from settings.

The client is opened inside the running loop and closed with it. It sends each request once, as
the client of S3 does, for the same reason: the first try of a conditional write would make the
server refuse the second.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import aioboto3
import aiobotocore.session
from aiobotocore.config import AioConfig
from botocore.exceptions import BotoCoreError

from coordination.dynamodb.requests import CONNECTIONS, TRIES, Requests
from coordination.dynamodb.store import DynamoPartitions
from coordination.dynamodb.table import Table
from coordination.dynamodb.writes import Keeping
from coordination.partitions.partition import AGEING_MS
from coordination.settings import DynamoDbSettings
from coordination.storetime import StoreTime
from logstore.clock import Clock, Entropy
from logstore.errors import InvalidInput
from logstore.objects.s3.client import KEEP_SECONDS, OneSend, loader
from logstore.objects.s3.credentials import Credentials, Renewed
from logstore.objects.s3.requests import Tries
from logstore.objects.s3.settings import S3Settings

_CONNECT_SECONDS: Final = 5
_READ_SECONDS: Final = 5
_HINT: Final = "Set AWS_ACCESS_KEY_ID and its like, or run where a role is given to the machine."


@asynccontextmanager
async def open_client(
    settings: DynamoDbSettings, clock: Clock, connections: int
) -> AsyncIterator[Any]:
    """A client of `dynamodb`. Raises `InvalidInput` for settings that botocore refuses."""
    session = aiobotocore.session.AioSession()
    session.register_component("data_loader", loader())
    session.register_component("credential_provider", Renewed(credentials_of(settings), clock))
    try:
        made = aioboto3.Session(botocore_session=session).client(
            "dynamodb",
            region_name=settings.region,
            endpoint_url=settings.endpoint_url or None,
            config=_config(connections),
        )
        client = await made.__aenter__()
    except (BotoCoreError, ValueError) as error:
        raise InvalidInput(f"dynamodb: {error}") from error
    try:
        yield client
    finally:
        await made.__aexit__(None, None, None)


def credentials_of(settings: DynamoDbSettings) -> Credentials:
    """The credentials of environment or machine, or of the role that is assumed with them."""
    return Credentials(
        S3Settings(
            region=settings.region,
            role_arn=settings.sts_role_arn,
            role_external_id=settings.sts_external_id,
        ),
        of="dynamodb",
        hint=_HINT,
    )


def _config(connections: int) -> AioConfig:
    return AioConfig(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        max_pool_connections=connections,
        connector_args={"keepalive_timeout": KEEP_SECONDS},
        http_session_cls=OneSend,
        retries={"total_max_attempts": 1, "mode": "standard"},
        user_agent_extra="tailrace",
    )


@asynccontextmanager
async def open_dynamodb(
    settings: DynamoDbSettings,
    clock: Clock,
    entropy: Entropy,
    *,
    ageing_ms: int = AGEING_MS,
    tries: Tries = TRIES,
    time: StoreTime | None = None,
) -> AsyncIterator[DynamoPartitions]:
    """The store while the block runs, in the loop that runs the block; the caller starts it.

    Sends nothing to the server. Raises `InvalidInput` for invalid settings.
    """
    async with open_client(settings, clock, CONNECTIONS) as client:
        requests = Requests(client, settings.table_name, clock, entropy, tries)
        table = Table(requests, settings, clock)
        keeping = Keeping(ageing_ms, settings.ttl_ms)
        yield DynamoPartitions(requests, table, clock, entropy, keeping, time=time)
