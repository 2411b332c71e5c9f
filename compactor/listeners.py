"""Listeners report passes: a progress bar, the log, metrics, and a line of JSON for each pass.

`listeners` chooses them by the settings and by the kind of standard error.

**Progress bar** (`PassProgress`): one line on a terminal that is drawn again and again.

    merge  [=========...........]  46%  1.1 GB of 2.4 GB  14 MB/s  0:01:32 left  tasks 3/8

The share is of the bytes that waited when the pass last looked and of those that it has ingested,
with the present batch by its Spark tasks. A phase without a known share shows its time instead. The
line is cleared before other output (`clear`). The cursor stays at its start: output of others, Java
and Spark above all, begins at the start of the line and not after the bar.

**Log** on standard error (`configure`, `LogListener`): lines for people, or lines of JSON. A line
of JSON has `time` (RFC 3339), `level`, `logger` and `message`, the fields that the call passed as
`extra={"fields": {…}}`, and `traceback` if the record has one.

**Metrics** (`MetricsListener`) are recorded while passes run: in a file
(`compactor.metrics.Textfile`), at a Prometheus push gateway, or both. The push gateway is for
compactors that cannot be scraped. `PUT {gateway}/metrics/job/tailrace-compactor/instance/{host}`
replaces the last push of this host. The gateway keeps it after the end of this process;
`reported_timestamp_seconds` shows its age.

**Summary** (`SummaryListener`): a line of JSON on standard output for each pass, or for each that
did something.
"""

from __future__ import annotations

import logging
import os
import socket
from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, Protocol, TextIO, TypeAlias
from urllib.parse import quote, unquote, urlsplit

import aiohttp
import orjson

from compactor.metrics import Samples, Textfile, add, counts, gauges, outcome, render, total
from compactor.passes import Listener
from compactor.report import Lag, PassReport, duration_text
from compactor.settings import CompactorSettings
from tailrace.logstore.clock import Clock, rfc3339
from tailrace.logstore.errors import InvalidInput, Unavailable
from tailrace.logstore.filesystem import FileSystem
from tailrace.logstore.progress import LineFormatter, size

Tasks: TypeAlias = Callable[[], Awaitable[tuple[int, int] | None]]
"""Of the job under way: tasks done, and all that are known; None if there is none."""

_SHORTEST, _LONGEST = 6, 40
_CLEAR: Final = "\r\x1b[2K"


class PassProgress:
    """Draws on a terminal."""

    every_seconds = 0.2

    def __init__(self, clock: Clock, out: TextIO, tasks: Tasks) -> None:
        self._clock = clock
        self._out = out
        self._tasks = tasks
        self._drawn = False
        self._lag: Lag | None = None
        self._all = 0
        self._phase, self._since = "", 0.0
        self._started = 0.0

    async def look(self, report: PassReport) -> None:
        """Draws the present progress."""
        now = self._clock.monotonic()
        if report.phase != self._phase:
            self._phase, self._since = report.phase, now
        if report.lag is not self._lag and report.lag is not None:
            if self._lag is None:
                self._started = now
            self._lag = report.lag
            self._all = report.segment_bytes + report.lag.bytes
        wide = _columns(self._out) - 1
        line = self._line(report, await self._tasks(), now, wide)
        self._out.write(f"{_CLEAR}{line[:wide]}\r")
        self._out.flush()
        self._drawn = True

    async def over(self, report: PassReport) -> None:  # noqa: ARG002 - the shape is Listener's
        """Clears the line; the summary has the result."""
        self.clear()
        self._lag, self._all, self._phase = None, 0, ""

    def clear(self) -> None:
        """Erases the line, if it is drawn."""
        if self._drawn:
            self._out.write(_CLEAR)
            self._out.flush()
            self._drawn = False

    def _line(
        self, report: PassReport, tasks: tuple[int, int] | None, now: float, wide: int
    ) -> str:
        phase, done = report.phase or "plan", self._done(report, tasks)
        counted = "" if tasks is None else f"  tasks {tasks[0]}/{tasks[1]}"
        if not 0 < done <= self._all:
            return f"{phase}  {duration_text(now - self._since)}{counted}"
        share, spent = done / self._all, max(now - self._started, 1e-3)
        rest = (
            f" {share:4.0%}  {size(done)} of {size(self._all)}  {size(done / spent)}/s"
            f"  {duration_text(spent / share - spent)} left{counted}"
        )
        width = min(max(wide - len(phase) - len(rest) - 4, _SHORTEST), _LONGEST)
        full = round(width * share)
        return f"{phase}  [{'=' * full}{'.' * (width - full)}]{rest}"

    def _done(self, report: PassReport, tasks: tuple[int, int] | None) -> float:
        if report.batch is None or report.phase != "merge" or not tasks or not tasks[1]:
            return report.segment_bytes
        return report.segment_bytes + report.batch.bytes * tasks[0] / tasks[1]


def _columns(out: TextIO) -> int:
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except OSError:
        return 80


log = logging.getLogger("tailrace.compactor")

Format = Literal["text", "json"]


def configure(form: Format, out: TextIO, before_line: Callable[[], None] | None = None) -> None:
    """Redirects the log to `out`. `before_line` is called before each line, to clear the bar."""
    handler = _Handler(out, before_line)
    handler.setFormatter(
        JsonLines() if form == "json" else LineFormatter("%(levelname)s %(message)s")
    )
    logging.basicConfig(handlers=[handler], force=True)
    logging.captureWarnings(form == "json")
    log.setLevel(logging.INFO)


class JsonLines(logging.Formatter):
    """A record as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": rfc3339(int(record.created * 1000)),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class _Handler(logging.StreamHandler[TextIO]):
    def __init__(self, out: TextIO, before_line: Callable[[], None] | None) -> None:
        super().__init__(out)
        self._before_line = before_line

    def emit(self, record: logging.LogRecord) -> None:
        if self._before_line is not None:
            self._before_line()
        super().emit(record)


class LogListener:
    """Logs the alarms of a pass, and its result if it did anything.

    If a `single` pass, which a person started, did nothing, it logs the reason.
    """

    every_seconds = None

    def __init__(self, *, single: bool = False) -> None:
        self._single = single
        self._last_reason = ""

    async def look(self, report: PassReport) -> None:
        """Logs nothing: the parts of a pass log their own steps."""

    async def over(self, report: PassReport) -> None:
        """Logs alarms and the result. A repeated pass without work logs nothing."""
        for alarm in report.alarms:
            log.error("%s", alarm, extra={"fields": {"event": "alarm"}})
        if report.error is None and not report.busy:
            self._idle(report)
            return
        log.info(
            "pass %s in %.1f s: %d segments, %d rows in, %d out, %d duplicates",
            outcome(report),
            report.took_seconds,
            report.segments,
            report.rows_in,
            report.rows_out,
            report.duplicates,
            extra={"fields": {"event": "pass over", **report.summary()}},
        )
        self._idle(report, only_held=True)

    def _idle(self, report: PassReport, *, only_held: bool = False) -> None:
        why = _why_nothing(report)
        if self._single and why != self._last_reason and (report.held or not only_held):
            self._last_reason = why  # a driver that waits for others makes one pass after another
            log.info("%s", why, extra={"fields": {"event": "nothing to do"}})


def _why_nothing(report: PassReport) -> str:
    if report.held:
        nodes, hours = report.held_elsewhere, report.hours_held_elsewhere
        work = [f"new segments of {_many(nodes, 'node')}"] * bool(nodes)
        work += [f"{_many(hours, 'hour')} to be rewritten"] * bool(hours)
        return f"nothing was done: another compactor has {' and '.join(work)} (--wait waits for it)"
    if report.lag is not None and report.lag.segments:
        return f"nothing was done: {_many(report.lag.segments, 'segment')} cannot be ingested yet"
    if report.left_out:
        return f"nothing was done: {_many(report.left_out, 'damaged segment')} left out"
    if report.alarms:
        return f"nothing was done: {_many(len(report.alarms), 'alarm')} above"
    return "nothing to do: the table has every segment"


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


JOB = "tailrace-compactor"
_SECONDS = 5.0  # the limit for an answer of a gateway


class Totals(Protocol):
    """Counters that add up over passes, and the newest gauges."""

    def read(self) -> Samples:
        """All samples. Raises `Unavailable`."""
        ...

    def change(self, counted: Samples, gauges: Samples) -> Samples:
        """Adds to the counters, sets the gauges, returns all samples. Raises `Unavailable`."""
        ...


class InMemory:
    """The totals of this process alone."""

    def __init__(self) -> None:
        self._samples: Samples = {}

    def read(self) -> Samples:
        return self._samples

    def change(self, counted: Samples, gauges: Samples) -> Samples:
        self._samples = total(self._samples, counted, gauges)
        return self._samples


class MetricsListener:
    """Adds the new counts of a report to the totals, each count once.

    Counts that could not be written are written with the next ones.
    """

    every_seconds = 10.0

    def __init__(
        self, clock: Clock, file: Textfile | None, gateway: PushGateway | None = None
    ) -> None:
        self._clock = clock
        self.totals: Totals = file or InMemory()
        self._gateway = gateway
        self._unwritten: Samples = {}
        self._written: Samples = {}

    async def look(self, report: PassReport) -> None:
        """Writes the new counts. Raises `Unavailable`."""
        await self._write(report, over=False)

    async def over(self, report: PassReport) -> None:
        """Writes the rest of this pass. Raises `Unavailable`."""
        try:
            await self._write(report, over=True)
        finally:
            self._written = {}

    async def _write(self, report: PassReport, *, over: bool) -> None:
        self._count(counts(report, over=over))
        # Not in a thread: a pass that ends during a change must not make it twice.
        before = self.totals.read()
        now = gauges(report, before, over=over, now_ms=self._clock.now_ms())
        samples = self.totals.change(self._unwritten, now)
        self._unwritten = {}
        if self._gateway is not None:
            await self._gateway.push(render(samples))

    def _count(self, counted: Samples) -> None:
        add(self._unwritten, {key: n - self._written.get(key, 0) for key, n in counted.items()})
        self._written = counted


class PushGateway:
    """A gateway at an address, with or without a name and password. Raises `InvalidInput`."""

    def __init__(self, address: str, instance: str) -> None:
        parts = urlsplit(address)
        try:
            parts.port  # noqa: B018 - it is parsed when it is read
        except ValueError as error:
            raise InvalidInput(
                f"compaction.push_gateway is not an address: {error}",
                field="compaction.push_gateway",
            ) from error
        self._headers = {"Content-Type": "text/plain; version=0.0.4"}
        if parts.username:
            named = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = f"Basic {b64encode(named).decode()}"
        self._place = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        path = parts.path.rstrip("/")
        self._url = f"{self._place}{path}/metrics/job/{JOB}/instance/{quote(instance, safe='')}"

    async def push(self, content: bytes) -> None:
        """Sends metrics in the text format. Raises `Unavailable` if the gateway refuses them."""
        try:
            async with (
                aiohttp.ClientSession(
                    timeout=aiohttp.ClientTimeout(total=_SECONDS), trust_env=True
                ) as client,
                client.put(
                    self._url, data=content, headers=self._headers, allow_redirects=False
                ) as answer,
            ):
                status, text = answer.status, await answer.text(errors="replace")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._failed(str(error) or type(error).__name__) from error
        if status >= 300:
            raise self._failed(f"{status} {text[:200]}".strip())

    def _failed(self, reason: str) -> Unavailable:
        return Unavailable(
            f"the push gateway {self._place} did not take the metrics: {reason}",
            hint="Set compaction.push_gateway to its address, such as http://host:9091.",
        )


class SummaryListener:
    """Writes a line at the end of `every` pass, or only of passes worth reporting."""

    every_seconds = None

    def __init__(self, out: TextIO, *, every: bool = True) -> None:
        self._out = out
        self._every = every

    async def look(self, report: PassReport) -> None:
        """Writes nothing before the end."""

    async def over(self, report: PassReport) -> None:
        """Writes the line."""
        if not (self._every or report.worth_reporting):
            return
        self._out.write(report.line() + "\n")
        self._out.flush()


def listeners(
    settings: CompactorSettings,
    clock: Clock,
    fs: FileSystem,
    tasks: Tasks,
    *,
    out: TextIO | None,
    errors: TextIO,
    every_line: bool = True,
    single: bool = False,
    watched: bool = True,
) -> list[Listener]:
    """Returns all listeners in the order of their calls. From now on logs go to `errors`.

    Lines of JSON go to `out`: of every pass, or only of passes worth reporting. A terminal that is
    not `watched`, like that of a service, shows no progress bar.
    """
    compaction = settings.compaction
    bar = None
    if watched and compaction.log_format == "text" and errors.isatty():
        bar = PassProgress(clock, errors, tasks)
    configure(compaction.log_format, errors, bar.clear if bar else None)
    found: list[Listener] = [bar] if bar else []
    file = textfile(settings, fs)
    gateway = None
    if compaction.push_gateway:
        gateway = PushGateway(compaction.push_gateway, socket.gethostname())
    if file or gateway:
        found.append(MetricsListener(clock, file, gateway))
    lines = [] if out is None else [SummaryListener(out, every=every_line)]
    return [*found, LogListener(single=single), *lines]


def textfile(settings: CompactorSettings, fs: FileSystem) -> Textfile | None:
    """The metrics file; None if it is disabled, or without a data folder for it."""
    name = settings.compaction.metrics_file
    if not name:
        return None
    path = os.path.join(os.path.abspath(settings.data), name)
    if not os.path.isabs(name):
        try:
            lock = fs.lock(f"{path}.lock", wait=False)
        except OSError:  # the folder does not exist, or this user may not write to it
            return None
        if lock is not None:
            lock.release()
    return Textfile(fs, path)
