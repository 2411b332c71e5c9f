"""`GET /api/v1/system/version`: the version that OpenMetadata's client compares with its own.

It takes a server of another major.minor for one that it cannot work with, so what is
reported is a setting: that of the clients.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel


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
