"""Replies without a length for clients of HTTP/1.0, which do not know chunks.

The end of such a reply is the end of its connection. uvicorn would send chunks, and the client
would read their sizes as text. A reply that breaks off is reset, so that no client takes a part
for the whole.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.http.body import Message, Receive, Scope, Send

VERSION = "1.0"
_RESET_AT_ONCE = struct.pack("ii", 1, 0)


def ended_by_closing(
    cycle: RequestResponseCycle, app: Callable[[Scope, Receive, Send], Awaitable[None]]
) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Wraps `app` so that it answers this request, of a client of HTTP/1.0."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        unmeasured = False

        async def sent(message: Message) -> None:
            nonlocal unmeasured
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message.get("headers", [])}
                unmeasured = b"content-length" not in names
                if unmeasured:
                    cycle.chunked_encoding = False
            elif unmeasured:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        try:
            await app(scope, receive, sent)
        except BaseException:
            if unmeasured:
                _reset(cycle.transport)
            raise
        if unmeasured and not (cycle.response_complete or cycle.disconnected):
            _reset(cycle.transport)

    return answer


def _reset(transport: Any) -> None:
    """Drops what is not sent, so that the client sees an error and not an end."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)
    transport.abort()
