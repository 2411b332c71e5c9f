"""Refuses a journal of a node that was away for longer than deletions are remembered.

The compactor removes the record of a run's deletion once its lines are older than the retention by
`compaction.away_days` (`compactor/maintenance/deletion_records.py`). Lines that are older than
that and in no segment may have been deleted meanwhile, and nobody knows any more.
"""

from __future__ import annotations

import time

from logstore import ulid as ulids
from logstore.batch import lowest_and_highest
from logstore.clock import Clock
from logstore.errors import Conflict
from service.journal.journal import Journal
from service.settings import Settings

_DAY_MS = 86_400_000


class AwayTooLong(Conflict):
    """The journal holds lines of which the store no longer knows whether they were deleted."""

    hint = (
        "Start the node on an empty data folder, and keep this one: it is as it was. To bring its"
        " lines in all the same, with those that were deleted meanwhile, raise"
        " compaction.away_days for this start."
    )


def refuse_old_lines(journal: Journal, settings: Settings, clock: Clock) -> None:
    """Returns if all lines in no segment are young enough. Raises `AwayTooLong`."""
    compaction = settings.compaction
    days = settings.runs.remembered_days(compaction.retention_days, compaction.away_days)
    if not days:
        return
    oldest_ms = clock.now_ms() - round(days * _DAY_MS)
    with journal.pin() as pin:
        waiting = pin.batches(start=journal.state.confirmed.end).rows
        lowest = lowest_and_highest(waiting)[0]
    if len(waiting) and ulids.time_ms(lowest) < oldest_ms:
        raise AwayTooLong(
            f"{len(waiting)} batches of the journal are in no segment, the first one of"
            f" {_day(ulids.time_ms(lowest))}; deletions of lines from before {_day(oldest_ms)} are"
            f" forgotten (retention and compaction.away_days: {days:g} days)"
        )


def _day(ms: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(ms / 1000))
