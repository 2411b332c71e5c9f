"""Repairing segments: damage is quarantined, and what reads well again is brought back.

Nothing is deleted but a marker, and that last. A segment that was quarantined counted as
empty, so the table's mark may have passed it: then its lines are added to the table first,
those that it has not yet, in a commit that moves no mark. Killed in between, it is done
again, and adds nothing twice. Its lines come into a run's text only if the watermark has
not passed it; what is not there is reported as a fault of the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactor.commit.placement import Placement
from compactor.ingest.plan import StoredSegment
from logstore import keys
from logstore import ulid as ulids
from logstore.clock import Clock, Entropy
from logstore.errors import PreconditionFailed, StoreUnavailable
from logstore.objects.store import ObjectStore
from logstore.runs.deletions import deletions_above
from logstore.segments.quarantine import quarantine, release
from logstore.segments.reader import open_segment
from logstore.table.commit import commit_segments
from logstore.table.layout import ROW_GROUP_ROWS, file_name
from logstore.table.schema import COLUMNS
from logstore.table.snapshot import Snapshot
from logstore.table.stats import NewFile, describe
from logstore.table.table import Table
from service.query.database import Database
from service.query.sql import literal
from tailrace.verification.compare import LIVE, hold_deletions

_HOUR_MS = 3_600_000
_TRIES = 8
_NEWS = (
    "SELECT r.* FROM rows r WHERE NOT EXISTS (SELECT 1 FROM held h"  # noqa: S608
    " WHERE h.fqn = r.fqn AND h.run_id = r.run_id AND h.ulid = r.ulid)"
    f" AND {LIVE} ORDER BY fqn, run_id, ulid"
)


@dataclass(frozen=True, slots=True)
class Repair:
    """Repairs segments of one store; `placement` syncs the log, which delta-rs does not."""

    store: ObjectStore
    table: Table
    placement: Placement
    database: Database
    clock: Clock
    entropy: Entropy

    async def segment(self, segment: StoredSegment, body: bytes | None, reason: str) -> str:
        """Quarantines a segment that does not read well; brings one back that does.

        Raises `StoreUnavailable`, `OutcomeUnknown`.
        """
        if body is None:
            version = self._fresh()
            await quarantine(self.store, segment.node, segment.seq, reason=reason, version=version)
            return "quarantined"
        added = await self._into_table(segment, body)
        await release(self.store, [(segment.node, segment.seq)])
        return f"brought back; {added} lines were added to the table"

    async def _into_table(self, segment: StoredSegment, body: bytes) -> int:
        for _ in range(_TRIES):
            snapshot = await asyncio.to_thread(self.table.snapshot)
            if snapshot.mark(segment.node) < segment.seq:
                return 0  # the compactor takes it in
            try:
                return await self._add(snapshot, body)
            except PreconditionFailed:
                continue  # somebody else's commit was first
        raise StoreUnavailable("the table moves all the time")

    async def _add(self, snapshot: Snapshot, body: bytes) -> int:
        job = self._fresh()
        deletions = await deletions_above(self.store, 0)
        hold_deletions(self.database, deletions)
        files: list[NewFile] = []
        segment = open_segment(body)
        for number, rows in enumerate(segment.groups()):
            for day, hour, part in _hours(rows):
                news = self._news(snapshot, part)
                if news.num_rows:
                    name = f"date={day.isoformat()}/hour={hour:02}/{_name(job, number)}"
                    files.append(await self._write(name, news))
        if not files:
            return 0
        await self.placement.settle(snapshot.version)
        after = await asyncio.to_thread(
            commit_segments, self.table, snapshot, files, [], job=job, clock=self.clock
        )
        await self.placement.settle(after.version)
        return sum(file.rows for file in files)

    def _news(self, snapshot: Snapshot, rows: pa.Table) -> pa.Table:
        """The rows that the table has not, in its order."""
        ends = pc.min_max(rows.column("ulid")).as_py()
        low, high = ulids.decode(ends["min"]), ulids.decode(ends["max"])
        held = [literal(file.uri) for file in snapshot.files_for(low, high)]
        source = "read_parquet($files, hive_partitioning = false)" if held else "rows WHERE false"
        self.database.hold("rows", rows)
        create = f"CREATE OR REPLACE TEMP TABLE held AS SELECT fqn, run_id, ulid FROM {source}"  # noqa: S608
        self.database.number(create, {"files": held} if held else {})
        batches = list(self.database.run(_NEWS, {}))
        schema = pa.schema([f for f in COLUMNS if f.name not in ("date", "hour")])
        return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()

    async def _write(self, path: str, rows: pa.Table) -> NewFile:
        sink = pa.BufferOutputStream()
        pq.write_table(
            rows,
            sink,
            compression="zstd",
            write_page_checksum=True,
            version="1.0",
            coerce_timestamps="us",
            allow_truncated_timestamps=False,
            row_group_size=ROW_GROUP_ROWS,
        )
        body = sink.getvalue()
        info = await self.store.put(f"{keys.TABLE}/{path}", memoryview(body), if_absent=True)
        footer = pq.read_metadata(pa.BufferReader(body))
        return describe(footer, path=path, size=info.size, modified_ms=self.clock.now_ms())

    def _fresh(self) -> str:
        return ulids.fresh_text(self.clock, self.entropy)


def _name(job: str, number: int) -> str:
    return file_name(job, f"{number:05d}", level=0)


def _hours(rows: pa.Table) -> Iterator[tuple[date, int, pa.Table]]:
    """The rows by the hour of their ULID; they are in order of it."""
    column = rows.column("ulid")
    start = 0
    while start < rows.num_rows:
        hour = ulids.time_ms(ulids.decode(column[start].as_py())) // _HOUR_MS
        first_after = ulids.encode(ulids.lowest_at((hour + 1) * _HOUR_MS))
        end = pc.sum(pc.less(column, first_after)).as_py()
        moment = datetime.fromtimestamp(hour * _HOUR_MS / 1000, UTC)
        yield moment.date(), moment.hour, rows.slice(start, end - start)
        start = end
