"""What came by way of two nodes is stored twice in segments, once elsewhere, and no fault."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow.parquet as pq

from service.settings import Settings
from tailrace.logstore import ulid
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.config import open_store
from tailrace.logstore.table.table import open_table
from tests.service.test_main import service
from tests.tailrace.verification.world import BASE, BULK, as_it_is, ingest, look, settings_for

TEXT = b"".join(b"line %d\n" % n for n in range(50))


async def both(one: Settings, other: Settings, *, table: bool) -> None:
    """Two nodes, one store, the same batch; other lines before it, so positions differ."""
    batch = ulid.encode(ulid.fresh(SystemClock(), system_entropy()) & ~ulid.LINE_MASK)
    named = {**BULK, "tailrace-batch": batch}
    async with service(one) as (first, _), service(other) as (second, _):
        await second.post(f"{BASE}/p/alone", content=TEXT, headers=BULK)
        for client in (first, second):
            answer = await client.post(f"{BASE}/p/shared", content=TEXT, headers=named)
            assert answer.status_code == 200, answer.text
    if table:
        async with open_store(one, SystemClock(), system_entropy(), Disk()) as store:
            await ingest(store, open_table(one), as_it_is)


def settings(tmp_path: Path) -> tuple[Settings, Settings]:
    store = str(tmp_path / "store")
    return settings_for(tmp_path / "a", store=store), settings_for(tmp_path / "b", store=store)


def test_copies_in_segments_are_no_fault(tmp_path: Path) -> None:
    one, other = settings(tmp_path)
    asyncio.run(both(one, other, table=False))
    found = [pq.read_table(path) for path in (tmp_path / "store").rglob("segments/*/*.parquet")]
    shared = [t.column("run_id").to_pylist().count("shared") for t in found]
    assert sum(shared) == 100, "both nodes have the batch"
    for here in (one, other):
        assert look(here, tmp_path / "spill").faults == []


def test_copies_in_the_table_are_told(tmp_path: Path) -> None:
    """A merge leaves one; a table that was made without looking has two."""
    one, other = settings(tmp_path)
    asyncio.run(both(one, other, table=True))
    found = look(one, tmp_path / "spill")
    assert found.kinds == {"table-line-twice"}
    assert found.one("table-line-twice").lines == 50
