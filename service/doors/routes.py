"""Answers requests at doors: reads, admits, decodes, stores and replies, for every protocol alike.

A request takes the way of an append: the rules of access and quotas before its body is read, the
memory budget and the limits of bodies, the journal, and an answer when it is durable. Its records
may be of many runs. Each run's batch has an outcome of its own, and the door makes one reply of
all.

Invariants: nothing is stored unless the whole body arrived and decoded. A batch of a pipeline to
which the sender may not append is refused, and the others are stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl

from service.access.rules import Identity
from service.doors.door import (
    RETRYABLE,
    Door,
    DoorRequest,
    Headers,
    Outcome,
    Reply,
    status_of,
)
from service.doors.elasticsearch import ElasticsearchDoor
from service.doors.loki import LokiDoor
from service.doors.otlp import OtlpDoor
from service.doors.records import DoorRecords, RunRecords, RunRule, client_name
from service.doors.repeats import Repeats, Storing, error_of
from service.doors.settings import DoorSettings
from service.doors.splunk import SplunkDoor
from service.http.append import AppendRoutes, reply_to
from service.http.authorization import NAMES, WHO
from service.http.body import (
    BodyTooLarge,
    Message,
    Receive,
    Scope,
    Send,
    Share,
    StoodStill,
    declared_length,
    drain,
    read_rest,
)
from service.http.errors import HttpError, problem
from service.http.replies import CONNECTION, ReplyConnection, TimedRequest
from service.http.targets import request_id
from service.ingest.batch import IncomingBatch
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import Forbidden, NodeNotReady, TailraceError

T = TypeVar("T")
_IN_PLACE: Final = 16 << 10
"""Bodies up to this size are decoded at once: records cost more than lines of text."""
_PIECE: Final = 64 << 10


def open_doors(settings: DoorSettings, repeats: Repeats) -> list[Door]:
    """Returns the doors that are not turned off."""
    rule = RunRule(settings)
    return [
        *([OtlpDoor(rule)] if settings.otlp else []),
        *([LokiDoor(rule)] if settings.loki else []),
        *([ElasticsearchDoor(rule, repeats.ids)] if settings.elasticsearch else []),
        *([SplunkDoor(rule)] if settings.splunk else []),
    ]


class DoorRoutes:
    """Answers the requests of all doors; returns None for any other."""

    def __init__(
        self, append: AppendRoutes, repeats: Repeats, settings: DoorSettings, clock: Clock
    ) -> None:
        self._append = append
        self._repeats = repeats
        self._doors = open_doors(settings, repeats)
        self._now_ms = clock.now_ms

    def answer(self, scope: Scope, receive: Receive, send: TimedRequest) -> Awaitable[None] | None:
        """Returns the coroutine that answers a request at a door."""
        method, path = scope["method"], scope["path"]
        for door in self._doors:
            pattern = door.path_of(method, path)
            if pattern is not None:
                request = _request(scope)
                if pattern == "/" and door.probe(request) is None:
                    return None
                send.path = pattern
                return self._admit(door, request, scope, receive, send)
            if method != "POST" and door.path_of("POST", path) is not None:
                wrong = HttpError(405, f"{method} is not taken", headers=[("allow", "POST")])
                return self._refuse(door, _request(scope), wrong, scope, receive, send)
        return None

    async def _admit(
        self, door: Door, request: DoorRequest, scope: Scope, receive: Receive, send: TimedRequest
    ) -> None:
        control = self._append.control
        if control is None or send.path == "/":
            await self._answer(door, request, scope, receive, send)
            return
        await control.append(
            scope,
            receive,
            None,
            lambda counted: self._answer(door, request, scope, counted, send),
            lambda error: self._refuse(door, request, error, scope, receive, send),
        )

    async def _answer(
        self, door: Door, request: DoorRequest, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            reply = door.probe(request)
            if reply is None:
                first = await receive()
                if first["type"] == "http.disconnect":
                    self._append.counters.disconnects += 1
                    return
                share = self._append.budget.share()
                try:
                    reply = await self._take(door, request, scope, first, receive, share)
                    if reply is not None:
                        await self._send(reply, scope, send, share)
                finally:
                    share.end()
            else:
                await reply_to(send, reply.status, reply.headers, reply.body)
        except asyncio.CancelledError:  # a stop waits no longer
            error = NodeNotReady("the node is stopping")
            await self._refuse(door, request, error, scope, receive, send)
        except Exception as error:  # noqa: BLE001 -- every error is an answer
            await self._refuse(door, request, error, scope, receive, send)

    async def _take(
        self,
        door: Door,
        request: DoorRequest,
        scope: Scope,
        first: Message,
        receive: Receive,
        share: Share,
    ) -> Reply | None:
        """Reads, decodes and stores what a request brings; None if its client left."""
        if not await self._read(door, request, first, receive, share):
            return None
        while True:
            records = await self._decode(door, request)
            # Before the look: others may store the same documents while this one waits for room.
            await share.reserve(max(records.reply_bytes - share.held, 0))
            if not door.stale(records):
                break
        request.body = b""
        return await self._store(door, request, records, scope)

    async def _read(
        self,
        door: Door,
        request: DoorRequest,
        first: Message,
        receive: Receive,
        share: Share,
    ) -> bool:
        """Reads and inflates the body; returns false if the client left."""
        counters, most = self._append.counters, self._append.settings.max_body_bytes
        if (declared_length(request.header(b"content-length")) or 0) > most:
            raise BodyTooLarge(most)
        inflate = door.inflater(request)
        body = await read_rest(first, receive, most, share)
        if body is None:
            counters.disconnects += 1
            return False
        counters.body_bytes += len(body)
        if inflate is not None:
            sent = body
            body = await self._append.within_budget(
                lambda bounds: inflate(sent, bounds, "body"), len(sent), share
            )
            share.charge(len(body))
        request.body, request.size = body, len(body)
        return True

    async def _decode(self, door: Door, request: DoorRequest) -> DoorRecords:
        bounds, now = self._append.bounds, self._now_ms() * 1000
        return await self._run(request, lambda: door.decode(request, bounds, now))

    async def _run(self, request: DoorRequest, work: Callable[[], T]) -> T:
        """Returns the result of `work`, called in a thread if the request is large."""
        if request.size <= _IN_PLACE:
            return work()
        return await self._append.in_thread(work)

    async def _store(
        self, door: Door, request: DoorRequest, records: DoorRecords, scope: Scope
    ) -> Reply:
        counters, control = self._append.counters, self._append.control
        if control is not None:
            control.confirm(scope)
        outcome = Outcome(refused=[(each.places, each.error) for each in records.refused])
        storing: list[tuple[RunRecords, Storing]] = []
        connector = f"{door.name}/{_client(scope)}"
        for run in records.runs:
            try:
                self._check_right(scope, run.key.fqn)
            except TailraceError as error:
                outcome.refused.append((run.places, error))
            else:
                storing.append((run, self._begin(run, connector)))
        waited = {*door.begun(records, storing), *[task for _, task in storing]}
        if waited:
            await asyncio.wait(waited)
        for run, task in storing:
            wrong = error_of(task)
            if wrong is None:
                outcome.receipts.append((run, task.result()))
            else:
                self._note(wrong, scope)
                outcome.refused.append((run.places, wrong))
        counters.replaced += records.replaced
        counters.door_records[door.name] += outcome.stored
        counters.door_repeats[door.name] += outcome.repeated
        counters.door_refused[door.name] += outcome.refusals
        reply = await self._run(request, lambda: _made(door, request, records, outcome))
        return _with_retry(reply, outcome.for_now())

    async def _send(self, reply: Reply, scope: Scope, send: Send, share: Share) -> None:
        """Sends a reply, which counts in the budget until its client has taken it.

        A client that takes nothing while others wait for this memory is cut off.
        """
        body = reply.body
        if len(body) <= _IN_PLACE:
            await reply_to(send, reply.status, reply.headers, body)
            return
        share.charge(len(body) - share.held)
        headers = [*reply.headers, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        try:
            async with asyncio.timeout(None) as share.patience:
                for at in range(0, len(body), _PIECE):
                    piece, end = body[at : at + _PIECE], at + _PIECE
                    more = end < len(body)
                    await send({"type": "http.response.body", "body": piece, "more_body": more})
                    share.charge(-len(piece))
        except TimeoutError:
            reader: ReplyConnection | None = scope.get(CONNECTION)
            if reader is not None:
                reader.cut_off()
        finally:
            share.patience = None

    def _begin(self, run: RunRecords, connector: str) -> Storing:
        batch = IncomingBatch(
            run.key, run.text, len(run.places), run.lines, connector=connector, meta=run.meta
        )
        return self._repeats.append(batch, timed=run.timed)

    def _check_right(self, scope: Scope, fqn: str) -> None:
        names = scope.get(NAMES)
        if names is None or names.hold(fqn):
            return
        error = Forbidden(f"there is no right to append to the pipeline {fqn[:200]!r}")
        control = self._append.control
        if control is not None:
            control.refused(scope, error, fqn)
        raise error

    def _note(self, error: BaseException, scope: Scope) -> None:
        """Logs an error that is not the client's, as every route does."""
        problem(error, request_id(scope["headers"], self._append.fresh_id()))

    async def _refuse(
        self,
        door: Door,
        request: DoorRequest,
        error: Exception,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._append.counters.append_refused += 1
        self._note(error, scope)
        if isinstance(error, BodyTooLarge):
            await drain(receive, self._append.settings.max_body_bytes)
        reply = _with_retry(door.refusal(request, status_of(error), error), error)
        made = problem(error, "") if reply.status == 401 else None
        more: Headers = [h for h in made.headers if h[0] == b"www-authenticate"] if made else []
        if isinstance(error, HttpError):
            more += [(name.encode(), value.encode()) for name, value in error.headers]
        if isinstance(error, BodyTooLarge | StoodStill):
            more.append((b"connection", b"close"))
        await reply_to(send, reply.status, [*reply.headers, *more], reply.body)


def _made(door: Door, request: DoorRequest, records: DoorRecords, outcome: Outcome) -> Reply:
    """Makes the reply, and frees here what it was made of: that takes long, and not in the loop."""
    reply = door.reply(request, records, outcome)
    records.items = None
    records.runs.clear()
    records.refused.clear()
    outcome.receipts.clear()
    return reply


def _request(scope: Scope) -> DoorRequest:
    query = scope["query_string"].decode("latin-1")
    return DoorRequest(
        scope["method"],
        scope["path"],
        dict(parse_qsl(query, keep_blank_values=True)),
        dict(scope["headers"]).get,
    )


def _client(scope: Scope) -> str:
    """Returns the name of the sender by the rules of access, else its address."""
    who: Identity | None = scope.get(WHO)
    if who is not None:
        return client_name(who.name)
    client = scope.get("client")
    return "unknown" if client is None else client_name(client[0])


def _with_retry(reply: Reply, error: BaseException | None) -> Reply:
    """Returns the reply, with the pause after which its client may try again."""
    if reply.status not in RETRYABLE:
        return reply
    seconds = getattr(error, "retry_after_seconds", 1)
    return reply._replace(headers=[*reply.headers, (b"retry-after", b"%d" % seconds)])


# --- Their operations in openapi.yaml -----------------------------------------------------------


def _operation(
    name: str, summary: str, description: str, status: str, done: str, *kinds: str
) -> dict[str, Any]:
    content = {kind: {"schema": {"type": "string", "format": "binary"}} for kind in kinds}
    return {
        "tags": ["doors"],
        "summary": summary,
        "operationId": name,
        "description": description,
        "requestBody": {"required": True, "content": content},
        "responses": {
            status: {"description": done},
            "default": {"description": "An error, in the shape of the protocol."},
        },
    }


_JSON: Final = "application/json"
_PROTOBUF: Final = "application/x-protobuf"
_BULK: Final = _operation(
    "bulk",
    "Store documents, as Elasticsearch",
    "Each item has its own result. Only `create` and `index` are taken.",
    "200",
    "The result of each item.",
    "application/x-ndjson",
)
OPERATIONS: Final[dict[str, dict[str, Any]]] = {
    "/v1/logs": _operation(
        "otlp",
        "Store logs of OpenTelemetry (OTLP/HTTP)",
        "An ExportLogsServiceRequest in protobuf or JSON, plain, gzip or zstd.",
        "200",
        "An ExportLogsServiceResponse, with `partial_success` if records were refused.",
        _PROTOBUF,
        _JSON,
    ),
    "/loki/api/v1/push": _operation(
        "lokiPush",
        "Store entries, as Loki",
        "A PushRequest in protobuf and snappy, or JSON, plain or gzip.",
        "204",
        "Stored.",
        _PROTOBUF,
        _JSON,
    ),
    "/_bulk": _BULK,
    "/{index}/_bulk": {
        **_BULK,
        "operationId": "bulkOfIndex",
        "parameters": [
            {"name": "index", "in": "path", "required": True, "schema": {"type": "string"}}
        ],
    },
    "/services/collector/event": _operation(
        "hecEvent",
        "Store events, as Splunk's HTTP Event Collector",
        "JSON objects with `event`, one after another.",
        "200",
        "Stored.",
        _JSON,
    ),
    "/services/collector/raw": _operation(
        "hecRaw",
        "Store lines, as Splunk's HTTP Event Collector",
        "Lines of text.",
        "200",
        "Stored.",
        "text/plain",
    ),
}
