"""Stores on DynamoDB Local, each with a table of its own unless told otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from tailrace.coordination.dynamodb.requests import TRIES
from tailrace.coordination.dynamodb.store import DynamoPartitions, open_dynamodb
from tailrace.coordination.lease import StoreTime
from tailrace.coordination.settings import DynamoDbSettings
from tailrace.logstore.clock import Clock, SystemClock
from tailrace.logstore.retry import Tries
from tests.servers.dynamodb import REGION, DynamoDb


def settings_of(server: DynamoDb, table: str | None = None, **keys: Any) -> DynamoDbSettings:
    """Of a table that nobody used, unless it is named."""
    return DynamoDbSettings.model_validate(
        {
            "table_name": table or server.table_name(),
            "region": REGION,
            "endpoint_url": server.endpoint_url,
            **keys,
        }
    )


@asynccontextmanager
async def standing(
    settings: DynamoDbSettings,
    *,
    clock: Clock | None = None,
    time: StoreTime | None = None,
    seed: int | str = 0,
    tries: Tries = TRIES,
) -> AsyncIterator[DynamoPartitions]:
    """A store that was started."""
    opening = open_dynamodb(settings, clock or SystemClock(), Random(seed), tries=tries, time=time)
    async with opening as store:
        await store.start()
        yield store
