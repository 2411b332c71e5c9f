"""`POST /internal/{verb}`: what nodes ask each other. No part of the public API.

A request needs `Authorization: Bearer {nodes.secret}`, if there is a secret, or a token with the
scope `node`, and in `Tailrace-Instance` the process that it is meant for. With `nodes.listen` they
are at that address, where the handshake asks for a certificate (`node_listener`). Without either
there are no such routes. The public document leaves them out, because their format may change with
any version.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.access.tokens import PREFIX
from service.http.errors import HttpError
from service.http.gate import Gate
from service.peers.http import INSTANCE, PATH

Answer = Callable[[str, bytes], Awaitable[bytes]]
"""Answers a question. Raises `TailraceError`, `NotFound` for one that it does not know."""
_MOST_BYTES: Final = 16 << 20
_TOKEN: Final = f"Bearer {PREFIX}".encode()
_MEDIA_TYPE: Final = "application/octet-stream"


def internal_routes(
    secret: str, instance: Callable[[], str], answer: Answer, gate: Gate | None = None
) -> APIRouter:
    """The routes between nodes; without a `secret` the connection says who asks.

    The rules of `gate` may say it, too: so a secret is replaced while nodes run.
    """
    router = APIRouter(include_in_schema=False)
    wanted = f"Bearer {secret}".encode()

    @router.post(PATH + "{verb}")
    async def ask(verb: str, request: Request) -> Response:
        given = request.headers.get("authorization", "").encode(errors="replace")
        if secret and not hmac.compare_digest(given, wanted):
            if gate is None or not given.startswith(_TOKEN):
                raise HttpError(
                    401,
                    "another secret than this node's",
                    hint="All nodes on a store have the same nodes.secret, or tokens for `node`.",
                    kind="wrong-secret",
                )
            await gate.node(request.scope)
        if request.headers.get(INSTANCE) != instance():
            raise HttpError(
                409,
                "this is another process than was asked",
                hint="Read the register again.",
                kind="another-process",
            )
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > _MOST_BYTES:
                raise HttpError(413, "a question of more than 16 MiB", hint="Ask for less.")
        return Response(await answer(verb, bytes(body)), media_type=_MEDIA_TYPE)

    return router
