"""A store and a data folder as service and compactor leave them, made once and copied for a cell.

Runs: `p/closed` (closed, in the table), `p/open` (in chunks, and in the table), `p/gone` (deleted),
`q/late` (in a segment above the table's mark) and `q/held` (in the journal alone).
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
from deltalake import DeltaTable

from compactor.settings import Compaction
from compactor.spark.engine import Engine
from coordination.object_store.store import ObjectPartitions
from coordination.partitions.partition import NewPartition
from coordination.partitions.transitions import Claim
from coordination.storetime import StoreTime
from logstore.clock import SystemClock, system_entropy
from logstore.disk import Disk
from logstore.objects.local import LocalStore
from service.settings import Settings
from service.workers import LINES_LEFT
from tests.compactor.lake import Lake
from tests.service.test_main import service
from tests.tailrace.verification.world import BASE, BULK, PLAIN

NODE = "node-01"
SOURCE = "feed"
SERVICE = "/api/v1/services/ingestionPipelines"
ROUNDS = 3


def settings_for(data: Path, **server: Any) -> Settings:
    """Those of a service whose lines leave the journal for a `bulk` batch, a close or a stop."""
    off: dict[str, Any] = {
        "server": {"port": 0, **server},
        "compaction": {"enabled": False},
        "flush": {"segment_seconds": 3600},
        "runs": {"close_wait_seconds": 3},
    }
    return Settings(data=str(data), node_id=NODE, **off)


def _lines(run: str, number: int) -> bytes:
    return "".join(f"{run} {number} line {n}\n" for n in range(100)).encode()


async def _post(client: httpx.AsyncClient, run: str, text: bytes, headers: Any) -> None:
    (await client.post(f"{BASE}/{run}", content=text, headers=headers)).raise_for_status()


async def _first_life(settings: Settings) -> None:
    async with service(settings, statuses=(0, LINES_LEFT)) as (client, _):
        for number in range(ROUNDS):
            await _post(client, "p/closed", _lines("closed", number), PLAIN)
            await _post(client, "p/open", _lines("open", number), PLAIN)
            await _post(client, "p/gone", _lines("gone", number), BULK)
        (await client.delete(f"{BASE}/p/gone")).raise_for_status()
        (await client.post(f"{BASE}/p/closed/close")).raise_for_status()
        status = {"runId": "closed", "pipelineState": "success", "startDate": 1, "timestamp": 2}
        put = await client.put(f"{SERVICE}/p/pipelineStatus", json=status)
        put.raise_for_status()


async def _coordinate(data: Path) -> None:
    """A source with partitions, of which one is held."""
    clock, entropy = SystemClock(), system_entropy()
    store = LocalStore(str(data / "store"), Disk(), clock, entropy)
    time = StoreTime(clock, None)
    partitions = ObjectPartitions(store, clock, entropy, time)
    await partitions.start()
    await partitions.create(SOURCE, [NewPartition("part-1", progress="7")])
    claim = Claim("host/P", 600_000, time.at_least_ms(), time.at_most_ms())
    await partitions.acquire(SOURCE, claim, 1, only="part-1")
    await partitions.close()


async def _second_life(settings: Settings) -> None:
    """Its lines are not in the table; the last ones not even in a segment."""
    async with service(settings, statuses=(0, LINES_LEFT)) as (client, _):
        await _post(client, "q/late", _lines("late", 0), BULK)
        taken = await client.post("/segments/next", params={"group": "siem", "start": "oldest"})
        taken.raise_for_status()
        for number in range(20):
            await _post(client, "q/held", f"held line {number}\n".encode(), PLAIN)


def build(data: Path, engine: Engine) -> None:
    """Makes the store below `data`; `engine` writes the table's files."""
    asyncio.run(_first_life(settings_for(data)))
    lake = Lake(data, session=engine, limits=Compaction(index_min_bytes=1))
    lake.compact()
    DeltaTable(str(data / "store" / "table")).create_checkpoint()
    asyncio.run(_coordinate(data))
    asyncio.run(_second_life(settings_for(data, stop_seconds=0.001)))


def copy(template: Path, data: Path) -> None:
    """A copy to be damaged."""
    with suppress(FileNotFoundError):
        shutil.rmtree(data)
    shutil.copytree(template, data)
