"""The segments in the store: each is read and checked once, when it is first seen; repairs.

A node's numbers have no gaps from its lowest kept one on (`low` of its watermark), or from the
first existing one if segments were removed. Positions of a node are never used twice. For each
segment its place and the range of its lines' ULIDs are kept. `Repair` repairs segments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from compactor.placement import Placement
from compactor.plan import ListedSegment, nodes_of, segments_of
from service.query.duckdb import Database
from service.query.sql import literal
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import (
    Damaged,
    NotFound,
    PreconditionFailed,
    StoreUnavailable,
    UnsupportedVersion,
)
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.deletions import deletions_above
from tailrace.logstore.runs.report import Watermark, read_watermark
from tailrace.logstore.segments.file_format import Footer, quarantine, read_reason, release
from tailrace.logstore.segments.reader import open_segment, verify_segment
from tailrace.logstore.table.schema import COLUMNS, ROW_GROUP_ROWS, NewFile, describe, file_name
from tailrace.logstore.table.snapshot import TableSnapshot
from tailrace.logstore.table.table import Table, commit_segments
from tailrace.verification.compare import LIVE, hold_deletions
from tailrace.verification.findings import Findings


@dataclass(frozen=True, slots=True)
class Whole:
    """A segment that can be read; `low` and `high` are its first and last ULID, as text."""

    node: str
    seq: int
    uri: str
    rows: int
    low: str
    high: str
    first_pos: int
    end_pos: int


SegmentRepair = Callable[[ListedSegment, bytes | None, str], Awaitable[str]]
"""Takes a segment, its bytes if they are intact, and else the reason; returns what it did."""


async def nothing(_segment: ListedSegment, _body: bytes | None, _reason: str) -> str:
    """Repairs nothing."""
    return ""


@dataclass(slots=True)
class VerifiedSegments:
    """The segments that existed at the last `refresh`."""

    store: ObjectStore
    findings: Findings
    repair: SegmentRepair = nothing
    marks: dict[str, Watermark] = field(default_factory=dict)
    _whole: dict[str, Whole | None] = field(default_factory=dict)
    _listed: set[str] = field(default_factory=set)
    _gaps: set[tuple[str, int]] = field(default_factory=set)

    def segments(self) -> list[Whole]:
        """The readable segments, by node and number."""
        found = [self._whole[key] for key in self._listed]
        return sorted((s for s in found if s is not None), key=lambda s: (s.node, s.seq))

    async def read_marks(self) -> None:
        """The watermarks of now: before the manifests that they speak of are read."""
        for node in await nodes_of(self.store):
            self.marks[node] = await self._mark(node) or Watermark()

    async def _mark(self, node: str) -> Watermark | None:
        """The node's watermark; None for a damaged one, of which nothing is believed."""
        try:
            return await read_watermark(self.store, node)
        except Damaged:
            return None  # reported with all state objects

    async def refresh(self) -> None:
        """Lists again and checks new segments. Raises `StoreUnavailable`."""
        listed: set[str] = set()
        for node in await nodes_of(self.store):
            segments = await segments_of(self.store, node)
            await self._look_for_gaps(node, segments)
            await self._look_for_markers(node, segments)
            for segment in segments:
                if segment.key not in self._whole:
                    self._whole[segment.key] = await self._checked(segment)
                listed.add(segment.key)
        self._listed = listed
        self._look_for_overlaps()

    async def _checked(self, segment: ListedSegment) -> Whole | None:
        try:
            body = (await self.store.get(segment.key))[1]
        except NotFound:
            return None  # consumed by all and removed, since it was listed
        self.findings.count("segments")
        try:
            footer = await asyncio.to_thread(_read, segment, body)
        except UnsupportedVersion as error:
            self.findings.add("segment-newer", segment.key, str(error))
            return None
        except Damaged as error:
            if segment.quarantined:
                await self._report_quarantined(segment)
                return None
            done = await self.repair(segment, None, str(error))
            detail = f"{error}{'; ' + done if done else ''}"
            self.findings.add("segment-damaged", segment.key, detail)
            return None
        if segment.quarantined:
            done = await self.repair(segment, body, "")
            reads = "quarantined, but intact"
            self.findings.add("segment-aside", segment.key, reads, lines=footer.rows, repaired=done)
            if not done:
                return None
        self.findings.count("segment lines", footer.rows)
        return _whole(self.store, segment, footer)

    async def _report_quarantined(self, segment: ListedSegment) -> None:
        reason = await read_reason(self.store, segment.node, segment.seq)
        try:
            await self.store.head(keys.give_up_marker(segment.node, segment.seq))
        except NotFound:
            self.findings.add("segment-aside", segment.key, f"quarantined: {reason}")
        else:
            self.findings.note(f"the lines of {segment.key} were given up: {reason}")

    async def _look_for_gaps(self, node: str, segments: Sequence[ListedSegment]) -> None:
        there = {segment.seq for segment in segments}
        # `low` is raised before anything is removed; what was quarantined stays below it.
        low = max(self.marks.get(node, Watermark()).low, 1)
        missing = [seq for seq in range(low, max(there, default=0)) if seq not in there]
        if not missing:
            return
        mark = await self._mark(node)
        if mark is None:
            return
        low = mark.low
        for seq in missing:
            known = (node, seq)
            if seq >= low and known not in self._gaps and not await self._is_there(node, seq):
                self._gaps.add(known)
                place = keys.segment(node, seq)
                self.findings.add("segment-missing", place, f"{node} has later segments")

    async def _is_there(self, node: str, seq: int) -> bool:
        """Whether it came while the folder was listed."""
        try:
            await self.store.head(keys.segment(node, seq))
        except NotFound:
            return False
        return True

    async def _look_for_markers(self, node: str, segments: Sequence[ListedSegment]) -> None:
        there = {segment.seq for segment in segments}
        prefix = keys.quarantine_marker(node, 0).rsplit("/", 1)[0] + "/"
        async for info in self.store.list(prefix):
            name = info.key.rsplit("/", 1)[1].removesuffix(keys.GIVEN_UP_SUFFIX)
            known = (f"aside {node}", int(name) if name.isdecimal() else 0)
            if known[1] not in there and known not in self._gaps:
                self._gaps.add(known)
                self.findings.add("marker-alone", info.key, "the segment that it names is gone")

    def _look_for_overlaps(self) -> None:
        before: Whole | None = None
        for segment in self.segments():
            same = before is not None and before.node == segment.node and segment.rows
            if same and before is not None and segment.first_pos < before.end_pos:
                known = (f"overlap {segment.node}", segment.seq)
                if known not in self._gaps:
                    self._gaps.add(known)
                    detail = (
                        f"its positions begin at {segment.first_pos}, those of segment"
                        f" {before.seq} end at {before.end_pos}"
                    )
                    self.findings.add("segment-overlap", segment.uri, detail)
            before = segment if segment.rows else before


def settled(segments: Sequence[Whole], marks: Mapping[str, Watermark]) -> list[Whole]:
    """The segments whose lines are in their runs' logs, or are left out for good."""
    return [s for s in segments if s.seq <= marks.get(s.node, Watermark()).seq]


def _read(segment: ListedSegment, body: bytes) -> Footer:
    if len(body) != segment.size:
        raise StoreUnavailable(f"{segment.key}: {len(body)} of {segment.size} bytes were read")
    footer = verify_segment(body)
    if (footer.node, footer.seq) != (segment.node, segment.seq):
        raise Damaged(f"its footer says that it is segment {footer.seq} of {footer.node}")
    return footer


def _whole(store: ObjectStore, segment: ListedSegment, footer: Footer) -> Whole:
    first, end = (footer.ranges[0][0], footer.ranges[-1][1]) if footer.ranges else (0, 0)
    return Whole(
        segment.node,
        segment.seq,
        store.uri(segment.key),
        footer.rows,
        footer.low,
        footer.high,
        first,
        end,
    )


# Repairs: damaged segments are quarantined, and segments that can be read again are restored.
#
# Nothing is deleted but a marker, and that last. A segment that was quarantined counted as empty,
# so the table's mark may have passed it: then those of its lines that the table lacks are added to
# it first, in a commit that moves no mark. After a crash in between, the repair is done again, and
# adds nothing twice. Its lines come into a run's text only if the watermark has not passed it;
# missing lines are reported as a fault of the run.


_HOUR_MS = 3_600_000
_TRIES = 8
_MISSING = (
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

    async def segment(self, segment: ListedSegment, body: bytes | None, reason: str) -> str:
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

    async def _into_table(self, segment: ListedSegment, body: bytes) -> int:
        for _ in range(_TRIES):
            snapshot = await asyncio.to_thread(self.table.snapshot)
            if snapshot.mark(segment.node) < segment.seq:
                return 0  # the compactor takes it in
            try:
                return await self._add(snapshot, body)
            except PreconditionFailed:
                continue  # somebody else's commit was first
        raise StoreUnavailable("the table changed during each attempt")

    async def _add(self, snapshot: TableSnapshot, body: bytes) -> int:
        job = self._fresh()
        deletions = await deletions_above(self.store, 0)
        hold_deletions(self.database, deletions)
        files: list[NewFile] = []
        segment = open_segment(body)
        for number, rows in enumerate(segment.groups()):
            for day, hour, part in _hours(rows):
                missing = self._missing(snapshot, part)
                if missing.num_rows:
                    name = f"date={day.isoformat()}/hour={hour:02}/{_name(job, number)}"
                    files.append(await self._write(name, missing))
        if not files:
            return 0
        await self.placement.settle(snapshot.version)
        after = await asyncio.to_thread(
            commit_segments, self.table, snapshot, files, [], job=job, clock=self.clock
        )
        await self.placement.settle(after.version)
        return sum(file.rows for file in files)

    def _missing(self, snapshot: TableSnapshot, rows: pa.Table) -> pa.Table:
        """The rows that the table has not, in its order."""
        ends = pc.min_max(rows.column("ulid")).as_py()
        low, high = ulids.decode(ends["min"]), ulids.decode(ends["max"])
        held = [literal(file.uri) for file in snapshot.files_for(low, high)]
        source = "read_parquet($files, hive_partitioning = false)" if held else "rows WHERE false"
        self.database.hold("rows", rows)
        create = f"CREATE OR REPLACE TEMP TABLE held AS SELECT fqn, run_id, ulid FROM {source}"  # noqa: S608
        self.database.number(create, {"files": held} if held else {})
        batches = list(self.database.run(_MISSING, {}))
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
