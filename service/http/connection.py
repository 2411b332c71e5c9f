"""Serves one client connection: uvicorn's over httptools, made strict and bounded.

The module closes gaps of uvicorn, for the fast path and for ASGI:

- A request that offers an upgrade is served as HTTP/1.1. llhttp leaves the body of such a request
  to the other protocol, so the request is parsed a second time without the offer, and its body is
  read. Its route finds the offer in the scope, and may `switch` the connection to the protocol.
- Trailers are dropped, because they are not headers. Headers that must be unique are.
- The bytes of a head and of a URL, and the number of waiting requests, are bounded. Heads of more
  than a few KiB, and all waiting requests, share one bound over all connections. An answered
  request leaves nothing in memory.
- If the app cannot answer a request, the connection answers it as `application/problem+json`, in
  its turn, and reads nothing afterwards.
- Bytes of a body count in the budget of bodies from their arrival, also while no route reads them.
  A body of a GET or HEAD is dropped.
- A client that stands still is disconnected: in a head, in a body, between requests, or in reading
  a reply.
- The head of a reply goes out with the beginning of its body (`HeadWithBody`).
- A reply without a length for a client of HTTP/1.0 ends with its connection (`ended_by_closing`).

Invariants: requests are answered in order, also by refusals. No byte of a refused request, or
after it, is parsed as a request. A request costs no timer: `tick` is called at intervals
and compares the present state with the last one.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from service.http.body import Clients, Message, Receive, Scope, Send, peer_of
from service.http.errors import Headers, HttpError, problem
from service.http.replies import CONNECTION, OFFER, acknowledged, response_bytes
from service.http.targets import request_id
from service.settings import HttpSettings
from tailrace.logstore.errors import InvalidInput, Unavailable


class Flow(FlowControl):
    """uvicorn's flow control, which reads on only when no request waits for its turn.

    So pipelined input is bounded.
    """

    def __init__(self, transport: Any, waiting: deque[Any]) -> None:
        super().__init__(transport)
        self._waiting = waiting

    def resume_reading(self) -> None:
        """Resumes as uvicorn does, for a request that waits for its body or the disconnection."""
        if not self._waiting:
            super().resume_reading()


class HeadWithBody:
    """The transport of one request: a reply's head and the start of its body are one write.

    uvicorn writes the head first. If the process is killed before it writes the body, it has sent
    half of a reply: the client has the cookie that says its batch is stored, and no receipt. The
    client sends the batch again and echoes that cookie, so it seems to mean another batch (see
    `service/ingest/appender.py`).

    Only the head of a reply with a length waits, since its body follows. A stream's head goes out
    at once.
    """

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


VERSION = "1.0"
_RESET_AT_ONCE = struct.pack("ii", 1, 0)


def ended_by_closing(
    cycle: RequestResponseCycle, app: Callable[[Scope, Receive, Send], Awaitable[None]]
) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Wraps `app` to answer this request of an HTTP/1.0 client without chunks.

    HTTP/1.0 has no chunks: uvicorn would send them, and the client would read their sizes as text.
    So the end of a reply without a length is the end of its connection. A reply that breaks off is
    reset, so that no client takes a part for the whole.
    """

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
    """Drops unsent bytes, so that the client sees an error and not an end."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)
    transport.abort()


class RefusedRequest:
    """A problem that waits for its turn as uvicorn's requests do; the connection ends with it."""

    def __init__(self, error: Exception, headers: Headers, fresh_id: Callable[[], str]) -> None:
        self._problem = problem(error, request_id(headers, fresh_id()))

    def response(self, default_headers: Headers) -> bytes:
        """Returns the whole response, as sent over the wire."""
        status, headers, body = self._problem
        headers = [*default_headers, *headers, (b"connection", b"close")]
        return response_bytes(STATUS_LINE[status], headers, body)


# The part of a request that is being read.
QUIET: Final = 0
"""Nothing: none has begun, or it is read to its end."""
HEAD: Final = 1
BODY: Final = 2
SHUT: Final = 3
"""Nothing any more: a refusal is on its way, and later bytes are dropped."""

_TICK_SECONDS = 1.0
_LINGER_SECONDS = 2.0
_MOST_WAITING = 32
_WAITING_BYTES = 6 << 10
"""Memory of a request while it waits, without its head."""
_SMALL_HEAD = 8 << 10
"""Bytes of a head that is not counted unless it waits."""
_HEADER_BYTES = 144
"""Memory of a header in addition to its text."""
_MANY_HEADERS = 32
_MOST_HEADERS = 256
_UNSENT_BYTES = 16 << 10
"""With this many unsent bytes, the next part of a reply, or the next reply, waits."""
_ONCE = frozenset([b"authorization", b"content-encoding", b"content-type", b"host"])
_OURS = b"tailrace-"
_WITHOUT_BODY = frozenset(["GET", "HEAD"])
_UPGRADE_TOKENS = frozenset([b"upgrade", b"http2-settings"])
_HEADER_HINT = "Send the request's line and headers without pauses."
_MALFORMED = "this is no HTTP/1.1 request"


class Connection(HttpToolsProtocol):
    """uvicorn's connection; `clients` counts it and knows its limits."""

    def __init__(self, clients: Clients, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.clients = clients
        self.limits = clients.settings.server
        self._body_seconds = clients.settings.ingest.body_timeout_seconds
        self.reading = QUIET
        self.headers = []
        self._messages = 0
        self._offer: tuple[bytes, str] | None = None
        self._offered = b""
        self._take: Callable[[bytes], None] = _drop
        self._peer: str | None = None
        # Bytes of the piece that is being parsed (without heads and bodies that have ended), of
        # the piece in which the head began, and of the pieces since then.
        self._piece = 0
        self._first = 0
        self._later = 0
        self._seen: tuple[int, int, bool] | None = None
        self._still = 0.0
        self._unsent = 0
        self._stalled = 0.0
        # Bytes that `clients` counts: for the head that is being read, for the request that is
        # being answered, and for waiting requests, the newest first, as in `pipeline`.
        self._head_bytes = 0
        self._answered_bytes = 0
        self._waiting: deque[int] = deque()
        self._answered: RequestResponseCycle | None = None
        # Bytes of bodies that no route has read yet; `clients.budget` counts them.
        self._unread = 0

    # --- events of the transport ---------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Accepts the client, or refuses it if too many are connected."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        self.flow = Flow(transport, self.pipeline)
        peer = peer_of(self.client)
        full = self.clients.enter(peer)
        if full is None:
            self._peer = peer
        elif self.clients.turn_away():
            self.refuse(full)
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Counts the connection as closed."""
        if self._peer is not None:
            self.clients.leave(self._peer)
            self._peer = None
        elif self.reading == SHUT:
            self.clients.turned_away()
        self.clients.wait(-sum(self._waiting) - self._head_bytes - self._answered_bytes)
        self._waiting.clear()
        self._head_bytes = self._answered_bytes = 0
        self._release(self._unread)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parses the received bytes; the parser calls the callbacks below meanwhile."""
        if self.reading == SHUT:
            self._take(data)
            return
        self._piece = len(data)
        self._later += len(data)
        while True:
            try:
                self.parser.feed_data(data)
            except HttpParserUpgrade as offer:
                data = self._without_offer() + data[offer.args[0] :]
                continue
            except HttpParserError as error:
                self._refuse_for(error)
            break
        if self._later > self.limits.max_header_bytes and self.reading in (HEAD, BODY):
            self.refuse(_head_too_large(self.limits.max_header_bytes))
        elif self.reading == HEAD:
            if not self._later:
                self._first = self._piece
            size = self._first + self._later
            try:
                self._count_head(size + _HEADER_BYTES * len(self.headers))
            except Unavailable as error:
                self.refuse(error)
        elif self.reading == BODY:
            self.body_pauses()

    def body_pauses(self) -> None:
        """Called when the received bytes end within a body."""

    # --- events of the parser ------------------------------------------------------

    def on_message_begin(self) -> None:
        self.reading = HEAD
        self._messages += 1
        self._later = 0
        self.url = b""
        self.headers = []
        if self._head_bytes:
            self._count_head(0)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.reading == HEAD:  # else it is a trailer
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        limits = self.limits
        many = len(self.headers) > _MANY_HEADERS
        if self._later or many or self._piece > limits.max_url_bytes:
            self._check_size()
        if self.parser.should_upgrade():
            self._put_off()
            return
        self.begin()
        self.reading = BODY

    def on_body(self, body: bytes) -> None:
        self._later = 0
        self._piece -= len(body)
        cycle = self._current
        if cycle is None or cycle.response_complete or cycle.scope["method"] in _WITHOUT_BODY:
            return
        self._hold(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._offer is None:
            self.reading = QUIET
            super().on_message_complete()

    def begin(self) -> None:
        """Starts the request by ASGI, or lets it wait for the requests before it."""
        self._check_once()
        waits = self._size_if_it_waits()
        if self.url[:1] != b"/":
            self.url = _origin_form(self.url)
        url, headers = self.url, self.headers
        super().on_message_begin()
        if self._offered:
            self.scope[OFFER], self._offered = self._offered, b""  # type: ignore[typeddict-unknown-key]
        self.url = url
        self.headers += headers  # the scope holds the same list
        self.expect_100_continue = any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in headers
        )
        super().on_headers_complete()
        if waits:
            self._waiting.appendleft(waits)
            self.clients.wait(waits - self._head_bytes)
        else:
            self._answered_bytes += self._head_bytes
        self._head_bytes = 0

    def _size_if_it_waits(self) -> int:
        """Returns the bytes that the request takes while it waits, 0 if it begins at once.

        Raises `Unavailable` if too many requests wait, on this connection or on all.
        """
        cycle = self._current
        if cycle is None or cycle.response_complete:
            return 0
        size = _WAITING_BYTES + self._head_size(_HEADER_BYTES)
        room = self.clients.may_wait(size - self._head_bytes)
        if len(self.pipeline) >= _MOST_WAITING or not room:
            raise Unavailable(
                "too many requests wait behind others on one connection",
                hint="Read replies before sending more requests.",
            )
        return size

    def _head_size(self, each: int) -> int:
        """Returns the bytes of the whole head, with `each` more for each header."""
        size = len(self.url) + each * len(self.headers)
        return size + sum([len(name) + len(value) for name, value in self.headers])

    def _count_head(self, size: int) -> None:
        """Counts the head that is being read, unless it is small.

        Raises `Unavailable` if all counted heads take too much.
        """
        size = size if size > _SMALL_HEAD else 0
        if size == self._head_bytes:
            return
        if size > self._head_bytes and not self.clients.may_wait(size - self._head_bytes):
            raise Unavailable(
                "too many requests with large heads are under way",
                hint=f"Send heads of less than {_SMALL_HEAD >> 10} KiB, or send it again later.",
            )
        self.clients.wait(size - self._head_bytes)
        self._head_bytes = size

    # --- bodies --------------------------------------------------------------------

    def _hold(self, size: int) -> None:
        """Counts bytes of a body that no route has read. Raises `Unavailable`."""
        self.clients.budget.hold(size)
        self._unread += size

    def _release(self, size: int) -> None:
        size = min(size, self._unread)  # a lost connection has released all
        self.clients.budget.release(size)
        self._unread -= size

    async def _receive(self, receive: Receive) -> Message:
        """Returns the next message of a request, whose route counts its bytes from now on."""
        message = await receive()
        if size := len(message.get("body", b"")):
            full = self.clients.budget.is_full
            self._release(size)
            if full and message["more_body"]:
                self.flow.pause_reading()  # until the route asks for more
        return message

    # --- refusals ------------------------------------------------------------------

    def _check_size(self) -> None:
        limits = self.limits
        if len(self.url) > limits.max_url_bytes:
            raise HttpError(414, f"the URL has more than {limits.max_url_bytes} bytes")
        size = self._head_size(4)
        if size > limits.max_header_bytes:
            raise _head_too_large(limits.max_header_bytes)
        if len(self.headers) > _MOST_HEADERS:
            raise HttpError(431, f"the request has more than {_MOST_HEADERS} headers")
        self._piece -= size
        self._count_head(self._head_size(_HEADER_BYTES))

    def _check_once(self) -> None:
        names = {name for name, _ in self.headers}
        if b"host" not in names and self.parser.get_http_version() == "1.1":
            raise HttpError(400, "the request has no Host", hint="HTTP/1.1 requires Host.")
        if len(names) == len(self.headers):
            return
        seen: set[bytes] = set()
        for name, _ in self.headers:
            if name in seen and (name in _ONCE or name.startswith(_OURS)):
                header = name.decode("latin-1").title()
                raise InvalidInput(
                    f"{header} is given twice", field=header, hint=f"Send {header} once."
                )
            seen.add(name)

    def _refuse_for(self, error: HttpParserError) -> None:
        cause = error.__context__
        if isinstance(cause, Exception) and not isinstance(cause, HttpParserError | UnicodeError):
            self.refuse(cause)
        else:
            self.refuse(HttpError(400, f"{_MALFORMED}: {error}"))

    def refuse(self, error: Exception) -> None:
        """Answers with a problem, after the requests before; nothing is read afterwards."""
        begun, self.reading = self.reading == BODY, SHUT
        refusal = RefusedRequest(error, self.headers, self.clients.fresh_id)
        cycle = self._current
        if begun and self.pipeline:
            self.pipeline.popleft()  # the refused request, which nothing has counted yet
            self.clients.wait(-self._waiting.popleft())
        elif begun and cycle is not None and cycle.more_body:
            if cycle.response_started:  # its reply is on its way and cannot be withdrawn
                self.transport.close()
                return
            cycle.disconnected = True
            cycle.waiting_for_100_continue = False
            cycle.message_event.set()
            cycle = None
        if cycle is None or cycle.response_complete:
            self._send(refusal)
        else:
            self.pipeline.appendleft((refusal, None))  # type: ignore[arg-type]

    def _send(self, refusal: RefusedRequest) -> None:
        """Sends the last response.

        Reads on for a while, since a reset would discard the response.
        """
        self.clients.counters.connections_refused += 1
        self.transport.write(refusal.response(self.server_state.default_headers))
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()

    # --- an offered upgrade --------------------------------------------------------

    def _put_off(self) -> None:
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise HttpError(405, "CONNECT is for proxies, and this is none")
        self._offer = method, self.parser.get_http_version()

    def _without_offer(self) -> bytes:
        """Returns the head without its upgrade offer, for a new parser."""
        assert self._offer is not None
        (method, version), self._offer = self._offer, None
        lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode())]
        for name, value in self.headers:
            kept = value
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                kept = b", ".join(t for t in tokens if t.lower() not in _UPGRADE_TOKENS)
            if name == b"upgrade":
                self._offered = value.strip().lower()
            if kept and name not in _UPGRADE_TOKENS:
                lines.append(b"%b: %b" % (name, kept))
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return b"\r\n".join([*lines, b"", b""])

    def switch(self, send: Send, take: Callable[[bytes], None]) -> Send:
        """Returns the `send` of a reply in progress that goes on in the offered protocol.

        It sends what follows the head as it is, and `take` gets all later bytes of the client. The
        connection ends with the reply. Raises `InvalidInput` if bytes of the client came too early.
        """
        cycle = self._current
        if cycle is None or self.pipeline or self.reading != QUIET:
            raise InvalidInput("bytes follow the request for an upgrade")
        self.reading, self._take = SHUT, take
        cycle.chunked_encoding = False

        async def sent(message: Message) -> None:
            cycle.expected_content_length = len(message.get("body", b""))
            await send(message)
            cycle.keep_alive = False

        return sent

    # --- sent replies --------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        cycle.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        cycle.transport = HeadWithBody(cycle)  # type: ignore[assignment]
        self._answered = cycle
        answers = ended_by_closing(cycle, app) if cycle.scope["http_version"] == VERSION else app

        def answered(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            answer: Awaitable[None] = answers(scope, partial(self._receive, receive), send)
            return answer

        super()._start_asgi_task(cycle, answered)  # type: ignore[arg-type]

    def on_response_complete(self) -> None:
        """Starts the next request, or sends the refusal that waits."""
        self.server_state.total_requests += 1
        self._forget_answered()
        if self.transport.is_closing():
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            if isinstance(cycle, RefusedRequest):
                self._send(cycle)
            else:
                self._answered_bytes = self._waiting.pop()
                self._start_asgi_task(cycle, app)
        self.flow.resume_reading()

    def _forget_answered(self) -> None:
        """Frees the memory of the answered request: its client may keep the connection for long."""
        if self._answered_bytes:
            self.clients.wait(-self._answered_bytes)
            self._answered_bytes = 0
        if (cycle := self._answered) is not None:
            self._release(len(cycle.body))
            cycle.scope, cycle.body = {}, bytearray()  # type: ignore[typeddict-item]
            self._answered = None
        if not self.pipeline and self.reading != HEAD:
            self.headers = []
            self.scope = None  # type: ignore[assignment]
            if self._head_bytes:
                self._count_head(0)

    # --- time ----------------------------------------------------------------------

    def tick(self, seconds: float) -> None:
        """Disconnects a client that stands still; `seconds` have passed since the last call."""
        limits, busy = self.limits, self.busy
        seen = self._messages, self.reading, busy
        if seen != self._seen:
            self._seen, self._still = seen, 0.0
        elif not self.flow.read_paused and not (self.reading == SHUT and self._unsent):
            self._still += seconds
        if not self._reads_its_replies(seconds):
            self.clients.counters.connections_timed_out += 1
            self.transport.abort()
        elif self.transport.is_closing():
            return
        elif self.reading == HEAD and self._still > limits.header_timeout_seconds:
            self._time_out("head", limits.header_timeout_seconds, "header-timeout", _HEADER_HINT)
        elif self.reading == BODY and self._still > self._body_seconds:
            self._time_out("body", self._body_seconds)
        elif self.reading in (QUIET, SHUT) and not busy:
            most = _LINGER_SECONDS if self.reading == SHUT else limits.idle_timeout_seconds
            if self._still > most:
                self.transport.close()

    def _time_out(self, what: str, seconds: float, kind: str = "", hint: str = "") -> None:
        self.clients.counters.connections_timed_out += 1
        message = f"the {what} took longer than {seconds:g} s"
        self.refuse(HttpError(408, message, kind=kind, hint=hint))

    def _reads_its_replies(self, seconds: float) -> bool:
        before, self._unsent = self._unsent, self.transport.get_write_buffer_size()
        if not self._unsent or self._unsent < before:
            self._stalled = 0.0
        else:
            self._stalled += seconds
        return self._stalled <= self.limits.write_timeout_seconds

    @property
    def taken(self) -> int | None:
        """Returns the bytes that the client's end has received since it connected.

        None: no data waits for the client.
        """
        if not self.transport.get_write_buffer_size():
            return None
        connection = self.transport.get_extra_info("socket")
        return None if connection is None else acknowledged(connection)

    def push(self, chunk: bytes) -> bool:
        """Sends a chunk of the reply in progress at once; False if `send` has to do it.

        `chunk` is framed as HTTP/1.1 frames it, or the protocol to which the connection switched.
        `send` has to do it if the client reads slowly, is gone, or speaks HTTP/1.0.
        """
        cycle = self._current
        if (
            cycle is None
            or not cycle.response_started
            or cycle.response_complete
            or cycle.disconnected
            or not (cycle.chunked_encoding or self._take is not _drop)
            or self.flow.write_paused
            or self.transport.is_closing()
        ):
            return False
        self.transport.write(chunk)
        return True

    def cut_off(self) -> None:
        """Closes the connection and drops data that the client has not read."""
        self.clients.counters.connections_timed_out += 1
        self.transport.abort()

    @property
    def busy(self) -> bool:
        """Returns true while a request is being answered."""
        cycle = self._current
        return cycle is not None and not cycle.response_complete

    @property
    def _current(self) -> RequestResponseCycle | None:
        """Returns the request that is being answered, or was answered last."""
        return self.cycle


def _drop(_: bytes) -> None:
    """Takes bytes that come after a refusal."""


async def watch(server: ServerState, settings: HttpSettings) -> None:
    """Calls `tick` of every connection at intervals, until it is cancelled."""
    loop = asyncio.get_running_loop()
    every = min(_TICK_SECONDS, settings.shortest_timeout_seconds / 4)
    then = loop.time()
    while True:
        await asyncio.sleep(every)
        now = loop.time()
        for connection in list(server.connections):
            if isinstance(connection, Connection):
                connection.tick(now - then)
        then = now


def _origin_form(url: bytes) -> bytes:
    """Returns the path of a target that is a whole URL, as a client sends it to a proxy.

    Raises `HttpError` for a target without a path, such as `*`.
    """
    scheme, sign, rest = url.partition(b"://")
    if not sign or scheme.lower() not in (b"http", b"https"):
        raise HttpError(400, "the target of the request is neither a path nor a URL")
    end = min([at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0], default=len(rest))
    path = rest[end:].partition(b"#")[0]
    return path if path[:1] == b"/" else b"/" + path


def _head_too_large(most: int) -> HttpError:
    return HttpError(431, f"the request's head has more than {most} bytes")
