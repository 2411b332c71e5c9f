"""The rules of every lease, the identity of a process, and the store's time.

A lease has the owner of a piece of work, its end, and the token that fences off earlier owners.

    free ──acquire──► owned ──renew, every third of the timeout──► owned ──release──► free
                        │
        until - 2 s ────┤ the owner stops by itself
        until + 2 s ────┘ any process may acquire it

Every lease of this package has these fields, whatever else it holds and however it is stored:

- `owner` is `{identity}/{ULID of the process}`, so a process recognises the leases of an earlier
  process of its identity. Segments of a consumer group have the ULID of a call instead.
- `epoch` is the fencing token. It is above that of every earlier owner.
- `until_ms` is on the store's clock, of which a program knows an interval (`StoreTime`). An owner
  uses its late end, another claimant its early one.

Named leases (`tailrace.coordination.named_leases`), partitions (`tailrace.coordination.partitions`)
and segments of consumer groups (`tailrace.coordination.groups`) are such leases, each in a format
of its own.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Final

from tailrace.logstore.clock import Clock
from tailrace.logstore.filesystem import FileSystem, Lock
from tailrace.logstore.objects.store import DateSample

MARGIN_MS: Final = 2000
"""So long before its end an owner stops, and so long after it a taker waits."""


def identity_of(owner: str) -> str:
    """The owner without its process."""
    return owner.rpartition("/")[0]


def is_earlier_process(owner: str, of: str) -> bool:
    """Whether `owner` was a process of the same identity, before the process `of`."""
    return identity_of(owner) == identity_of(of) and owner < of


def left_ms(until_ms: int, at_most_ms: int) -> int:
    """Milliseconds that the owner has left; at 0 or less it has stopped."""
    return until_ms - MARGIN_MS - at_most_ms


def is_over(until_ms: int, at_least_ms: int) -> bool:
    """Whether the owner has stopped, by any clock, so that another process may take the lease."""
    return at_least_ms >= until_ms + MARGIN_MS


def next_epoch(last: int, at_most_ms: int) -> int:
    """A token above `last`; as it is a time, it also rises if the stored lease was removed."""
    return max(last + 1, at_most_ms)


# The identity of a process among those that share work: its host, and its data folder if no other
# process uses it.
#
# A process that was killed and starts again takes its own leases back at once, if it is sure that
# the earlier one is gone: it holds a lock in the data folder, which dies with its process. A second
# process on the same folder, or one without such a folder, succeeds no other process.


def process_identity(fs: FileSystem, data: str, lock_name: str) -> tuple[str, Lock | None]:
    """The identity, and the lock on the folder; without the lock it is only the host."""
    host, folder = socket.gethostname(), os.path.abspath(data)
    try:
        lock = fs.lock(f"{folder}/{lock_name}", wait=False)
    except OSError:  # there is no such folder, or it is not ours to write in
        lock = None
    return (host, None) if lock is None else (f"{host}:{folder}", lock)


# The store's time, on which all programs that share the store agree, as an interval.
#
# A store answers with its `Date`, in whole seconds. Between answers the machine's monotonic clock
# carries the time on. A program knows an interval:
#
#   sent ───────► the store reads its clock, cuts it to seconds ───────► arrived
#
# At `sent` the time was at most `date` + 1 s, at `arrived` at least `date`. The holder of a lease
# must not assume an earlier time than the true one, and a process that wants to take the lease must
# not assume a later one; each uses the end that is safe for it. Answers that took longer than 2 s
# are not used. Before the first usable answer no time is known, and nothing is held or taken. A
# store without a clock of its own, a folder, has the machine's.
#
# The cut to seconds makes the interval wide, and an answer at the beginning of a second says more
# than one at its end. Each end is therefore the best that the answers of the last two minutes give.
# With many answers the interval becomes narrow, and neither end moves back by a second with the
# next answer. Older answers are not used, since the machine's clock runs at its own rate. Answers
# before one that contradicts them are not used either, since the store's clock was set.


SLOWEST_SECONDS = 2.0
WINDOW_SECONDS = 60.0
_CONTRADICTION_MS = 50  # less may be our running clock's own rate
_NEVER_MS = 1 << 62


class StoreTime:
    """The interval of the store's time.

    `newest` gives the last answer's `Date`; it is None if the store has no clock of its own.
    """

    def __init__(self, clock: Clock, newest: Callable[[], DateSample | None] | None) -> None:
        self._clock = clock
        self._newest = newest
        self._last: DateSample | None = None
        self._least = _Best()
        self._most = _Best()

    @property
    def known(self) -> bool:
        """Whether any time is known."""
        self._look()
        return self._newest is None or self._last is not None

    def at_most_ms(self) -> int:
        """The latest time, in ms, that the store's clock may show; holders of leases use it."""
        self._look()
        if self._newest is None:
            return self._clock.now_ms()
        ahead = self._most.best
        return _NEVER_MS if ahead is None else self._now() - ahead

    def at_least_ms(self) -> int:
        """The earliest time, in ms, that the store's clock may show; claimants use it."""
        self._look()
        if self._newest is None:
            return self._clock.now_ms()
        ahead = self._least.best
        return 0 if ahead is None else self._now() + ahead

    def _now(self) -> int:
        return round(self._clock.monotonic() * 1000)

    def _look(self) -> None:
        """Uses the newest answer, if there is another that is usable."""
        newest = None if self._newest is None else self._newest()
        if newest is None or newest is self._last:
            return
        if newest.arrived - newest.sent > SLOWEST_SECONDS:
            return
        self._last = newest
        self._take(newest)
        if self._least.sum_with(self._most) > _CONTRADICTION_MS:
            self._least, self._most = _Best(), _Best()
            self._take(newest)

    def _take(self, sample: DateSample) -> None:
        # How far the store is at least ahead of our running clock; and at most, negated.
        self._least.add(sample.date_ms - round(sample.arrived * 1000), sample.arrived)
        self._most.add(round(sample.sent * 1000) - sample.date_ms - 1000, sample.arrived)


class _Best:
    """The highest number added in the last one to two `WINDOW_SECONDS`."""

    def __init__(self) -> None:
        self._since = 0.0
        self._now: int | None = None
        self._before: int | None = None

    def add(self, number: int, at: float) -> None:
        """Adds a number at the second `at` of the monotonic clock."""
        if self._now is None or at - self._since >= WINDOW_SECONDS:
            stale = at - self._since >= 2 * WINDOW_SECONDS
            self._since, self._before, self._now = at, None if stale else self._now, number
        self._now = max(self._now, number)

    def sum_with(self, other: _Best) -> int:
        """The sum of both highest numbers; both must exist."""
        assert self.best is not None
        assert other.best is not None
        return self.best + other.best

    @property
    def best(self) -> int | None:
        """The highest number; None before the first."""
        if self._now is None or self._before is None:
            return self._now
        return max(self._now, self._before)
