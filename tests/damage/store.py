"""A store and a data folder as service and compactor leave them, made once and copied for a cell.

Runs: `p/closed` (closed, in the table), `p/open` (in chunks, and in the table), `p/gone` (deleted),
`q/fresh` (in the table, behind its checkpoint), `q/late` (in a segment above the table's mark) and
`q/held` (in the journal alone). The pipeline `r` was deleted as a whole. The segment of the deleted
run `q/lost` was damaged, and its lines were given up. The node `node-02` was let go.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx
from deltalake import DeltaTable

from compactor.purge import MARGIN_MS
from compactor.settings import Compaction
from compactor.spark.engine import SparkEngine
from service.peers.register import NodeEntry, encode_entry, forget
from service.peers.shedding import Slots, encode_slots
from service.run_log.backlog import ActiveMarkers
from service.settings import Settings
from service.workers import LINES_LEFT
from tailrace.coordination.lease import StoreTime
from tailrace.coordination.object_store.store import ObjectPartitions
from tailrace.coordination.partitions import Claim, NewPartition
from tailrace.coordination.pipelines import Disabled, PipelineControl, encode_control
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.verification.verifier import give_up_segments
from tests.compactor.lake import Lake
from tests.service.test_main import service
from tests.tailrace.verification.world import BASE, BULK, PLAIN

NODE = "node-01"
SOURCE = "feed"
SERVICE = "/api/v1/services/ingestionPipelines"
ROUNDS = 3
OLD_SECONDS: Final = 1_700_000_000


def settings_for(data: Path, **server: Any) -> Settings:
    """Those of a service whose lines leave the journal for a `bulk` batch, a close or a stop."""
    off: dict[str, Any] = {
        "server": {"port": 0, **server},
        "compaction": {"enabled": False},
        "flush": {"segment_seconds": 3600},
        "runs": {"close_wait_seconds": 3},
        "nodes": {"secret": "a secret that all nodes share"},
    }
    return Settings(data=str(data), node_id=NODE, **off)


def _lines(run: str, number: int) -> bytes:
    return "".join(f"{run} {number} line {n}\n" for n in range(400)).encode()


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
        for folder, send in (("progress", client.put), ("metrics", client.post)):
            sent = await send(f"{SERVICE}/{folder}/p/closed", json={"rows": 12000})
            sent.raise_for_status()
        await _post(client, "r/whole", _lines("whole", 0), BULK)
        (await client.delete(f"{BASE}/r")).raise_for_status()
        await _post(client, "q/lost", _lines("lost", 0), BULK)
        (await client.delete(f"{BASE}/q/lost")).raise_for_status()


async def _coordinate(data: Path) -> None:
    """What nobody writes in these lives: partitions, of which one is held, and much else."""
    clock, entropy = SystemClock(), system_entropy()
    store = LocalStore(str(data / "store"), Disk(), clock, entropy)
    time = StoreTime(clock, None)
    partitions = ObjectPartitions(store, clock, entropy, time)
    await partitions.start()
    await partitions.create(SOURCE, [NewPartition("part-1", progress="7")])
    claim = Claim("host/P", 600_000, time.at_least_ms(), time.at_most_ms())
    await partitions.acquire(SOURCE, claim, 1, only="part-1")
    await partitions.close()

    def fresh() -> str:
        return ulids.fresh_text(clock, entropy)

    (node,) = [entry.name for entry in (data / "store/coordination/nodes").iterdir()]
    active = ActiveMarkers(
        *(node, store, clock), prefix=keys.PREFIX, linger_seconds=60, held=lambda _, __: True
    )
    active.appended(RunKey("p", "open"), 1)
    await active.round()
    lost = f"node-02-{fresh()}"
    entry = NodeEntry(lost, fresh(), "http://127.0.0.1:9", renewed_ms=clock.now_ms())
    await store.put(keys.peer(lost, entry.instance), encode_entry(entry))
    await forget(
        *(store, lost),
        held_by=_nobody,
        prefix=keys.PREFIX,
        now_ms=clock.now_ms(),
        fresh_id=fresh,
    )
    await store.put(keys.SHEDDING, encode_slots(Slots(fresh(), {entry.instance: 17})))
    control = PipelineControl("errors", disabled={"mail": Disabled(17, "full")}, version=fresh())
    await store.put(keys.pipeline_control("errors"), encode_control(control))


async def _nobody(_node: str) -> None:
    """Its lease is over."""


async def _second_life(settings: Settings) -> None:
    """Its lines come into the table behind the checkpoint."""
    async with service(settings, statuses=(0, LINES_LEFT)) as (client, _):
        await _post(client, "q/fresh", _lines("fresh", 0), BULK)


async def _third_life(settings: Settings) -> None:
    """Its lines are not in the table; the last ones not even in a segment."""
    async with service(settings, statuses=(0, LINES_LEFT)) as (client, _):
        await _post(client, "q/late", _lines("late", 0), BULK)
        taken = await client.post("/segments/next", params={"group": "siem", "start": "oldest"})
        taken.raise_for_status()
        for number in range(20):
            await _post(client, "q/held", f"held line {number}\n".encode(), PLAIN)


def _lose_segment(data: Path, lake: Lake) -> None:
    """The compactor quarantines the newest segment, and somebody gives up its lines."""
    path = max((data / "store").glob("segments/node-01*/*.parquet"))
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(bytes(body))
    assert lake.compact().alarms
    key = str(path.relative_to(data / "store"))
    asyncio.run(give_up_segments(settings_for(data), [key]))


def build(data: Path, engine: SparkEngine) -> None:
    """Makes the store below `data`; `engine` writes the table's files."""
    asyncio.run(_first_life(settings_for(data)))
    lake = Lake(data, session=engine, limits=Compaction(index_min_bytes=1))
    # However fast the machine is, the first pass does all deletions, and the second has none left.
    lake.clock.shift_ms = 2 * MARGIN_MS
    _lose_segment(data, lake)
    DeltaTable(str(data / "store" / "table")).create_checkpoint()
    asyncio.run(_second_life(settings_for(data)))
    lake.compact()
    asyncio.run(_coordinate(data))
    asyncio.run(_third_life(settings_for(data, stop_seconds=0.001)))
    for path in (data / "store" / "table" / "_delta_log").iterdir():
        os.utime(path, (OLD_SECONDS, OLD_SECONDS))  # nobody waits for the rest of them


def copy(template: Path, data: Path) -> None:
    """A copy to be damaged. Objects are written once, so they are links to those of the template.

    The state of the sidecars is thus that of the objects.
    """
    with suppress(FileNotFoundError):
        shutil.rmtree(data)
    shutil.copytree(template, data, ignore=lambda _, names: {"store"} & set(names))
    shutil.copytree(template / "store", data / "store", copy_function=os.link)
