"""The log on standard error: lines for people, or a line of JSON each.

A line of JSON has `time` (RFC 3339), `level`, `logger` and `message`, what the call gave as
`extra={"fields": {…}}`, and `traceback` if there is one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal, TextIO

import orjson

from compactor.report import Report, rfc3339
from compactor.reporting.metrics import outcome
from logstore.log_lines import LineFormatter

log = logging.getLogger("tailrace.compactor")

Format = Literal["text", "json"]


def configure(form: Format, out: TextIO, before_line: Callable[[], None] | None = None) -> None:
    """Logs go to `out`, in place of where they went before. `before_line` clears its way."""
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
    """Logs the alarms of a pass, and what it did if it did anything.

    For a `single` pass, which a person started, it also logs why the pass did nothing.
    """

    every_seconds = None

    def __init__(self, *, single: bool = False) -> None:
        self._single = single
        self._last_reason = ""

    async def look(self, report: Report) -> None:
        """Logs nothing: the parts of a pass log their own steps."""

    async def over(self, report: Report) -> None:
        """Logs alarms and the result; a repeated pass that found nothing to do logs nothing."""
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

    def _idle(self, report: Report, *, only_held: bool = False) -> None:
        why = _why_nothing(report)
        if self._single and why != self._last_reason and (report.held or not only_held):
            self._last_reason = why  # a driver that waits for others makes one pass after another
            log.info("%s", why, extra={"fields": {"event": "nothing to do"}})


def _why_nothing(report: Report) -> str:
    if report.held:
        nodes, hours = report.held_elsewhere, report.hours_held_elsewhere
        work = [f"new segments of {_many(nodes, 'node')}"] * bool(nodes)
        work += [f"{_many(hours, 'hour')} to be rewritten"] * bool(hours)
        return f"another compactor has the work: {' and '.join(work)} (--wait waits for it)"
    if report.lag is not None and report.lag.segments:
        return f"nothing was done: {_many(report.lag.segments, 'segment')} cannot be ingested yet"
    if report.left_out:
        return f"nothing was done: {_many(report.left_out, 'damaged segment')} is left out"
    if report.alarms:
        return f"nothing was done: {_many(len(report.alarms), 'alarm')} above"
    return "there was nothing to do: the table has every segment"


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"
