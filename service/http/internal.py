"""`POST /internal/{verb}`: what nodes ask each other. No part of the public API.

A request needs `Authorization: Bearer {nodes.secret}`, if there is a secret, the secret before it
while `nodes.previous_secret` names it, or a token with the scope `node`. It names in
`Tailrace-Instance` the process that it is meant for, and in `Tailrace-Asker` where the asking node
is asked. With `nodes.listen` the routes are at that address, where the handshake asks for a
certificate (`node_listener`). Without either there are no such routes. The public document leaves
them out, because their format may change with any version.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from fastapi import APIRouter, Request
from starlette.responses import Response

from logstore.errors import Forbidden, NotAuthenticated
from service.access.tokens import PREFIX
from service.http.errors import HttpError
from service.http.gate import Gate
from service.peers.http import ASKER, INSTANCE, PATH
from service.peers.transport import AskOutcome

Answer = Callable[[str, bytes], Awaitable[bytes]]
"""Answers a question. Raises `TailraceError`, `NotFound` for one that it does not know."""
_MOST_BYTES: Final = 16 << 20
_LONGEST_URL: Final = 300
_UNKNOWN: Final = 401
_TOKEN: Final = f"Bearer {PREFIX}".encode()
_MEDIA_TYPE: Final = "application/octet-stream"


class Refusals(Protocol):
    """Takes note of who asks, by the URL that an asker names, and its host."""

    def refused(self, asker: str, host: str, reason: str) -> None:
        """A question was refused."""
        ...

    def admitted(self, asker: str) -> None:
        """A question was let in."""
        ...


def internal_routes(
    secrets: Sequence[str],
    instance: Callable[[], str],
    answer: Answer,
    refusals: Refusals,
    gate: Gate | None = None,
) -> APIRouter:
    """The routes between nodes; without any `secrets` the connection says who asks.

    Each of the secrets is taken. The rules of `gate` may say who asks, too.
    """
    router = APIRouter(include_in_schema=False)
    wanted = [f"Bearer {secret}".encode() for secret in secrets]

    async def check(request: Request) -> None:
        given = request.headers.get("authorization", "").encode(errors="replace")
        known = [hmac.compare_digest(given, one) for one in wanted]
        if wanted and not any(known):
            if gate is None or not given.startswith(_TOKEN):
                raise HttpError(
                    _UNKNOWN,
                    "another secret than this node's",
                    hint="All nodes on a store have the same nodes.secret, or tokens for `node`.",
                    kind=AskOutcome.NOT_ADMITTED,
                )
            await gate.node(request.scope)
        if request.headers.get(INSTANCE) != instance():
            raise HttpError(
                409,
                "this is another process than was asked",
                hint="Read the register again.",
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
            if gate is not None and isinstance(error, HttpError) and error.status == _UNKNOWN:
                gate.node_refused(request.scope, asker, error)
            raise
        refusals.admitted(asker)
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > _MOST_BYTES:
                raise HttpError(413, "a question of more than 16 MiB", hint="Ask for less.")
        return Response(await answer(verb, bytes(body)), media_type=_MEDIA_TYPE)

    return router
