"""A reply's head and the beginning of its body are one write; a stream's head waits for nothing.

What is recorded is what uvicorn's transport is given. Behind it is a real socket.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.http.connection import Connection
from tests.service.http.conftest import RUNS, Serve

JSON = {"content_type": "application/json"}
PLAIN = {"accept-encoding": "identity"}


class Recorded:
    """A transport that notes what it is to write."""

    def __init__(self, transport: Any, writes: list[bytes]) -> None:
        self._transport = transport
        self._writes = writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._writes.append(bytes(data))
        self._transport.write(data)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    made, found = Connection.connection_made, list[bytes]()

    def recorded(connection: Connection, transport: Any) -> None:
        made(connection, Recorded(transport, found))

    monkeypatch.setattr(Connection, "connection_made", recorded)
    return found


async def test_what_is_said_of_a_batch_is_one_write(serve: Serve, writes: list[bytes]) -> None:
    served = await serve()
    for number, body in enumerate((b'{"connectorId": "c"}', b'"one\\n"', b'"two\\n"'), start=1):
        reply = await served.post("/p/r", body, **JSON)
        assert reply.status_code == 200
        assert len(writes) == number
        assert writes[-1].startswith(b"HTTP/1.1 200 ")
        assert writes[-1].endswith(b"\r\n\r\n" + reply.content)


async def test_a_refusal_is_one_write(serve: Serve, writes: list[bytes]) -> None:
    served = await serve()
    reply = await served.post("/p/r", b"{", **JSON)
    assert (reply.status_code, len(writes)) == (400, 1)
    assert writes[0].endswith(b"\r\n\r\n" + reply.content)


async def test_a_head_without_a_body_is_written(serve: Serve, writes: list[bytes]) -> None:
    served = await serve()
    await served.post("/p/r", b"one\n", content_type="text/plain")
    await served.post("/p/r/close")
    writes.clear()
    reply = await served.client.head(f"{RUNS}/p/r/download", headers=PLAIN)
    assert (reply.status_code, reply.headers["content-length"]) == (200, "4")
    assert b"".join(writes).endswith(b"\r\n\r\n")


async def test_the_head_of_a_silent_stream_is_written_at_once(
    serve: Serve, writes: list[bytes]
) -> None:
    served = await serve()
    async with (
        asyncio.timeout(60),
        served.client.stream("GET", f"{RUNS}/p/stream/r?after=0") as reply,
    ):
        assert reply.status_code == 200
        assert len(writes) == 1
        assert writes[0].endswith(b"\r\n\r\n"), "and no heartbeat, for which it did not wait"
