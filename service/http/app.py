"""The node's HTTP door as one ASGI callable.

Method and path prefix are looked at first: appends go to `AppendRoutes` without ever
meeting a framework; everything else goes to FastAPI.
"""

from __future__ import annotations

from collections.abc import Awaitable

from service.http.append import AppendRoutes
from service.http.body import Receive, Scope, Send
from service.http.targets import PREFIX, canonical
from starlette.types import ASGIApp


class Application:
    """What uvicorn calls; not a coroutine function, to spare one coroutine per append."""

    def __init__(self, append: AppendRoutes, rest: ASGIApp) -> None:
        self._append = append
        self._rest = rest

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http":
            if scope["method"] == "POST":
                answer = self._append.answer(scope, receive, send)
                if answer is not None:
                    return answer
            elif scope["raw_path"].startswith(PREFIX):
                scope["path"] = canonical(scope["raw_path"], scope["method"])
        return self._rest(scope, receive, send)
