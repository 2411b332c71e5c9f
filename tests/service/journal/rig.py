"""A journal on a simulated disk, or a real one, with dice and a clock that can be turned."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from service.journal.journal import SPARE_FILES, Appended, Journal
from service.journal.reader import JournalPin
from service.journal.recovery import Recovered, recover
from service.journal.state import JournalState
from service.runtime.process import Offload
from service.settings import JournalSettings
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey, digest, ulid_of
from tailrace.logstore.filesystem import FileSystem, Syncer
from tests.settings import changed
from tests.simulation.clocks import ManualClock
from tests.simulation.powercut import DirectSyncer, PowerCutFileSystem

NODE = "node-01J00000000000000000000000"
RUN = RunKey("service.pipeline", "run-1")
START_MS = 1_750_000_000_000


def journal_settings(**values: float) -> JournalSettings:
    """Others than the product's, also those that nobody may set."""
    return changed(JournalSettings(), **values)


@dataclass
class Rig:
    """What one folder goes through over several starts."""

    fs: FileSystem = field(default_factory=PowerCutFileSystem)
    folder: str = "/data/journal"
    settings: JournalSettings = field(
        default_factory=lambda: journal_settings(fast_sync_seconds=0.01)
    )
    clock: ManualClock = field(default_factory=lambda: ManualClock(START_MS))
    syncer: Syncer = field(default_factory=DirectSyncer)
    dice: random.Random = field(default_factory=lambda: random.Random(7))
    offload: Offload | None = None
    spare_files: int = SPARE_FILES
    heard: list[Appended] = field(default_factory=list)
    recovered: Recovered = field(default_factory=Recovered)
    ids: int = 0
    node: str = NODE

    def open(self) -> Journal:
        """Recovers and opens, inside a running loop."""
        self.recovered = recover(self.fs, self.folder)
        return Journal(
            self.fs,
            self.folder,
            self.syncer,
            self.clock,
            self.dice,
            self.settings,
            self.recovered,
            self.recovered.state or JournalState(self.node),
            self._hear,
            offload=self.offload,
            spare_files=self.spare_files,
        )

    def _hear(self, batches: Sequence[Appended]) -> None:
        self.heard += batches

    def next_ulid(self) -> int:
        """A batch id above all earlier ones."""
        self.ids += 1
        return ulids.lowest_at(START_MS + self.ids)


async def put(
    journal: Journal, text: bytes, ulid: int, *, run: RunKey = RUN, fast: bool = False
) -> int:
    """Appends a batch of lines, giving its first position once it is safe."""
    lines = text.count(b"\n")
    pos, done = journal.append(
        run, ulid, text, records=lines, lines=lines, digest=digest(text), fast=fast
    )
    await done
    return pos


def texts(pin: JournalPin, run: RunKey | None = None) -> list[bytes]:
    """The texts of all batches, in order."""
    batches = pin.batches(run=run)
    return [batches.text(np.array([index])) for index in range(len(batches.rows))]


def held(journal: Journal) -> list[tuple[int, int, bytes]]:
    """(position, ULID, text) of all that is synced, after checking each text's digest."""
    with journal.pin() as pin:
        batches = pin.batches()
        found = []
        for index, row in enumerate(batches.rows):
            text = batches.text(np.array([index]))
            assert digest(text) == int(row["digest"])
            found.append((int(row["pos"]), ulid_of(row), text))
        return found
