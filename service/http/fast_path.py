"""Answers small appends in the connection itself, without ASGI (the fast path).

On the ASGI path a request costs a scope, a cycle, an event, a task and two writes to the socket. On
the fast path it costs its parsing, the journal and one write. A request takes the fast path if it
is a small append to a run that is known already, and the node accepts it at once. OpenMetadata's
newer clients send a few lines a request, so most requests are of this kind.

Invariants: the fast path answers as `AppendRoutes` would. Any other request takes the ASGI path
whole, before any of it was stored. Replies keep the order of requests: a request that arrives
while another one is on the fast path waits in uvicorn's queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from service.access.rules import Identity
from service.http.append import AppendRoutes
from service.http.body import Clients
from service.http.connection import QUIET, Connection
from service.http.replies import QuickReply, response_bytes
from tailrace.logstore.errors import TooManyAtOnce, Unavailable

_OTHER_WAY = frozenset(
    [
        *(b"content-encoding", b"expect", b"tailrace-batch", b"transfer-encoding", b"upgrade"),
        *(b"origin", b"sec-fetch-site"),  # only browsers send them
    ]
)


class PendingRequest:
    """A request on the fast path; uvicorn sees a cycle that answers itself."""

    __slots__ = ("disconnected", "keep_alive", "message_event", "response_complete")

    def __init__(self, keep_alive: bool, message_event: asyncio.Event) -> None:
        self.keep_alive = keep_alive
        self.message_event = message_event
        self.response_complete = False
        self.disconnected = False


class FastPathProtocol(Connection):
    """A connection that tries the fast path first."""

    def __init__(
        self, clients: Clients, routes: AppendRoutes, *arguments: Any, **named: Any
    ) -> None:
        super().__init__(clients, *arguments, **named)
        self._routes = routes
        self._nobody = asyncio.Event()
        self._pending: PendingRequest | None = None
        self._fields: dict[bytes, bytes] = {}
        self._body = b""
        self._who: Identity | None = None
        self._loads = 0

    # --- events of the connection --------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_pending()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Moves a request with an incomplete body to the ASGI path."""
        if self._pending is not None:
            self._pending = None
            self._release(self._unread)
            super().begin()
            super().on_body(self._body)
        super().shutdown()

    def refuse(self, error: Exception) -> None:
        """Refuses as every connection does, and drops a body on the fast path."""
        if self._forget_pending():
            # The present cycle is the last request's, and answered.
            self.cycle = None  # type: ignore[assignment]
        super().refuse(error)

    def _forget_pending(self) -> bool:
        if self._pending is None:
            return False
        self._pending = None
        self._release(self._unread)
        self._routes.counters.append_requests += 1
        self._routes.counters.disconnects += 1
        return True

    # --- events of the parser ------------------------------------------------------

    def begin(self) -> None:
        if self._fits():
            self._pending = PendingRequest(self._keeps_alive(), self._nobody)
            self._body = b""
        else:
            super().begin()

    def on_body(self, body: bytes) -> None:
        if self._pending is None:
            super().on_body(body)
        else:
            self._later = 0
            self._body += body

    def body_pauses(self) -> None:
        """Counts the bytes that wait for the rest of the body, or refuses the request."""
        if self._pending is not None:
            try:
                self._hold(len(self._body) - self._unread)
            except Unavailable as error:
                self.refuse(error)

    def on_message_complete(self) -> None:
        pending = self._pending
        if pending is None:
            super().on_message_complete()
            return
        self._pending = None
        if self._unread:
            self._release(self._unread)
        reply = self._quick()
        if reply is None:
            super().begin()
            super().on_body(self._body)
            super().on_message_complete()
        else:
            self.reading = QUIET
            if self._who is not None and self._who.quota is not None:
                self._who.quota.take(1, len(self._body))
            self.cycle = pending  # type: ignore[assignment]
            reply.done.add_done_callback(lambda _: self._answer(pending, reply))

    def _quick(self) -> QuickReply | None:
        """Returns the reply if the node accepts the append at once and its sender still may."""
        control, who = self._routes.control, self._who
        if control is None or who is None:
            return self._routes.quick(self.url, self._fields, self._body)
        if not control.access.still_holds(who, self._loads):
            return None
        try:
            control.access.begin(who)
        except TooManyAtOnce:
            return None
        reply = self._routes.quick(self.url, self._fields, self._body)
        if reply is None:
            control.access.end(who)
        else:
            reply.done.add_done_callback(lambda _: control.access.end(who))
        return reply

    def _forget_answered(self) -> None:
        super()._forget_answered()
        if self._pending is None:
            self._fields, self._body = {}, b""

    # --- which path ----------------------------------------------------------------

    def _fits(self) -> bool:
        if self.url not in self._routes.known or self.parser.get_method() != b"POST":
            return False
        before: RequestResponseCycle | PendingRequest | None = self.cycle
        if before is not None and not before.response_complete:
            return False
        if self.flow.write_paused:
            return False
        headers = self._fields = dict(self.headers)
        if len(headers) != len(self.headers) or not _OTHER_WAY.isdisjoint(headers):
            return False
        host = headers.get(b"host")
        if host is None or host not in self._routes.hosts:
            return False
        control = self._routes.control
        if control is not None:
            self._who = control.quick(headers, self._routes.known[self.url].key.fqn)
            if self._who is None:
                return False
            self._loads = control.access.loads
        length = headers.get(b"content-length", b"")
        return len(length) < 10 and length.isdigit() and int(length) <= self._routes.small

    def _keeps_alive(self) -> bool:
        """As in uvicorn: an HTTP/1.0 connection is closed, whatever it asks for."""
        if b"connection" in self._fields and self.parser.get_http_version() == "1.0":
            return False
        return self.parser.should_keep_alive()

    # --- the answer ----------------------------------------------------------------

    def _answer(self, pending: PendingRequest, reply: QuickReply) -> None:
        try:
            status, headers, body = reply.response()
        except Exception as error:  # noqa: BLE001 -- a client without an answer would wait for ever
            status, headers, body = reply.failed(error)
        pending.response_complete = True
        if self.transport.is_closing():
            return
        headers = self.server_state.default_headers + headers
        if not pending.keep_alive:
            headers.append((b"connection", b"close"))
        self.transport.write(response_bytes(STATUS_LINE[status], headers, body))
        if not pending.keep_alive:
            self.transport.close()
        self.on_response_complete()


def fast_path(routes: AppendRoutes, clients: Clients) -> Callable[..., FastPathProtocol]:
    """Returns the protocol factory that uvicorn calls for every connection."""

    def protocol(*arguments: Any, **named: Any) -> FastPathProtocol:
        return FastPathProtocol(clients, routes, *arguments, **named)

    return protocol
