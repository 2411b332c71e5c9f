"""A whole node on a simulated disk: journal, folder and store, in leaping time.

A `Life` is one process: a node from its start to its stop, or to the end of the power.
Settings are so small that a scenario of seconds cuts, uploads, flushes, merges and publishes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from service.node import Node
from service.peers.rpc import Network
from service.runtime.environment import Environment
from service.runtime.process import in_place
from service.settings import Settings, Tuning
from tailrace.logstore.objects.store import ObjectStore
from tests.settings import SETTINGS, changed, settings_with
from tests.simulation.backing import open_store
from tests.simulation.powercut import EPOCH_NS, DirectSyncer, PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock

START_MS = EPOCH_NS // 1_000_000
DATA = "/data"

SMALL = settings_with(
    SETTINGS,
    journal={"file_bytes": 1500, "max_bytes": 1 << 20, "min_free_bytes": 0},
    flush={"segment_seconds": 2.0, "segment_bytes": 2000},
    runs={
        "early_flush_watermark_bytes": 1200,
        "partial_flush_interval_minutes": 3.0 / 60,
        "reopen_idle_seconds": 10.0,
    },
)
TUNING = Tuning(
    chunk_bytes=700, watermark_seconds=1.0, merge_above=4, merge_width=3, partial_seconds=4.0
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
    settings: Settings = SMALL
    tuning: Tuning = TUNING
    table_mark: Callable[[str], int] = nothing_taken
    store: ObjectStore | None = None
    network: Network | None = None
    node: Node = field(init=False)

    def __post_init__(self) -> None:
        dice = Random(self.seed)
        self.node = Node(
            Environment(
                store=self.store or open_store(self.fs, self.clock, dice),
                fs=self.fs,
                clock=self.clock,
                entropy=dice,
                syncer=DirectSyncer,
                offload=in_place,
                network=self.network,
            ),
            changed(self.settings, data=self.data, node_id=self.name),
            default_name="node",
            table_mark=self.table_mark,
            tuning=self.tuning,
        )
