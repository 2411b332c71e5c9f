"""A server of forty lines behind the proxy: it keeps bodies under paths, as S3 would.

It knows puts (conditional ones too), gets, heads and deletes, keeps connections, and lists in
`seen` what arrived whole. `broken` counts requests that ended within their body.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.faults.http1 import BrokenMessage, body_of, read_head
from tests.faults.requests import Request


@dataclass
class TinyServer:
    """Its objects, and what it has seen."""

    objects: dict[str, bytes] = field(default_factory=dict)
    seen: list[tuple[Request, bytes]] = field(default_factory=list)
    broken: int = 0
    connections: int = 0
    url: str = ""

    def calls(self) -> list[str]:
        """Names of all whole requests."""
        return [f"{request.method} {request.head.request_line()[1]}" for request, _ in self.seen]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while (head := await read_head(reader)) is not None:
                if head.value("expect"):
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = b"".join([piece async for piece in body_of(reader, head)])
                writer.write(self.answer(Request.of(head), body))
                await writer.drain()
        except BrokenMessage:
            self.broken += 1
        except ConnectionError:
            pass
        finally:
            writer.close()

    def answer(self, request: Request, body: bytes) -> bytes:
        self.seen.append((request, body))
        stored = self.objects.get(request.path)
        if request.method == "PUT":
            if stored is not None and request.head.value("if-none-match") == "*":
                return b"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"
            self.objects[request.path] = body
            return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        if request.method == "DELETE":
            self.objects.pop(request.path, None)
            return b"HTTP/1.1 204 No Content\r\n\r\n"
        if stored is None:
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(stored)
        if "chunked" in request.query:
            head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            stored = b"%x\r\n%b\r\n0\r\nTrailer: x\r\n\r\n" % (len(stored), stored)
        return head if request.method == "HEAD" else head + stored


@asynccontextmanager
async def tiny_server() -> AsyncIterator[TinyServer]:
    """One that listens on a free port."""
    tiny = TinyServer()
    server = await asyncio.start_server(tiny.serve, "127.0.0.1", 0)
    tiny.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield tiny
    finally:
        server.close()
