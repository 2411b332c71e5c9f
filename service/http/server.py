"""uvicorn with our configuration: one process, one loop, nothing that slows an append."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Final, cast

import uvicorn
from uvicorn.config import Config

from logstore.errors import Unavailable
from logstore.settings import items
from service.http.app import Application
from service.http.clients import Clients
from service.http.connection import Connection, watch
from service.http.cors import with_cors
from service.http.fast_path import fast_path
from service.http.handover import Handover, Sharing

_BACKLOG = 2048
_HEADERS: Final = [
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
]
"""Of every reply: a line of a log is never a page, a script or a frame."""
_TLS_ALONE: Final = ("strict-transport-security", "max-age=31536000")
"""Of every reply over TLS: a browser that was here once asks without TLS no more."""


class Server(uvicorn.Server):
    """A server that leaves signals to its caller, since a stop has more to do than uvicorn's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def connected(self) -> asyncio.Protocol:
        """The protocol of a connection that was accepted elsewhere."""
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 chooses a free one. Raises `OSError`."""
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
    """A bound socket as `listen` gives it. Raises `Unavailable` with a hint for the operator."""
    try:
        return listen(host, port)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="Stop what listens there, or choose another port with --port.",
        ) from error


def address(bound: socket.socket, scheme: str = "http") -> str:
    """The URL under which a socket listens."""
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
    """uvicorn's settings: `app` behind connections that `clients` counts.

    Without `quick` every append uses ASGI, which gives the same answers later. Without `secured`
    there is no TLS, though the settings have a certificate.
    """
    server = app.settings.server
    connection = fast_path(app.append, clients) if quick else partial(Connection, clients)
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
        ssl_certfile=(server.tls_certificate or None) if secured else None,
        ssl_keyfile=(server.tls_key or None) if secured else None,
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

    A worker accepts what is its own of the service's connections too, which it is `sharing`. Those
    have TLS if the settings have a certificate; those of `bound` if they are `secured` as well.
    """
    append = app.append
    clients = Clients(app.settings, append.counters, append.fresh_id)
    server = Server(configured(app, clients, stop_seconds=stop_seconds, secured=secured))
    patience = app.settings.server.header_timeout_seconds
    handover: Handover | None = None
    task = asyncio.create_task(server.serve(sockets=[bound]), name="http")
    watching = asyncio.create_task(watch(server.server_state, app.settings), name="connections")
    try:
        while not server.started and not task.done():  # noqa: ASYNC110 -- it is a plain flag
            await asyncio.sleep(0.001)
        if sharing is not None and server.started:
            handover = Handover(
                sharing,
                connected=server.connected,
                patience_seconds=patience,
                tls=app.settings.server.tls_context(),
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
