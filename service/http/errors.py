"""Answers errors as `application/problem+json` (RFC 9457), and decides which methods a path has.

Each problem also carries `code` and `message`: OpenMetadata's client takes an error without them
for success and drops the batch. The class of an error decides its status and `type`. The table
below is the whole mapping; a subclass without a row of its own uses its parent's.

All errors of FastAPI's routes become problems, including the framework's own. Every GET route
also answers HEAD, and `Allow` lists all methods of a path. `refusal` refuses requests that the
role of this node (`server.role`) does not serve.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from http import HTTPStatus
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import orjson
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.targets import BASE, ROOT, request_id
from tailrace.logstore import errors
from tailrace.logstore import ulid as ulids
from tailrace.logstore.clock import rfc3339
from tailrace.logstore.errors import InvalidInput, TailraceError

# The methods of a path: HEAD for every GET, and all of them in `Allow`.


_APPEND = re.compile(re.escape(BASE) + r"/[^/]+/[^/]+")
_CLOSE = re.compile(_APPEND.pattern + "/close")


def api_routes(routers: Iterable[APIRouter]) -> Iterator[APIRoute]:
    """Yields every route of FastAPI."""
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
            head = copy(route)  # to build a new route takes most of a service's start
            head.methods = {"HEAD"}
            head.include_in_schema = False
            # Before a later route that would take a word of this path for a name.
            router.routes.insert(router.routes.index(route), head)


def allowed(routers: Iterable[APIRouter], scope: Scope) -> list[str]:
    """Returns the methods of a request's path, in alphabetical order."""
    path = scope["path"]
    methods = {"POST"} if _APPEND.fullmatch(path) or _CLOSE.fullmatch(path) else set()
    for route in api_routes(routers):
        if route.matches(scope)[0] != Match.NONE:
            methods |= methods_of(route)
    return sorted(methods)


def methods_of(route: APIRoute) -> set[str]:
    """Returns the methods that a route answers."""
    return route.methods or set()


Headers = list[tuple[bytes, bytes]]
log = logging.getLogger(__name__)

# 507: on 503 a client tries the next node, which does not help if a disk is full.
_TABLE: dict[type[Exception], tuple[int, str]] = {
    errors.InvalidInput: (400, "invalid-input"),
    errors.InvalidName: (400, "invalid-name"),
    errors.InvalidCursor: (400, "invalid-cursor"),
    errors.BatchTooOld: (400, "batch-too-old"),
    errors.BatchFromTheFuture: (400, "batch-from-the-future"),
    errors.TooLarge: (413, "too-large"),
    errors.Conflict: (409, "conflict"),
    errors.BatchConflict: (409, "batch-conflict"),
    errors.RunDeleted: (409, "run-deleted"),
    errors.LeaseLost: (409, "lease-lost"),
    errors.GroupEvicted: (409, "group-evicted"),
    errors.FolderLocked: (503, "folder-locked"),
    errors.NotAuthenticated: (401, "not-authenticated"),
    errors.Forbidden: (403, "forbidden"),
    errors.NotFound: (404, "not-found"),
    errors.PreconditionFailed: (409, "precondition-failed"),
    errors.Unavailable: (503, "unavailable"),
    errors.StoreUnavailable: (503, "store-unavailable"),
    errors.NodeNotReady: (503, "node-not-ready"),
    errors.JournalFull: (507, "journal-full"),
    errors.OverQuota: (429, "over-quota"),
    errors.Overloaded: (429, "overloaded"),
    errors.LimitReached: (422, "limit-reached"),
    errors.OutcomeUnknown: (503, "outcome-unknown"),
    errors.Damaged: (500, "damaged"),
    errors.ChunkLost: (500, "chunk-lost"),
    errors.UnsupportedVersion: (500, "unsupported-version"),
    errors.JournalFailed: (500, "journal-failed"),
    errors.TailraceError: (500, "internal"),
}
_FRAMEWORK = {
    400: ("bad-request", "Correct the request: a part of it could not be read."),
    403: ("cross-origin", "Pages of other origins may not use the service."),
    404: ("not-found", "The routes are listed at /docs."),
    405: ("method-not-allowed", "The methods of each route are listed at /docs."),
    408: ("body-timeout", "Send the body without pauses, or in smaller batches."),
    411: ("length-required", "Send Content-Length, or a chunked body."),
    414: ("url-too-long", "Send a shorter URL, and put long values into the body."),
    415: (
        "unsupported-media-type",
        "Send application/json, text/plain or application/x-ndjson, Content-Encoding gzip or zstd.",
    ),
    416: ("range-not-satisfiable", "Ask for a range that begins before the end of the text."),
    421: ("misdirected-request", "Use a name of this service; see server.allowed_hosts."),
    431: ("headers-too-large", "Send fewer or shorter headers, cookies for example."),
    500: ("internal", "This is a defect. The service's log has the cause under the request id."),
}

_CHALLENGES = (b'Bearer realm="tailrace"', b'Bearer realm="tailrace", error="invalid_token"')
_SAID_SINGLY = 10
_SAID_EVERY = 1000
_said: Counter[str] = Counter()

# For errors without a hint of their own.
_HINTS = {
    400: "Correct the input that the message names; /docs describes the parameters of each route.",
    404: "List pipelines and runs with GET /api/v1/services/ingestionPipelines/logs.",
    409: "Read the current state, then decide whether to repeat the request.",
    413: "Send it in smaller batches.",
    422: "Ask for less: a shorter time, one run, a smaller limit.",
    500: "See the service's log under the request id, and /health/ready.",
    503: "Try again after the time in Retry-After; sending a batch again under its id is safe.",
    507: "Try again after the time in Retry-After; sending a batch again under its id is safe.",
}


class HttpError(Exception):
    """A refusal that only HTTP knows: a wrong method, media type or range."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        headers: Sequence[tuple[str, str]] = (),
        hint: str = "",
        kind: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.hint = hint
        self.kind = kind


class ProblemResponse(NamedTuple):
    """A response ready to be sent."""

    status: int
    headers: Headers
    body: bytes


def classify(error: BaseException) -> tuple[int, str]:
    """Returns status and type of a `TailraceError`: its own row, or its nearest ancestor's."""
    for cls in type(error).__mro__:
        row = _TABLE.get(cls)
        if row is not None:
            return row
    return 500, "internal"


def problem(error: BaseException, request_id: str) -> ProblemResponse:
    """Returns the response to an error. Logs an unexpected error with its request id."""
    if isinstance(error, HttpError):
        kind, hint = _FRAMEWORK.get(error.status, ("error", ""))
        kind, hint = error.kind or kind, error.hint or hint
        built = _problem(error.status, kind, str(error), hint, request_id)
        built.headers.extend((n.lower().encode(), v.encode("latin-1")) for n, v in error.headers)
        return built
    if not isinstance(error, errors.TailraceError):
        log.error("request %s failed", request_id, exc_info=error)
        kind, hint = _FRAMEWORK[500]
        return _problem(500, kind, "the service failed to answer", hint, request_id)
    status, kind = classify(error)
    if status >= 500:
        _say(request_id, kind, error)
    extra: dict[str, Any] = {}
    if isinstance(error, errors.InvalidInput) and error.field is not None:
        extra["field"] = error.field
    if isinstance(error, errors.RunDeleted):
        extra |= _deletion(error)
    hint = error.hint or _HINTS.get(status, "")
    built = _problem(status, kind, str(error), hint, request_id, extra)
    if isinstance(error, errors.NotAuthenticated):
        built.headers.append((b"www-authenticate", _CHALLENGES[error.invalid]))
    seconds = _retry_after(error)
    if seconds is not None:
        built.headers.append((b"retry-after", b"%d" % seconds))
    return built


def _deletion(error: errors.RunDeleted) -> dict[str, Any]:
    """Returns the data with which a client sends again the lines that came after the deletion."""
    return {
        "deleted_through": ulids.encode(error.deleted_through),
        "deleted_at": rfc3339(error.deleted_ms),
        "deleted_ms_ago": error.age_ms,
        "next_batch": ulids.encode(error.next_batch),
    }


def _say(request_id: str, kind: str, error: BaseException) -> None:
    """Logs the first error of a kind, then every thousandth: retries must not fill the disk."""
    _said[kind] += 1
    count = _said[kind]
    if count <= _SAID_SINGLY or count % _SAID_EVERY == 0:
        log.warning("request %s: %s: %s (%d so far)", request_id, kind, error, count)


def _retry_after(error: errors.TailraceError) -> int | None:
    if isinstance(error, errors.Unavailable):
        return error.retry_after_seconds
    if isinstance(error, errors.OutcomeUnknown | errors.FolderLocked):
        return errors.Unavailable.retry_after_seconds
    return None


def _problem(
    status: int,
    kind: str,
    message: str,
    hint: str,
    request_id: str,
    extra: dict[str, Any] | None = None,
) -> ProblemResponse:
    value = {
        "type": kind,
        "title": _title(status, kind),
        "status": status,
        "detail": message,
        "hint": hint,
        "request_id": request_id,
        "code": status,
        "message": message,
        **(extra or {}),
    }
    body = _dumps(value)
    return ProblemResponse(
        status,
        [
            (b"content-type", b"application/problem+json"),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", request_id.encode("latin-1", "replace")),
        ],
        body,
    )


def _dumps(value: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # a lone surrogate in a message that quotes the input
        plain = {
            k: v.encode("utf-8", "replace").decode() if isinstance(v, str) else v
            for k, v in value.items()
        }
        return orjson.dumps(plain)


def _title(status: int, kind: str) -> str:
    words = kind.replace("-", " ")
    return words.capitalize() if words else HTTPStatus(status).phrase


def install(app: FastAPI, fresh_id: Callable[[], str], routers: Sequence[APIRouter]) -> None:
    """Makes every error of a route a problem document; `routers` are all of the app's."""

    def answer(request: Request, error: Exception) -> Response:
        ours = _ours(error)
        if isinstance(ours, HttpError) and ours.status == 405:
            ours.headers = [("allow", ", ".join(allowed(routers, request.scope)))]
        made = problem(ours, request_id(request.scope["headers"], fresh_id()))
        response = Response(made.body, made.status)
        response.raw_headers = made.headers
        return response

    for kind in (TailraceError, HttpError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, answer)
    app.add_middleware(_Unexpected, fresh_id=fresh_id)


def _ours(error: Exception) -> Exception:
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        if isinstance(error.__cause__, TailraceError):  # raised while the framework read a body
            return error.__cause__
        headers = list((error.headers or {}).items())
        return HttpError(error.status_code, str(error.detail), headers=headers)
    return error


def _invalid(error: RequestValidationError) -> InvalidInput:
    first: dict[str, Any] = error.errors()[0]
    field = str(first["loc"][-1])
    return InvalidInput(
        f"{field}: {first['msg']}", field=field, hint="The parameters are listed at /docs."
    )


class _Unexpected:
    """Answers unexpected errors; if the response has begun, ends the connection.

    An error of Tailrace, such as a store outage in the middle of a download, is logged in one line.
    The server ends the connection of an incomplete reply.
    """

    def __init__(self, app: ASGIApp, fresh_id: Callable[[], str]) -> None:
        self._app = app
        self._fresh_id = fresh_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientDisconnect:  # in the middle of its body: nobody waits for an answer
            return
        except Exception as error:
            # An error that has a handler arrives in another one once the response has begun.
            known = error if isinstance(error, TailraceError) else error.__cause__
            if begun and isinstance(known, TailraceError):
                log.warning("a reply to %s broke off: %s", scope["path"], known)
                return
            if begun or scope["type"] != "http":
                raise
            made = problem(error, request_id(scope["headers"], self._fresh_id()))
            await send(
                {"type": "http.response.start", "status": made.status, "headers": made.headers}
            )
            await send({"type": "http.response.body", "body": made.body})


# Roles: a node that only reads refuses changes of a run; a node that only ingests refuses
# searches. The status is 503, on which clients with several targets try the next one.


Role: TypeAlias = Literal["all", "ingest", "query"]
_READS: Final = ("GET", "HEAD", "OPTIONS")
_LOKI_PATHS: Final = ("query", "label", "series", "index", "detected", "patterns", "tail")
LOKI_SEARCHES: Final = tuple([f"/loki/api/v1/{path}" for path in _LOKI_PATHS])
"""Beginnings of the paths of Loki's API that search."""


def refusal(role: Role, method: str, path: str) -> HttpError | None:
    """Returns the error for a request that this node's role does not serve."""
    if role == "query" and method not in _READS and path.startswith(ROOT):
        return _other("this node only reads", "all or ingest")
    if role == "ingest" and (path == "/query" or path.startswith(("/query/", *LOKI_SEARCHES))):
        return _other("this node makes no searches", "all or query")
    return None


def _other(why: str, roles: str) -> HttpError:
    return HttpError(
        503,
        f"{why} (server.role)",
        headers=[("retry-after", "1")],
        hint=f"Send it to a node whose role is {roles}.",
        kind="other-role",
    )
