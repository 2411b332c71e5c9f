"""`GET` and `POST /query/count`: how many records match, by values of fields, as one JSON object.

It takes a slot, and has the limits of a search; one whose client goes away ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.http.gate import restricted
from service.http.query import (
    PARAMETERS,
    described,
    parameters_of,
    posted,
    posted_parameters,
)
from service.http.search_response import counted
from service.query.count import (
    DEFAULT_ROWS,
    MAX_FIELDS,
    MAX_GROUPS,
    MAX_ROWS,
    CountRequest,
    count_by,
)
from service.query.engine import QueryEngine
from service.query.request import SEARCH_PARAMETERS

_OWN: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "by": (
        f"Up to {MAX_FIELDS} fields, separated by commas: `level,json.status`.",
        {"type": "string"},
    ),
    "limit": (
        "At most so many combinations of values.",
        {"type": "integer", "minimum": 1, "maximum": MAX_ROWS, "default": DEFAULT_ROWS},
    ),
}
_PROPERTIES: Final[dict[str, Any]] = {
    "by": {"type": "array", "items": {"type": "string"}, "description": "As `q` has them."},
    "counts": {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["values", "records"],
            "properties": {
                "values": {
                    "type": "object",
                    "additionalProperties": {"type": ["string", "null"]},
                    "description": "The value of each field, null where records have none.",
                },
                "records": {"type": "integer", "description": "How many records have them."},
            },
        },
    },
    "all_counts": {"type": "boolean", "description": "Whether none was left out."},
    "records": {"type": "integer", "description": "How many records match."},
    "time": {"type": "string", "enum": ["arrival", "ts"], "description": "What time is in use."},
    "stats": {"type": "object", "description": "As at the end of `GET /query`."},
}
_SCHEMA: Final = {
    "type": "object",
    "required": list(_PROPERTIES),
    "properties": _PROPERTIES,
}
OPENAPI: Final[dict[str, Any]] = {
    "description": (
        "Each record that matches is counted once, whatever their number. Lines that continue a "
        "record (`carried`) do not count beside it, unless the search asks for text. The most "
        "frequent "
        f"combinations come first. More than {MAX_GROUPS} of them are refused with 422."
    ),
    "parameters": described({name: PARAMETERS[name] for name in SEARCH_PARAMETERS} | _OWN),
    "responses": {
        "200": {
            "description": "All counts.",
            "content": {"application/json": {"schema": _SCHEMA}},
        },
        "206": {"description": "Counts of what could be read."},
        "400": {"description": "A parameter is wrong; the problem names its field."},
        "422": {"description": "The search needs more time or memory than its limit."},
        "503": {"description": "Too many searches, or the store does not answer."},
    },
}


def count_routes(engine: Callable[[], QueryEngine]) -> APIRouter:
    """The routes; `engine` is asked at each request, since a node may start after its app."""
    routes = APIRouter(tags=["query"])

    async def count(request: Request) -> Response:
        long = request.method == "POST"
        parameters = await posted_parameters(request) if long else parameters_of(request)
        return await counted(_counts(engine(), parameters, request), request)

    for method, summary, operation in (
        ("GET", "Count records by values of fields", OPENAPI),
        ("POST", "Count records by values, with a long expression", posted(OPENAPI)),
    ):
        routes.add_api_route(
            "/query/count",
            count,
            methods=[method],
            summary=summary,
            response_class=Response,
            openapi_extra=operation,
        )
    return routes


async def _counts(
    engine: QueryEngine, parameters: dict[str, str], request: Request
) -> dict[str, Any]:
    asked = CountRequest.parse(
        parameters, now_ms=engine.clock.now_ms(), long=request.method == "POST"
    )
    async with await engine.open(restricted(request, asked.search)) as running:
        found = await running.totals(lambda search: count_by(search, asked))
        stats = running.stats()
    return {
        "by": asked.names,
        "counts": [
            {
                "values": dict(zip(asked.names, row.values, strict=True)),
                "records": row.records,
            }
            for row in found.counts
        ],
        "all_counts": found.complete,
        "records": stats["matches"],
        "time": asked.search.time,
        "stats": stats | {"next": None},
    }
