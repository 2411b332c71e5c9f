"""A real server over a node in memory, made by a factory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, cast

import httpx
import pytest

from service.http.app import Application, HttpApi, build_app
from service.http.server import address, listen, serving
from service.runtime.counters import HttpCounters
from tests.service.http.memory_node import MemoryNode
from tests.settings import http_settings

RUNS = "/api/v1/services/ingestionPipelines/logs"


@dataclass
class Served:
    """A running server: its node, its counters, and a client that speaks to it."""

    node: MemoryNode
    counters: HttpCounters
    client: httpx.AsyncClient
    url: str

    async def post(self, path: str, body: bytes | str = b"", **headers: str) -> httpx.Response:
        return await self.client.post(
            RUNS + path,
            content=body,
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.client.get(
            RUNS + path, headers={name.replace("_", "-"): v for name, v in headers.items()}
        )


Serve = Callable[..., Coroutine[Any, Any, Served]]


def _made(
    node: MemoryNode | None, limits: dict[str, Any]
) -> tuple[MemoryNode, HttpApi, Application]:
    node = node or MemoryNode()
    control = limits.pop("control", None)
    api = HttpApi(settings=http_settings(**limits), control=control)
    return node, api, build_app(node, api)


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts uvicorn: for what depends on connections."""
    async with AsyncExitStack() as stack:

        async def start(node: MemoryNode | None = None, **limits: Any) -> Served:
            node, api, app = _made(node, limits)
            bound = listen("127.0.0.1", 0)
            url = address(bound)
            await stack.enter_async_context(serving(app, bound, stop_seconds=2))
            stack.callback(node.tail.stop)
            client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=120))
            return Served(node, api.counters, client, url)

        yield start


@pytest.fixture
async def direct() -> AsyncIterator[Serve]:
    """Calls the app without a server between: for the many cases that depend on none."""
    async with AsyncExitStack() as stack:

        async def start(node: MemoryNode | None = None, **limits: Any) -> Served:
            node, api, app = _made(node, limits)
            stack.callback(app.append.shut)
            transport = httpx.ASGITransport(cast("Any", app))
            client = httpx.AsyncClient(base_url="http://localhost", transport=transport)
            return Served(node, api.counters, await stack.enter_async_context(client), "")

        yield start
