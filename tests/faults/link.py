"""A stretch of network: bytes pass both ways, until the link is cut.

    async with Link(("127.0.0.1", 9000)) as link:
        client = S3(endpoint_url=link.url)
        link.cut(Cut.SILENT)
        ...
        link.mend()

A cut is of everything, connections that are open included, or of those that `asks` names. One that
is `RESET` ends every connection. In one that is `SILENT` nothing arrives any more and nobody is
told; what was on its way arrives when the link is mended, also if its sender gave up meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_PIECE = 1 << 16
_GONE = (ConnectionError, OSError)


class Cut(Enum):
    """How a link is cut."""

    RESET = "reset"
    SILENT = "silent"


def nobody(_: int) -> str:
    """Who asks is not known."""
    return ""


class Link:
    """From a port of this machine to `upstream`; `asks` names the client with a local port."""

    def __init__(self, upstream: str, *, asks: Callable[[int], str] = nobody) -> None:
        url = urlsplit(upstream)
        assert url.hostname is not None
        assert url.port is not None
        self._upstream = url.hostname, url.port
        self._asks = asks
        self._server: asyncio.Server | None = None
        self._flows: dict[asyncio.Task[None], str] = {}
        self._cut: dict[str | None, Cut] = {}
        self._changed = asyncio.Condition()
        self.cuts = 0

    @property
    def url(self) -> str:
        """Where it begins."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    def is_cut(self, who: str) -> bool:
        """Whether nothing passes between `who` and upstream."""
        return self._state(who) is not None

    def cut(self, how: Cut, who: str | None = None) -> None:
        """Lets nothing pass, or nothing between `who` and upstream."""
        self.cuts += 1
        self._cut[who] = how
        if how is Cut.RESET:
            for flow, name in list(self._flows.items()):
                if who in (None, name):
                    flow.cancel()

    async def mend(self, *of: str | None) -> None:
        """Ends every cut, or only those of these clients."""
        for who in of or list(self._cut):
            self._cut.pop(who, None)
        async with self._changed:
            self._changed.notify_all()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=1000)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        flows = list(self._flows)
        for flow in flows:
            flow.cancel()
        await asyncio.gather(*flows, return_exceptions=True)
        await self._server.wait_closed()

    def _state(self, who: str) -> Cut | None:
        return self._cut.get(None) or self._cut.get(who)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        flow = asyncio.current_task()
        assert flow is not None
        who = self._asks(writer.get_extra_info("peername")[1])
        self._flows[flow] = who
        try:
            await self._flow(reader, writer, who)
        except (asyncio.CancelledError, *_GONE):
            pass  # the client sees the end of its connection
        finally:
            del self._flows[flow]
            await _dropped(writer)

    async def _flow(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, who: str
    ) -> None:
        if self._state(who) is Cut.RESET:
            return
        await self._open(who)
        there, back = await asyncio.open_connection(*self._upstream)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, back, who))
                both.create_task(self._pump(there, writer, who))
        except* _GONE:
            pass  # one side has gone: so does the other
        finally:
            await _dropped(back)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, who: str
    ) -> None:
        while piece := await source.read(_PIECE):
            await self._open(who)
            sink.write(piece)
            await sink.drain()
        with suppress(OSError):
            sink.write_eof()

    async def _open(self, who: str) -> None:
        """Returns when nothing is cut between `who` and upstream."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._state(who) is None)


async def _dropped(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(*_GONE):
        await writer.wait_closed()
