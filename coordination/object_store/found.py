"""The result so far of one acquire, parts of which may have failed."""

from __future__ import annotations

from coordination.partitions.partition import Partition
from coordination.partitions.store import Acquired
from coordination.partitions.transitions import Claim


class Found:
    """Up to `count` leases for the claim, and the first error so far."""

    def __init__(self, claim: Claim, count: int) -> None:
        self.claim = claim
        self.count = count
        self.taken: list[Partition] = []
        self.failed: list[Partition] = []
        self.error: BaseException | None = None

    @property
    def missing(self) -> int:
        """How many leases are still wanted."""
        return self.count - len(self.taken)

    def result(self) -> Acquired:
        """The result so far. Raises the error if there is no lease.

        Leases are returned in spite of an error: nobody else would give them back.
        """
        if self.error is not None and not self.taken:
            raise self.error
        return Acquired(self.taken, self.failed)
