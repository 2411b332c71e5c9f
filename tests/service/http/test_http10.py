"""Clients of HTTP/1.0 on real connections: no chunks; the end of the connection ends a reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tailrace.logstore.errors import NodeNotReady
from tests.service.http.breaks_off import BreaksOff
from tests.service.http.conftest import RUNS, Serve, Served
from tests.service.http.memory_node import MemoryNode

TEXT = b"".join(b"%05d %b\n" % (i, b"x" * 90) for i in range(5_000))


@asynccontextmanager
async def asked(
    served: Served, path: str, version: str = "1.0"
) -> AsyncIterator[asyncio.StreamReader]:
    """The reply to a GET, as it comes."""
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {RUNS}{path} HTTP/{version}\r\nHost: localhost\r\n\r\n".encode())
    try:
        yield reader
    finally:
        writer.close()


async def served_text(serve: Serve, node: MemoryNode | None = None) -> Served:
    served = await serve(node)
    assert (await served.post("/p/r", TEXT, content_type="text/plain")).status_code == 200
    return served


async def test_a_reply_of_no_known_length_ends_with_its_connection(serve: Serve) -> None:
    served = await served_text(serve)
    async with asked(served, "/p/r/download") as reader:
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        assert b" 200 " in head
        assert b"transfer-encoding" not in head.lower()
        assert b"content-length" not in head.lower()
        assert body == TEXT


async def test_a_live_stream_has_no_chunks_and_ends(serve: Serve) -> None:
    served = await served_text(serve)
    async with asked(served, "/p/stream/r") as reader:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert (await served.post("/p/r/close")).status_code == 200
        events = (await reader.read(-1)).split(b"\n\n")
        assert events[0].startswith((b"event: ", b"id: ", b"data: ", b":"))
        assert b"complete" in events[-2]


async def test_a_reply_of_a_known_length_has_it(serve: Serve) -> None:
    served = await served_text(serve)
    async with asked(served, "/p/r?limit=1") as reader:
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head.lower()


@pytest.mark.parametrize("error", [OSError("gone"), NodeNotReady("another name")])
async def test_a_reply_that_breaks_off_is_no_whole_one(serve: Serve, error: Exception) -> None:
    served = await served_text(serve, MemoryNode(run_logs=BreaksOff(error)))
    async with asked(served, "/p/r/download") as reader:
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)


async def test_others_get_chunks(serve: Serve) -> None:
    served = await served_text(serve)
    async with asked(served, "/p/r/download", "1.1") as reader:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head.lower()
