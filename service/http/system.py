"""Routes for machines: liveness, readiness, metrics.

`GET /api/v1/system/version` is the version that OpenMetadata's client compares with its own.

The client refuses to work with a server of another major.minor version. The reported version is
therefore a setting: that of the clients.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from logstore.errors import NodeNotReady
from service.http.gate import Gate
from service.http.node import NodeApi
from service.runtime.shared_calls import SharedCalls


class Version(BaseModel):
    """`version` is that of the OpenMetadata API; `tailrace` is ours."""

    version: str
    revision: str
    timestamp: int
    tailrace: str


def version_routes(reported: str, own: str) -> APIRouter:
    """The version route."""
    router = APIRouter(tags=["operation"])

    @router.get("/api/v1/system/version", summary="Versions", response_model=Version)
    async def system_version() -> dict[str, Any]:
        return {"version": reported, "revision": "", "timestamp": 0, "tailrace": own}

    return router


class Health(BaseModel):
    """`status` is live or ready; `problems` are sentences for people."""

    status: str
    problems: list[str]


def health_routes(
    node: NodeApi, scrape: Callable[[], Awaitable[bytes]] | None, gate: Gate | None = None
) -> APIRouter:
    """The routes of health and metrics; `scrape` gives the metrics as Prometheus reads them.

    With rules of access, the problems are shown to those alone whom the rules know.
    """

    def problems_for(request: Request) -> list[str]:
        if gate is None:
            return list(node.problems())
        if not gate.knows(request):
            return []
        return [*node.problems(), *gate.problems()]

    router = APIRouter(tags=["operation"])

    @router.get("/health/live", summary="The process answers", response_model=Health)
    async def live(request: Request) -> dict[str, Any]:
        return {"status": "live", "problems": problems_for(request)}

    @router.get("/health/ready", summary="The node does what its role is", response_model=Health)
    async def ready(request: Request) -> Response:
        problems = problems_for(request)
        if not node.ready:
            raise NodeNotReady("; ".join(problems) or "the node is starting or stopping")
        return JSONResponse({"status": "ready", "problems": problems})

    calls = SharedCalls()

    @router.get("/metrics", summary="Numbers for Prometheus", response_class=Response)
    async def metrics() -> Response:
        # Each takes the event loop for a while: who asks meanwhile gets the next one together.
        content = b"" if scrape is None else await calls.call("metrics", scrape)
        return Response(content, media_type=CONTENT_TYPE_LATEST)

    return router
