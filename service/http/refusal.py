"""What a connection answers itself, because no app is to see the request."""

from __future__ import annotations

from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.http.ids import request_id
from service.http.problems import Headers, problem
from service.http.receipt import response_bytes


class Refusal:
    """A problem in its turn, to uvicorn a request like any other; the connection ends with it."""

    def __init__(self, error: Exception, headers: Headers, fresh_id: Callable[[], str]) -> None:
        self._problem = problem(error, request_id(headers, fresh_id()))

    def response(self, default_headers: Headers) -> bytes:
        """All of it, as it goes over the wire."""
        status, headers, body = self._problem
        headers = [*default_headers, *headers, (b"connection", b"close")]
        return response_bytes(STATUS_LINE[status], headers, body)
