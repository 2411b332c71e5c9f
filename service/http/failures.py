"""Errors of everything behind FastAPI, as problems; also the framework's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from logstore.errors import InvalidInput, TailraceError
from service.http.ids import request_id
from service.http.methods import allowed
from service.http.problems import HttpError, problem


def install(app: FastAPI, fresh_id: Callable[[], str], routers: Sequence[APIRouter]) -> None:
    """Makes every error that a route raises a problem document; `routers` are all of the app's."""

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
    """Answers what nobody foresaw, unless the response has begun: then the connection ends."""

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
        except Exception as error:
            if begun or scope["type"] != "http":
                raise
            made = problem(error, request_id(scope["headers"], self._fresh_id()))
            await send(
                {"type": "http.response.start", "status": made.status, "headers": made.headers}
            )
            await send({"type": "http.response.body", "body": made.body})
