"""`GET /query` and `HEAD /query`: parameters to a search, a search to a response.

The status says what was known at the first byte: 200, or 206 if something could not be
read. Errors up to then are problems like everywhere; later ones end the result as its
format allows (`output.py`). A client that goes away ends its search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from logstore.errors import InvalidInput
from service.query.documentation import OPENAPI
from service.query.engine import QueryEngine
from service.query.output import Ndjson, Output, Parquet, Text
from service.query.request import QueryRequest
from service.query.response import SearchResponse, opened

_OUTPUTS: Final[Mapping[str, Callable[[], Output]]] = {
    "ndjson": Ndjson,
    "text": Text,
    "parquet": Parquet,
}
_ACCEPTED: Final = {
    "application/x-ndjson": "ndjson",
    "text/plain": "text",
    "application/vnd.apache.parquet": "parquet",
}


def router(engine: Callable[[], QueryEngine]) -> APIRouter:
    """The routes; `engine` is asked at each request, since a node may start after its app."""
    routes = APIRouter(tags=["query"])

    async def query(request: Request) -> Response:
        parameters = _parameters(request)
        output = _output(parameters.get("format"), request.headers.get("accept", ""))
        current = engine()
        asked = QueryRequest.parse(parameters, now_ms=current.clock.now_ms(), limits=current.limits)
        search = await opened(current, asked, request, head=request.method == "HEAD")
        return SearchResponse(search, output()) if search else Response(status_code=204)

    routes.add_api_route(
        "/query",
        query,
        methods=["GET"],
        summary="Search all runs",
        response_class=Response,
        openapi_extra=OPENAPI,
    )
    routes.add_api_route("/query", query, methods=["HEAD"], include_in_schema=False)
    return routes


def _parameters(request: Request) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in found:
            raise InvalidInput(f"{name} is given twice", field=name, hint="Give it once.")
        found[name] = value
    return found


def _output(asked: str | None, accept: str) -> Callable[[], Output]:
    """By `format`, else the first type of `Accept` that there is, else ndjson."""
    if asked:
        if asked not in _OUTPUTS:
            raise InvalidInput(
                f"format is {asked[:80]!r}",
                field="format",
                hint=f"Write one of {', '.join(_OUTPUTS)}.",
            )
        return _OUTPUTS[asked]
    return _OUTPUTS[accepted_format(accept)]


def accepted_format(accept: str) -> str:
    """The format of the first type of an `Accept` header that there is, else ndjson."""
    types = [part.split(";")[0].strip().lower() for part in accept.split(",")]
    return next((_ACCEPTED[t] for t in types if t in _ACCEPTED), "ndjson")
