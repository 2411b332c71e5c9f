"""The segments in the store: each one's bytes are read and checked once, when it is first seen.

A node's numbers have no gaps from its lowest kept one on (`low` of its watermark), or from
the first that is there if segments were removed. Positions of a node are never used twice.
What is kept of a segment is where it is and the ULIDs between which its lines are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from compactor.ingest.plan import StoredSegment, nodes_of, segments_of
from logstore import keys
from logstore.errors import Damaged, NotFound, StoreUnavailable, UnsupportedVersion
from logstore.objects.store import ObjectStore
from logstore.runs.watermark import Watermark, read_watermark
from logstore.segments.footer import Footer
from logstore.segments.quarantine import read_reason
from logstore.segments.reader import verify_segment
from tailrace.verification.fault import Findings


@dataclass(frozen=True, slots=True)
class Whole:
    """A segment that reads well; `low` and `high` are its first and last ULID, as text."""

    node: str
    seq: int
    uri: str
    rows: int
    low: str
    high: str
    first_pos: int
    end_pos: int


SegmentRepair = Callable[[StoredSegment, bytes | None, str], Awaitable[str]]
"""Takes a segment, its bytes if they are intact, and else the reason; returns what it did."""


async def nothing(_segment: StoredSegment, _body: bytes | None, _reason: str) -> str:
    """Repairs nothing."""
    return ""


@dataclass(slots=True)
class SegmentCatalog:
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
        """Lists again and checks what is new. Raises `StoreUnavailable`."""
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

    async def _checked(self, segment: StoredSegment) -> Whole | None:
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
            reads = "quarantined, yet it reads well"
            self.findings.add("segment-aside", segment.key, reads, lines=footer.rows, repaired=done)
            if not done:
                return None
        self.findings.count("segment lines", footer.rows)
        return _whole(self.store, segment, footer)

    async def _report_quarantined(self, segment: StoredSegment) -> None:
        reason = await read_reason(self.store, segment.node, segment.seq)
        try:
            await self.store.head(keys.give_up_marker(segment.node, segment.seq))
        except NotFound:
            self.findings.add("segment-aside", segment.key, f"quarantined: {reason}")
        else:
            self.findings.note(f"the lines of {segment.key} were given up: {reason}")

    async def _look_for_gaps(self, node: str, segments: Sequence[StoredSegment]) -> None:
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

    async def _look_for_markers(self, node: str, segments: Sequence[StoredSegment]) -> None:
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


def _read(segment: StoredSegment, body: bytes) -> Footer:
    if len(body) != segment.size:
        raise StoreUnavailable(f"{segment.key}: {len(body)} of {segment.size} bytes were read")
    footer = verify_segment(body)
    if (footer.node, footer.seq) != (segment.node, segment.seq):
        raise Damaged(f"it says that it is segment {footer.seq} of {footer.node}")
    return footer


def _whole(store: ObjectStore, segment: StoredSegment, footer: Footer) -> Whole:
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
