"""Reports of clients about their runs: stores them, returns them, and applies them to live streams.

A pipelineStatus with a terminal state ends the live streams of its run after a grace period; one
that says `running` again lets them continue. Reports whose run does not exist any more are removed
with the expiry of runs. A pipeline's last run (`last_run`) is the first of the list of its runs:
the one that began last.

**Endings.** `Endings` finds out from the client's terminal pipelineStatus whether a run has ended.
OpenMetadata's client reports the end of a run before it ships the last lines. So a stream of such a
run continues for a grace period after the report, and after each line in that period. All readers
of a run share one look at the store every `look_seconds`. A failed look changes nothing: the run
does not count as ended.

**Unfinished lines** (`UnfinishedOfRuns`) are a progress bar or a prompt: shown live, and never
stored. A producer of lines reports the present state of its last line; the next state replaces it.
No state is acknowledged as stored: the finished line comes as any other, with its last state. So
each node only keeps them in memory. A state that is not repeated is forgotten after `KEPT_SECONDS`,
since its producer may have died. Nodes send the states to each other.

**Opening.** `open_status` makes the reports of a node. They look up the node's run logs and tail at
each call: the node makes its reports when it starts, and makes new ones after a fork.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol

from service.run_log.listing import Newest, ReportedRuns
from service.run_log.run_logs import RunLogs
from service.runtime.environment import Environment
from service.runtime.health import ClockSkew
from service.settings import OpenMetadataSettings, RunSettings, Settings
from service.status.reports import TERMINAL, ReportExpiry, ReportHead, Reports, RunOutcomes, is_late
from service.tail import Tail
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import (
    InvalidCursor,
    InvalidInput,
    JournalFull,
    NotFound,
    StoreUnavailable,
    TailraceError,
)
from tailrace.logstore.filesystem import FileSystem
from tailrace.logstore.objects.store import ObjectInfo
from tailrace.logstore.runs.report import RunReport, Said

_REMEMBERED = 10_000


def is_terminal(report: RunReport | None) -> bool:
    """Whether a status says that its run is over."""
    return report is not None and report.said.state in TERMINAL


class _KnownStatus(NamedTuple):
    """The time of the last look, and the time of a stored terminal status, if any."""

    seen: float
    ended_ms: int | None


class Endings:
    """The ends of the watched runs.

    A stream continues for `grace_seconds` after a terminal status. The store is asked again after
    `look_seconds`.
    """

    def __init__(
        self,
        look: Callable[[RunKey], Awaitable[RunReport | None]],
        clock: Clock,
        *,
        grace_seconds: float,
        look_seconds: float = 10.0,
    ) -> None:
        self._look = look
        self._clock = clock
        self._grace_seconds = grace_seconds
        self._look_seconds = look_seconds
        self._known: BoundedCache[RunKey, _KnownStatus] = BoundedCache(_REMEMBERED)
        self._looking: dict[RunKey, asyncio.Task[None]] = {}
        self.failures = 0

    async def seconds_left(self, key: RunKey) -> float | None:
        """Seconds left of an ended run's grace, 0 when it is over; None for an open run."""
        known = self._known.peek(key)
        if known is None or self._clock.monotonic() - known.seen >= self._look_seconds:
            await self._ask(key)
            known = self._known.peek(key)
        if known is None or known.ended_ms is None:
            return None
        since = (self._clock.now_ms() - known.ended_ms) / 1000
        return min(max(self._grace_seconds - since, 0.0), self._grace_seconds)

    def note(self, key: RunKey, report: RunReport | None) -> None:
        """Records a report that was just stored, or removed."""
        ended = report.stored_ms if report is not None and is_terminal(report) else None
        self._note(key, ended)

    def _note(self, key: RunKey, ended_ms: int | None) -> None:
        self._known.put(key, _KnownStatus(self._clock.monotonic(), ended_ms))

    async def _ask(self, key: RunKey) -> None:
        """Asks the store once for all simultaneous callers."""
        task = self._looking.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask_store(key))
            self._looking[key] = task
            task.add_done_callback(lambda _: self._looking.pop(key, None))
        await asyncio.shield(task)

    async def _ask_store(self, key: RunKey) -> None:
        before = self._known.peek(key)
        try:
            report = await self._look(key)
        except TailraceError:
            self.failures += 1
            self._note(key, None if before is None else before.ended_ms)
            return
        if self._known.peek(key) is before:  # otherwise a newer report was stored meanwhile
            self.note(key, report)


KEPT_SECONDS = 60.0
MOST_CHARS = 4096
_PRODUCERS = 16
_RUNS = 10_000
_NAME_CHARS = 100


class UnfinishedLine(NamedTuple):
    """The state of a producer's last line; `number` grows with each state."""

    producer: str
    number: int
    text: str
    until: float = 0.0

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> UnfinishedLine:
        """Reads the JSON of a client. Raises `InvalidInput`."""
        producer, number, text = (value.get(name) for name in ("producer", "number", "text"))
        if not isinstance(producer, str) or not 0 < len(producer) <= _NAME_CHARS:
            raise InvalidInput("producer is not a name of 1 to 100 characters", field="producer")
        if type(number) is not int:
            raise InvalidInput("number is not a whole number", field="number")
        if not isinstance(text, str) or len(text) > MOST_CHARS or "\n" in text:
            raise InvalidInput(
                f"text is not one line of at most {MOST_CHARS} characters",
                field="text",
                hint="Send the end of a longer line; an empty text says that it is finished.",
            )
        return cls(producer, number, text)

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON as a client sends it."""
        return {"producer": self.producer, "number": self.number, "text": self.text}


class UnfinishedOfRuns:
    """The unfinished lines of all runs, as one node knows them."""

    def __init__(self, clock: Clock, changed: Callable[[RunKey], None]) -> None:
        self._clock = clock
        self._changed = changed
        self._lines: BoundedCache[RunKey, dict[str, UnfinishedLine]] = BoundedCache(_RUNS)
        self.report: Callable[[RunKey, UnfinishedLine], None] = lambda *_: None
        """Tells other nodes of a line that came to this one."""

    def put(self, key: RunKey, line: UnfinishedLine) -> None:
        """Records the newest state of a line; an empty text ends it. Ignores older states."""
        lines = self._lines.get(key)
        if lines is None:
            lines = {}
            self._lines.put(key, lines)
        before = lines.pop(line.producer, None)
        if before is not None and before.number > line.number:
            line = before
        lines[line.producer] = line._replace(until=self._clock.monotonic() + KEPT_SECONDS)
        while len(lines) > _PRODUCERS:
            del lines[next(iter(lines))]
        if before is None or before.text != line.text:
            self._changed(key)

    def of_run(self, key: RunKey) -> list[UnfinishedLine]:
        """The unfinished lines of a run, by producer."""
        now = self._clock.monotonic()
        found = [line for line in (self._lines.peek(key) or {}).values() if line.until > now]
        return sorted(line for line in found if line.text)

    def remove(self, fqn: str, run: str | None) -> None:
        """Removes the lines of a deleted run, or of all runs of a pipeline."""
        for key in [key for key in self._lines if key.fqn == fqn and run in (None, key.run)]:
            self._lines.pop(key)
            self._changed(key)


_DEFAULT_LIMIT = 5
_LOOKED_AT = 64
_MOST = 1000
_PROGRESS_KEPT = 1000
_METRICS = 1000


class Statuses(NamedTuple):
    """Some statuses, and the cursor for the next ones; None at the end."""

    reports: list[RunReport]
    next: str | None


class Metrics(NamedTuple):
    """Some batches of metrics, and the `after` for the next ones; None at the end."""

    reports: list[RunReport]
    next: str | None


class RunStatus:
    """The reports of clients at one node. `tail` returns its tail, a new one after a fork."""

    def __init__(
        self,
        reports: Reports,
        clock: Clock,
        settings: OpenMetadataSettings,
        runs: RunSettings,
        *,
        tail: Callable[[], Tail],
        expiry: ReportExpiry,
        look_seconds: float = 10.0,
    ) -> None:
        self._reports = reports
        self._clock = clock
        self._settings = settings
        self._runs = runs
        self._tail = tail
        self._progress: BoundedCache[RunKey, RunReport] = BoundedCache(
            settings.report_cache_bytes, lambda report: len(report.body), least=1
        )
        self.endings = Endings(
            self.get, clock, grace_seconds=settings.finish_grace_seconds, look_seconds=look_seconds
        )
        self.unfinished = UnfinishedOfRuns(clock, lambda key: self._tail().nudge(key))
        self.expiry = expiry
        self.stored = {"status": 0, "progress": 0, "metrics": 0}
        self.sweep_failures = 0

    def heartbeat_seconds(self, said: Said) -> float | None:
        """The interval in which a client repeats such a status; None if it does not."""
        runs = self._runs
        return RunOutcomes(runs.lost_seconds, runs.stream_timeout_seconds).heartbeat_seconds(said)

    # --- pipelineStatus ------------------------------------------------------------

    async def put(self, key: RunKey, value: Mapping[str, Any]) -> RunReport:
        """Stores a status of a run. Returns the stored one: an end stays despite a late `running`.

        Raises `StoreUnavailable`, `OutcomeUnknown`, `JournalFull`.
        """
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
        """Records that a run without lines was closed, if it has a status.

        A later status or line opens it again. Raises `StoreUnavailable`, `OutcomeUnknown`.
        """
        await self._reports.close(keys.STATUS, key)

    async def get(self, key: RunKey) -> RunReport | None:
        """The newest status of a run. Raises `StoreUnavailable`, `Damaged`."""
        return await self._reports.get(keys.STATUS, key)

    async def components(self, fqn: str) -> dict[str, ObjectInfo]:
        """The components of keys of a pipeline's runs with a status, and the statuses' objects."""
        return await self._reports.components(keys.STATUS, fqn)

    async def created(self, info: ObjectInfo) -> int | None:
        """The time of the first status of a listed run; None if it is deleted."""
        return await self._reports.created(info)

    async def at(self, fqn: str, component: str) -> RunReport | None:
        """The newest status of the run with such a component."""
        return await self._reports.at(keys.STATUS, fqn, component)

    async def listed(self, info: ObjectInfo) -> RunReport | None:
        """The listed status, or a newer one; None if it is deleted."""
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

        Both bounds are milliseconds and inclusive. Without bounds and limit it returns the newest
        five, as upstream. It examines the 1,000 runs whose status changed last; without bounds 64,
        or four times the limit. `after` is `next` of the previous page.

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
        """Whether the run's streams have to end now. If they have to end soon, schedules that."""
        left = await self.endings.seconds_left(key)
        if left is None or self._tail().finishing(key):
            return False
        if left > 0:
            self._tail().finish(key, left, self._settings.finish_grace_seconds)
        return left <= 0

    # --- progress and metrics ------------------------------------------------------

    async def put_progress(self, key: RunKey, value: Mapping[str, Any]) -> RunReport:
        """Stores the newest progress of a run, and shows it to its watchers."""
        report = await self._reports.put(keys.PROGRESS, key, value)
        self.stored["progress"] += 1
        self._progress.put(key, report)
        if len(self._progress) > _PROGRESS_KEPT:
            self._progress.pop_oldest()
        self._tail().nudge(key)
        return report

    async def progress(self, key: RunKey) -> RunReport | None:
        """The newest progress of a run. Raises `StoreUnavailable`, `Damaged`."""
        return await self._reports.get(keys.PROGRESS, key)

    def progress_here(self, key: RunKey) -> RunReport | None:
        """The newest progress that this node received, if it is still in memory."""
        return self._progress.peek(key)

    async def add_metrics(self, key: RunKey, value: Mapping[str, Any]) -> RunReport:
        """Stores one more batch of metrics. Raises `StoreUnavailable`, `OutcomeUnknown`."""
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
        """Removes reports of a deleted run, or of all runs. Raises `StoreUnavailable`."""
        self.forget(fqn, run)
        await self._reports.remove(fqn, run)

    def forget(self, fqn: str, run: str | None) -> None:
        """Drops what is in memory of a deleted run, or of all runs."""
        for key in [key for key in self._progress if key.fqn == fqn and run in (None, key.run)]:
            self._progress.pop(key)
        self.unfinished.remove(fqn, run)
        if run is not None:
            self.endings.note(RunKey(fqn, run), None)

    async def run(self) -> None:
        """Removes expired reports regularly, as long as the node lives."""
        retention = self._runs
        while retention.shortest_days:
            await self._clock.sleep(self._runs.cleanup_interval_seconds)
            try:
                await self.expiry.sweep(retention)
            except TailraceError:  # the next sweep reaches the rest
                self.sweep_failures += 1


def timestamp_of(head: ReportHead) -> int:
    """When the run began or reported, in milliseconds: the order of upstream."""
    return head.created_ms if head.said.moment_ms is None else head.said.moment_ms


_PLACE = re.compile(r"(-?[0-9]{1,19})\.([0-9A-Z]{26})")


def _named(head: ReportHead) -> str:
    """Encodes a position in the order of statuses, as a cursor."""
    return f"{timestamp_of(head)}.{ulids.encode(head.version)}"


def _place(name: str) -> tuple[int, int]:
    found = _PLACE.fullmatch(name)
    if found is None:
        raise InvalidCursor(f"not a place in the statuses: {name[:80]!r}", field="next")
    try:
        return int(found[1]), int(ulids.parse(found[2]))
    except InvalidInput as error:
        raise InvalidCursor(f"not a place in the statuses: {error}", field="next") from error


class RunLists(Protocol):
    """The lists of runs with lines."""

    async def newest(self, fqn: str, reported: ReportedRuns) -> Newest:
        """The run of a pipeline that began last."""
        ...

    async def newest_held(self, fqn: str) -> Newest:
        """The last of the runs with lines that nodes hold, without the store."""
        ...


class LastRun(NamedTuple):
    """A pipeline's last run, and its status if it has one.

    `silent` are nodes that did not answer and may have lines of a later one. If `held`, the store
    did not answer, and it is the last run with lines that nodes hold. `damaged` are unreadable
    runs, which may be later ones.
    """

    key: RunKey
    report: RunReport | None
    silent: tuple[str, ...] = ()
    held: bool = False
    damaged: tuple[str, ...] = ()


class NoRuns(NotFound):
    """The pipeline has no runs, except maybe at the `silent` nodes, which did not answer."""

    def __init__(self, fqn: str, silent: tuple[str, ...]) -> None:
        super().__init__(
            f"{fqn} has no runs", hint="Its first batch or pipelineStatus makes a run."
        )
        self.silent = silent


async def last_run(status: RunStatus, text: RunLists, fqn: str) -> LastRun:
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


class KeepFree(NamedTuple):
    """The folder of the reports, and the bytes of its disk that stay free."""

    folder: str
    bytes: int


class Owner(Protocol):
    """The parts of the node that reports use."""

    @property
    def run_logs(self) -> RunLogs: ...
    @property
    def tail(self) -> Tail: ...


def open_status(owner: Owner, environment: Environment, settings: Settings) -> RunStatus:
    """The reports of `owner`, over its store."""
    keep_free = _keep_free(settings)

    def horizon(key: RunKey) -> int:
        return owner.run_logs.deletions.horizon(key)

    async def exists(key: RunKey) -> bool:
        return await owner.run_logs.listing.exists(key)

    def check_space(size: int) -> None:
        if keep_free is not None:
            _check_space(environment.fs, keep_free, size)

    reports = Reports(
        environment.store,
        environment.clock,
        environment.entropy,
        horizon=horizon,
        check_space=check_space,
        cache_bytes=settings.openmetadata.report_cache_bytes,
    )
    return RunStatus(
        reports,
        environment.clock,
        settings.openmetadata,
        settings.runs,
        tail=lambda: owner.tail,
        expiry=ReportExpiry(
            environment.store, environment.clock, exists, ClockSkew(environment.newest_date)
        ),
    )


def _keep_free(settings: Settings) -> KeepFree | None:
    """The limit for a store in a folder; None on S3, where reports use no disk of this node."""
    if settings.bucket is not None:
        return None
    return KeepFree(settings.store_folder, settings.journal.min_free_bytes)


def _check_space(fs: FileSystem, keep: KeepFree, size: int) -> None:
    """Refuses reports when the disk is too full for batches. Raises `JournalFull`."""
    try:
        free = fs.free_bytes(keep.folder)
    except OSError as error:
        raise StoreUnavailable(f"the disk of the store does not answer: {error}") from error
    if free - size < keep.bytes:
        raise JournalFull(
            "the disk of the store is full: reports have no room beside the "
            f"{keep.bytes} bytes that are kept free"
        )
