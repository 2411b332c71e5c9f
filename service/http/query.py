"""`GET /query` and `HEAD /query`: translates parameters to a search, a search to a response.

The status says what was known at the first byte: 200, or 206 if something could not be
read. Errors before it are problem documents; later ones end the result as its
format allows (`service/query/output.py`). A client that disconnects ends its search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from logstore.errors import InvalidInput
from logstore.search.moments import TIME_FORMS
from logstore.segments.schema import LEVELS
from service.http.body import json_object
from service.http.gate import restricted
from service.http.query_context import CONTEXT, around, context_response
from service.http.search_response import SearchResponse, opened
from service.query.engine import QueryEngine
from service.query.output import Ndjson, Output, Parquet, Text
from service.query.request import QueryRequest

_TIME: Final = f"{TIME_FORMS}; inclusive"
_EXPRESSION: Final = (
    'Words, `"phrases"`, `/regular expressions/`, fields (`level>=WARN`, `json.status=500`), '
    "`AND`, `OR`, `NOT`; several words mean all of them."
)
PARAMETERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "q": (_EXPRESSION, {"type": "string"}),
    "regex": ("All of `q` is one regular expression (RE2).", {"type": "boolean", "default": False}),
    "from": (f"Lowest time of the ULID: {_TIME}.", {"type": "string", "default": "now-1h"}),
    "to": (
        f"Highest time of the ULID: {_TIME}. No bound from now on.",
        {"type": "string"},
    ),
    "time": (
        "What `from` and `to` bound: when lines arrived, or their own time (`ts`).",
        {"type": "string", "enum": ["arrival", "ts"], "default": "arrival"},
    ),
    "by": ("The same as `time`.", {"type": "string", "enum": ["arrival", "ts"]}),
    "fqn": ("Only this pipeline.", {"type": "string"}),
    "run": ("Only runs of this id.", {"type": "string"}),
    "level": (
        f"Only these levels, separated by commas: {', '.join(LEVELS)}.",
        {"type": "string"},
    ),
    "limit": (
        "At most so many records; without it, all.",
        {"type": "integer", "minimum": 1},
    ),
    "order": (
        "Order of ULIDs: newest first, or oldest first.",
        {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
    ),
    "after": ("Go on behind this cursor (`next` of the stats).", {"type": "string"}),
    "format": (
        "Format of the result; without it, by `Accept`.",
        {"type": "string", "enum": ["ndjson", "text", "parquet"], "default": "ndjson"},
    ),
    "stats_only": (
        (
            "Only the stats: how much was searched, how many records match. Lines that continue a "
            "record (`carried`) do not count beside it, unless the search asks for text."
        ),
        {"type": "boolean", "default": False},
    ),
}


def described(parameters: Mapping[str, tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The parameters of a URL as OpenAPI describes them, from their texts and schemas."""
    return [
        {"name": name, "in": "query", "required": False, "description": text, "schema": schema}
        for name, (text, schema) in parameters.items()
    ]


_RESULT: Final = {
    "application/x-ndjson": {"schema": {"type": "string"}},
    "text/plain": {"schema": {"type": "string"}},
    "application/vnd.apache.parquet": {"schema": {"type": "string", "format": "binary"}},
}
_DESCRIPTION: Final = (
    "Each record once, in ULID order, streamed: hot lines, segments and the table. The last "
    'ndjson record is `{"stats": {…}}` and says whether the result is complete and where the '
    "next page begins; a result without it is partial. It counts the segments and the table's "
    "files that were to be read, those that failed and those that were skipped, and names what is "
    "missing. HEAD gives the counts as headers."
)

OPENAPI: Final[dict[str, Any]] = {
    "description": _DESCRIPTION,
    "parameters": described(PARAMETERS | CONTEXT),
    "responses": {
        "200": {"description": "What was found.", "content": _RESULT},
        "206": {"description": "What was found; something could not be read.", "content": _RESULT},
        "400": {"description": "A parameter is wrong; the problem names its field."},
        "422": {"description": "The search needs more time or memory than its limit."},
        "503": {"description": "Too many searches, or the store does not answer."},
    },
}


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
        long = request.method == "POST"
        parameters = await posted_parameters(request) if long else parameters_of(request)
        form = _form(parameters.get("format"), request.headers.get("accept", ""))
        wanted = around(parameters)
        current = engine()
        now_ms = current.clock.now_ms()
        asked = restricted(request, QueryRequest.parse(parameters, now_ms=now_ms, long=long))
        if wanted is not None and request.method != "HEAD" and not asked.stats_only:
            return await context_response(current, asked, wanted, form, request)
        output = _OUTPUTS[form]
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
    routes.add_api_route(
        "/query",
        query,
        methods=["POST"],
        summary="Search all runs, with a long expression",
        response_class=Response,
        openapi_extra=posted(OPENAPI),
    )
    return routes


def parameters_of(request: Request) -> dict[str, str]:
    """The URL's parameters. Raises `InvalidInput` for one that is given twice."""
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in found:
            raise InvalidInput(f"{name} is given twice", field=name, hint="Give it once.")
        found[name] = value
    return found


async def posted_parameters(request: Request) -> dict[str, str]:
    """The parameters in a body, as one JSON object. Raises `InvalidInput`, `BodyTooLarge`."""
    if request.query_params:
        raise InvalidInput(
            "parameters are in the URL and in the body",
            field="body",
            hint='Send all of them as one JSON object: {"q": "level:ERROR", "from": "now-1h"}.',
        )
    return {
        name: value if isinstance(value, str) else orjson.dumps(value).decode()
        for name, value in (await json_object(request)).items()
        if value is not None
    }


def posted(operation: dict[str, Any]) -> dict[str, Any]:
    """The description of an operation whose parameters are in the body."""
    properties = {
        one["name"]: {**one["schema"], "description": one["description"]}
        for one in operation["parameters"]
    }
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    rest = {name: value for name, value in operation.items() if name != "parameters"}
    return rest | {
        "description": f"{operation['description']} The parameters are one JSON object; `q` has "
        "up to 1,000,000 characters.",
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
    }


def _form(asked: str | None, accept: str) -> str:
    """`format`, else the format of the first known type of `Accept`, else ndjson."""
    if asked:
        if asked not in _OUTPUTS:
            raise InvalidInput(
                f"format is {asked[:80]!r}",
                field="format",
                hint=f"Write one of {', '.join(_OUTPUTS)}.",
            )
        return asked
    return accepted_format(accept)


def accepted_format(accept: str) -> str:
    """The format of the first known type of an `Accept` header, else ndjson."""
    types = [part.split(";")[0].strip().lower() for part in accept.split(",")]
    return next((_ACCEPTED[t] for t in types if t in _ACCEPTED), "ndjson")
