"""How much text is in no confirmed segment, and for how long: the shipper's lag.

Positions count lines; bytes and times of a range are known only where it was taken. So
each cut is noted with what the journal had taken by then. What a start finds in the
journal is counted once from its rows, and is as old as the start.
"""

from __future__ import annotations

from logstore.clock import Clock
from service.journal.journal import Journal


class Unshipped:
    """Of one node, told by its shipper. Bytes are of text; times are monotonic."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._now = clock.monotonic
        self._ends: dict[int, int] = {}
        self._begun: dict[int, float] = {}
        self._since: float | None = None
        with journal.pin() as pin:
            confirmed = pin.confirmed_pos
            rows = pin.batches(start=confirmed).rows
        self._confirmed_bytes = journal.taken_bytes - int(rows["size"].sum())
        for cut in journal.state.cuts:
            before = int(rows["size"][rows["pos"] < cut.end].sum())
            self._ends[cut.seq] = self._confirmed_bytes + before
            self._begun[cut.seq] = self._now()
        if journal.next_pos > journal.state.last_cut().end:
            self._since = self._now()

    def taken(self) -> None:
        """Something was synced."""
        if self._since is None and self._journal.next_pos > self._journal.state.last_cut().end:
            self._since = self._now()

    def cut(self, seq: int, taken_bytes: int) -> None:
        """Segment `seq` was cut when the journal had taken so many bytes."""
        self._ends[seq] = taken_bytes
        self._begun[seq] = self._now() if self._since is None else self._since
        self._since = None
        self.taken()

    def confirmed(self, seq: int) -> None:
        """Segment `seq` is in the store."""
        self._confirmed_bytes = self._ends.pop(seq, self._confirmed_bytes)
        self._begun.pop(seq, None)

    @property
    def bytes(self) -> int:
        """Text that is in no confirmed segment."""
        if self._journal.next_pos == self._journal.state.confirmed.end:
            return 0  # what a full disk refused was taken, too, and is not there
        return self._journal.taken_bytes - self._confirmed_bytes

    @property
    def seconds(self) -> float:
        """For how long the oldest of it has waited; 0 if there is none."""
        since = [*self._begun.values(), *([] if self._since is None else [self._since])]
        return max([self._now() - start for start in since], default=0.0)
