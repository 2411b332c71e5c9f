"""An appender over a journal on a simulated disk, that can be gated, filled and restarted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from service.ingest.appender import ActiveRuns, Appender
from service.ingest.batch import Durability, IncomingBatch
from service.journal.journal import Journal
from service.run_log.backlog import Deletions
from service.runtime.health import ClockSkew
from service.settings import IngestSettings, JournalSettings, RunSettings
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey, digest
from tailrace.logstore.errors import StoreUnavailable
from tailrace.logstore.filesystem import File
from tests.service.journal.rig import RUN, START_MS, Rig, held, journal_settings
from tests.simulation.backing import open_store
from tests.simulation.powercut import PowerCutFileSystem

SETTINGS = journal_settings(fast_sync_seconds=3600)


@dataclass
class FakeStored:
    """The run's chunks, as a dictionary."""

    batches: dict[tuple[RunKey, int], bytes] = field(default_factory=dict)
    away: bool = False
    asked: int = 0
    gate: asyncio.Event | None = None

    async def find_batch(self, key: RunKey, ulid: int) -> tuple[int, int] | None:
        await self._answer()
        text = self.batches.get((key, ulid))
        return None if text is None else (digest(text), text.count(b"\n"))

    async def last_ulid(self, key: RunKey) -> int:
        await self._answer()
        return max([ulid for run, ulid in self.batches if run == key], default=0)

    async def _answer(self) -> None:
        self.asked += 1
        await asyncio.sleep(0)
        if self.gate is not None:
            await self.gate.wait()
        if self.away:
            raise StoreUnavailable("the store is away")


class GatedSyncer:
    """Syncs while its gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()

    async def sync(self, file: File, _size: int = 0, /) -> None:
        await self.gate.wait()
        file.sync()

    def close(self) -> None:
        """Holds nothing."""


class GatedAppender:
    """An appender over a journal on a simulated disk."""

    def __init__(
        self,
        fs: PowerCutFileSystem | None = None,
        settings: JournalSettings = SETTINGS,
        active_runs: int = RunSettings().max_concurrent_streams,
    ) -> None:
        self.active_runs = active_runs
        self.fs = fs or PowerCutFileSystem()
        self.syncer = GatedSyncer()
        self.rig = Rig(fs=self.fs, syncer=self.syncer, settings=settings)
        self.stored = FakeStored()
        self.deletions = Deletions(
            open_store(self.fs, self.rig.clock, self.rig.dice), ClockSkew(None)
        )
        self.confirmed: list[int] = []
        self.journal: Journal
        self.appender: Appender
        self.open()

    def open(self) -> None:
        """A process begins."""
        self.journal = self.rig.open()
        self.appender = Appender(
            self.journal,
            self.stored,
            self.rig.clock,
            ulids.Minter(self.rig.clock, self.rig.dice, last=self.journal.state.last_ulid),
            IngestSettings(),
            active=ActiveRuns(self.active_runs),
            deletions=self.deletions,
            confirmed_through=self._confirm,
        )

    async def restart(self) -> None:
        """A stop and a start."""
        await self.journal.close()
        self.open()

    async def _confirm(self, pos: int) -> None:
        self.confirmed.append(pos)

    def texts(self) -> list[bytes]:
        """All that is in the journal, in order."""
        return [text for _, _, text in held(self.journal)]


def batch(
    text: bytes = b"one\ntwo\n",
    *,
    ulid: int | None = None,
    above: int = 0,
    durability: Durability = "durable",
    key: RunKey = RUN,
    connector: str | None = None,
    meta: bytes = b"",
) -> IncomingBatch:
    """A batch of plain lines."""
    lines = text.count(b"\n")
    return IncomingBatch(key, text, lines, lines, ulid, above, connector, meta, durability)


def at(offset_ms: int = 0) -> int:
    """A batch id of a moment seen from the rig's clock."""
    return ulids.lowest_at(START_MS + offset_ms) | 5 << ulids.LINE_BITS
