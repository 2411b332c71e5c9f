"""Serves `POST /internal/{verb}`, the requests between nodes. It is no part of the public API.

A request needs one of three credentials: `Authorization: Bearer {nodes.secret}`, if the secret is
set; the secret before it, while `nodes.previous_secret` names it; or a token with the scope `node`.
`Tailrace-Instance` names the process that the request is meant for, `Tailrace-Asker` the address at
which the asking node can be asked.

With `nodes.listen` the routes are served at that address only, with TLS of both sides: it serves
`/internal/` and nothing else, and the handshake refuses clients without a certificate that the
authority of the nodes has signed. The public address has no such routes then. Without
`nodes.listen` and without credentials the routes do not exist. The public document leaves them out,
because their format may change with any version.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response
from uvicorn.config import Config

from service.access.rules import PREFIX
from service.http import errors
from service.http.authorization import AccessControl
from service.http.errors import HttpError
from service.http.server import Server, bound_socket
from service.peers.rpc import ASKER, INSTANCE, PATH, AskOutcome
from service.settings import NodesSettings
from tailrace.logstore.errors import Forbidden, InvalidInput, NotAuthenticated

Answer = Callable[[str, bytes], Awaitable[bytes]]
"""Answers a question. Raises `TailraceError`, `NotFound` for an unknown verb."""
_MOST_BYTES: Final = 16 << 20
_LONGEST_URL: Final = 300
_UNKNOWN: Final = 401
_TOKEN: Final = f"Bearer {PREFIX}".encode()
_MEDIA_TYPE: Final = "application/octet-stream"


class Refusals(Protocol):
    """Records the outcome of questions by the URL that an asker names, and by its host."""

    def refused(self, asker: str, host: str, reason: str) -> None:
        """Records that a question was refused."""
        ...

    def admitted(self, asker: str) -> None:
        """Records that a question was admitted."""
        ...


def internal_routes(
    secrets: Sequence[str],
    instance: Callable[[], str],
    answer: Answer,
    refusals: Refusals,
    control: AccessControl | None = None,
) -> APIRouter:
    """Returns the routes between nodes; without any `secrets` the connection identifies the asker.

    Each of the secrets is accepted. The rules of `control` may identify the asker, too.
    """
    router = APIRouter(include_in_schema=False)
    wanted = [f"Bearer {secret}".encode() for secret in secrets]

    async def check(request: Request) -> None:
        given = request.headers.get("authorization", "").encode(errors="replace")
        known = [hmac.compare_digest(given, one) for one in wanted]
        if wanted and not any(known):
            if control is None or not given.startswith(_TOKEN):
                raise HttpError(
                    _UNKNOWN,
                    "the secret differs from this node's",
                    hint="All nodes on a store have the same nodes.secret, or tokens for `node`.",
                    kind=AskOutcome.NOT_ADMITTED,
                )
            await control.node(request.scope)
        if request.headers.get(INSTANCE) != instance():
            raise HttpError(
                409,
                "the question was for another process",
                hint="Reload the register.",
                kind=AskOutcome.ANOTHER_PROCESS,
            )

    @router.post(PATH + "{verb}")
    async def ask(verb: str, request: Request) -> Response:
        asker = request.headers.get(ASKER, "")[:_LONGEST_URL]
        try:
            await check(request)
        except (HttpError, NotAuthenticated, Forbidden) as error:
            host = "an unknown address" if request.client is None else request.client.host
            kind = error.kind if isinstance(error, HttpError) else AskOutcome.NOT_ADMITTED
            refusals.refused(asker, host, kind)
            if control is not None and isinstance(error, HttpError) and error.status == _UNKNOWN:
                control.node_refused(request.scope, asker, error)
            raise
        refusals.admitted(asker)
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > _MOST_BYTES:
                raise HttpError(413, "a question of more than 16 MiB", hint="Ask for less.")
        return Response(await answer(verb, bytes(body)), media_type=_MEDIA_TYPE)

    return router


_STOP_SECONDS = 1


def node_socket(nodes: NodesSettings) -> socket.socket | None:
    """Returns the bound socket of `nodes.listen`; None if that is empty. Raises `Unavailable`."""
    if not nodes.listen:
        return None
    host, _, port = nodes.listen.rpartition(":")
    return bound_socket(host.strip("[]"), int(port))


def server_context(nodes: NodesSettings) -> ssl.SSLContext:
    """Returns TLS that asks clients for a certificate. Raises `InvalidInput` for unusable files."""
    return _context(nodes, ssl.Purpose.CLIENT_AUTH)


def client_context(nodes: NodesSettings) -> ssl.SSLContext:
    """Returns TLS with which this node asks others. Raises `InvalidInput` for unusable files."""
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
