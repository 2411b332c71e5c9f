"""A shipper over a journal and a store, in leaping time, with all that it is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from service.journal.state import Cut
from service.runtime.process import Offload, in_place
from service.settings import FlushSettings
from service.shipping.shipper import SegmentShipper
from service.shipping.watermarks import Confirmations, Lineage, Watermarks
from tailrace.logstore import keys
from tailrace.logstore.segments.reader import verify_segment
from tests.service.journal.rig import Rig, put
from tests.simulation.backing import open_store
from tests.simulation.faulty_store import FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

T = TypeVar("T")
START_MS = 1_750_000_000_000


def is_put(call: str) -> bool:
    return call.startswith("put ")


@dataclass
class Ship:
    """A shipper over a journal and a store, in leaping time."""

    clock: VirtualClock
    schedule: Schedule = field(default_factory=Schedule.none)
    settings: FlushSettings = field(default_factory=FlushSettings)
    files: PowerCutFileSystem = field(default_factory=PowerCutFileSystem)
    confirmed: list[Cut] = field(default_factory=list)
    consumed: int = 0
    hangs: bool = False
    rig: Rig = field(default_factory=Rig)
    offload: Offload = in_place
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        inner = open_store(self.files, self.clock, Random(1))
        self.store = FaultyStore(inner, self.schedule)
        self.journal = self.rig.open()
        self.confirmations = Confirmations()
        marks = Watermarks(self.store, self.clock, Random(2), self._asked, lambda _: self.consumed)
        self.lineage = Lineage(self.journal, self.store, self.clock, marks)
        self.shipper = self.make_shipper()

    def make_shipper(self) -> SegmentShipper:
        shipper = SegmentShipper(
            self.journal,
            self.store,
            self.clock,
            self.settings,
            offload=self.offload,
            lineage=self.lineage,
            confirmations=self.confirmations,
        )
        shipper.on_confirmed(lambda *cut: self.confirmed.append(Cut(*cut)))
        return shipper

    async def _asked(self, work: Callable[[], T]) -> T:
        if self.hangs:
            await asyncio.Event().wait()
        return work()

    def run(self) -> None:
        work = self.shipper.cut_forever(), self.shipper.ship_forever()
        self.tasks = [asyncio.create_task(part) for part in work]

    async def add(self, text: bytes = b"line\n") -> int:
        """One batch; the position behind it."""
        pos = await put(self.journal, text, self.rig.next_ulid())
        self.shipper.added()
        return pos + text.count(b"\n")

    async def stored(self) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
        """Sequence number and ranges of all segments."""
        found = []
        async for info in self.store.inner.list(keys.SEGMENTS):
            footer = verify_segment((await self.store.inner.get(info.key))[1])
            found.append((footer.seq, footer.ranges))
        return found


def sail(scenario: Callable[[VirtualClock], Awaitable[None]]) -> None:
    async def go(clock: VirtualClock) -> None:
        await scenario(clock)

    simulate(go, start_ms=START_MS)
