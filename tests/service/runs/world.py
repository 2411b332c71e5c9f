"""A node without a journal: a list of batches, a real store, and the parts over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from types import TracebackType
from typing import Self

from service.run_log.backlog import NoOtherNodes, RunLogPeers
from service.run_log.listing import RunFilter, RunSummary
from service.run_log.repair import Records
from service.run_log.run_logs import RunLogDependencies, RunLogs, open_run_logs
from service.runtime.process import in_place
from service.runtime.store_deadline import always_answering
from service.settings import Settings, Tuning
from service.shipping.watermarks import Watermarks
from service.status.reports import Reports
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.objects.store import DateSample, ObjectInfo, ObjectStore
from tailrace.logstore.position import Position
from tailrace.logstore.runs.manifest import INLINE_BYTES
from tailrace.logstore.runs.report import RunReport
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import encode_segment
from tests.batches import Entry, MemoryBatches, make_batches
from tests.settings import SETTINGS, settings_with
from tests.simulation.backing import on_disk, open_store
from tests.simulation.clocks import ManualClock
from tests.simulation.powercut import PowerCutFileSystem

NODE = "node-A"
START_MS = 1_750_000_000_000
_WIDER = 20


def patient(settings: Settings) -> Settings:
    """Closes are waited for in real time: so long that no busy machine is too slow for it."""
    return settings_with(settings, runs={"close_wait_seconds": 600.0})


class NothingSaid:
    """No client reported anything."""

    async def components(self, fqn: str) -> dict[str, ObjectInfo]:
        return {}

    async def created(self, info: ObjectInfo) -> int | None:
        raise NotImplementedError

    async def at(self, fqn: str, component: str) -> RunReport | None:
        return None

    async def listed(self, info: ObjectInfo) -> RunReport | None:
        raise NotImplementedError

    async def pipelines(self) -> list[str]:
        return []

    async def pipeline(self, component: str) -> str | None:
        raise NotImplementedError


class FakePin:
    """A `Pin` over a list of batches."""

    def __init__(self, batches: MemoryBatches, first: int, confirmed: int, end: int) -> None:
        self.node = batches.node
        self.first_pos, self.confirmed_pos, self.end_pos = first, confirmed, end
        self._batches = batches

    def batches(
        self, *, run: RunKey | None = None, start: int = 0, end: int | None = None
    ) -> MemoryBatches:
        high = self.end_pos if end is None else min(end, self.end_pos)
        part = self._batches.part(max(start, self.first_pos), high)
        return part if run is None else part.of(run)

    def position(self, pos: int) -> Position:
        return Position("file", pos)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


@dataclass
class FakeJournal:
    """What survives a crash of the process: batches, closes, tombstones."""

    node: str = NODE
    entries: list[Entry] = field(default_factory=list)
    first: int = 0
    confirmed: int = 0
    seq: int = 0
    base: int = 0
    closes: dict[RunKey, int] = field(default_factory=dict)
    tombstones: dict[tuple[str, str | None], int] = field(default_factory=dict)
    segments: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.base + sum(entry[2].count(b"\n") for entry in self.entries)

    def batches(self) -> MemoryBatches:
        return make_batches(self.node, self.entries, self.base)

    def pin(self) -> FakePin:
        return FakePin(self.batches(), self.first, self.confirmed, self.end)


class World:
    """Everything; `restart` is a kill and a start. To the run logs it is their journal."""

    records: Records | None = None
    newest_date: Callable[[], DateSample | None] | None = None
    others: RunLogPeers = NoOtherNodes()
    answers = always_answering()
    inline_bytes = 0
    """All texts of tests are small: in objects nonetheless, unless a test asks for others."""

    def __init__(
        self,
        *,
        store: ObjectStore | None = None,
        settings: Settings = SETTINGS,
        tuning: Tuning | None = None,
        journal: FakeJournal | None = None,
        parents: Sequence[str] = (),
        seed: int = 1,
    ) -> None:
        self.clock = ManualClock(START_MS)
        self.random = Random(seed)
        self.journal = journal or FakeJournal()
        self.parents = parents
        if store is None:
            # Kept for as long as the world is: a store on a server belongs to its disk.
            self.files = PowerCutFileSystem()
            store = open_store(self.files, self.clock, self.random)
        self.disk_store = store
        self.store = store
        self.settings = settings
        self.tuning = replace(tuning or Tuning(), inline_bytes=self.inline_bytes)
        self.ended: list[RunKey] = []
        self.last: dict[RunKey, int] = {}
        self.run_logs = self._make()

    def _make(self) -> RunLogs:
        self.marks = Watermarks(self.store, self.clock, self.random, in_place, lambda _: 0)
        self.reports = Reports(self.store, self.clock, Random(1), horizon=lambda _: 0)
        return open_run_logs(
            self.journal.node,
            self.parents,
            self.store,
            self.clock,
            self.random,
            patient(self.settings),
            self.tuning,
            RunLogDependencies(
                self,
                in_place,
                confirmed_through=self._confirmed_through,
                last_ulid=lambda key: self.last.get(key, 0),
                watermark=self.marks.watermark,
                ended=self.ended.append,
                newest_date=self.newest_date,
                records=lambda: self.records,
                others=lambda _: self.others,
                answers=self.answers,
                reported=lambda key: self.reports.get(keys.STATUS, key),
            ),
        )

    @property
    def state(self) -> FakeJournal:
        return self.journal

    def pin(self) -> FakePin:
        return self.journal.pin()

    async def restart(self, store: ObjectStore | None = None) -> None:
        self.store = store or self.disk_store
        self.run_logs = self._make()
        await self.run_logs.start()

    def mint(self) -> int:
        self.clock.ms += 1
        return self.clock.ms << 80 | self.random.getrandbits(55) << 25

    def mint_above(self, ulid: int) -> int:
        return ulids.batch_of(ulid) + (1 << 30)

    def append(
        self, key: RunKey, text: bytes, ulid: int | None = None, connector: str | None = None
    ) -> int:
        ulid = self.mint() if ulid is None else ulid
        self.journal.entries.append((key, ulid, text, connector))
        self.last[key] = max(self.last.get(key, 0), ulid + text.count(b"\n") - 1)
        return ulid

    async def listed(self, fqn: str, limit: int) -> list[RunSummary]:
        """The first runs of a pipeline's list."""
        page = await self.run_logs.listing.run_page(
            fqn, RunFilter(), limit, None, now_ms=self.clock.ms, reported=NothingSaid()
        )
        assert not page.damaged
        return [listed.run for listed in page.runs]

    async def confirm(self, *, upload: bool = True) -> None:
        """All lines so far are in a confirmed segment."""
        journal = self.journal
        if journal.end == journal.confirmed:
            return
        first, journal.confirmed = journal.confirmed, journal.end
        journal.seq += 1
        journal.segments.append((journal.seq, first, journal.end))
        if upload:
            part = journal.batches().part(first, journal.end)
            segment = encode_segment(
                part,
                node=journal.node,
                seq=journal.seq,
                ranges=[(first, journal.end)],
                carry=Carry(),
            )
            await self.disk_store.put(keys.segment(journal.node, journal.seq), segment.body)
        self.run_logs.confirmed(*journal.segments[-1])

    async def record_close(self, key: RunKey) -> int:
        self.journal.closes[key] = self.journal.end
        return self.journal.end

    def finish_close(self, key: RunKey, pos: int) -> None:
        if self.journal.closes.get(key) == pos:
            del self.journal.closes[key]

    async def record_tombstone(self, fqn: str, run: str | None, t: int) -> None:
        self.journal.tombstones[fqn, run] = t

    def finish_deletion(self, fqn: str, run: str | None, t: int) -> None:
        if self.journal.tombstones.get((fqn, run), t + 1) <= t:
            del self.journal.tombstones[fqn, run]

    async def _confirmed_through(self, pos: int) -> None:
        if self.journal.confirmed < pos:
            await self.confirm()

    async def whole(self, key: RunKey) -> bytes:
        pieces = [piece async for piece in self.run_logs.reader.download(key)]
        return b"".join(pieces)

    async def paged(self, key: RunKey, limit: int) -> bytes:
        """All pages; on a server larger ones, for each costs requests."""
        limit *= 1 if on_disk() else _WIDER
        text, after = b"", None
        while True:
            page = await self.run_logs.reader.page(key, after=after, limit=limit)
            text += page.text
            after = page.after
            if after is None:
                return text

    async def caught_up(self, key: RunKey, max_bytes: int = 100) -> bytes:
        """As `paged`, by the cursors of live readers."""
        max_bytes *= 1 if on_disk() else _WIDER
        text = b""
        cursor = None
        while True:
            after = await self.run_logs.reader.batches_after(key, cursor, max_bytes=max_bytes)
            if after.piece is not None:
                text += after.piece.text
                cursor = after.piece.cursor
            if not after.more:
                return text


def ulid_text(value: int) -> str:
    return ulids.encode(value)


class SmallWorld(World):
    """Small texts stand in the manifests of their runs, as without a test."""

    inline_bytes = INLINE_BYTES
