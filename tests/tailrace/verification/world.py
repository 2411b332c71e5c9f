"""A store as service and compactor leave it, made once and copied for each test.

Its runs: `p/closed` (in `logs.txt`), `p/open` (in chunks), `p/records` (records with
newlines), `p/gone` (deleted), `q/late` (above the table's mark). The table is written here
with pyarrow, as Spark writes it, so that no test waits for a JVM.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactor.plan import nodes_of, segments_of
from logstore import keys, ulid
from logstore.clock import SystemClock
from logstore.entropy import system_entropy
from logstore.objects.store import ObjectStore
from logstore.segments.reader import open_segment
from logstore.table.commit import Advance, commit_segments
from logstore.table.schema import COLUMNS
from logstore.table.stats import NewFile, describe
from logstore.table.table import Table
from service.settings import Settings
from tailrace.verification.fault import Fault, Findings
from tailrace.verification.wiring import verify
from tests.service.test_main import service

BASE = "/api/v1/services/ingestionPipelines/logs"
NODE = "node-01"
PLAIN = {"content-type": "text/plain", "tailrace-durability": "bulk"}
NDJSON = {"content-type": "application/x-ndjson", "tailrace-durability": "bulk"}


def settings_for(data: Path, **sections: Any) -> Settings:
    """Those of a service that compacts nothing."""
    off: dict[str, Any] = {"server": {"port": 0}, "compaction": {"enabled": False}}
    return Settings(data=str(data), node_id=NODE, **off, **sections)


async def _post(client: httpx.AsyncClient, run: str, text: bytes, headers: Any = PLAIN) -> None:
    answer = await client.post(f"{BASE}/{run}", content=text, headers=headers)
    assert answer.status_code == 200, answer.text


async def live(settings: Settings) -> None:
    """A service's life: five segments of one node, of which four are to be in the table."""
    async with service(settings) as (client, _):
        for part in range(3):
            for run in ("closed", "open", "gone"):
                text = "".join(f"{run} {part} {n} é\n" for n in range(200))
                await _post(client, f"p/{run}", text.encode())
        lines = [{"message": f"one\ntwo {n}", "attributes": {"n": str(n)}} for n in range(20)]
        await _post(client, "p/records", b"\n".join(map(orjson.dumps, lines)), NDJSON)
        assert (await client.delete(f"{BASE}/p/gone")).status_code == 200
        assert (await client.post(f"{BASE}/p/closed/close")).status_code == 200


async def live_on(settings: Settings) -> None:
    """Another life, whose lines are not in the table yet."""
    async with service(settings) as (client, _):
        await _post(client, "q/late", b"late 1\nlate 2\n")


async def take_in(store: ObjectStore, table: Table) -> None:
    """Every segment into the table, as a compactor would that knows no deletion yet."""
    snapshot = await asyncio.to_thread(table.create)
    for node in await nodes_of(store):
        segments = await segments_of(store, node)
        mark = snapshot.mark(node)
        for segment in [s for s in segments if s.seq > mark]:
            body = (await store.get(segment.key))[1]
            rows = pa.concat_tables(open_segment(body).groups())
            files = await _files(store, rows)
            snapshot = await asyncio.to_thread(
                commit_segments,
                table,
                snapshot,
                files,
                [Advance(node, segment.seq, segment.seq)],
                job=_fresh(),
                clock=SystemClock(),
            )


async def _files(store: ObjectStore, rows: pa.Table) -> list[NewFile]:
    hours = pc.strftime(rows.column("ts"), "%Y-%m-%d/%H")
    assert len(pc.unique(hours)) <= 2, "lines of now"
    found = []
    for hour in _hours(rows.column("ulid").to_pylist()):
        day, of_day = hour
        chosen = [_hour(text) == hour for text in rows.column("ulid").to_pylist()]
        found.append(await write(store, rows.filter(pa.array(chosen)), day, of_day))
    return found


def _hours(texts: Sequence[str]) -> list[tuple[str, int]]:
    return sorted({_hour(text) for text in texts})


def _hour(text: str) -> tuple[str, int]:
    at = pa.scalar(ulid.time_ms(ulid.decode(text)), pa.timestamp("ms", "UTC"))
    return pc.strftime(at, "%Y-%m-%d").as_py(), pc.hour(at).as_py()


async def write(store: ObjectStore, rows: pa.Table, day: str, hour: int) -> NewFile:
    """A file of the table, not committed."""
    schema = pa.schema([f for f in COLUMNS if f.name not in ("date", "hour")])
    rows = rows.cast(schema).sort_by([(name, "ascending") for name in ("fqn", "run_id", "ulid")])
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    body = sink.getvalue()
    path = f"date={day}/hour={hour:02}/{_fresh()}-00000.parquet"
    info = await store.put(f"{keys.TABLE}/{path}", body.to_pybytes())
    footer = pq.read_metadata(pa.BufferReader(body))
    return describe(footer, path=path, size=info.size, modified_ms=SystemClock().now_ms())


def _fresh() -> str:
    return ulid.encode(ulid.fresh(SystemClock(), system_entropy()))


@dataclass
class Verified:
    """What a comparison found."""

    findings: Findings
    faults: list[Fault] = field(default_factory=list)

    @property
    def kinds(self) -> set[str]:
        return {fault.kind for fault in self.faults}

    def one(self, kind: str) -> Fault:
        """The only fault of that kind."""
        (found,) = [fault for fault in self.faults if fault.kind == kind]
        return found


def look(settings: Settings, spill: Path, *, repair: bool = False) -> Verified:
    """Compares everything."""
    told: list[Fault] = []
    found = Verified(Findings(told.append), told)
    asyncio.run(verify(settings, found.findings, str(spill), repair=repair))
    return found
