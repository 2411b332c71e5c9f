"""Serves what OpenMetadata's client reports of a run: pipelineStatus, progress and metrics.

A report is answered with 200 once it is stored, and with 503 if the store is unavailable. The
client's JSON is stored and returned unchanged. A status that was never sent is 204 without a body,
as upstream: the client asks for it before it sends its first one, and an error would keep it from
sending any.

`GET /progress/{fqn}/stream/{runId}` sends the progress of a run as server-sent events:

    id: <version>
    data: <the JSON object that the client sent>

The stream begins with the last stored progress. Then it sends each change; of several changes
between two sends it sends only the newest. It ends, with an event named `complete`, when the run's
live streams end. The tail's next heartbeat finds progress that was sent to another node.

sse-starlette sends the events and a silent stream's comments, and ends the reply when its client
disconnects. Decision 074 says why the live view of lines does not use it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Any, Final

import orjson
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from sse_starlette import EventSourceResponse, ServerSentEvent

from service.http import sse
from service.http.api import NodeApi
from service.http.body import json_object
from service.http.targets import ROOT, check_new_run, name, run_key
from service.runtime.counters import HttpCounters
from service.status.reports import REPORTED
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import InvalidInput, TailraceError
from tailrace.logstore.runs.report import RunReport

HEARTBEAT: Final = "Tailrace-Heartbeat"
"""In the reply to a status with `heartbeat`: seconds until the client must repeat it."""
_EVENTS = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
_OBJECT = {"content": {"application/json": {"schema": {"type": "object"}}}}
_TAKES: dict[str, Any] = {"requestBody": {"required": True, **_OBJECT}}
_MILLISECONDS = {"type": ["integer", "null"], "description": "Milliseconds since 1970."}
_TAKES_STATUS: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "description": "Anything beside these is kept and given back as it is.",
                    "required": ["runId"],
                    "properties": {
                        "runId": {"type": "string", "minLength": 1},
                        "pipelineState": {"enum": [*sorted(REPORTED), None]},
                        "startDate": _MILLISECONDS,
                        "timestamp": _MILLISECONDS,
                        "endDate": _MILLISECONDS,
                        "heartbeat": {
                            "type": "boolean",
                            "description": "Whether the client repeats this status while it lives,"
                            f" every so many seconds as the reply's `{HEARTBEAT}` says."
                            " A client with this field sends `startDate`: a `running` that"
                            " arrives after the end of the same run does not replace it.",
                        },
                    },
                }
            }
        },
    }
}
_MOST_METRICS = 1000
_TIMES = ("startDate", "timestamp", "endDate")

HEARTBEAT_EVENT: Final = ServerSentEvent(comment="heartbeat", sep="\n")


class Paging(BaseModel):
    """OpenMetadata's form: the given bounds, and the number of rows.

    If there are more rows, pass `next` as the parameter `next` to get them.
    """

    before: str | None = None
    after: str | None = None
    next: str | None = None
    total: int


class StatusList(BaseModel):
    """Statuses by `timestamp`, newest first."""

    data: list[dict[str, Any]]
    paging: Paging


def status_routes(node: NodeApi) -> APIRouter:
    """Returns the routes of `…/{fqn}/pipelineStatus`."""
    router = APIRouter(prefix=ROOT, tags=["status"])

    @router.put(
        "/{fqn}/pipelineStatus",
        summary="Report the status of a run",
        response_class=JSONResponse,
        responses={200: {"description": "The stored status.", **_OBJECT}},
        openapi_extra=_TAKES_STATUS,
    )
    async def put_status(fqn: str, request: Request) -> Response:
        value = await json_object(request)
        run = _checked(value)
        key = RunKey(name(fqn.encode(), "fqn"), run)
        check_new_run(key)
        report = await node.status.put(key, value)
        reply = _json(report.body)
        seconds = node.status.heartbeat_seconds(report.said)
        if seconds is not None:
            reply.headers[HEARTBEAT] = f"{seconds:g}"
        return reply

    @router.get(
        "/{fqn}/pipelineStatus/{runId}",
        summary="Status of a run",
        response_class=JSONResponse,
        responses={
            200: {"description": "The latest status.", **_OBJECT},
            204: {"description": "No status was sent."},
        },
    )
    async def get_status(fqn: str, runId: str) -> Response:  # noqa: N803
        report = await node.status.get(run_key(fqn, runId))
        return Response(status_code=204) if report is None else _json(report.body)

    @router.get(
        "/{fqn}/pipelineStatus",
        summary="Statuses of the runs of a pipeline",
        response_class=JSONResponse,
        responses={200: {"description": "Newest first.", "model": StatusList}},
    )
    async def list_statuses(
        fqn: str,
        startTs: Annotated[int | None, Query(description="Not before: ms since 1970.")] = None,  # noqa: N803
        endTs: Annotated[int | None, Query(description="Not after: ms since 1970.")] = None,  # noqa: N803
        limit: Annotated[
            int | None, Query(ge=1, description="At most; 5 if nothing is given.")
        ] = None,
        next: Annotated[  # noqa: A002
            str | None, Query(description="`paging.next` of the previous page.")
        ] = None,
    ) -> Response:
        pipeline = name(fqn.encode(), "fqn")
        found = await node.status.of_pipeline(
            pipeline, start=startTs, end=endTs, limit=limit, after=next
        )
        paging = Paging(
            before=None if startTs is None else str(startTs),
            after=None if endTs is None else str(endTs),
            next=found.next,
            total=len(found.reports),
        )
        return _listed(found.reports, paging.model_dump(exclude_none=True))

    return router


def progress_routes(node: NodeApi, max_readers: int, counters: HttpCounters) -> APIRouter:
    """Returns the routes of `…/progress/…` and `…/metrics/…`."""
    router = APIRouter(prefix=ROOT, tags=["status"])

    @router.put(
        "/progress/{fqn}/{runId}",
        summary="Report the progress of a run",
        response_class=Response,
        responses={200: {"description": "Stored."}},
        openapi_extra=_TAKES,
    )
    async def put_progress(fqn: str, runId: str, request: Request) -> Response:  # noqa: N803
        await node.status.put_progress(run_key(fqn, runId), await json_object(request))
        return Response()

    @router.get(
        "/progress/{fqn}/{runId}",
        summary="Progress of a run",
        response_class=JSONResponse,
        responses={
            200: {"description": "The latest progress.", **_OBJECT},
            204: {"description": "Nothing was sent."},
        },
    )
    async def get_progress(fqn: str, runId: str) -> Response:  # noqa: N803
        report = await node.status.progress(run_key(fqn, runId))
        return Response(status_code=204) if report is None else _json(report.body)

    @router.get(
        "/progress/{fqn}/stream/{runId}",
        summary="Progress of a run, live, as server-sent events",
        response_class=Response,
        responses={200: {"description": "The latest progress, then each change.", **_EVENTS}},
    )
    async def stream_progress(fqn: str, runId: str) -> Response:  # noqa: N803
        return ProgressStream(node, run_key(fqn, runId), max_readers=max_readers, counters=counters)

    @router.post(
        "/metrics/{fqn}/{runId}",
        summary="Send a batch of metrics of a run",
        response_class=Response,
        responses={200: {"description": "Stored."}},
        openapi_extra=_TAKES,
    )
    async def add_metrics(fqn: str, runId: str, request: Request) -> Response:  # noqa: N803
        await node.status.add_metrics(run_key(fqn, runId), await json_object(request))
        return Response()

    @router.get(
        "/metrics/{fqn}/{runId}",
        summary="Batches of metrics of a run, oldest first",
        response_class=JSONResponse,
        responses={
            200: {
                "description": "The batches as they were sent; `paging.next` if there are more.",
                **_OBJECT,
            }
        },
    )
    async def get_metrics(
        fqn: str,
        runId: str,  # noqa: N803
        limit: Annotated[
            int, Query(ge=1, le=_MOST_METRICS, description="Batches at most.")
        ] = _MOST_METRICS,
        next: Annotated[  # noqa: A002
            str | None, Query(description="`paging.next` of the previous page.")
        ] = None,
    ) -> Response:
        after = 0 if next is None else int(ulids.parse(next))
        found = await node.status.metrics(run_key(fqn, runId), after=after, limit=limit)
        return _listed(found.reports, None if found.next is None else {"next": found.next})

    return router


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _listed(reports: list[RunReport], paging: dict[str, Any] | None) -> Response:
    """Lists the bodies as they are stored, without parsing them."""
    data = b",".join(report.body for report in reports)
    if paging is None:
        return _json(b'{"data":[%b]}' % data)
    return _json(b'{"data":[%b],"paging":%b}' % (data, orjson.dumps(paging)))


def _checked(value: dict[str, Any]) -> str:
    """Returns the run of a status whose known fields are valid. Raises `InvalidInput`."""
    state = value.get("pipelineState")
    if state is not None and not (isinstance(state, str) and state in REPORTED):
        raise InvalidInput(
            f"pipelineState is {str(state)[:40]!r}",
            field="pipelineState",
            hint=f"One of {', '.join(sorted(REPORTED))}.",
        )
    for field in _TIMES:
        if type(value.get(field, 0)) is not int and value[field] is not None:
            raise InvalidInput(f"{field} is not a whole number of milliseconds", field=field)
    run = value.get("runId")
    if not isinstance(run, str):
        raise InvalidInput("runId is missing, or not a string", field="runId")
    return run


async def run_is_over(node: NodeApi, key: RunKey) -> bool:
    """Returns true if the streams of a run other than its lines end now."""
    with suppress(TailraceError):
        if (await node.run_logs.reader.size(key)).state == "closed":
            return True
    return await node.status.over(key)


class RunStatusStream(EventSourceResponse):
    """A response that lasts until its run ends, its client disconnects or the node stops.

    A subclass yields its events, each through `_counted`.
    """

    def __init__(
        self, node: NodeApi, key: RunKey, *, max_readers: int, counters: HttpCounters
    ) -> None:
        super().__init__(
            self._events(),
            ping=node.tail.settings.heartbeat_seconds,
            ping_message_factory=self._heartbeat,
        )
        # Without the library's `connection: keep-alive`: a client of HTTP/1.0 would take it for a
        # promise, but for such a client this reply ends with its connection.
        self.raw_headers = list(sse.HEADERS)
        self._node = node
        self._key = key
        self._max_readers = max_readers
        self._counters = counters

    @abstractmethod
    def _events(self) -> AsyncIterator[bytes]:
        """Yields the events until the reply is over."""

    def _counted(self, event: bytes) -> bytes:
        self._counters.stream_events += 1
        self._counters.stream_bytes += len(event)
        return event

    def _heartbeat(self) -> ServerSentEvent:
        self._counted(sse.HEARTBEAT)
        return HEARTBEAT_EVENT


class ProgressStream(RunStatusStream):
    """The newest progress of a run, then each change."""

    _sent = 0

    async def _events(self) -> AsyncIterator[bytes]:
        tail, status = self._node.tail, self._node.status
        if tail.readers >= self._max_readers:
            return
        with sse.watching(tail, self._key, self._counters) as watcher:
            stored = await watcher.unless_left(self._stored())
            over: bool | None = None
            while not watcher.gone:
                # Nothing is awaited between the last read and the wait, so no nudge is missed.
                newer = self._newer(stored) or self._newer(status.progress_here(self._key))
                if newer is not None:
                    self._sent = newer.version
                    yield self._counted(_event(newer))
                elif over is None:
                    over = await watcher.unless_left(run_is_over(self._node, self._key))
                elif over or watcher.channel.ended is not None:
                    yield self._counted(sse.COMPLETE)
                    return
                elif await watcher.wait() == "heartbeat":
                    stored = await watcher.unless_left(self._stored())
                    over = None

    async def _stored(self) -> RunReport | None:
        """Returns the stored progress, or None; the next heartbeat repeats a read that failed."""
        with suppress(TailraceError):
            return await self._node.status.progress(self._key)
        return None

    def _newer(self, report: RunReport | None) -> RunReport | None:
        return None if report is None or report.version <= self._sent else report


def _event(report: RunReport) -> bytes:
    return b"id: %b\n%b" % (ulids.encode(report.version).encode(), sse.json_data(report.body))
