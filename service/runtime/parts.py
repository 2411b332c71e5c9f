"""What a node is made from: its seams and its limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from logstore.clock import Clock
from logstore.entropy import Entropy
from logstore.filesystem import FileSystem
from logstore.objects.remote import DateSample
from logstore.objects.store import ObjectStore
from logstore.syncer import Syncer
from service.ingest.appender import AppendLimits
from service.journal.limits import JournalLimits
from service.runs.run_logs import TextLimits
from service.runtime.threads import Offload, in_thread
from service.shipping.shipper import SegmentLimits
from service.status.status import StatusLimits
from service.tail import TailLimits


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """The limits of all parts."""

    journal: JournalLimits = field(default_factory=JournalLimits)
    segments: SegmentLimits = field(default_factory=SegmentLimits)
    append: AppendLimits = field(default_factory=AppendLimits)
    text: TextLimits = field(default_factory=TextLimits)
    tail: TailLimits = field(default_factory=TailLimits)
    status: StatusLimits = field(default_factory=StatusLimits)
    start_seconds: float = 10.0
    """How long a batch waits for a node that is starting again."""
    stop_seconds: float = 30.0
    """How long a stopping node tries to bring into the store what it holds."""


@dataclass(frozen=True, slots=True)
class Seams:
    """What the node stands on; `syncer` is called inside the running loop."""

    store: ObjectStore
    fs: FileSystem
    clock: Clock
    entropy: Entropy
    syncer: Callable[[], Syncer]
    offload: Offload = in_thread
    newest_date: Callable[[], DateSample | None] | None = None
    """The store's last answer's `Date`; None for a store without a clock of its own."""
    worries: Callable[[], list[str]] = list
    """What else is not as it should be, as sentences."""
