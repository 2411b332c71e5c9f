"""Every constant of a coordinator, with its unit in its name."""

from __future__ import annotations

from dataclasses import dataclass

from coordination.partitions.partition import AGEING_MS


@dataclass(frozen=True, slots=True)
class CoordinatorLimits:
    """The limits of a coordinator; the length of leases is the one that Data Prepper has."""

    lease_seconds: float = 600.0
    """For how long a partition is its owner's; renewed three times as often."""
    max_attempts: int = 10
    """Given out so often without progress a partition becomes FAILED; 0 is never."""
    retry_seconds: float = 1.0
    """The first pause of a partition that failed; doubles with each attempt."""
    max_retry_seconds: float = 600.0
    """The longest such pause."""
    ageing_ms: int = AGEING_MS
    """What one step of priority is worth in waiting."""
    supplier_seconds: float = 300.0
    """After so long the supplier is asked for new partitions even if there is work."""
    supplier_pause_seconds: float = 5.0
    """All nodes together ask it no more often, however idle they are."""
    supplier_batch: int = 50_000
    """So many new partitions are made at a time, and held in memory: some 15 MB. Each time may
    rewrite every shard of an object store, so many little ones cost far more than they save."""
    supplier_batch_seconds: float = 5.0
    """Those of a slow supplier are made after so long, however few."""
    worker_seconds: float = 60.0
    """A worker that was silent for so long does not count in anybody's fair share."""
    rotate_seconds: float = 600.0
    """Held for so long a partition is asked back while others wait."""
    poll_seconds: float = 5.0
    """How often one who waits for the end of all work looks."""

    @property
    def lease_ms(self) -> int:
        """`lease_seconds` in milliseconds."""
        return round(self.lease_seconds * 1000)

    def retry_ms(self, attempts: int, dice: float) -> int:
        """The pause in ms before attempt `attempts` + 1; `dice`, from 0 to 1, scales half of it."""
        doubled: float = self.retry_seconds * 2.0 ** min(attempts - 1, 60)
        return round(min(doubled, self.max_retry_seconds) * 1000 * (1 + dice) / 2)
