"""The dependencies of a node as parameters: store, files, clock, randomness, threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from service.peers.rpc import Network
from service.runtime.free_disk import DiskReserve, no_reserve
from service.runtime.process import Offload, in_thread
from service.runtime.store_deadline import StoreAnswers, always_answering
from service.shipping.encoding import SegmentEncoder
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.filesystem import FileSystem, Syncer
from tailrace.logstore.objects.store import DateSample, ObjectStore


@dataclass(frozen=True, slots=True)
class Environment:
    """The dependencies of a node. `syncer` is called inside the running loop."""

    store: ObjectStore
    fs: FileSystem
    clock: Clock
    entropy: Entropy
    syncer: Callable[[], Syncer]
    offload: Offload = in_thread
    encode: SegmentEncoder | None = None
    """Makes segments; None: `offload` does."""
    newest_date: Callable[[], DateSample | None] | None = None
    """The store's last answer's `Date`; None for a store without a clock of its own."""
    problems: Callable[[], list[str]] = list
    """Further problems, as sentences."""
    answers: StoreAnswers = field(default_factory=always_answering)
    """Whether the store answers."""
    reserve: DiskReserve = field(default_factory=no_reserve)
    """Room on the disks for a start and for deletions."""
    network: Network | None = None
    """The way to other nodes on the store; None: there are none."""
