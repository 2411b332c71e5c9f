"""What machines ask: alive, ready, which version, which numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from logstore.errors import NodeNotReady
from service.http.node import NodeApi

# The version of OpenMetadata whose API this is: its client compares it with its own.
_API_VERSION = "2.0.7"


class Health(BaseModel):
    """`status` is live or ready; `problems` are sentences for people."""

    status: str
    problems: list[str]


class Version(BaseModel):
    """`version` is that of the OpenMetadata API; `tailrace` is ours."""

    version: str
    revision: str
    timestamp: int
    tailrace: str


def health_routes(node: NodeApi, version: str, scrape: Callable[[], bytes]) -> APIRouter:
    """Health, version and metrics. `scrape` gives the metrics as Prometheus reads them."""
    router = APIRouter(tags=["operation"])

    @router.get("/health/live", summary="The process answers", response_model=Health)
    async def live() -> dict[str, Any]:
        return {"status": "live", "problems": list(node.problems())}

    @router.get("/health/ready", summary="The node takes batches", response_model=Health)
    async def ready() -> Response:
        problems = list(node.problems())
        if not node.ready:
            raise NodeNotReady("; ".join(problems) or "the node is starting or stopping")
        return JSONResponse({"status": "ready", "problems": problems})

    @router.get("/metrics", summary="Numbers for Prometheus", response_class=Response)
    async def metrics() -> Response:
        return Response(scrape(), media_type=CONTENT_TYPE_LATEST)

    @router.get("/api/v1/system/version", summary="Versions", response_model=Version)
    async def system_version() -> dict[str, Any]:
        return {"version": _API_VERSION, "revision": "", "timestamp": 0, "tailrace": version}

    return router
