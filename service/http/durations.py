"""How long requests take, by method, route and status: `tailrace_api_request_duration_seconds`.

A request is timed from the application's call to its end, so a stream's time is the time that it
was open. The labels come from bounded sets: the method is one that HTTP knows, the path is the
pattern of a route, the status is what was sent. The fast path, which passes no application,
observes its own requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.types import Message, Scope, Send

from service.http.targets import BASE
from service.runtime.counters import Distribution, RequestSeconds

APPEND: Final = f"{BASE}/{{fqn}}/{{runId}}"
CLOSE: Final = f"{APPEND}/close"
NO_ROUTE: Final = "none"
"""The path of a request that no route takes."""
LEFT: Final = "499"
"""The status of a request whose client left before an answer began, as nginx has it."""
_METHODS: Final = frozenset(["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"])


def appended(seconds: RequestSeconds, status: int = 200) -> Distribution:
    """The times of appends that are answered with `status`."""
    return seconds.setdefault(("POST", APPEND, str(status)), Distribution())


class TimedRequest:
    """One request's `send`, which notes the status; `path` is its route where that is known."""

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
