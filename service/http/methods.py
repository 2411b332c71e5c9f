"""The methods of a path: HEAD for every GET, and all of them in `Allow`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from copy import copy

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

from service.http.targets import BASE

_APPEND = re.compile(re.escape(BASE) + r"/[^/]+/[^/]+")
_CLOSE = re.compile(_APPEND.pattern + "/close")


def api_routes(routers: Iterable[APIRouter]) -> Iterator[APIRoute]:
    """Every route of FastAPI."""
    for router in routers:
        for route in router.routes:
            if isinstance(route, APIRoute):
                yield route


def answer_head(router: APIRouter) -> None:
    """Adds a HEAD route to every GET route without one; the server sends no body for it."""
    routes = list(api_routes([router]))
    have = {route.path for route in routes if "HEAD" in methods_of(route)}
    for route in routes:
        if "GET" in methods_of(route) and route.path not in have:
            head = copy(route)  # what a new route would be made of takes most of a service's start
            head.methods = {"HEAD"}
            head.include_in_schema = False
            router.routes.append(head)


def allowed(routers: Iterable[APIRouter], scope: Scope) -> list[str]:
    """The methods of a request's path, in alphabetical order."""
    path = scope["path"]
    methods = {"POST"} if _APPEND.fullmatch(path) or _CLOSE.fullmatch(path) else set()
    for route in api_routes(routers):
        if route.matches(scope)[0] != Match.NONE:
            methods |= methods_of(route)
    return sorted(methods)


def methods_of(route: APIRoute) -> set[str]:
    """The methods that a route answers."""
    return route.methods or set()
