"""A proxy that passes requests on and loses the first replies: their clients get a closed line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class DroppingProxy:
    """Between clients and the server at a port; it loses the replies of the first `drops` lines."""

    def __init__(self, port: int, drops: int) -> None:
        self._port = port
        self._drops = drops
        self.dropped = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes one connection on."""
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
        passing = asyncio.create_task(_pass(reader, inner_writer))
        try:
            while data := await inner_reader.read(1 << 16):
                if self.dropped < self._drops:
                    self.dropped += 1
                    return
                writer.write(data)
                await writer.drain()
        finally:
            passing.cancel()
            for each in (inner_writer, writer):
                each.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def dropping(url: str, drops: int) -> AsyncIterator[DroppingProxy]:
    """Serves the proxy before the service at `url` while the block runs."""
    proxy = DroppingProxy(int(url.rstrip("/").rpartition(":")[2]), drops)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield proxy
