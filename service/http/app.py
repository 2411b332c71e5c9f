"""Builds the node's HTTP API as one ASGI callable, and writes its OpenAPI schema.

`BrowserGuard` first refuses requests that a browser sent for a page of another site. Then method
and path prefix decide: appends go to `AppendRoutes` without a framework; all other requests go to
FastAPI, under a path with quoted names (`targets.canonical`), so that each name is one segment.

The schema is FastAPI's, with the two raw routes (append and close) that FastAPI does not know, and
problems as errors. The module also writes openapi.yaml, always the same text for the same app:

    python -m service.http.app > openapi.yaml
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final, cast

import yaml
from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from service.doors.repeats import Repeats
from service.doors.routes import OPERATIONS, DoorRoutes
from service.erasure import Erasure
from service.http import errors
from service.http.admin import Open, OpenPipelines, deletion_routes, lease_routes, pipeline_routes
from service.http.api import NodeApi
from service.http.append import AppendRoutes
from service.http.authorization import AccessControl, RequiredScope, find_required_scope
from service.http.body import CountedBody, Receive, Scope, Send
from service.http.browsers import BrowserGuard
from service.http.cdap import cdap_routes
from service.http.decode import FIELD, MOST_ATTRIBUTES, MOST_BYTES, TEXT_AND_ATTRIBUTES
from service.http.download import download_routes
from service.http.errors import answer_head, api_routes, methods_of
from service.http.listing import last_routes, listing_routes
from service.http.live import live_routes, unfinished_routes
from service.http.live_query import query_stream_routes
from service.http.loki import loki_query_routes
from service.http.loki_labels import loki_label_routes
from service.http.loki_tail import loki_tail_routes
from service.http.pages import page_routes
from service.http.query import router as query_routes
from service.http.query_facets import completion_routes, count_routes, histogram_routes
from service.http.replies import APPEND, CLOSE, LEFT, Replies, TimedRequest
from service.http.segments import group_routes, queue_routes, reading_routes
from service.http.static import docs_routes, web_routes
from service.http.status import progress_routes, status_routes
from service.http.system import Verifier, health_routes, verify_routes, version_routes
from service.http.targets import BASE, PREFIX, canonical, canonical_beside
from service.peers.rpc import PATH as NODES
from service.query.engine import QueryEngine
from service.query.live_search import LiveMatches
from service.queue.contents import Contents
from service.queue.queue import SegmentQueue
from service.runtime.counters import HttpCounters, metered_append
from service.runtime.store_deadline import for_request
from service.settings import REPORTED_VERSION, HttpSettings
from tailrace.logstore import ulid as ulids
from tailrace.logstore.clock import Clock, Entropy, SystemClock, system_entropy
from tailrace.logstore.errors import NodeNotReady

# --- The schema of the HTTP API -----------------------------------------------------------------


def _path_parameter(name: str, description: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string"},
    }


_NAMES: Final = [
    _path_parameter("fqn", "The pipeline's fully qualified name; a `/` in it may stay unquoted."),
    _path_parameter("runId", "The run: the last segment before the verb."),
]
_PROBLEMS: Final = ("400", "404", "408", "409", "413", "414", "415", "431", "503", "507")
_PROBLEM: Final = {"$ref": "#/components/responses/Problem"}
_OBJECT: Final = {
    "type": "object",
    "properties": {
        "logs": {
            "type": "string",
            "description": "The lines. Missing or empty: nothing is stored.",
        },
        "connectorId": {
            "type": "string",
            "description": "Name of the sender, kept with each record.",
        },
        "compressed": {"type": "boolean", "description": "`logs` is base64 of gzip of UTF-8."},
        "timestamp": {"type": "integer", "description": "Accepted and not used."},
        "lineCount": {"type": "integer", "description": "Accepted and not used."},
    },
}
_RECORDS: Final = (
    'One object per line: {"message", "ts", "level", "attributes"}. Each is one record, '
    "also with newlines in its message."
)
_APPENDED: Final = {
    "type": "object",
    "required": ["batch", "lines", "duplicate", "durability", "last"],
    "properties": {
        "batch": {"type": ["string", "null"], "description": "ULID of the batch."},
        "lines": {"type": "integer", "description": "Records stored."},
        "duplicate": {
            "type": "boolean",
            "description": "The batch was already stored; nothing was stored again.",
        },
        "durability": {"type": "string"},
        "last": {"type": ["string", "null"], "description": "ULID of the last record."},
        "replaced": {
            "type": "integer",
            "description": "Characters that were not UTF-8 and became U+FFFD; absent without any.",
        },
        "unknownLevels": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Up to 10 unknown levels of records; absent without any. Each record"
            " keeps its own as the attribute `level`.",
        },
        "silent": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Nodes that do not answer this node; absent without any. A deletion of"
            " the run at such a node may take the batch back.",
        },
    },
}


def _header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": {"type": "string", **schema},
    }


APPEND_OPERATION: Final[dict[str, Any]] = {
    "tags": ["runs"],
    "summary": "Append lines to a run",
    "operationId": "append",
    "description": (
        "Stores a batch of lines once, and answers when it is as safe as `Tailrace-Durability` "
        "asks. The reply sets cookies that carry the run's last ULID; a client that returns them "
        "gets its batches in order over nodes with different clocks."
    ),
    "parameters": [
        *_NAMES,
        _header(
            "Tailrace-Batch",
            "The batch's ULID, with its low 25 bits zero. A batch that is sent again with it is"
            " stored once.",
            minLength=26,
            maxLength=26,
        ),
        _header(
            "Tailrace-Durability",
            "When to acknowledge: `fast` after the write, `durable` after the sync, `bulk` when"
            " it is in the object store.",
            enum=["fast", "durable", "bulk"],
            default="durable",
        ),
        _header(
            FIELD,
            "Attributes of every line: a JSON object in ASCII with at most "
            f"{MOST_ATTRIBUTES} attributes. Only for text/plain. With the Content-Type "
            f"`{TEXT_AND_ATTRIBUTES.decode()}` a service that does not know the header, "
            "or does not get it, answers 415.",
            maxLength=MOST_BYTES,
        ),
        _header(
            "Content-Encoding", "Encoding of the whole body.", enum=["gzip", "zstd", "identity"]
        ),
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"oneOf": [{"type": "string"}, _OBJECT]}},
            "text/plain": {"schema": {"type": "string", "description": "Raw lines."}},
            "application/x-ndjson": {"schema": {"type": "string", "description": _RECORDS}},
        },
    },
    "responses": {
        "200": {
            "description": "Stored now, already stored, or nothing to store.",
            "headers": {"Tailrace-Last": {"schema": {"type": "string"}}},
            "content": {"application/json": {"schema": _APPENDED}},
        },
        **dict.fromkeys(_PROBLEMS, _PROBLEM),
    },
}

CLOSE_OPERATION: Final[dict[str, Any]] = {
    "tags": ["runs"],
    "summary": "Close a run",
    "operationId": "close",
    "description": "Idempotent, also for a run that does not exist. A later batch reopens the run.",
    "parameters": _NAMES,
    "responses": {
        "200": {
            "description": "Closed, or recorded and closing.",
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": ["message", "state"],
                        "properties": {
                            "message": {"type": "string"},
                            "state": {"type": "string", "enum": ["closed", "closing"]},
                        },
                    }
                }
            },
        },
        **dict.fromkeys(("400", "404", "503"), _PROBLEM),
    },
}

PATHS: Final = {
    BASE + "/{fqn}/{runId}": APPEND_OPERATION,
    BASE + "/{fqn}/{runId}/close": CLOSE_OPERATION,
}

PROBLEM: Final[dict[str, Any]] = {
    "description": "An error: RFC 9457, and OpenMetadata's `code` and `message`.",
    "content": {
        "application/problem+json": {
            "schema": {
                "type": "object",
                "required": [
                    "type",
                    "title",
                    "status",
                    "detail",
                    "hint",
                    "request_id",
                    "code",
                    "message",
                ],
                "properties": {
                    "type": {
                        "type": "string",
                        "description": "Stable identifier of the error, for programs.",
                    },
                    "title": {"type": "string"},
                    "status": {"type": "integer"},
                    "detail": {"type": "string"},
                    "hint": {"type": "string", "description": "What to do about it."},
                    "request_id": {"type": "string"},
                    "code": {"type": "integer"},
                    "message": {"type": "string"},
                    "field": {"type": "string", "description": "The invalid part of the input."},
                    "deleted_through": {
                        "type": "string",
                        "description": "`run-deleted`: ids at or below this ULID are refused.",
                    },
                    "deleted_at": {
                        "type": "string",
                        "format": "date-time",
                        "description": "`run-deleted`: when the run was deleted.",
                    },
                    "deleted_ms_ago": {
                        "type": "integer",
                        "description": "`run-deleted`: how long before this answer that was.",
                    },
                    "next_batch": {
                        "type": "string",
                        "description": "`run-deleted`: a batch id after the deletion, for lines"
                        " that were logged later.",
                    },
                },
            }
        }
    },
}


SECURITY: Final[dict[str, Any]] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token `trl_…` or a JWT, if the service has rules of access.",
    }
}


_VALIDATION = ("HTTPValidationError", "ValidationError")


def complete(app: FastAPI) -> dict[str, Any]:
    """Returns the schema of the whole service."""
    schema = deepcopy(FastAPI.openapi(app))  # FastAPI keeps its own object and returns it again
    paths = schema["paths"]
    for path, operation in deepcopy({**PATHS, **OPERATIONS}).items():
        paths.setdefault(path, {})["post"] = operation
    components = schema.setdefault("components", {})
    components.setdefault("responses", {})["Problem"] = PROBLEM
    for name in _VALIDATION:
        components.get("schemas", {}).pop(name, None)
    components["securitySchemes"] = SECURITY
    for path, operations in paths.items():
        for method, operation in operations.items():
            _describe_errors(operation["responses"])
            _describe_access(operation, find_required_scope(path, method.upper()))
    schema["paths"] = dict(sorted(paths.items()))
    return schema


def _describe_errors(responses: dict[str, Any]) -> None:
    if responses.pop("422", {}).get("description") == "Validation Error":
        responses["400"] = {"$ref": "#/components/responses/Problem"}
    responses.setdefault("default", {"$ref": "#/components/responses/Problem"})


def _describe_access(operation: dict[str, Any], required: RequiredScope | None) -> None:
    """Describes the access that a caller needs if access rules exist.

    Adds nothing without rules.
    """
    if required is None:
        operation["security"] = []
        return
    operation["security"] = [{"bearer": []}, {}]
    either = " or ".join([f"`{scope}`" for scope in required.scopes])
    says = f"With rules of access: the scope {either} for {required.pipelines.value}."
    known = operation.get("description")
    operation["description"] = f"{known}\n\n{says}" if known else says


def render(schema: dict[str, Any]) -> str:
    """Returns the schema as YAML, the same for the same schema."""
    return yaml.safe_dump(schema, sort_keys=False, allow_unicode=True, width=100)


log = logging.getLogger(__name__)

LONG_REPLIES = frozenset(
    [
        BASE,
        *(f"{BASE}{path}" for path in ("/{fqn}", "/{fqn}/last", "/{fqn}/last/download")),
        *(f"{BASE}{path}" for path in ("/{fqn}/{runId}", "/{fqn}/{runId}/download")),
        *(f"{BASE}/{{fqn}}/{{runId}}/{verb}" for verb in ("logs", "next", "prev")),
        *("/segments", "/segments/deletions", "/segments/groups", "/segments/{id}"),
    ]
)
"""Routes whose replies may be long."""
_READS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class HttpApi:
    """The parts of the app other than the node."""

    settings: HttpSettings = field(default_factory=HttpSettings)
    counters: HttpCounters = field(default_factory=HttpCounters)
    clock: Clock = field(default_factory=SystemClock)
    entropy: Entropy = field(default_factory=system_entropy)
    scrape: Callable[[], Awaitable[bytes]] | None = None
    query: Callable[[], QueryEngine] | None = None
    live: Callable[[], LiveMatches] | None = None
    queue: Callable[[], SegmentQueue] | None = None
    contents: Callable[[], Contents] | None = None
    leases: Open | None = None
    pipelines: OpenPipelines | None = None
    verification: Verifier | None = None
    erasure: Callable[[], Erasure] | None = None
    reported_version: str = REPORTED_VERSION
    guard: BrowserGuard = field(default_factory=BrowserGuard)
    control: AccessControl | None = None
    routers: tuple[APIRouter, ...] = ()


class Application:
    """The ASGI callable; not a coroutine function, which saves one coroutine per append."""

    def __init__(
        self,
        append: AppendRoutes,
        doors: DoorRoutes,
        rest: ASGIApp,
        guard: BrowserGuard,
        settings: HttpSettings,
    ) -> None:
        self.append = append
        self._doors = doors
        self.settings = settings
        self._rest = rest
        self._guard = guard

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self._rest(scope, receive, send)
        timed = TimedRequest(scope, send, self.append.counters.request_seconds)
        return timed.run(self._answer(scope, receive, timed), self.append.now, self._cut_off)

    def _answer(self, scope: Scope, receive: Receive, send: TimedRequest) -> Awaitable[None]:
        refusal = self._guard.check(scope["method"], scope["path"], scope["headers"])
        refusal = refusal or errors.refusal(
            self.settings.server.role, scope["method"], scope["path"]
        )
        if refusal is not None:
            return self.append.refuse(refusal, scope, send)
        raw = scope["raw_path"]
        if scope["method"] == "POST":
            answer = self._append(scope, receive, send)
            if answer is not None:
                send.path = CLOSE if raw.endswith(b"/close") else APPEND
                return answer
        door = None if raw.startswith(PREFIX) else self._doors.answer(scope, receive, send)
        if door is not None:
            return door
        if raw.startswith(PREFIX):
            scope["path"] = canonical(raw, scope["method"])
        else:
            scope["path"] = canonical_beside(raw) or scope["path"]
        return self._answer_rest(scope, receive, send)

    def _append(self, scope: Scope, receive: Receive, send: TimedRequest) -> Awaitable[None] | None:
        control, path = self.append.control, scope["raw_path"]
        if control is None or not path.startswith(PREFIX):
            return self.append.answer(scope, receive, send)
        return control.append(
            scope,
            receive,
            self.append.pipeline(path),
            lambda counted: self.append.answer(scope, counted, send),
            lambda error: self.append.refuse(error, scope, send),
        )

    async def _cut_off(self, scope: Scope, send: TimedRequest) -> None:
        """Answers requests that remain when the time of a stop is over; ends replies that began."""
        log.warning("%s was cut off by the stop", scope.get("path"))
        if send.status == LEFT:
            await self.append.refuse(NodeNotReady("the node is stopping"), scope, send)

    async def _answer_rest(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith(NODES):  # what they ask for may go on after the answer
            await self._with_body(scope, receive, send)
            return
        with for_request():
            if scope["method"] in _READS:
                await self._rest(scope, receive, send)
            else:
                await self._with_body(scope, receive, send)

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        counters, most = self.append.counters, self.settings.ingest.max_body_bytes

        def broke_off() -> None:
            counters.disconnects += 1

        body = CountedBody(receive, self.append.budget, most, broke_off)
        try:
            await self._rest(scope, body.receive, send)
        finally:
            body.end()


def build_app(node: NodeApi, api: HttpApi) -> Application:
    """Builds the HTTP API of a node."""

    def fresh_id() -> str:
        return ulids.fresh_text(api.clock, api.entropy)

    metered = metered_append(node.append, api.clock, api.counters)
    append = AppendRoutes(
        metered,
        node.submit,
        node.close_run,
        node.open_run,
        settings=api.settings.ingest,
        counters=api.counters,
        fresh_id=fresh_id,
        now=api.clock.monotonic,
        hosts=api.guard.accepted,
        sheds=lambda: node.shedding.active,
        silent=lambda: node.cut_off_from,
    )
    append.control = api.control
    settings = api.settings
    repeats = Repeats(metered, node.find_repeat, api.clock, settings.doors)
    doors = DoorRoutes(append, repeats, settings.doors, api.clock)
    return Application(append, doors, _framework(node, api, fresh_id), api.guard, settings)


def _framework(node: NodeApi, api: HttpApi, fresh_id: Callable[[], str]) -> FastAPI:
    routers = all_routers(node, api)
    app = FastAPI(
        # `include_router` would build every route once more, at the first request.
        routes=_routes(routers, Replies(api.settings.server.reply_bytes), api.control),
        title="Tailrace",
        version=version("tailrace"),
        description="Stores the logs of pipeline runs: append, live view, pages, search.",
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    errors.install(app, fresh_id, routers)
    app.openapi = lambda: complete(app)  # type: ignore[method-assign]
    return app


def _routes(
    routers: Iterable[APIRouter], replies: Replies, control: AccessControl | None
) -> list[BaseRoute]:
    routes: list[BaseRoute] = []
    for router in routers:
        answer_head(router)
        for route in api_routes([router]):
            if "GET" in methods_of(route) and route.path in LONG_REPLIES:
                route.app = replies.limited(route.app)
        routes += router.routes
    if control is not None:
        for each in routes:
            control.guard(each)
    return routes


def all_routers(node: NodeApi, api: HttpApi) -> list[APIRouter]:
    """Returns all routers.

    A router with a word in its path precedes one that takes it for a name.
    """
    pages, most = api.settings.pages, api.settings.max_readers
    return [
        last_routes(node, pages, api.clock),
        progress_routes(node, most, api.counters),
        unfinished_routes(node, most, api.counters),
        status_routes(node),
        live_routes(node, most, api.counters),
        download_routes(node),
        cdap_routes(node, pages, api.clock),
        page_routes(node, pages),
        listing_routes(node, pages, api.clock),
        health_routes(node, api.scrape, api.control),
        docs_routes(),
        web_routes(),
        version_routes(api.reported_version, version("tailrace")),
        *(_searches(api.query, node) if api.query is not None else []),
        *(_live_searches(api.live, node, most, api.counters) if api.live is not None else []),
        *([group_routes(api.queue), queue_routes(api.queue)] if api.queue is not None else []),
        *([reading_routes(api.contents)] if api.contents is not None else []),
        *([lease_routes(api.leases)] if api.leases is not None else []),
        *([pipeline_routes(api.pipelines)] if api.pipelines is not None else []),
        *([verify_routes(api.verification)] if api.verification is not None else []),
        *([deletion_routes(api.erasure)] if api.erasure is not None else []),
        *api.routers,
    ]


def documented() -> FastAPI:
    """Returns the app as openapi.yaml describes it: all routes, without a node."""
    nobody = cast("NodeApi", None)
    nothing = cast("Callable[[], Any]", lambda: None)
    api = HttpApi(
        query=nothing,
        live=nothing,
        queue=nothing,
        contents=nothing,
        leases=nothing,
        pipelines=nothing,
        verification=nothing,
        erasure=nothing,
    )
    return _framework(nobody, api, str)


def _live_searches(
    live: Callable[[], LiveMatches], node: NodeApi, most: int, counters: HttpCounters
) -> list[APIRouter]:
    return [
        query_stream_routes(live, node, most, counters),
        loki_tail_routes(live, node, most, counters),
    ]


def _searches(engine: Callable[[], QueryEngine], node: NodeApi) -> list[APIRouter]:
    return [
        query_routes(engine),
        count_routes(engine),
        histogram_routes(engine),
        completion_routes(engine),
        loki_query_routes(engine),
        loki_label_routes(engine, node),
    ]


if __name__ == "__main__":
    sys.stdout.write(render(documented().openapi()))
