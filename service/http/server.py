"""Runs uvicorn: one process, one loop, CORS, TLS, and connections handed over between workers.

The configuration has nothing that slows an append.

CORS: a page of an origin in `server.cors_origins` may read replies; without the setting no page of
another origin may. Such a page sends a token as a header, as every client does. It may not use
cookies and other credentials of the browser. The fast path never gets such a request.

TLS is asyncio's own protocol, written in Python, with buffers of `_TLS_BYTES`. uvloop's has buffers
of 256 KiB: a connection that sends a large body would take 0.8 MB, which no budget counts. A client
that is in its handshake counts as a connection, and has the time of a head.

Workers of a service accept from one socket, and the kernel chooses the worker of a connection. The
batches of a run that come by many connections would be spread over all workers: still complete, but
read from several journals and shown in their order. So a worker looks at the first request before
it takes a connection (`MSG_PEEK`: nothing is consumed). If the request names a run of another
worker, it passes the connection on, as a descriptor. The name of a run decides its worker.

This is for order and speed only: every worker can serve every request. A connection stays with the
worker that accepted it if the first request names no run or does not come at once, or if the other
worker has no room for it. Later requests stay on their connection. With TLS nobody can read a
request before the connection is taken, so the connection stays with the worker that accepted it.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import ceil
from mmap import mmap
from typing import Any, Final, TypeAlias, cast

import uvicorn
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp
from uvicorn.config import Config

from service.http.app import Application
from service.http.body import Clients, peer_of
from service.http.connection import Connection, watch
from service.http.fast_path import fast_path
from service.http.targets import run_of
from tailrace.logstore.errors import Unavailable
from tailrace.logstore.settings import items

# --- CORS ---------------------------------------------------------------------------------------


_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE")
_REMEMBERED_SECONDS: Final = 600


def with_cors(app: Any, origins: Sequence[str]) -> ASGIApp:
    """Wraps the app so that pages of these origins may read its replies."""
    if not origins:
        return cast("ASGIApp", app)
    return CORSMiddleware(
        cast("ASGIApp", app),
        allow_origins=[origin.lower().rstrip("/") for origin in origins],
        allow_methods=_METHODS,
        allow_headers=("*",),
        expose_headers=("*",),
        max_age=_REMEMBERED_SECONDS,
    )


# --- TLS ----------------------------------------------------------------------------------------


_TLS_BYTES: Final = 32 << 10
"""What is read at once from a connection with TLS; a record has at most 16 KiB."""
Connected: TypeAlias = Callable[..., asyncio.BaseProtocol]


class TlsConnection(SSLProtocol):
    """TLS of one connection, in small buffers; `clients` counts it during its handshake."""

    max_size = _TLS_BYTES

    def __init__(
        self, connection: asyncio.BaseProtocol, clients: Clients, tls: ssl.SSLContext
    ) -> None:
        super().__init__(
            asyncio.get_running_loop(),
            connection,
            tls,
            None,  # type: ignore[arg-type]  # no task waits for the handshake
            server_side=True,
            ssl_handshake_timeout=ceil(clients.settings.server.header_timeout_seconds),
        )
        self._set_read_buffer_limits(_TLS_BYTES)  # type: ignore[attr-defined]  # in no stub
        self._clients = clients
        self._peer: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins the handshake, or closes the connection if it is one too many."""
        peer = peer_of(transport.get_extra_info("peername"))
        if self._clients.enter(peer) is not None:
            self._clients.counters.connections_refused += 1
            cast("asyncio.Transport", transport).abort()
            return
        self._peer = peer
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Counts the connection as closed."""
        self._leave()
        super().connection_lost(exc)

    def _on_handshake_complete(self, handshake_exc: BaseException | None) -> None:
        self._leave()  # the connection of HTTP counts itself
        super()._on_handshake_complete(handshake_exc)

    def _leave(self) -> None:
        if self._peer is not None:
            self._clients.leave(self._peer)
            self._peer = None


def with_tls(connected: Connected, clients: Clients, tls: ssl.SSLContext | None) -> Connected:
    """Returns what makes the protocol of a connection, with TLS if there is a context for it."""
    if tls is None:
        return connected
    return lambda *arguments, **named: TlsConnection(connected(*arguments, **named), clients, tls)


# --- Handover of connections --------------------------------------------------------------------


_PEEKED = 16 << 10
_AT_ONCE = 64
_MOST_WAITING = 1024
_REST_SECONDS = 0.1
_LOOK_SECONDS = 0.02
_TOGETHER_SECONDS = 5.0
_BACKLOG = 2048


def owner(head: bytes, count: int) -> int | None:
    """Returns the worker of `count` to which the request with these first bytes belongs.

    None: any worker.
    """
    words = head.partition(b"\r\n")[0].split(b" ")
    if len(words) != 3:
        return None
    name = run_of(words[0].decode("latin-1"), words[1].partition(b"?")[0])
    return None if name is None else zlib.crc32(name) % count


@dataclass(frozen=True, slots=True)
class Sharing:
    """What a worker shares with the others: the service's socket, and ways to pass on connections.

    `inbox` receives connections that others pass on to worker `number`; `outboxes` are the others'
    inboxes by their numbers. All are `SOCK_SEQPACKET`. `serving` has a byte for each worker, which
    the parent sets as long as the worker serves: a connection passed on to a dead worker would wait
    for it.
    """

    number: int
    shared: socket.socket
    inbox: socket.socket
    outboxes: Mapping[int, socket.socket]
    serving: mmap


class Handover:
    """Accepts from the shared socket; `connected` makes the protocol of a connection.

    Without `peeks` (TLS) connections are not passed on.
    """

    def __init__(
        self,
        sharing: Sharing,
        *,
        connected: Connected,
        patience_seconds: float,
        peeks: bool = True,
    ) -> None:
        self._number = sharing.number
        self._shared = sharing.shared
        self._inbox = sharing.inbox
        self._outboxes = sharing.outboxes
        self._serving = sharing.serving
        self._connected = connected
        self._patience = patience_seconds
        self._peeks = peeks
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._rest: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Accepts once all workers serve; connections wait until then, but not for ever."""
        self._shared.listen(_BACKLOG)
        for each in (self._shared, self._inbox, *self._outboxes.values()):
            each.setblocking(False)
        self._loop.add_reader(self._inbox, self._receive)
        self._begin(self._loop.time() + _TOGETHER_SECONDS)

    def _begin(self, latest: float) -> None:
        others = [self._serving[number] for number in self._outboxes]
        if all(others) or self._loop.time() >= latest:
            self._loop.add_reader(self._shared, self._accept)
        else:
            self._rest = self._loop.call_later(_LOOK_SECONDS, self._begin, latest)

    def stop(self) -> None:
        """Stops accepting and closes connections that wait for their first byte."""
        if self._rest is not None:
            self._rest.cancel()
        self._loop.remove_reader(self._shared)
        self._loop.remove_reader(self._inbox)
        for connection in list(self._waiting):
            self._look_no_more(connection)
            connection.close()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _ = self._shared.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # no free descriptors: other connections end meanwhile
                self._loop.remove_reader(self._shared)
                self._rest = self._loop.call_later(
                    _REST_SECONDS, self._loop.add_reader, self._shared, self._accept
                )
                return
            connection.setblocking(False)
            if self._peeks:
                self._look(connection, waits=True)
            else:
                self._serve(connection)

    def _receive(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                _, found, _, _ = socket.recv_fds(self._inbox, 1, 1)
            except BlockingIOError:
                return
            for descriptor in found:
                self._serve(socket.socket(fileno=descriptor))

    def _look(self, connection: socket.socket, *, waits: bool) -> None:
        """Serves the connection or passes it on, once its first bytes have arrived."""
        try:
            head = connection.recv(_PEEKED, socket.MSG_PEEK)
        except BlockingIOError:
            if waits and len(self._waiting) < _MOST_WAITING:
                self._loop.add_reader(connection, self._readable, connection)
                self._waiting[connection] = self._loop.call_later(
                    self._patience, self._readable, connection
                )
                return
            head = b""
        except OSError:
            connection.close()
            return
        number = owner(head, len(self._outboxes) + 1)
        if number in (None, self._number) or not self._pass_on(connection, number):
            self._serve(connection)

    def _readable(self, connection: socket.socket) -> None:
        self._look_no_more(connection)
        self._look(connection, waits=False)

    def _look_no_more(self, connection: socket.socket) -> None:
        self._loop.remove_reader(connection)
        self._waiting.pop(connection).cancel()

    def _pass_on(self, connection: socket.socket, number: int) -> bool:
        """Returns true if the other worker took it; this process does not have it any more then."""
        if not self._serving[number]:
            return False
        try:
            socket.send_fds(self._outboxes[number], [b"c"], [connection.fileno()])
        except OSError:  # the inbox is full, or the worker is gone
            return False
        connection.close()
        return True

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._connect(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._connected, connection)
        except OSError:  # the client is gone
            with suppress(OSError):
                connection.close()


_HEADERS: Final = [
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
]
"""Of every reply: a line of a log is never a page, a script or a frame."""
_TLS_ALONE: Final = ("strict-transport-security", "max-age=31536000")
"""Of every reply over TLS: a browser that has seen it never asks without TLS again."""


class Server(uvicorn.Server):
    """A server that leaves signals to its caller, since a stop has more to do than uvicorn's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def connected(self) -> asyncio.BaseProtocol:
        """Returns the protocol of a connection that was accepted elsewhere."""
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


def listen(host: str, port: int) -> socket.socket:
    """Returns a bound socket; port 0 chooses a free one. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


def bound_socket(host: str, port: int) -> socket.socket:
    """Binds a socket as `listen` does. Raises `Unavailable` with a hint for the operator."""
    try:
        return listen(host, port)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="Stop what listens there, or choose another port with --port.",
        ) from error


def address(bound: socket.socket, scheme: str = "http") -> str:
    """Returns the URL under which a socket listens."""
    host, port = bound.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def configured(
    app: Application,
    clients: Clients,
    *,
    stop_seconds: float,
    quick: bool = True,
    secured: bool = True,
) -> Config:
    """Builds uvicorn's configuration for `app`; `clients` counts connections.

    Without `quick` every append uses ASGI, which gives the same answers later. Without `secured`
    TLS is off, even if the settings have a certificate.
    """
    server = app.settings.server
    connection: Connected
    connection = fast_path(app.append, clients) if quick else partial(Connection, clients)
    if secured:
        connection = with_tls(connection, clients, server.tls_context())
    return Config(
        cast("uvicorn._types.ASGIApplication", with_cors(app, items(server.cors_origins))),
        loop="none",
        http=cast("type[asyncio.Protocol]", connection),
        ws="none",
        interface="asgi3",
        lifespan="off",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        headers=[*_HEADERS, _TLS_ALONE] if server.tls_certificate else _HEADERS,
        timeout_graceful_shutdown=max(1, round(stop_seconds)),
    )


@asynccontextmanager
async def serving(
    app: Application,
    bound: socket.socket,
    *,
    stop_seconds: float,
    secured: bool = True,
    sharing: Sharing | None = None,
) -> AsyncIterator[asyncio.Task[None]]:
    """Serves while the block runs, and then until the requests in progress are answered.

    With `sharing` a worker also accepts its own of the service's connections. Those have TLS if the
    settings have a certificate; connections of `bound` have it if they are `secured` as well.
    """
    append = app.append
    clients = Clients(app.settings, append.counters, append.fresh_id, append.budget)
    server = Server(configured(app, clients, stop_seconds=stop_seconds, secured=secured))
    patience = app.settings.server.header_timeout_seconds
    handover: Handover | None = None
    task = asyncio.create_task(server.serve(sockets=[bound]), name="http")
    watching = asyncio.create_task(watch(server.server_state, app.settings), name="connections")
    try:
        while not server.started and not task.done():  # noqa: ASYNC110 -- it is a plain flag
            await asyncio.sleep(0.001)
        if sharing is not None and server.started:
            tls = app.settings.server.tls_context()
            handover = Handover(
                sharing,
                connected=with_tls(server.connected, clients, None if secured else tls),
                patience_seconds=patience,
                peeks=tls is None,
            )
            handover.start()
        yield task
    finally:
        if handover is not None:
            handover.stop()
        server.should_exit = True
        await task
        watching.cancel()
        append.shut()
