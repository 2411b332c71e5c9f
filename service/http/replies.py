"""Limits long replies, times requests, and makes the replies to appends.

A reply of lines or records is made in pieces, and holds two of them while its client does not
read: `PLACE_BYTES`. Only as many replies have a place as fit into `server.reply_bytes`, so the sum
of their memory is bounded. The next request waits for its turn and gets 503 after
`_PATIENCE_SECONDS`. Replies that nobody reads delay others only briefly: while a request waits,
replies whose clients received next to nothing for `_STILL_SECONDS` are cut off, the oldest first
and only as many as wait.

`tailrace_api_request_duration_seconds` has the times of requests by method, route and status. A
request is timed from the application's call to its end, so a stream's time is the time that it was
open. The labels come from bounded sets: methods of HTTP, patterns of routes, statuses that were
sent. The fast path calls no application and observes its own requests.

The answer to an append is headers and a body; the fast path sends both as one piece of bytes, which
it makes once the batch is safe or refused.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.errors import ProblemResponse
from service.http.targets import BASE
from service.ingest.batch import AppendReceipt, IncomingBatch, Submitted
from service.runtime.counters import Distribution, RequestSeconds
from tailrace.logstore import ulid as ulids
from tailrace.logstore.errors import NodeNotReady, Unavailable

PLACE_BYTES: Final = 1 << 20
CONNECTION: Final = "tailrace.connection"
"""Key of a request's scope: its `ReplyConnection`, if it has one."""
OFFER: Final = "tailrace.offer"
"""Key of a request's scope: the protocols to which its client offers to switch, if any."""
_PATIENCE_SECONDS: Final = 10.0
_STILL_SECONDS: Final = 1.0
_LEAST_BYTES: Final = 4 << 10
# From Linux's `struct tcp_info`, since 4.1.
_INFO_BYTES: Final = 128
_BYTES_ACKED: Final = struct.Struct("=Q")
_BYTES_ACKED_AT: Final = 120


class ReplyConnection(Protocol):
    """The connection that receives a reply."""

    @property
    def taken(self) -> int | None:
        """Returns the bytes that its client has received so far; None: nothing waits to be read."""
        ...

    def cut_off(self) -> None:
        """Closes the connection now and drops unread data."""
        ...


class Replies:
    """Places for replies of `limit_bytes` in all, at least one."""

    def __init__(self, limit_bytes: int) -> None:
        self._places = asyncio.Semaphore(max(1, limit_bytes // PLACE_BYTES))
        self._readers: dict[ReplyConnection, int | None] = {}
        self._look: asyncio.TimerHandle | None = None
        self.waiting = 0

    @asynccontextmanager
    async def place(self, reader: ReplyConnection | None) -> AsyncIterator[None]:
        """Holds a place while the block runs. Raises `Unavailable` if none becomes free in time."""
        await self._enter()
        try:
            if reader is not None:
                self._readers[reader] = None
            yield
        finally:
            if reader is not None:
                self._readers.pop(reader, None)
            self._places.release()

    def limited(self, app: ASGIApp) -> ASGIApp:
        """Wraps an app so that every reply has a place until it is sent."""

        async def placed(scope: Scope, receive: Receive, send: Send) -> None:
            async with self.place(scope.get(CONNECTION)):
                await app(scope, receive, send)

        return placed

    async def _enter(self) -> None:
        self.waiting += 1
        try:
            if self._places.locked() and self._look is None:
                self._mark()
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._places.acquire()
        except TimeoutError as error:
            raise Unavailable(
                "as many replies are being read as there is memory for",
                hint="Try again in a moment, or raise server.reply_bytes.",
            ) from error
        finally:
            self.waiting -= 1

    def _mark(self) -> None:
        for reader in self._readers:
            self._readers[reader] = reader.taken
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(_STILL_SECONDS, self._let_go)

    def _let_go(self) -> None:
        self._look = None
        if not self.waiting:
            return
        still = [r for r, before in self._readers.items() if _stands_still(before, r.taken)]
        for reader in still[: self.waiting]:
            reader.cut_off()
        self._mark()


def acknowledged(connection: socket.socket) -> int | None:
    """Returns the bytes of a TCP connection that the other end has acknowledged.

    Returns None where the system does not say it, as on macOS: no reader is cut off there.

    The transport's buffer size is less precise: it changes only when a third of the kernel's buffer
    is free, which takes many seconds on a slow line.
    """
    if not hasattr(socket, "TCP_INFO"):
        return None
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    return int(_BYTES_ACKED.unpack_from(info, _BYTES_ACKED_AT)[0])


def _stands_still(before: int | None, now: int | None) -> bool:
    return before is not None and now is not None and now - before < _LEAST_BYTES


# --- Durations of requests ----------------------------------------------------------------------


APPEND: Final = f"{BASE}/{{fqn}}/{{runId}}"
CLOSE: Final = f"{APPEND}/close"
NO_ROUTE: Final = "none"
"""The path of a request that no route takes."""
LEFT: Final = "499"
"""Status of a request whose client left before an answer began, as in nginx."""
_METHODS: Final = frozenset(["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"])


def appended(seconds: RequestSeconds, status: int = 200) -> Distribution:
    """Returns the times of appends that are answered with `status`."""
    return seconds.setdefault(("POST", APPEND, str(status)), Distribution())


class TimedRequest:
    """The `send` of one request, which notes the status; `path` is its route if that is known."""

    __slots__ = ("_scope", "_seconds", "_send", "path", "status")

    def __init__(self, scope: Scope, send: Send, seconds: RequestSeconds) -> None:
        self._scope = scope
        self._send = send
        self._seconds = seconds
        self.path = ""
        self.status = LEFT

    def __call__(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self.status = str(message["status"])
        return self._send(message)

    async def run(
        self,
        answer: Awaitable[None],
        now: Callable[[], float],
        cut_off: Callable[[Scope, TimedRequest], Awaitable[None]],
    ) -> None:
        """Awaits the answer and observes its time; a stop that cancels it calls `cut_off`."""
        start = now()
        try:
            await answer
        except asyncio.CancelledError:
            await cut_off(self._scope, self)
        finally:
            route = self._scope.get("route")
            path = self.path or (NO_ROUTE if route is None else route.path)
            method = self._scope["method"]
            key = (method if method in _METHODS else "other", path, self.status)
            found = self._seconds.get(key)
            if found is None:
                found = self._seconds.setdefault(key, Distribution())
            found.observe(now() - start)


# --- Receipts -----------------------------------------------------------------------------------


JSON = (b"content-type", b"application/json")
_BOOLEANS = (b"false", b"true")
Headers = list[tuple[bytes, bytes]]


def receipt_reply(
    receipt: AppendReceipt,
    tag: bytes,
    session: tuple[bytes, bytes],
    *,
    replaced: int = 0,
    unknown_levels: Sequence[str] = (),
    silent: Sequence[str] = (),
) -> tuple[Headers, bytes]:
    """Returns headers and body of a receipt; the run's `tag` and `session` cookie are its route's.

    `replaced` characters of the text were not UTF-8; the body says how many if there are any.
    `unknown_levels` are some of the levels in the records that Tailrace does not know. `silent` are
    nodes that this one cannot reach: a deletion there may remove the batch again.
    """
    last = ulids.encode(receipt.last).encode()
    # A batch id is its last line's ULID with five zeros at the end.
    body = b'{"batch":"%b00000","lines":%d,"duplicate":%b,"durability":"%b","last":"%b"%b}' % (
        last[:21],
        receipt.records,
        _BOOLEANS[receipt.duplicate],
        receipt.durability.encode(),
        last,
        (b',"replaced":%d' % replaced if replaced else b"")
        + (b',"unknownLevels":%b' % orjson.dumps(unknown_levels) if unknown_levels else b"")
        + (b',"silent":%b' % orjson.dumps(silent) if silent else b""),
    )
    headers = [
        JSON,
        (b"content-length", b"%d" % len(body)),
        (b"tailrace-last", last),
        session,
        echo_cookie(last, tag),
    ]
    if silent:
        headers.append((b"tailrace-silent", ", ".join(silent).encode()))
    return headers, body


def echo_cookie(last: bytes, tag: bytes) -> tuple[bytes, bytes]:
    """Returns the cookie by which a client echoes the run's last reply."""
    return (b"set-cookie", b"tailrace=%b.%b; Path=/; Max-Age=86400" % (last, tag))


def response_bytes(status_line: bytes, headers: Headers, body: bytes) -> bytes:
    """Returns a whole HTTP/1.1 response; the status line includes its line end."""
    return b"%b%b\r\n%b" % (status_line, b"".join([b"%b: %b\r\n" % h for h in headers]), body)


class Answerer(Protocol):
    """Counts a quick append and makes the answer to its refusal."""

    def silent(self) -> Sequence[str]:
        """Returns the nodes that this one cannot reach now."""
        ...

    def stored(self, records: int, start: float) -> None:
        """Counts a durable batch; `start` is the time when its request was complete."""
        ...

    def not_stored(self, error: BaseException, headers: Headers, start: float) -> ProblemResponse:
        """Counts a batch that the disk refused, and returns the answer."""
        ...

    def not_said(self, error: Exception, headers: Headers) -> ProblemResponse:
        """Counts an append whose answer could not be made, and returns an error."""
        ...


class QuickReply:
    """The reply to one batch; `tag` and `session` are its route's."""

    __slots__ = ("_answerer", "_batch", "_headers", "_session", "_start", "_submitted", "_tag")

    def __init__(
        self,
        answerer: Answerer,
        batch: IncomingBatch,
        submitted: Submitted,
        *,
        tag: bytes,
        session: tuple[bytes, bytes],
        headers: dict[bytes, bytes],
        start: float,
    ) -> None:
        self._answerer = answerer
        self._batch = batch
        self._submitted = submitted
        self._tag = tag
        self._session = session
        self._headers = headers
        self._start = start

    @property
    def done(self) -> asyncio.Future[None]:
        """Returns a future that is done when the batch is as durable as it asked for."""
        return self._submitted.done

    def failed(self, error: Exception) -> ProblemResponse:
        """Returns the answer without a response, though the batch may be durable."""
        return self._answerer.not_said(error, list(self._headers.items()))

    def response(self) -> tuple[int, Headers, bytes]:
        """Returns status, headers and body."""
        done = self.done
        error = NodeNotReady("the node is stopping") if done.cancelled() else done.exception()
        if error is not None:
            refusal = self._answerer.not_stored(error, list(self._headers.items()), self._start)
            return refusal.status, refusal.headers, refusal.body
        batch, last = self._batch, self._submitted.last
        self._answerer.stored(batch.records, self._start)
        receipt = AppendReceipt(
            last + 1 - batch.records, batch.records, False, batch.durability, last
        )
        headers, body = receipt_reply(
            receipt,
            self._tag,
            self._session,
            replaced=batch.replaced,
            unknown_levels=batch.unknown_levels,
            silent=self._answerer.silent(),
        )
        return 200, headers, body
