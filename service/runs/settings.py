"""Settings of run logs; a part of the table in `service/settings.py`.

`Tuning` has the sizes and pauses that no operator sets, and that tests make small.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from logstore.runs.manifest import INLINE_BYTES
from logstore.runs.retention import RunRetention
from logstore.settings import MIB, Bytes, Section


class RunSettings(RunRetention):
    """Run logs; OpenMetadata's names for the same things are accepted too."""

    prefix: str = Field(
        default="pipeline-logs",
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$",
        description="Key prefix of run logs",
    )
    stream_timeout_minutes: float = Field(
        default=1440,
        gt=0,
        description="A run that nobody closed is closed after this long without a line and without"
        " a status that says that it goes on",
    )
    lost_minutes: float = Field(
        default=5,
        gt=0,
        description="A run whose client has a heartbeat is `lost` after this long without a sign"
        " of it; it goes on when the client is heard again",
    )
    cleanup_interval_minutes: float = Field(
        default=60, gt=0, description="How often abandoned and expired runs are looked for"
    )
    partial_flush_interval_minutes: float = Field(
        default=2,
        gt=0,
        description="New lines of a run are flushed to a chunk and `partial.txt` after this time",
    )
    early_flush_watermark_bytes: Bytes = Field(
        default=5 * MIB,
        description="A run with this much new text is flushed without waiting for the time",
    )
    pending_flush_alert_after_failures: int = Field(
        default=10,
        ge=1,
        description=(
            "A flush that failed this often in a row is reported: in the log, in"
            " `/health/ready` and to the alert rules"
        ),
    )
    max_concurrent_streams: int = Field(
        default=100,
        ge=1,
        description="Runs with state in memory; others are served from the journal",
    )
    close_wait_seconds: float = Field(
        default=5,
        ge=0,
        description="A close answers `closing` when finishing takes longer than this",
    )
    reopen_idle_seconds: float = Field(
        default=60,
        gt=0,
        description="A run that a late batch reopened is closed again after this long without one",
    )

    @property
    def lost_seconds(self) -> float:
        """`lost_minutes` in seconds."""
        return self.lost_minutes * 60

    @property
    def stream_timeout_seconds(self) -> float:
        """`stream_timeout_minutes` in seconds."""
        return self.stream_timeout_minutes * 60

    @property
    def cleanup_interval_seconds(self) -> float:
        """`cleanup_interval_minutes` in seconds."""
        return self.cleanup_interval_minutes * 60

    @property
    def partial_flush_interval_seconds(self) -> float:
        """`partial_flush_interval_minutes` in seconds."""
        return self.partial_flush_interval_minutes * 60


class CoordinationSettings(Section):
    """Leases in the store: who does which work."""

    lease_seconds: float = Field(
        default=600,
        ge=15,
        description="A node that is silent for this long counts as lost: other nodes flush"
        " its segments into the runs",
    )


@dataclass(frozen=True, slots=True)
class Tuning:
    """Sizes and pauses of all parts of run logs."""

    chunk_bytes: int = 8 << 20
    """A flush of more text makes several chunks."""
    inline_bytes: int = INLINE_BYTES
    """A run's manifest holds so much of its text, in chunks that have no objects."""
    watermark_seconds: float = 10.0
    """How often it is stored up to where all of the node's lines are in chunks."""
    merge_above: int = 48
    """A run with more chunks has some of them merged."""
    merge_width: int = 8
    """So many chunks become one."""
    partial_seconds: float | None = None
    """A partial text is published again after this time; None: after the interval of flushes."""
    orphan_seconds: float = 86_400.0
    """Objects that no manifest names are removed at this age."""
    takeover_seconds: float = 60.0
    """How often lost nodes are looked for."""
