"""What clients report of runs: kept, given back, and heard by live streams.

A pipelineStatus with a terminal state ends the live streams of its run after a grace period;
one that says `running` again lets them continue. Reports whose run does not exist any more
are removed with the expiry of runs.

A pipeline's last run (`last_run`) is the first of the list of its runs: the one that began last.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from logstore import keys
from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.clock import Clock
from logstore.errors import (
    InvalidCursor,
    InvalidInput,
    NotFound,
    StoreUnavailable,
    TailraceError,
)
from logstore.objects.store import ObjectInfo
from logstore.runs.report import Report, Said
from service.runs.outcomes import RunOutcomes, is_late
from service.runs.run_pages import Newest, ReportedRuns
from service.runs.settings import RunSettings
from service.status.endings import Endings, is_terminal
from service.status.reports import Expiry, Head, Reports
from service.status.settings import OpenMetadataSettings
from service.status.unfinished import UnfinishedLines
from service.tail import Tail

_DEFAULT_LIMIT = 5
_LOOKED_AT = 64
_MOST = 1000
_PROGRESS_KEPT = 1000
_METRICS = 1000


class Statuses(NamedTuple):
    """Some statuses, and where the next ones begin; None at the end."""

    reports: list[Report]
    next: str | None


class Metrics(NamedTuple):
    """Some batches of metrics, and what to give as `after` for the next; None at the end."""

    reports: list[Report]
    next: str | None


class RunStatus:
    """What clients report, at one node. `tail` gives the node's tail, a new one after a fork."""

    def __init__(
        self,
        reports: Reports,
        clock: Clock,
        settings: OpenMetadataSettings,
        runs: RunSettings,
        *,
        tail: Callable[[], Tail],
        expiry: Expiry,
        look_seconds: float = 10.0,
    ) -> None:
        self._reports = reports
        self._clock = clock
        self._settings = settings
        self._runs = runs
        self._tail = tail
        self._progress: OrderedDict[RunKey, Report] = OrderedDict()
        self._progress_bytes = 0
        self.endings = Endings(
            self.get,
            clock,
            grace_seconds=settings.finish_grace_seconds,
            look_seconds=look_seconds,
        )
        self.unfinished = UnfinishedLines(clock, lambda key: self._tail().nudge(key))
        self.expiry = expiry
        self.stored = {"status": 0, "progress": 0, "metrics": 0}
        self.sweep_failures = 0

    def heartbeat_seconds(self, said: Said) -> float | None:
        """How often a client is to repeat such a status; None if it is not."""
        runs = self._runs
        return RunOutcomes(runs.lost_seconds, runs.stream_timeout_seconds).heartbeat_seconds(said)

    # --- pipelineStatus ------------------------------------------------------------

    async def put(self, key: RunKey, value: Mapping[str, Any]) -> Report:
        """Keeps a status of a run, and gives the one that is kept: an end that came before a late
        `running` stays. Raises `StoreUnavailable`, `OutcomeUnknown`, `JournalFull`."""
        report = await self._reports.put(keys.STATUS, key, value, is_late)
        self.stored["status"] += 1
        self.endings.note(key, report)
        if is_terminal(report):
            grace = self._settings.finish_grace_seconds
            self._tail().finish(key, grace, grace)
        else:
            self._tail().resume(key)
        return report

    async def close(self, key: RunKey) -> None:
        """Notes that a run without lines was closed, if it has a status.

        A later status or line opens it again. Raises `StoreUnavailable`, `OutcomeUnknown`.
        """
        await self._reports.close(keys.STATUS, key)

    async def get(self, key: RunKey) -> Report | None:
        """The newest status of a run. Raises `StoreUnavailable`, `Damaged`."""
        return await self._reports.get(keys.STATUS, key)

    async def components(self, fqn: str) -> dict[str, ObjectInfo]:
        """The components of keys of a pipeline's runs with a status, and the statuses' objects."""
        return await self._reports.components(keys.STATUS, fqn)

    async def created(self, info: ObjectInfo) -> int | None:
        """When the first status of a listed run came; None if it is deleted."""
        return await self._reports.created(info)

    async def at(self, fqn: str, component: str) -> Report | None:
        """The newest status of the run with such a component."""
        return await self._reports.at(keys.STATUS, fqn, component)

    async def listed(self, info: ObjectInfo) -> Report | None:
        """The status that was just listed, or a newer one; None if it is deleted."""
        return await self._reports.listed(info)

    async def pipelines(self) -> list[str]:
        """The components of keys of pipelines with a status."""
        return await self._reports.pipelines(keys.STATUS)

    async def pipeline(self, component: str) -> str | None:
        """The name of such a pipeline; None if its statuses are deleted."""
        return await self._reports.pipeline(keys.STATUS, component)

    async def of_pipeline(
        self,
        fqn: str,
        *,
        start: int | None = None,
        end: int | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Statuses:
        """Statuses of a pipeline's runs by their `timestamp`, newest first.

        Both bounds are milliseconds and inclusive. Without any of the three, the newest
        five, as upstream. Looked at are the 1,000 runs whose status changed last; without
        bounds 64, or four times the limit. `after` is `next` of the page before.

        Raises `StoreUnavailable`, `Damaged`, `InvalidCursor`.
        """
        behind = None if after is None else _place(after)
        bounded = start is not None or end is not None
        if limit is None and not bounded:
            limit = _DEFAULT_LIMIT
        looked_at = (
            _MOST if bounded or after is not None else min(max(_LOOKED_AT, 4 * (limit or 0)), _MOST)
        )
        found = [
            head
            for head in await self._reports.newest(keys.STATUS, fqn, looked_at)
            if (start is None or timestamp_of(head) >= start)
            and (end is None or timestamp_of(head) <= end)
            and (behind is None or (timestamp_of(head), head.version) < behind)
        ]
        found.sort(key=lambda head: (timestamp_of(head), head.version), reverse=True)
        found = found[:limit]
        reports, read = await self._reports.bodies(found, self._settings.report_reply_bytes)
        return Statuses(reports, _named(found[read - 1]) if read < len(found) else None)

    async def over(self, key: RunKey) -> bool:
        """Whether the run's streams are to end now; if they are to end soon, that is set."""
        left = await self.endings.seconds_left(key)
        if left is None or self._tail().finishing(key):
            return False
        if left > 0:
            self._tail().finish(key, left, self._settings.finish_grace_seconds)
        return left <= 0

    # --- progress and metrics ------------------------------------------------------

    async def put_progress(self, key: RunKey, value: Mapping[str, Any]) -> Report:
        """Keeps the newest progress of a run, and shows it to who watches."""
        report = await self._reports.put(keys.PROGRESS, key, value)
        self.stored["progress"] += 1
        self._forget_progress(key)
        self._progress[key] = report
        self._progress_bytes += len(report.body)
        while len(self._progress) > 1 and (
            len(self._progress) > _PROGRESS_KEPT
            or self._progress_bytes > self._settings.report_cache_bytes
        ):
            self._forget_progress(next(iter(self._progress)))
        self._tail().nudge(key)
        return report

    def _forget_progress(self, key: RunKey) -> None:
        report = self._progress.pop(key, None)
        self._progress_bytes -= 0 if report is None else len(report.body)

    async def progress(self, key: RunKey) -> Report | None:
        """The newest progress of a run. Raises `StoreUnavailable`, `Damaged`."""
        return await self._reports.get(keys.PROGRESS, key)

    def progress_here(self, key: RunKey) -> Report | None:
        """The newest that came through this node, if it is remembered."""
        return self._progress.get(key)

    async def add_metrics(self, key: RunKey, value: Mapping[str, Any]) -> Report:
        """Keeps one more batch of metrics. Raises `StoreUnavailable`, `OutcomeUnknown`."""
        report = await self._reports.add(keys.METRICS, key, value)
        self.stored["metrics"] += 1
        return report

    async def metrics(self, key: RunKey, *, after: int = 0, limit: int = _METRICS) -> Metrics:
        """Batches of metrics of a run above the ULID `after`, oldest first.

        Raises `StoreUnavailable`, `Damaged`.
        """
        found, last = await self._reports.added(
            keys.METRICS,
            key,
            after=after,
            limit=limit,
            most_bytes=self._settings.report_reply_bytes,
        )
        return Metrics(found, last)

    # --- their end -----------------------------------------------------------------

    async def remove(self, fqn: str, run: str | None) -> None:
        """Reports of a deleted run, or of all runs. Raises `StoreUnavailable`."""
        for key in [key for key in self._progress if key.fqn == fqn and run in (None, key.run)]:
            self._forget_progress(key)
        self.unfinished.remove(fqn, run)
        if run is not None:
            self.endings.note(RunKey(fqn, run), None)
        await self._reports.remove(fqn, run)

    async def run(self) -> None:
        """Sweeps every so often, as long as the node lives."""
        retention = self._runs
        while retention.shortest_days:
            await self._clock.sleep(self._runs.cleanup_interval_seconds)
            try:
                await self.expiry.sweep(retention)
            except TailraceError:  # what was not reached is, next time
                self.sweep_failures += 1


def timestamp_of(head: Head) -> int:
    """When the run began or said something, in milliseconds: what upstream orders by."""
    return head.created_ms if head.said.moment_ms is None else head.said.moment_ms


_PLACE = re.compile(r"(-?[0-9]{1,19})\.([0-9A-Z]{26})")


def _named(head: Head) -> str:
    """A place in the order of statuses, for who wants those behind it."""
    return f"{timestamp_of(head)}.{ulids.encode(head.version)}"


def _place(name: str) -> tuple[int, int]:
    found = _PLACE.fullmatch(name)
    if found is None:
        raise InvalidCursor(f"not a place in the statuses: {name[:80]!r}", field="next")
    try:
        return int(found[1]), int(ulids.parse(found[2]))
    except InvalidInput as error:
        raise InvalidCursor(f"not a place in the statuses: {error}", field="next") from error


class Runs(Protocol):
    """The lists of runs with lines."""

    async def newest(self, fqn: str, reported: ReportedRuns) -> Newest:
        """The run of a pipeline that began last."""
        ...

    async def newest_held(self, fqn: str) -> Newest:
        """That of the runs of which nodes hold lines, without the store."""
        ...


class LastRun(NamedTuple):
    """A pipeline's last run, and its status if it has one.

    `silent` are nodes that did not say whether they have lines of a later one. `held`: the store
    did not answer, and it is the last one of which nodes hold lines. `damaged` are runs that cannot
    be read, and that may be later ones.
    """

    key: RunKey
    report: Report | None
    silent: tuple[str, ...] = ()
    held: bool = False
    damaged: tuple[str, ...] = ()


class NoRuns(NotFound):
    """The pipeline has no runs; the `silent` nodes did not say whether they have some."""

    def __init__(self, fqn: str, silent: tuple[str, ...]) -> None:
        super().__init__(
            f"{fqn} has no runs", hint="Its first batch or pipelineStatus makes a run."
        )
        self.silent = silent


async def last_run(status: RunStatus, text: Runs, fqn: str) -> LastRun:
    """The pipeline's last run. Raises `NoRuns` if it has none, `StoreUnavailable`."""
    try:
        newest, silent, report, damaged = await text.newest(fqn, status)
    except StoreUnavailable:
        held = await text.newest_held(fqn)
        if held.run is None:
            raise
        return LastRun(RunKey(fqn, held.run.run), None, held.silent, held=True)
    if newest is None:
        raise NoRuns(fqn, silent)
    return LastRun(RunKey(fqn, newest.run), report, silent, damaged=damaged)
