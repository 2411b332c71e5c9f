"""The limits of all parts of the runs' texts."""

from __future__ import annotations

from dataclasses import dataclass, field

from logstore.keys import PREFIX
from service.runs.close import CloseLimits
from service.runs.flusher import FlushLimits
from service.runs.merge import FoldLimits
from service.runs.sweep import SweepLimits


@dataclass(frozen=True, slots=True)
class TextLimits:
    """The limits of all parts; `prefix` is where run texts live in the store."""

    prefix: str = PREFIX
    flush: FlushLimits = field(default_factory=FlushLimits)
    fold: FoldLimits = field(default_factory=FoldLimits)
    close: CloseLimits = field(default_factory=CloseLimits)
    sweep: SweepLimits = field(default_factory=SweepLimits)
    partial_seconds: float = 120.0
    lease_seconds: float = 600.0
    lost_interval_seconds: float = 60.0
    active_seconds: float = 5.0
    cache_bytes: int = 32 << 20
    alert_after_failures: int = 10
