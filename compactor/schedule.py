"""Passes: one, or one after another with a Spark that stays warm.

The next pass begins when it is time or when too much waits, whichever is first.
Between passes Spark is kept for `idle_seconds` without work and then stopped, so that a
quiet store costs no memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress

from compactor.compactor import Compactor
from compactor.intake.take_in import take_in_all
from compactor.lag import Backlog
from compactor.report import Report
from compactor.rewrite.hours import rewrite_hours
from compactor.upkeep.cleanup import clean_up
from compactor.upkeep.purge import purge
from compactor.upkeep.retention import expire
from logstore.errors import OutcomeUnknown, Unavailable

log = logging.getLogger("tailrace.compactor")


async def once(
    compactor: Compactor, report: Report | None = None, backlog: Backlog | None = None
) -> Report:
    """Takes in what there is, cleans up, and reports. Raises `Unavailable`, `Damaged`.

    What comes after it has begun is the next one's. Where there is a next one, `backlog` has seen
    what was there before: then a little waits for more, and hours wait where segments do.
    """
    report = report or Report()
    for alarm in await compactor.placement.mend(compactor.clock.now_ms()):
        report.alarm(alarm)
    gather = backlog is not None and backlog.gathers
    left = await take_in_all(compactor, report, gather=gather)
    if backlog is not None:
        backlog.note(left=left)
    await expire(compactor, report)
    await purge(compactor, report)
    await rewrite_hours(compactor, report, *([backlog.due] if backlog else []))
    await clean_up(compactor, report)
    return report


async def repeat(
    compactor: Compactor,
    every: float,
    next_pass: Callable[[], AbstractAsyncContextManager[Report]],
) -> None:
    """Passes for ever, `every` seconds from the end of one to the start of the next, at most.

    One begins before its time when the limits of what may wait are reached (`lag.py`). Each
    runs inside its own `next_pass`, which gives its report and tells of it.
    A store that does not answer, or does not say what became of a write, is tried again at
    the next pass; other errors end it.
    """
    backlog, worked = Backlog(compactor), compactor.clock.monotonic()
    while True:
        try:
            async with next_pass() as report:
                await backlog.seen()
                await once(compactor, report, backlog)
        except (Unavailable, OutcomeUnknown) as error:
            log.warning("this pass broke off: %s", error)
        else:
            busy = report.commits or report.hours_rewritten
            worked = compactor.clock.monotonic() if busy else worked
        await _rest(compactor, backlog, every, worked)


async def _rest(compactor: Compactor, backlog: Backlog, seconds: float, worked: float) -> None:
    """Until the next pass is due. Spark, idle since `worked`, is stopped when it is time."""
    clock, limits = compactor.clock, compactor.limits
    end = clock.monotonic() + seconds
    while True:
        if clock.monotonic() - worked >= limits.idle_seconds:
            compactor.engine.stop()
        left = end - clock.monotonic()
        if left <= 0:
            return
        await clock.sleep(min(left, limits.poll_seconds))
        with suppress(Unavailable):  # the pass that comes in its time says so
            if clock.monotonic() < end and await backlog.due():
                return
