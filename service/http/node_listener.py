"""The address at which other nodes ask this one with TLS of both sides (`nodes.listen`).

It serves `/internal/` and nothing else, and whoever connects shows a certificate that the authority
of the nodes has signed, or is refused in the handshake. The public address has no such routes then.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI
from uvicorn.config import Config

from logstore.errors import InvalidInput
from service.http import errors
from service.http.server import Server, bound_socket
from service.peers.settings import NodesSettings

_STOP_SECONDS = 1


def node_socket(nodes: NodesSettings) -> socket.socket | None:
    """The bound socket of `nodes.listen`; None if that is empty. Raises `Unavailable`."""
    if not nodes.listen:
        return None
    host, _, port = nodes.listen.rpartition(":")
    return bound_socket(host.strip("[]"), int(port))


def server_context(nodes: NodesSettings) -> ssl.SSLContext:
    """TLS that asks clients for a certificate. Raises `InvalidInput` for files that are no such."""
    return _context(nodes, ssl.Purpose.CLIENT_AUTH)


def client_context(nodes: NodesSettings) -> ssl.SSLContext:
    """TLS with which this node asks others. Raises `InvalidInput` for files that are no such."""
    return _context(nodes, ssl.Purpose.SERVER_AUTH)


def _context(nodes: NodesSettings, purpose: ssl.Purpose) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(purpose, cafile=nodes.tls_ca)
        context.load_cert_chain(nodes.tls_certificate, nodes.tls_key or None)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise InvalidInput(
            f"the certificates of the nodes cannot be read: {why}",
            field="nodes.tls_certificate",
            hint="nodes.tls_certificate, tls_key and tls_ca name PEM files that the service may"
            " read.",
        ) from error
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@asynccontextmanager
async def answering_nodes(
    router: APIRouter,
    bound: socket.socket,
    nodes: NodesSettings,
    fresh_id: Callable[[], str],
) -> AsyncIterator[None]:
    """Answers other nodes at `bound` while the block runs."""
    app = FastAPI(routes=router.routes, openapi_url=None, docs_url=None, redoc_url=None)
    errors.install(app, fresh_id, [router])
    config = Config(
        app,
        loop="none",
        http="httptools",
        ws="none",
        interface="asgi3",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=_STOP_SECONDS,
        ssl_context_factory=lambda *_: server_context(nodes),
    )
    server = Server(config)
    task = asyncio.create_task(server.serve(sockets=[bound]), name="nodes")
    try:
        while not server.started and not task.done():  # noqa: ASYNC110 -- it is a plain flag
            await asyncio.sleep(0.001)
        yield
    finally:
        server.should_exit = True
        await task
