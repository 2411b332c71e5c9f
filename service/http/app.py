"""The node's HTTP API as one ASGI callable.

Requests that a browser sent for a page of another site are refused first (`browsers`). Then method
and path prefix decide: appends go to `AppendRoutes` without passing a
framework; all other requests go to FastAPI, under a path
whose names are quoted (`targets.canonical`), so that each name is one segment.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, cast

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from logstore import ulid as ulids
from logstore.clock import Clock, Entropy, SystemClock, system_entropy
from logstore.errors import NodeNotReady
from service.erasure import Erasure
from service.http import errors, openapi, roles
from service.http.append import AppendRoutes
from service.http.body import CountedBody, Receive, Scope, Send
from service.http.browsers import BrowserGuard
from service.http.cdap import cdap_routes
from service.http.completion import completion_routes
from service.http.deletions import deletion_routes
from service.http.docs import docs_routes
from service.http.download import download_routes
from service.http.durations import APPEND, CLOSE, LEFT, TimedRequest
from service.http.gate import Gate
from service.http.histogram import histogram_routes
from service.http.last import last_routes
from service.http.leases import Open, lease_routes
from service.http.listing import listing_routes
from service.http.live import live_routes
from service.http.methods import answer_head, api_routes, methods_of
from service.http.node import NodeApi
from service.http.pages import page_routes
from service.http.pipelines import OpenPipelines, pipeline_routes
from service.http.query import router as query_routes
from service.http.query_count import count_routes
from service.http.query_stream import query_stream_routes
from service.http.replies import Replies
from service.http.segments import group_routes, queue_routes, reading_routes
from service.http.settings import HttpSettings
from service.http.status import progress_routes, status_routes
from service.http.system import health_routes, version_routes
from service.http.targets import BASE, PREFIX, canonical, canonical_beside
from service.http.unfinished import unfinished_routes
from service.http.verify import Verifier, verify_routes
from service.http.web import web_routes
from service.query.engine import QueryEngine
from service.query.live.matches import LiveMatches
from service.queue.contents import Contents
from service.queue.queue import SegmentQueue
from service.runtime.counters import HttpCounters
from service.runtime.metered import metered_append
from service.runtime.store_deadline import for_request
from service.status.settings import REPORTED_VERSION

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
    """The parts of the app beside the node."""

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
    gate: Gate | None = None
    routers: tuple[APIRouter, ...] = ()


class Application:
    """The ASGI callable; not a coroutine function, which saves one coroutine per append."""

    def __init__(
        self, append: AppendRoutes, rest: ASGIApp, guard: BrowserGuard, settings: HttpSettings
    ) -> None:
        self.append = append
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
        refusal = refusal or roles.refusal(
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
        if raw.startswith(PREFIX):
            scope["path"] = canonical(raw, scope["method"])
        else:
            scope["path"] = canonical_beside(raw) or scope["path"]
        return self._answer_rest(scope, receive, send)

    def _append(self, scope: Scope, receive: Receive, send: TimedRequest) -> Awaitable[None] | None:
        gate, path = self.append.gate, scope["raw_path"]
        if gate is None or not path.startswith(PREFIX):
            return self.append.answer(scope, receive, send)
        return gate.append(
            scope,
            receive,
            self.append.pipeline(path),
            lambda counted: self.append.answer(scope, counted, send),
            lambda error: self.append.refuse(error, scope, send),
        )

    async def _cut_off(self, scope: Scope, send: TimedRequest) -> None:
        """Answers who is still there when the time of a stop is over; a reply that began ends."""
        log.warning("%s was cut off by the stop", scope.get("path"))
        if send.status == LEFT:
            await self.append.refuse(NodeNotReady("the node is stopping"), scope, send)

    async def _answer_rest(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in _READS:
            with for_request():
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
    """The HTTP API of a node."""

    def fresh_id() -> str:
        return ulids.fresh_text(api.clock, api.entropy)

    append = AppendRoutes(
        metered_append(node.append, api.clock, api.counters),
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
    append.gate = api.gate
    return Application(append, _framework(node, api, fresh_id), api.guard, api.settings)


def _framework(node: NodeApi, api: HttpApi, fresh_id: Callable[[], str]) -> FastAPI:
    routers = all_routers(node, api)
    app = FastAPI(
        # `include_router` would build every route once more, at the first request.
        routes=_routes(routers, Replies(api.settings.server.reply_bytes), api.gate),
        title="Tailrace",
        version=version("tailrace"),
        description="Keeps the logs of pipeline runs: append, live view, pages, search.",
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    errors.install(app, fresh_id, routers)
    app.openapi = lambda: openapi.complete(app)  # type: ignore[method-assign]
    return app


def _routes(routers: Iterable[APIRouter], replies: Replies, gate: Gate | None) -> list[BaseRoute]:
    routes: list[BaseRoute] = []
    for router in routers:
        answer_head(router)
        for route in api_routes([router]):
            if "GET" in methods_of(route) and route.path in LONG_REPLIES:
                route.app = replies.limited(route.app)
        routes += router.routes
    if gate is not None:
        for each in routes:
            gate.guard(each)
    return routes


def all_routers(node: NodeApi, api: HttpApi) -> list[APIRouter]:
    """All routers; those with a word in the path precede those that take it for a name."""
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
        health_routes(node, api.scrape, api.gate),
        docs_routes(),
        web_routes(),
        version_routes(api.reported_version, version("tailrace")),
        *(_searches(api.query) if api.query is not None else []),
        *(
            [query_stream_routes(api.live, node, most, api.counters)]
            if api.live is not None
            else []
        ),
        *([group_routes(api.queue), queue_routes(api.queue)] if api.queue is not None else []),
        *([reading_routes(api.contents)] if api.contents is not None else []),
        *([lease_routes(api.leases)] if api.leases is not None else []),
        *([pipeline_routes(api.pipelines)] if api.pipelines is not None else []),
        *([verify_routes(api.verification)] if api.verification is not None else []),
        *([deletion_routes(api.erasure)] if api.erasure is not None else []),
        *api.routers,
    ]


def documented() -> FastAPI:
    """The app as openapi.yaml describes it: all routes, no node behind them."""
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


def _searches(engine: Callable[[], QueryEngine]) -> list[APIRouter]:
    return [
        query_routes(engine),
        count_routes(engine),
        histogram_routes(engine),
        completion_routes(engine),
    ]
