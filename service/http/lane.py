"""The quick lane: small appends answered by the connection itself, without ASGI.

A request goes through uvicorn's own machinery (a scope, a cycle, an event, a task and two
writes to the socket) unless it is a small append to a run that is known already and the
node takes it at once; then it costs its parsing, the journal, and one write. OpenMetadata's
newer clients send a handful of lines a request, so this is what most requests are.

Invariants: the lane answers only what it answers as `AppendRoutes` would; whatever it
does not like, before anything was stored, is handed to `AppendRoutes` whole. Replies keep the
order of requests: a request that comes while one is in the lane waits in uvicorn's queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from service.http.append import AppendRoutes
from service.http.quick import QuickReply
from service.http.receipt import response_bytes

_OTHER_WAY = frozenset(
    [
        *(b"content-encoding", b"expect", b"tailrace-batch", b"transfer-encoding", b"upgrade"),
        *(b"origin", b"sec-fetch-site"),  # only browsers send them
    ]
)


# A body that takes longer goes the ordinary way, which knows what to do with one that never ends.
_BODY_SECONDS = 1.0


class Turn:
    """A request in the lane, to uvicorn a cycle that answers itself."""

    __slots__ = ("disconnected", "keep_alive", "message_event", "response_complete")

    def __init__(self, keep_alive: bool, message_event: asyncio.Event) -> None:
        self.keep_alive = keep_alive
        self.message_event = message_event
        self.response_complete = False
        self.disconnected = False


class LaneProtocol(HttpToolsProtocol):
    """uvicorn's connection, with the lane in front."""

    def __init__(self, routes: AppendRoutes, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._routes = routes
        self._nobody = asyncio.Event()
        self._turn: Turn | None = None
        self._fields: dict[bytes, bytes] = {}
        self._body = b""
        self._patience: asyncio.TimerHandle | None = None

    # --- what the connection tells -------------------------------------------------

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._turn is not None and self._patience is None:
            self._patience = self.loop.call_later(_BODY_SECONDS, self._give_way)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._turn is not None:
            self._turn = None
            self._routes.counters.append_requests += 1
            self._routes.counters.disconnects += 1
        self._hurry()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        self._give_way()
        super().shutdown()

    def _give_way(self) -> None:
        """What is in the middle of its body goes the ordinary way."""
        self._hurry()
        if self._turn is not None:
            self._turn = None
            self._other_way()
            super().on_body(self._body)

    def _hurry(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    # --- what the parser tells -----------------------------------------------------

    def on_message_begin(self) -> None:
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._turn = None

    def on_headers_complete(self) -> None:
        if self._fits():
            self._turn = Turn(self.parser.should_keep_alive(), self._nobody)
            self._body = b""
        else:
            self._other_way()

    def on_body(self, body: bytes) -> None:
        if self._turn is None:
            super().on_body(body)
        else:
            self._body += body

    def on_message_complete(self) -> None:
        turn = self._turn
        if turn is None:
            super().on_message_complete()
            return
        self._turn = None
        self._hurry()
        reply = self._routes.quick(self.url, self._fields, self._body)
        if reply is None:
            self._other_way()
            super().on_body(self._body)
            super().on_message_complete()
        else:
            self.cycle = turn  # type: ignore[assignment]
            reply.done.add_done_callback(lambda _: self._answer(turn, reply))

    # --- which lane ----------------------------------------------------------------

    def _fits(self) -> bool:
        if self.url not in self._routes.known or self.parser.get_method() != b"POST":
            return False
        before: RequestResponseCycle | Turn | None = self.cycle
        if before is not None and not before.response_complete:
            return False
        if self.flow.write_paused:
            return False
        headers = self._fields = dict(self.headers)
        if not _OTHER_WAY.isdisjoint(headers) or headers.get(b"host") not in self._routes.hosts:
            return False
        length = headers.get(b"content-length", b"")
        return len(length) < 10 and length.isdigit() and int(length) <= self._routes.small

    def _other_way(self) -> None:
        """The request from its beginning as uvicorn would have taken it."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers  # the scope holds the same list
        super().on_headers_complete()

    # --- the answer ----------------------------------------------------------------

    def _answer(self, turn: Turn, reply: QuickReply) -> None:
        status, headers, body = reply.response()
        turn.response_complete = True
        if self.transport.is_closing():
            return
        headers = self.server_state.default_headers + headers
        if not turn.keep_alive:
            headers.append((b"connection", b"close"))
        self.transport.write(response_bytes(STATUS_LINE[status], headers, body))
        if not turn.keep_alive:
            self.transport.close()
        self.on_response_complete()


def lane(routes: AppendRoutes) -> Callable[..., LaneProtocol]:
    """What uvicorn makes for every connection."""

    def protocol(*arguments: Any, **named: Any) -> LaneProtocol:
        return LaneProtocol(routes, *arguments, **named)

    return protocol
