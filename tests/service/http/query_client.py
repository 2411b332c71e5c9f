"""Routes of searches over one engine: an application, its client, and a slow connection."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
from fastapi import FastAPI

from service.http import errors
from service.http.query import router
from service.http.query_facets import completion_routes, count_routes, histogram_routes
from service.query.engine import QueryEngine
from tests.service.query.world import World, entry

ROUTERS: Final = (router, count_routes, histogram_routes, completion_routes)


def app_of(engine: QueryEngine) -> FastAPI:
    """All routes of searches over one engine."""
    app = FastAPI()
    routes = [make(lambda: engine) for make in ROUTERS]
    for each in routes:
        app.include_router(each)
    errors.install(app, lambda: "request-1", routes)
    return app


@asynccontextmanager
async def client_of(engine: QueryEngine) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app_of(engine))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        yield client


async def mixed(root: Path) -> World:
    rng = random.Random(1)
    world = World(root)
    world.merge([entry(rng) for _ in range(10)], {})
    await world.segment([entry(rng) for _ in range(10)])
    world.unflushed([entry(rng) for _ in range(10)])
    return world


def records(response: httpx.Response) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    *found, last = [orjson.loads(line) for line in response.content.splitlines()]
    return found, last


class Connection:
    """An ASGI connection whose client reads as slowly as told, and may leave."""

    def __init__(self, path: str, query: bytes) -> None:
        self.scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(),
            "query_string": query, "headers": [], "http_version": "1.1", "scheme": "http",
            "server": ("node", 80), "client": ("client", 1), "root_path": "",
        }  # fmt: skip
        self.body = bytearray()
        self.messages = 0
        self.gone = asyncio.Event()
        self.taken = asyncio.Event()
        self.reading = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.body":
            self.body += message["body"]
            self.messages += 1
            self.taken.set()
            await self.reading.wait()
