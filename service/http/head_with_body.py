"""A reply's head goes out with the beginning of its body, in one write.

uvicorn writes the head first. A process that is killed before the body's write has then sent
half of a reply: the client has the cookie that says its batch is stored, and no receipt. It sends
the batch again and echoes that cookie, so it seems to mean another one (see
`service/ingest/appender.py`).

Only the head of a reply with a length waits, since its body follows. A stream's goes out at once.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class HeadWithBody:
    """The transport of one request and its reply."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport: Any = cycle.transport
        self._head: bytes | None = None
        self._begun = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Writes the data, or holds it back if it is the head of a reply that has a body."""
        cycle = self._cycle
        if self._head is not None:
            data, self._head = self._head + data, None
        elif cycle.response_started and not self._begun:
            self._begun = True
            if cycle.expected_content_length > 0 and cycle.scope["method"] != "HEAD":
                self._head = data
                return
        self._transport.write(data)
