"""The limits of a coordinator, each with its unit in its name."""

from __future__ import annotations

from dataclasses import dataclass

from coordination.partitions.partition import AGEING_MS


@dataclass(frozen=True, slots=True)
class CoordinatorLimits:
    """The limits of a coordinator; the length of leases is the one that Data Prepper has."""

    lease_seconds: float = 600.0
    """How long an owner holds a partition without a renewal; it renews three times as often."""
    max_attempts: int = 10
    """A partition that was acquired this often without progress becomes FAILED; 0 is never."""
    retry_seconds: float = 1.0
    """The first pause of a partition that failed; it doubles with each attempt."""
    max_retry_seconds: float = 600.0
    """The longest such pause."""
    ageing_ms: int = AGEING_MS
    """The waiting time that equals one step of priority."""
    supplier_seconds: float = 300.0
    """The supplier is asked for new partitions this often even if there is work."""
    supplier_pause_seconds: float = 5.0
    """The shortest pause between two calls of the supplier, over all nodes."""
    supplier_batch: int = 50_000
    """New partitions that are created at a time and held in memory, about 15 MB. Each batch may
    rewrite every shard of an object store, so many small ones cost far more than they save."""
    supplier_batch_seconds: float = 5.0
    """New partitions of a slow supplier are created after this long, however few there are."""
    worker_seconds: float = 60.0
    """A worker that is silent for this long no longer counts in the fair share of the others."""
    rotate_seconds: float = 600.0
    """A partition that is held for this long is asked back while others wait."""
    poll_seconds: float = 5.0
    """How often a caller that waits for the end of all work checks."""

    @property
    def lease_ms(self) -> int:
        """`lease_seconds` in milliseconds."""
        return round(self.lease_seconds * 1000)

    def retry_ms(self, attempts: int, dice: float) -> int:
        """The pause in ms before attempt `attempts` + 1; `dice`, from 0 to 1, scales half of it."""
        doubled: float = self.retry_seconds * 2.0 ** min(attempts - 1, 60)
        return round(min(doubled, self.max_retry_seconds) * 1000 * (1 + dice) / 2)
