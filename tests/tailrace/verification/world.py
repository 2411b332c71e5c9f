"""A store as service and compactor leave it, made once and copied for each test.

Its runs: `p/closed` (in `logs.txt`), `p/open` (in chunks), `p/records` (records with
newlines), `p/gone` (deleted), `q/late` (above the table's mark). The table is written here
with pyarrow, as Spark writes it, so that no test waits for a JVM.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactor.plan import nodes_of, segments_of
from service.settings import Settings
from tailrace.logstore import keys, ulid
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.deletions import Deletion, encode_deletion
from tailrace.logstore.segments.file_format import quarantine
from tailrace.logstore.segments.reader import open_segment
from tailrace.logstore.table.schema import COLUMNS, ROW_GROUP_ROWS, NewFile, describe
from tailrace.logstore.table.table import Advance, Table, commit_segments, open_table
from tailrace.verification.findings import Fault, Findings
from tailrace.verification.verifier import verify
from tests.edited import edited
from tests.service.test_main import service

BASE = "/api/v1/services/ingestionPipelines/logs"
NODE = "node-01"
PLAIN = {"content-type": "text/plain"}
BULK = {**PLAIN, "tailrace-durability": "bulk"}
NDJSON = {"content-type": "application/x-ndjson", "tailrace-durability": "bulk"}


def settings_for(data: Path, **sections: Any) -> Settings:
    """Those of a service that compacts nothing."""
    # No segment is cut by time, so that each has what its lines below say.
    off: dict[str, Any] = {
        "server": {"port": 0},
        "compaction": {"enabled": False},
        "flush": {"segment_seconds": 3600},
    }
    return Settings(data=str(data), node_id=NODE, **off, **sections)


async def _post(client: httpx.AsyncClient, run: str, text: bytes, headers: Any = PLAIN) -> None:
    answer = await client.post(f"{BASE}/{run}", content=text, headers=headers)
    assert answer.status_code == 200, answer.text


async def live(settings: Settings) -> None:
    """A service's life: at least four segments of one node."""
    async with service(settings) as (client, _):
        for part in range(3):
            for run in ("closed", "open", "gone"):
                text = "".join(f"{run} {part} {n} é\n" for n in range(200))
                await _post(client, f"p/{run}", text.encode(), BULK if run == "gone" else PLAIN)
        lines = [{"message": f"one\ntwo {n}", "attributes": {"n": str(n)}} for n in range(20)]
        await _post(client, "p/records", b"\n".join(map(orjson.dumps, lines)), NDJSON)
        assert (await client.delete(f"{BASE}/p/gone")).status_code == 200
        assert (await client.post(f"{BASE}/p/closed/close")).status_code == 200


async def live_on(settings: Settings) -> None:
    """Another life, whose lines are not in the table yet."""
    async with service(settings) as (client, _):
        await _post(client, "q/late", b"late 1\nlate 2\n", BULK)


async def live_large(settings: Settings) -> None:
    """A third life, in which a batch has more lines than a row group of the table."""
    async with service(settings) as (client, _):
        text = "".join(f"{n}\n" for n in range(ROW_GROUP_ROWS + 1))
        await _post(client, "q/large", text.encode(), BULK)


def as_it_is(rows: pa.Table) -> pa.Table:
    """No other lines."""
    return rows


async def ingest(
    store: ObjectStore,
    table: Table,
    change: Callable[[pa.Table], pa.Table] = as_it_is,
    *,
    most: int = 1 << 62,
    without: int = 0,
    hour_off: bool = False,
) -> None:
    """Every segment into the table, as a compactor would that knows no deletion yet."""
    snapshot = await asyncio.to_thread(table.create)
    for node in await nodes_of(store):
        segments = await segments_of(store, node)
        mark = snapshot.mark(node)
        for segment in [s for s in segments if mark < s.seq <= most]:
            body = (await store.get(segment.key))[1]
            rows = change(pa.concat_tables(open_segment(body).groups()))
            rows = rows.slice(0, 0) if segment.seq == without else rows
            files = await _files(store, rows, hour_off=hour_off)
            snapshot = await asyncio.to_thread(
                commit_segments,
                table,
                snapshot,
                files,
                [Advance(node, segment.seq, segment.seq)],
                job=_fresh(),
                clock=SystemClock(),
            )


async def _files(store: ObjectStore, rows: pa.Table, *, hour_off: bool) -> list[NewFile]:
    found = []
    hours = [_hour(text) for text in rows.column("ulid").to_pylist()]
    for day, hour in sorted(set(hours)):
        chosen = pa.array([each == (day, hour) for each in hours])
        found.append(await write(store, rows.filter(chosen), day, (hour + hour_off) % 24))
    return found


def _hour(text: str) -> tuple[str, int]:
    at = pa.scalar(ulid.time_ms(ulid.decode(text)), pa.timestamp("ms", "UTC"))
    return pc.strftime(at, "%Y-%m-%d").as_py(), pc.hour(at).as_py()


async def write(store: ObjectStore, rows: pa.Table, day: str, hour: int) -> NewFile:
    """A file of the table, not committed."""
    schema = pa.schema([f for f in COLUMNS if f.name not in ("date", "hour")])
    rows = rows.cast(schema).sort_by([(name, "ascending") for name in ("fqn", "run_id", "ulid")])
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", write_page_checksum=True)
    body = sink.getvalue()
    path = f"date={day}/hour={hour:02}/{_fresh()}-00000.parquet"
    info = await store.put(f"{keys.TABLE}/{path}", body.to_pybytes())
    footer = pq.read_metadata(pa.BufferReader(body))
    return describe(footer, path=path, size=info.size, modified_ms=SystemClock().now_ms())


def _fresh() -> str:
    return ulid.fresh_text(SystemClock(), system_entropy())


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


def look(
    settings: Settings,
    spill: Path,
    *,
    repair: bool = False,
    remember: Path | None = None,
    sample: float = 0.0,
) -> Verified:
    """Compares everything, or what changed since `remember` was written."""
    told: list[Fault] = []
    found = Verified(Findings(told.append), told)
    memory = None if remember is None else str(remember)
    work = verify(
        settings, found.findings, str(spill), repair=repair, remember=memory, sample=sample
    )
    asyncio.run(work)
    return found


@dataclass
class World:
    """A copy of the store in a folder, to be damaged."""

    settings: Settings
    folder: Path

    @property
    def root(self) -> Path:
        return Path(self.settings.store_folder)

    @property
    def store(self) -> LocalStore:
        return LocalStore(str(self.root), Disk(), SystemClock(), system_entropy())

    @property
    def table(self) -> Table:
        return open_table(self.settings)

    @property
    def node(self) -> str:
        return self.segments()[0].parent.name

    def look(self, *, repair: bool = False) -> Verified:
        """Compares everything, as it is now."""
        return look(self.settings, self.folder / "spill", repair=repair)

    def segments(self) -> list[Path]:
        """Lowest first; the last is above the table's mark."""
        return sorted((self.root / "segments").glob("node-01*/*.parquet"))

    def chunks(self, run: str, suffix: str = "txt") -> list[Path]:
        return sorted((self.root / "pipeline-logs" / run / "chunks").glob(f"*.{suffix}"))

    def change(self, path: Path, at: int) -> None:
        """Another byte at that place, as a disk may give it back."""
        body = bytearray(path.read_bytes())
        body[at] ^= 0x01
        path.write_bytes(bytes(body))

    def manifest(self, run: str, **changes: Any) -> None:
        """Writes other values into a run's manifest."""
        path = self.root / "runs" / f"{run}.json"
        path.write_bytes(edited(path.read_bytes(), **changes))

    def table_files(self) -> list[Path]:
        return [self.root / "table" / file.path for file in self.table.snapshot().files]

    def checkpoint(self) -> None:
        """Has the table's log begin with a checkpoint, as every 20 commits."""
        delta = self.table.snapshot().delta
        assert delta is not None
        delta.create_checkpoint()

    def raise_low(self, low: int) -> None:
        """A compactor's word that segments below are no longer kept."""
        (mark,) = (self.root / "coordination" / "text").iterdir()
        mark.write_bytes(edited(mark.read_bytes(), low=low))

    def set_aside(self, seq: int, reason: str) -> None:
        """A compactor's marker."""
        version = ulid.encode(1)
        asyncio.run(quarantine(self.store, self.node, seq, reason=reason, version=version))

    def rewrite(self, change: Callable[[pa.Table], pa.Table], *, hour_off: bool = False) -> None:
        """Commits a file with some lines of the table's first file, as `change` gives them."""
        snapshot = self.table.snapshot()
        file = snapshot.files[0]
        rows = change(pq.ParquetFile(self.root / "table" / file.path).read())
        hour = (file.hour + hour_off) % 24

        async def committed() -> None:
            made = await write(self.store, rows, file.date.isoformat(), hour)
            commit_segments(self.table, snapshot, [made], [], job=_fresh(), clock=SystemClock())

        asyncio.run(committed())

    def remake(
        self,
        change: Callable[[pa.Table], pa.Table] = as_it_is,
        *,
        hour_off: bool = False,
        without: int = 0,
    ) -> None:
        """Makes the table anew, each segment's lines as `change` gives them, one's left out."""
        mark = self.table.snapshot().mark(self.node)
        shutil.rmtree(self.root / "table")
        work = ingest(self.store, self.table, change, most=mark, hour_off=hour_off, without=without)
        asyncio.run(work)

    def delete(self, fqn: str, run: str) -> None:
        """Deletes all that the run may ever have had, as a service records it first."""
        t = ulid.lowest_at(ulid.MAX_TIME_MS)
        deletion = Deletion(fqn, run, t, ulid.encode(1))
        path = self.root / deletion.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_deletion(deletion))
