"""From settings to the store of partitions in a table of DynamoDB."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from coordination.partitions.dynamodb.client import open_client
from coordination.partitions.dynamodb.requests import CONNECTIONS, TRIES, Requests
from coordination.partitions.dynamodb.store import DynamoPartitions
from coordination.partitions.dynamodb.table import Table
from coordination.partitions.dynamodb.writes import Keeping
from coordination.partitions.partition import AGEING_MS
from coordination.settings import DynamoDbSettings
from coordination.storetime import StoreTime
from logstore.clock import Clock
from logstore.entropy import Entropy
from logstore.objects.s3.requests import Tries


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
    """The store, as long as the block runs, in the loop that runs it; its caller starts it.

    Asks the server nothing. Raises `InvalidInput` for settings that cannot be.
    """
    async with open_client(settings, clock, CONNECTIONS) as client:
        requests = Requests(client, settings.table_name, clock, entropy, tries)
        table = Table(requests, settings, clock)
        keeping = Keeping(ageing_ms, settings.ttl_ms)
        yield DynamoPartitions(requests, table, clock, entropy, keeping, time=time)
