"""`otlp` and `webhook`: events by HTTP, as OTLP log records in JSON or as plain JSON.

    type: otlp
    url: https://collector.example.org/v1/logs

| field of OTLP | is |
| --- | --- |
| resource attributes | `service.name` (the pipeline's name), `tailrace.run.id` |
| `timeUnixNano`, `observedTimeUnixNano` | the event's time; the time of its ULID |
| `severityNumber`, `severityText` | the level, from TRACE 1 and DEBUG 5 to FATAL 21 |
| `body` | the message |
| `attributes` | the record's, `log.record.uid` (ULID), `tailrace.connector.id`, `tailrace.order` |
| `traceId`, `spanId` | the attributes `trace_id` and `span_id`, if they are such ids |

Neither can go back: after a crash or a lost answer the events after the last checkpoint are sent
again, each with the same `log.record.uid` or ULID. A request that the receiver refuses for good is
sent in halves, down to the refused records. An OTLP receiver that takes a part of a request does
not say which, and OTLP forbids to send it again: all of its records become dead letters, and are
sent one by one if an operator sends dead letters again.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, Literal

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.logstore import ulid
from tailrace.pipelines.appenders.contract import AppenderContext, AppenderFailed, State
from tailrace.pipelines.appenders.http import HttpTargetSettings, Poster, deliver
from tailrace.pipelines.events import is_redelivered
from tailrace.pipelines.layouts import Json, orders_of
from tailrace.pipelines.section import Bytes, Section, setting

_SEVERITY: Final = {"TRACE": 1, "DEBUG": 5, "INFO": 9, "WARN": 13, "ERROR": 17, "FATAL": 21}
_IDS: Final = {"trace_id": ("traceId", re.compile(r"(?!0+$)[0-9a-f]{32}")),
               "span_id": ("spanId", re.compile(r"(?!0+$)[0-9a-f]{16}"))}  # fmt: skip


class OtlpSettings(HttpTargetSettings):
    """Where records go, and how many at once."""

    compression: Literal["gzip", "none"] = setting("gzip", "compression of requests")
    max_events: int = setting(1000, "maximum number of records in a request", ge=1)
    max_request_size: Bytes = setting(4 << 20, "maximum size of a request's messages")


class Otlp:
    """Sends log records by OTLP/HTTP."""

    settings: ClassVar[type[Section]] = OtlpSettings

    def __init__(self, settings: OtlpSettings) -> None:
        self._settings = settings
        self._poster = Poster(settings)
        self._context: AppenderContext | None = None
        self._rejected = 0

    def start(self, context: AppenderContext, state: State | None) -> None:
        self._context = context
        self._rejected = int((state or {}).get("rejected", 0))

    def append(self, events: pa.Table) -> None:
        most = 1 if is_redelivered(events) else self._settings.max_events
        for some in split(events, most, self._settings.max_request_size):
            deliver(some, self._send, self._started.refuse)

    def sync(self) -> State:
        return {"rejected": self._rejected}

    def saved(self) -> None:
        """Nothing is to be done."""

    def stop(self) -> None:
        """Nothing is to be done."""

    @property
    def _started(self) -> AppenderContext:
        if self._context is None:
            raise AppenderFailed("the appender was not started")
        return self._context

    def _send(self, events: pa.Table) -> None:
        if not self._started.holds():
            raise AppenderFailed("the lease is over")
        body = orjson.dumps(request_of(events))
        headers = {"Content-Type": "application/json"}
        if self._settings.compression == "gzip":
            body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
        answer = self._poster.post(body, headers)
        rejected, reason = _rejected_of(answer.body)
        if rejected:
            self._rejected += rejected
            said = f"{self._poster.host} rejected {rejected} of {events.num_rows} records"
            self._started.refuse(events, said, reason)


def split(events: pa.Table, most: int, most_bytes: int) -> Iterator[pa.Table]:
    """The events in tables of so many rows and bytes of messages at most."""
    sizes = pc.cast(pc.binary_length(events.column("message")), pa.int64()).to_pylist()
    start, total = 0, 0
    for row, size in enumerate(sizes):
        if row > start and (row - start >= most or total + size > most_bytes):
            yield events.slice(start, row - start)
            start, total = row, 0
        total += size
    if start < len(sizes):
        yield events.slice(start)


def request_of(events: pa.Table) -> dict[str, Any]:
    """An `ExportLogsServiceRequest` as OTLP writes it in JSON."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    names = ("fqn", "run_id", "ulid", "level", "connector_id", "message", "attributes")
    columns = [*[events.column(name).to_pylist() for name in names], orders_of(events)]
    stamps = events.column("ts").cast(pa.int64()).to_pylist()
    for stamp, (fqn, run, *record) in zip(stamps, zip(*columns, strict=True), strict=True):
        runs.setdefault((fqn, run), []).append(_record(stamp, *record))
    return {
        "resourceLogs": [
            {
                "resource": {
                    "attributes": _attributes({"service.name": fqn, "tailrace.run.id": run})
                },
                "scopeLogs": [{"scope": {"name": "tailrace"}, "logRecords": records}],
            }
            for (fqn, run), records in runs.items()
        ]
    }


def _record(
    stamp: int,
    uid: str,
    level: str | None,
    connector: str | None,
    message: str,
    attributes: list[tuple[str, str]] | None,
    order: str | None,
) -> dict[str, Any]:
    given = dict(attributes or ())
    more = {"log.record.uid": uid}
    if connector is not None:
        more["tailrace.connector.id"] = connector
    if order is not None:
        more["tailrace.order"] = order
    observed = ulid.time_ms(ulid.decode(uid)) * 1_000_000
    found: dict[str, Any] = {
        "timeUnixNano": str(max(stamp, 0) * 1000),
        "observedTimeUnixNano": str(observed),
        "body": {"stringValue": message},
        "attributes": _attributes({**given, **more}),
    }
    if level is not None:
        found["severityText"] = level
        found["severityNumber"] = _SEVERITY.get(level, 0)
    for name, (field, form) in _IDS.items():
        if form.fullmatch(given.get(name, "")):
            found[field] = given[name]
    return found


def _attributes(values: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"key": name, "value": {"stringValue": text}} for name, text in values.items()]


def _rejected_of(body: bytes) -> tuple[int, str]:
    """How many records the receiver says it rejected, and why."""
    try:
        partial = orjson.loads(body or b"{}").get("partialSuccess") or {}
        return int(partial.get("rejectedLogRecords", 0)), str(partial.get("errorMessage", ""))
    except (ValueError, AttributeError, TypeError):
        return 0, ""


# `webhook`: posts events as they come, as lines of JSON or a JSON array.
#
#   type: webhook
#   url: https://hooks.example.org/logs
#   headers: {Authorization: "Bearer ${TOKEN}"}
#
# An answer of 200 to 299 means received, and one of 400, 404, 413 or 422 a refusal that lasts: the
# refused events are found and refused one by one. Each event has its `ulid`, which with `fqn` and
# `run` identifies a repeated event.


class WebhookSettings(HttpTargetSettings):
    """Where events go, and how many at once."""

    format: Literal["ndjson", "json"] = setting("ndjson", "one JSON object per line, or an array")
    max_events: int = setting(500, "maximum number of events in a request", ge=1)
    max_request_size: Bytes = setting(1 << 20, "maximum size of a request's messages")


class Webhook:
    """Posts events."""

    settings: ClassVar[type[Section]] = WebhookSettings

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings
        self._poster = Poster(settings)
        self._context: AppenderContext | None = None

    def start(self, context: AppenderContext, state: State | None) -> None:  # noqa: ARG002 -- no state
        self._context = context

    def append(self, events: pa.Table) -> None:
        if self._context is None:
            raise AppenderFailed("the appender was not started")
        for some in split(events, self._settings.max_events, self._settings.max_request_size):
            deliver(some, self._post, self._context.refuse)

    def sync(self) -> State:
        return {}

    def saved(self) -> None:
        """Nothing is to be done."""

    def stop(self) -> None:
        """Nothing is to be done."""

    def _post(self, events: pa.Table) -> None:
        assert self._context is not None
        if not self._context.holds():
            raise AppenderFailed("the lease is over")
        texts = Json().lines(events).to_pylist()
        if self._settings.format == "ndjson":
            body, kind = "".join(texts), "application/x-ndjson"
        else:
            body, kind = f"[{','.join([text.rstrip() for text in texts])}]", "application/json"
        headers = {"Content-Type": kind, "Tailrace-Pipeline": self._context.pipeline}
        self._poster.post(body.encode(), headers)
