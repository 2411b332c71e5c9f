"""The proxy: an address that clients take for S3's.

    async with FaultProxy("http://127.0.0.1:9000", schedule) as proxy:
        client = S3(endpoint_url=proxy.url)

What stalls when the context ends is passed on no more.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.faults.exchange import Exchange
from tests.faults.schedule import Schedule

_TURNS = 20  # of the loop: from a socket that is accepted to the task that serves it it takes four


class FaultProxy:
    """Listens on `port`, any free one for 0, as long as its context lasts."""

    def __init__(
        self, upstream: str, schedule: Schedule, *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        url = urlsplit(upstream)
        if url.scheme != "http" or not url.hostname:
            raise ValueError(f"{upstream!r} is not an http:// address")
        self.schedule = schedule
        self._upstream = url.hostname, url.port or 80
        self._listens = host, port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, *self._listens, backlog=1000)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for _ in range(_TURNS):  # whoever was just accepted is entered
            await asyncio.sleep(0)
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        try:
            await Exchange((reader, writer), self._upstream, self.schedule).run()
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._connections.discard(connection)
