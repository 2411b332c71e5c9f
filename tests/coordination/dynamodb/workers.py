"""Programs of their own that share a table: what runs in each process."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.coordination.dynamodb.store import DynamoPartitions
from tailrace.coordination.partitions import Partition, Status, completed
from tailrace.coordination.settings import DynamoDbSettings
from tailrace.logstore.errors import PreconditionFailed
from tests.contracts.partition_acquire import SOURCE, claim_of
from tests.coordination.dynamodb.tables import standing
from tests.simulation.clocks import ShiftedClock

LEASE_MS = 1000
HELD = 7
_SECONDS = 300.0


@dataclass(frozen=True)
class Job:
    """`lines` is the file that effects go to: a line with key and epoch for each."""

    settings: dict[str, Any]
    owner: str
    skew_ms: int
    total: int
    lines: str


def work(job: Job) -> None:
    """Takes and completes until all are completed."""
    asyncio.run(asyncio.wait_for(_work(job), _SECONDS))


def hold(job: Job) -> None:
    """Takes some, says so, and does nothing with them."""
    asyncio.run(asyncio.wait_for(_hold(job), _SECONDS))


async def _work(job: Job) -> None:
    async with standing(_settings(job), clock=ShiftedClock(job.skew_ms), seed=job.owner) as store:
        while (await store.counts(SOURCE)).get(Status.COMPLETED, 0) < job.total:
            held = await _taken(store, job, 8)
            await asyncio.gather(*[_done(store, job, one) for one in held])
            if not held:
                await asyncio.sleep(0.2)


async def _hold(job: Job) -> None:
    async with standing(_settings(job), clock=ShiftedClock(job.skew_ms), seed=job.owner) as store:
        while not (held := await _taken(store, job, HELD)):
            await asyncio.sleep(0.05)
        _say(job, held)
        await asyncio.sleep(_SECONDS)


async def _taken(store: DynamoPartitions, job: Job, count: int) -> list[Partition]:
    claim = claim_of(store, job.owner, lease_ms=LEASE_MS)
    return list((await store.acquire(SOURCE, claim, count)).partitions)


async def _done(store: DynamoPartitions, job: Job, held: Partition) -> None:
    _say(job, [held])
    try:
        await store.change(held, completed(held, store.time.at_most_ms()))
    except PreconditionFailed:
        return  # this machine was too slow, another has it


def _say(job: Job, held: list[Partition]) -> None:
    text = "".join(f"{one.key} {one.epoch}\n" for one in held)
    file = os.open(job.lines, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, text.encode())
    os.close(file)


def _settings(job: Job) -> DynamoDbSettings:
    return DynamoDbSettings.model_validate(job.settings)


def effects(path: str) -> list[tuple[str, int]]:
    """Key and epoch of each line; none of a file that is not there yet."""
    text = Path(path).read_text() if Path(path).exists() else ""
    pairs = [line.split() for line in text.splitlines()]
    return [(key, int(epoch)) for key, epoch in pairs]
