"""A whole node on a simulated disk: journal, folder and store, in leaping time.

A `Life` is one process: a node from its start to its stop, or to the end of the power.
Limits are so small that a story of seconds cuts, uploads, flushes, folds and publishes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from logstore.objects.store import ObjectStore
from service.journal.limits import JournalLimits
from service.node import Node
from service.runs.close import CloseLimits
from service.runs.flusher import FlushLimits
from service.runs.merge import FoldLimits
from service.runs.run_logs import TextLimits
from service.runs.sweep import SweepLimits
from service.runtime.parts import NodeLimits, Seams
from service.runtime.threads import in_place
from service.shipping.shipper import SegmentLimits
from tests.simulation.backing import open_store
from tests.simulation.powercut import EPOCH_NS, DirectSyncer, PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock

START_MS = EPOCH_NS // 1_000_000
DATA = "/data"

LIMITS = NodeLimits(
    journal=JournalLimits(file_bytes=1500, max_bytes=1 << 20, min_free_bytes=0),
    segments=SegmentLimits(seconds=2.0, bytes=2000),
    text=TextLimits(
        flush=FlushLimits(early_bytes=1200, seconds=3.0, chunk_bytes=700, mark_seconds=1.0),
        fold=FoldLimits(most=4, width=3),
        close=CloseLimits(reopened_seconds=10.0),
        sweep=SweepLimits(interval_seconds=3600.0),
        partial_seconds=4.0,
    ),
)


def nothing_taken(_: str) -> int:
    """The table's mark where nobody compacts."""
    return 0


@dataclass
class Life:
    """One process over `fs`; `name` empty leaves the folder its name."""

    fs: PowerCutFileSystem
    clock: VirtualClock
    seed: int = 0
    data: str = DATA
    name: str = ""
    limits: NodeLimits = LIMITS
    table_mark: Callable[[str], int] = nothing_taken
    store: ObjectStore | None = None
    node: Node = field(init=False)

    def __post_init__(self) -> None:
        dice = Random(self.seed)
        self.node = Node(
            Seams(
                store=self.store or open_store(self.fs, self.clock, dice),
                fs=self.fs,
                clock=self.clock,
                entropy=dice,
                syncer=DirectSyncer,
                offload=in_place,
            ),
            data=self.data,
            name=self.name,
            default_name="node",
            limits=self.limits,
            table_mark=self.table_mark,
        )
