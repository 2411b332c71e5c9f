"""Retention: removes hours of the table that are too old, or beyond its size limit.

The commit has nothing but remove actions, planned from the snapshot's statistics: it reads no
file and starts no Spark. The files themselves stay until the vacuum, for running queries.

By age, an hour is removed when it ended `compaction.retention_days` ago; if that is not set, when
no run of any pipeline is kept that long. (Pipelines whose runs are kept for less lose them by
deletions, `purge.py`.) By size, the oldest hours, but never the newest, are removed until the
rest is within `compaction.retention_bytes`. The table records up to when its hours are gone. Late
lines of such an hour are removed by the next pass after their ingest, and a comparison of
segments with the table does not miss them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from compactor.commit.change import make
from compactor.context import Compactor, now_ms
from compactor.report import Report
from logstore.errors import PreconditionFailed
from logstore.table.commit import Change
from logstore.table.snapshot import Snapshot, TableFile

log = logging.getLogger("tailrace.compactor")
_DAY_MS: Final = 86_400_000
_TRIES: Final = 5
"""Where others commit all the time, the rest is left to the next pass."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """`files` are removed; the table then has no hour that ended by `until_ms`."""

    until_ms: int
    files: tuple[TableFile, ...]

    @property
    def hours(self) -> int:
        """The number of removed hours."""
        return len({file.end_ms for file in self.files})


async def expire(compactor: Compactor, report: Report) -> None:
    """Removes hours that are beyond the retention. Raises `StoreUnavailable`, `OutcomeUnknown`."""
    with report.timed("expire", compactor.clock):
        for _ in range(_TRIES):
            snapshot = await compactor.newest()
            expiry = await asyncio.to_thread(expiring, compactor, snapshot)
            if not expiry.files:
                return
            change = Change(removed=expiry.files, expired_ms=expiry.until_ms)
            try:
                await make(compactor, snapshot, change)
            except PreconditionFailed as error:
                log.info("planning the expiry again: %s", error)
                continue
            compactor.reached("expired")
            report.hours_expired += expiry.hours
            report.rows_expired += sum(file.rows for file in expiry.files)
            report.bytes_expired += sum(file.size for file in expiry.files)
            return


def expiring(compactor: Compactor, snapshot: Snapshot) -> Expiry:
    """The files that the retention removes from the snapshot now. Raises `StoreUnavailable`."""
    by_size = _beyond(snapshot.files, compactor.limits.retention_bytes)
    until = max(snapshot.expired_ms, oldest_ms(compactor), by_size)
    gone = tuple(file for file in snapshot.files if file.end_ms <= until)
    ends = (file.end_ms for file in gone)
    return Expiry(max(snapshot.expired_ms, max(ends, default=0)), gone)


def oldest_ms(compactor: Compactor) -> int:
    """Hours that ended by then are too old; 0 if none ever is."""
    days = compactor.limits.retention_days
    days = compactor.runs.longest_days if days is None else days
    return now_ms(compactor) - round(days * _DAY_MS) if days else 0


def _beyond(files: Sequence[TableFile], most: int | None) -> int:
    """The end of the newest hour beyond the size limit; 0 if there is none."""
    if most is None:
        return 0
    sizes = Counter[int]()
    for file in files:
        sizes[file.end_ms] += file.size
    newest, total = max(sizes, default=0), 0
    for end in sorted(sizes, reverse=True):
        total += sizes[end]
        if total > most and end != newest:
            return end
    return 0
