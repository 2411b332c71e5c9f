"""Runs passes: one, or one after another with a Spark that stays warm.

The next pass begins when its time has come or when enough segments wait, whichever is first.
Between passes Spark is kept for `idle_seconds` without work and then stopped, so that a quiet store
costs no memory.

Ingesting and each part of the maintenance run separately: if one breaks off, the others continue,
and its error is raised at the end. Otherwise segments that cannot be ingested would prevent the
removal of expired, deleted and consumed data. Each part reads its own input. Only a format of a
newer version (`UnsupportedVersion`) ends the pass at once: nothing is removed on a guess.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace

from compactor.cleanup import clean_up, expire
from compactor.context import Compactor
from compactor.ingest import ingest_all
from compactor.plan import SegmentBacklog
from compactor.purge import purge
from compactor.report import PassReport
from compactor.rewrite import rewrite_hours
from compactor.skip_index import index_files
from compactor.verify import find_left_out
from tailrace.logstore.errors import (
    Damaged,
    OutcomeUnknown,
    TailraceError,
    Unavailable,
    UnsupportedVersion,
)

log = logging.getLogger("tailrace.compactor")


async def once(
    compactor: Compactor,
    report: PassReport | None = None,
    backlog: SegmentBacklog | None = None,
    *,
    erase: bool = False,
) -> PassReport:
    """Ingests the present segments, cleans up, and reports.

    Segments that arrive after its begin are left to the next pass. If passes are repeated,
    `backlog` has seen the earlier state: a few segments then wait for more, and hours wait for
    segments.
    With `erase`, the removal of deleted lines and of older versions waits for no time.

    Raises `Unavailable`, `OutcomeUnknown`, `Damaged` at the end, when everything else is done.
    """
    report = report or PassReport()
    if erase:
        limits = compactor.limits.model_copy(update={"purge_seconds": 0.0, "grace_seconds": 0.0})
        compactor = replace(compactor, limits=limits)
    for alarm in await compactor.placement.quarantine_torn(compactor.clock.now_ms()):
        report.alarm(alarm)
    turns = _Turns()
    with turns.turn("ingesting"):
        gather = backlog is not None and backlog.gathers
        left = await ingest_all(compactor, report, gather=gather)
        if backlog is not None:
            backlog.note(left=left)
    with turns.turn("looking for segments to skip"):
        found = await find_left_out(compactor.store)
        report.left_out = found.segments
        for alarm in found.alarms:
            report.alarm(alarm)
    with turns.turn("expiry"):
        await expire(compactor, report)
    with turns.turn("the purge"):
        await purge(compactor, report)
    with turns.turn("rewriting hours"):
        await rewrite_hours(compactor, report, *([backlog.due] if backlog else []))
    with turns.turn("indexing"):
        await index_files(compactor, report, *([backlog.due] if backlog else []))
    with turns.turn("clean-up"):
        await clean_up(compactor, report, erase=erase)
    turns.end(report)
    return report


@dataclass(slots=True)
class _Turns:
    """The parts of a pass, and the errors that they raised."""

    _failures: list[tuple[str, TailraceError]] = field(default_factory=list)

    @contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """Keeps an error of the block until `end`; raises `UnsupportedVersion` at once."""
        try:
            yield
        except UnsupportedVersion:
            raise
        except TailraceError as error:
            log.warning("%s failed: %s", name, error)
            self._failures.append((name, error))

    def end(self, report: PassReport) -> None:
        """Raises the first error, one that needs a person before others; the rest become alarms."""
        if not self._failures:
            return
        worst = min(self._failures, key=lambda one: not isinstance(one[1], Damaged))
        for name, error in self._failures:
            if str(error) != str(worst[1]):
                report.alarm(f"{name} failed as well: {error}")
        raise worst[1]


async def repeat(
    compactor: Compactor,
    every: float,
    next_pass: Callable[[], AbstractAsyncContextManager[PassReport]],
) -> None:
    """Runs passes for ever, at most `every` seconds from the end of one to the start of the next.

    A pass begins early if the limits of waiting segments are reached (`compactor/plan.py`). Each
    runs inside its own `next_pass`, which makes the report and passes it to the listeners. If the
    store does not answer, or the outcome of a write is unknown, the next pass tries again; other
    errors end it.
    """
    backlog, worked = SegmentBacklog(compactor), compactor.clock.monotonic()
    while True:
        try:
            async with next_pass() as report:
                await backlog.seen()
                await once(compactor, report, backlog)
        except (Unavailable, OutcomeUnknown) as error:
            log.warning("this pass failed, and the next one tries again: %s", error)
        else:
            busy = report.commits or report.hours_rewritten
            worked = compactor.clock.monotonic() if busy else worked
        await _rest(compactor, backlog, every, worked)


async def _rest(
    compactor: Compactor, backlog: SegmentBacklog, seconds: float, worked: float
) -> None:
    """Waits until the next pass is due. Stops Spark, idle since `worked`, after its idle time."""
    clock, limits = compactor.clock, compactor.limits
    end = clock.monotonic() + seconds
    while True:
        if clock.monotonic() - worked >= limits.idle_seconds:
            compactor.engine.stop()
        left = end - clock.monotonic()
        if left <= 0:
            return
        await clock.sleep(min(left, limits.poll_seconds))
        with suppress(Unavailable):  # the next regular pass reports it
            if clock.monotonic() < end and await backlog.due():
                return
