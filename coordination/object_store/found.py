"""What one acquire found so far, of which some parts may have gone wrong."""

from __future__ import annotations

from coordination.partitions.partition import Partition
from coordination.partitions.store import Acquired
from coordination.partitions.transitions import Claim


class Found:
    """Up to `count` leases for the claim, and the first error on the way."""

    def __init__(self, claim: Claim, count: int) -> None:
        self.claim = claim
        self.count = count
        self.taken: list[Partition] = []
        self.failed: list[Partition] = []
        self.error: BaseException | None = None

    @property
    def missing(self) -> int:
        """How many are still wanted."""
        return self.count - len(self.taken)

    def result(self) -> Acquired:
        """What was found. Raises the error if that is nothing.

        Leases must be told of in any case: nobody else would let them go.
        """
        if self.error is not None and not self.taken:
            raise self.error
        return Acquired(self.taken, self.failed)
