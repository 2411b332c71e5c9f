"""A node in memory: the double behind the HTTP API. It keeps, counts and publishes for real.

Each record has a running number, a run's text is its batches in order of arrival, and
cursors name the last record seen, as the real node's do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

from service.ingest.batch import AppendReceipt, IncomingBatch, Submitted
from service.journal.format import decode_meta
from service.journal.journal import Appended
from service.run_log.cursors import After, LinePage
from service.run_log.delete import Wanted, always
from service.run_log.lines import HeldPlace, RecordPart, as_records
from service.run_log.listing import (
    ListedRun,
    NamePage,
    Newest,
    ReportedRuns,
    RunFilter,
    RunPage,
    RunSummary,
)
from service.run_log.read_records import ArrowRecords, RecordPage, RecordPiece
from service.run_log.read_text import LogPiece, LogSize
from service.runtime.health import ClockSkew
from service.settings import OpenMetadataSettings, RunSettings
from service.status.reports import ReportExpiry, Reports, RunOutcomes
from service.status.status import RunStatus
from service.tail import SseSettings, Tail
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import BatchConflict, InvalidCursor, NodeNotReady, NotFound
from tailrace.logstore.keys import encode
from tailrace.logstore.objects.local import LocalStore, inline
from tailrace.logstore.patterns import TextTest
from tailrace.logstore.position import Cursor, Position
from tailrace.logstore.ulid import Minter, lowest_at
from tests.simulation.powercut import PowerCutFileSystem

NODE = "node-01"
FILE = "01HZZZZZZZZZZZZZZZZZZZZZZZ"


@dataclass
class Held:
    ulid: int
    pos: int
    batch: IncomingBatch

    @property
    def published(self) -> Appended:
        batch, done = self.batch, asyncio.get_running_loop().create_future()
        return Appended(
            *(b"", 0, batch.text, batch.meta, batch.key, batch.connector, self.ulid, self.pos),
            *(batch.records, batch.lines, 0, False, done),
        )

    @property
    def part(self) -> RecordPart:
        batch = self.batch
        meta = decode_meta(batch.meta) if batch.meta else None
        return RecordPart(
            *(self.ulid, 0, self.pos, batch.records, batch.lines, batch.text, meta),
            batch.connector,
        )


def after_record(pos: int) -> Cursor:
    return Cursor({NODE: Position(FILE, pos)})


class MemoryRecords:
    """Records after a cursor; pages and whole runs are the real node's."""

    def __init__(self, run_logs: MemoryRunLogs) -> None:
        self._run_logs = run_logs

    async def after(
        self,
        key: RunKey,
        where: Cursor | int | HeldPlace | None,
        *,
        max_bytes: int,
        begun: object = None,
    ) -> After[RecordPiece]:
        assert max_bytes > 0
        assert begun is None
        state = self._run_logs.state(key)
        seen = where.seen(NODE) if isinstance(where, Cursor) else -1
        held = [h for h in self._run_logs.held.get(key, []) if h.pos > seen]
        if not held:
            return After(None, False, state)
        end = after_record(held[-1].pos + held[-1].batch.records - 1)
        return After(RecordPiece([h.part for h in held], end, 0), False, state)

    async def records(self, key: RunKey, parts: Sequence[RecordPart]) -> ArrowRecords:
        return ArrowRecords(as_records(key, parts), ())

    async def page(self, *_: object, **__: object) -> RecordPage:
        raise NotImplementedError

    def whole(
        self, key: RunKey, *, by_ulid: bool, max_bytes: int, held: bool = False
    ) -> AsyncIterator[Sequence[RecordPart]]:
        raise NotImplementedError


class MemoryRunLogs:
    """The logs of all runs: its own reader, and its own listing."""

    def __init__(self) -> None:
        self.held: dict[RunKey, list[Held]] = {}
        self.closed: set[RunKey] = set()
        self.failures: list[Exception] = []
        self.reads = 0
        self.first_ms: dict[str, int] = {}
        self.outcomes = RunOutcomes(float("inf"), float("inf"))

    @property
    def reader(self) -> MemoryRunLogs:
        return self

    @property
    def listing(self) -> MemoryRunLogs:
        return self

    def whole(self, key: RunKey) -> bytes:
        return b"".join(held.batch.text for held in self.held.get(key, []))

    def state(self, key: RunKey) -> str:
        if key in self.closed:
            return "closed"
        return "open" if key in self.held else "none"

    async def page(
        self,
        key: RunKey,
        *,
        after: str | None,
        limit: int,
        tail: int | None = None,
        before: str | None = None,
        around: int | None = None,
        max_bytes: int = 1 << 62,
        stored: bool = False,
    ) -> LinePage:
        assert around is None, "the node in memory knows no ids of records"
        if self.failures:
            raise self.failures.pop(0)
        if key not in self.held:
            raise NotFound("no such run")
        lines = [line + b"\n" for line in self.whole(key).split(b"\n")[:-1]]
        start = self._start(len(lines), after, limit, tail, before)
        wanted = end = min(start + limit, len(lines))
        while end > start + 1 and sum(map(len, lines[start:end])) > max_bytes:
            end -= 1
        return LinePage(
            text=b"".join(lines[start:end]),
            lines=end - start,
            after=str(end) if end < len(lines) else None,
            before=str(start) if start else None,
            total_lines=len(lines),
            total_bytes=len(self.whole(key)),
            state=self.state(key),
            missing=wanted - end,
            first_line=start,
        )

    @staticmethod
    def _start(
        total: int, after: str | None, limit: int, tail: int | None, before: str | None
    ) -> int:
        if tail is not None:
            return max(0, total - tail)
        if before is not None:
            if not before.isdigit():
                raise InvalidCursor(f"not a cursor: {before}", field="before")
            return max(0, int(before) - limit)
        if after and not after.isdigit():
            raise InvalidCursor(f"not a cursor: {after}", field="after")
        return min(int(after or 0), total)

    async def batches_after(
        self,
        key: RunKey,
        where: Cursor | int | HeldPlace | None,
        *,
        max_bytes: int,
        begun: object = None,
    ) -> After[LogPiece]:
        self.reads += 1
        assert begun is None
        assert not isinstance(where, HeldPlace)
        cursor = where
        if self.failures:
            raise self.failures.pop(0)
        held, state = list(self.held.get(key, [])), self.state(key)
        await asyncio.sleep(0)
        if not isinstance(cursor, Cursor):
            return After(*self._from_line(held, cursor or 0), state)
        behind = [h for h in held if h.pos > cursor.seen(NODE)]
        news = behind[:3]
        if not news:
            return After(None, False, state)
        end = after_record(news[-1].pos + news[-1].batch.records - 1)
        text = b"".join(h.batch.text for h in news)
        return After(LogPiece(text, end), len(behind) > len(news), state)

    @staticmethod
    def _from_line(held: list[Held], line: int) -> tuple[LogPiece | None, bool]:
        at = 0
        for entry in held:
            lines = entry.batch.text.split(b"\n")[:-1]
            if at + len(lines) > line:
                text = b"".join(piece + b"\n" for piece in lines[max(0, line - at) :])
                end = after_record(entry.pos + entry.batch.records - 1)
                return LogPiece(text, end), entry is not held[-1]
            at += len(lines)
        return None, False

    @property
    def records(self) -> MemoryRecords:
        return MemoryRecords(self)

    async def tail_start(self, key: RunKey, lines: int) -> Cursor | int | None:
        return max(0, self.whole(key).count(b"\n") - lines)

    async def resolved(self, key: RunKey, cursor: Cursor | int | HeldPlace | None) -> Cursor:
        assert not isinstance(cursor, HeldPlace)
        if isinstance(cursor, Cursor):
            return cursor
        end = 0
        found = Cursor()
        for entry in self.held.get(key, []):
            if end >= (cursor or 0):
                break
            end += entry.batch.text.count(b"\n")
            found = after_record(entry.pos + entry.batch.records - 1)
        return found

    async def download(
        self,
        key: RunKey,
        *,
        offset: int = 0,
        size: int | None = None,
        measured: LogSize | None = None,
    ) -> AsyncIterator[bytes]:
        text = self.whole(key)[offset : None if size is None else offset + size]
        for start in range(0, len(text), 1000):
            yield text[start : start + 1000]

    def held_text(self, key: RunKey) -> AsyncIterator[bytes]:
        return self.download(key)

    async def size(self, key: RunKey) -> LogSize:
        total = len(self.whole(key))
        closed = key in self.closed
        # Open, the store holds the first half: what a flush would have brought there.
        stored = total if closed else total // 2
        lines = self.whole(key).count(b"\n")
        return LogSize(stored, total, lines, f"e{total}", self.state(key))

    async def runs(self, fqn: str, limit: int) -> Sequence[RunSummary]:
        if self.failures:
            raise self.failures.pop(0)
        keys = [key for key in reversed(self.held) if key.fqn == fqn]
        return [self._summary(key) for key in keys[:limit]]

    async def newest(self, fqn: str, reported: ReportedRuns) -> Newest:
        found = {encode(run.run): run for run in await self.runs(fqn, len(self.held))}
        reports = {
            name: await reported.listed(info)
            for name, info in (await reported.components(fqn)).items()
        }
        for name, report in reports.items():
            if report is not None:
                run = found.get(name, RunSummary(report.key.run, "open", 0, 0, None, None))
                found[name] = replace(run, created_ms=report.created_ms)
        newest = max(found.values(), key=lambda run: run.began_ms, default=None)
        return Newest(newest, (), reports.get(encode(newest.run)) if newest else None)

    async def newest_held(self, fqn: str) -> Newest:
        return Newest(None)

    def _summary(self, key: RunKey) -> RunSummary:
        text = self.whole(key)
        first = self.first_ms.get(key.run, 1)
        return RunSummary(key.run, self.state(key), text.count(b"\n"), len(text), first, 2)

    async def run_page(
        self,
        fqn: str,
        wanted: RunFilter,
        limit: int,
        after: str | None,
        *,
        now_ms: int,
        reported: ReportedRuns,
    ) -> RunPage:
        assert after is None
        assert now_ms > 0
        runs = [run for run in await self.runs(fqn, limit) if wanted.admits(run)]
        found = []
        for run in runs:
            report = await reported.at(fqn, encode(run.run))
            found.append(ListedRun(run, report, self.outcomes.decide(run, report, now_ms)))
        return RunPage(found, None)

    async def pipeline_page(
        self,
        wanted: TextTest | None,
        limit: int,
        after: str | None,
        *,
        reported: ReportedRuns,
    ) -> NamePage:
        assert (wanted, after) == (None, None)
        return NamePage(sorted({key.fqn for key in self.held})[:limit], None)


@dataclass
class MemoryShedding:
    """Sheds when a test says so."""

    active: bool = False


@dataclass
class MemoryNode:
    """Takes batches at once, or after `delay` (set by a test) is done."""

    sse: SseSettings = field(default_factory=SseSettings)
    openmetadata: OpenMetadataSettings = field(default_factory=OpenMetadataSettings)
    look_seconds: float = 10.0
    run_logs: MemoryRunLogs = field(default_factory=MemoryRunLogs)
    ready: bool = True
    shedding: MemoryShedding = field(default_factory=MemoryShedding)
    cut_off_from: tuple[str, ...] = ()
    refusal: Exception | None = None
    gate: asyncio.Event | None = None

    def __post_init__(self) -> None:
        self.tail = Tail(NODE, self.sse)
        self.status = self._opened_status()
        self.batches: list[IncomingBatch] = []
        self.opened: list[tuple[RunKey, str]] = []
        self.next_pos = 0
        self._minter = Minter(SystemClock(), system_entropy())
        self._known: dict[tuple[RunKey, int], Held] = {}
        self._deleted: dict[RunKey, int] = {}  # the highest ULID that a deletion covers
        self.submitted = 0
        self.lost: Exception | None = None
        """What becomes of submitted batches in place of being stored."""
        self._waiting: set[asyncio.Task[None]] = set()

    def _opened_status(self) -> RunStatus:
        clock = SystemClock()
        self.store = LocalStore("/store", PowerCutFileSystem(), clock, system_entropy(), run=inline)

        async def exists(key: RunKey) -> bool:
            return key in self.run_logs.held

        return RunStatus(
            Reports(
                self.store,
                clock,
                system_entropy(),
                horizon=lambda key: self._deleted.get(key, 0),
                cache_bytes=self.openmetadata.report_cache_bytes,
            ),
            clock,
            self.openmetadata,
            RunSettings(),
            tail=lambda: self.tail,
            expiry=ReportExpiry(self.store, clock, exists, ClockSkew(None)),
            look_seconds=self.look_seconds,
        )

    def problems(self) -> Sequence[str]:
        return [] if self.ready else ["the node is starting"]

    def submit(self, batch: IncomingBatch) -> Submitted | None:
        if batch.ulid is not None or not self.ready or self.refusal is not None:
            return None
        self.submitted += 1
        ulid = self._minter.mint(batch.above)
        done = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._settle(batch, ulid, done))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)
        return Submitted(ulid + batch.records - 1, done)

    async def _settle(self, batch: IncomingBatch, ulid: int, done: asyncio.Future[None]) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.lost is not None:
            done.set_exception(self.lost)
        else:
            self._keep(batch, ulid)
            done.set_result(None)

    async def append(self, batch: IncomingBatch) -> AppendReceipt:
        if self.gate is not None:
            await self.gate.wait()
        if not self.ready:
            raise NodeNotReady("the node is stopping")
        if self.refusal is not None:
            raise self.refusal
        ulid = self._minter.mint(batch.above) if batch.ulid is None else batch.ulid
        known = self._known.get((batch.key, ulid))
        if known is not None and known.batch.text != batch.text:
            raise BatchConflict("known with other bytes")
        if known is None:
            self._keep(batch, ulid)
        last = ulid + batch.records - 1
        return AppendReceipt(ulid, batch.records, known is not None, batch.durability, last)

    async def find_repeat(self, batch: IncomingBatch, since_ms: int) -> AppendReceipt | None:
        assert since_ms > 0
        assert batch.connector
        return None

    def _keep(self, batch: IncomingBatch, ulid: int) -> None:
        held = self._known[batch.key, ulid] = Held(ulid, self.next_pos, batch)
        self.next_pos += batch.records
        self.batches.append(batch)
        self.run_logs.held.setdefault(batch.key, []).append(held)
        if batch.key in self.tail.watched:
            last = Position(FILE, self.next_pos - 1)
            self.tail.publish(batch.key, held.published, last)

    async def open_run(self, key: RunKey, connector: str) -> int:
        if not self.ready:
            raise NodeNotReady("the node is stopping")
        self.opened.append((key, connector))
        return self._minter.mint()

    async def close_run(self, key: RunKey) -> str:
        self.run_logs.closed.add(key)
        self.tail.ended(key)
        return "closed"

    async def delete_run(self, key: RunKey, wanted: Wanted = always) -> None:
        self.run_logs.held.pop(key, None)
        self._deleted[key] = lowest_at(SystemClock().now_ms() + 1) - 1
        await self.status.remove(*key)
        self.tail.ended(key)

    async def delete_pipeline(self, fqn: str, wanted: Wanted = always) -> Sequence[str]:
        gone = [key for key in self.run_logs.held if key.fqn == fqn]
        for key in gone:
            await self.delete_run(key)
        return [key.run for key in gone]

    def unacknowledged(self, fqn: str, run: str | None) -> Sequence[str]:
        return ()
