"""`GET /query/fields` and `GET /query/values`: what may be written next in a search.

Each takes a slot, and has the limits of a search; one whose client goes away ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.http.gate import restricted
from service.http.query import PARAMETERS, described, parameters_of
from service.http.search_response import counted
from service.query import fields, values
from service.query.engine import QueryEngine
from service.query.request import SEARCH_PARAMETERS, QueryRequest
from service.query.sample import DEFAULT_SAMPLE, MAX_SAMPLE, Looked
from service.query.search import Search
from service.query.values import DEFAULT_VALUES, MAX_VALUES, ValuesRequest

T = TypeVar("T", fields.SeenFields, values.SeenValues)

_SAMPLE: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "sample": (
        "So many of the newest records are looked at.",
        {"type": "integer", "minimum": 1, "maximum": MAX_SAMPLE, "default": DEFAULT_SAMPLE},
    )
}
_OF_VALUES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "field": (
        'The field as `q` has it: `level`, `attributes."a key"`, `json.user.id`. It must be given.',
        {"type": "string"},
    ),
    "prefix": ("Only values that begin so; case counts.", {"type": "string"}),
    "limit": (
        "At most so many values.",
        {"type": "integer", "minimum": 1, "maximum": MAX_VALUES, "default": DEFAULT_VALUES},
    ),
}
_FIELD: Final = {
    "type": "object",
    "required": ["name", "records", "kind"],
    "properties": {
        "name": {"type": "string", "description": "With quotes where `q` needs them."},
        "records": {"type": "integer", "description": "How many of the records have it."},
        "kind": {"type": "string", "enum": ["text", "number"]},
    },
}
_VALUE: Final = {
    "type": "object",
    "required": ["value", "text", "records"],
    "properties": {
        "value": {"type": "string", "description": "With quotes where `q` needs them."},
        "text": {"type": "string", "description": "As it is."},
        "records": {"type": "integer", "description": "How many of the records have it."},
    },
}


def _openapi(
    description: str,
    name: str,
    item: Mapping[str, Any],
    own: Mapping[str, tuple[str, dict[str, Any]]],
) -> dict[str, Any]:
    properties = {
        **({"field": {"type": "string", "description": "As `q` has it."}} if own else {}),
        name: {"type": "array", "items": item},
        f"all_{name}": {"type": "boolean", "description": "Whether none was left out."},
        "records": {"type": "integer", "description": "How many records were looked at."},
        "all_records": {"type": "boolean", "description": "Whether no others match."},
        "stats": {"type": "object", "description": "As at the end of `GET /query`."},
    }
    schema = {"type": "object", "required": list(properties), "properties": properties}
    result = {"application/json": {"schema": schema}}
    asked = {name: PARAMETERS[name] for name in SEARCH_PARAMETERS}
    return {
        "description": description,
        "parameters": described(asked | _SAMPLE | dict(own)),
        "responses": {
            "200": {"description": "What the records have.", "content": result},
            "206": {"description": "The same, of what could be read.", "content": result},
            "400": {"description": "A parameter is wrong; the problem names its field."},
            "422": {"description": "The search needs more time or memory than its limit."},
            "503": {"description": "Too many searches, or the store does not answer."},
        },
    }


FIELDS: Final = _openapi(
    "Columns, attributes, paths in JSON and keys in logfmt that the newest matching records have, "
    "the most frequent ones first.",
    "fields",
    _FIELD,
    {},
)
VALUES: Final = _openapi(
    "Values of one field in the newest matching records, the most frequent ones first. "
    "`field:value` finds the records that have it.",
    "values",
    _VALUE,
    _OF_VALUES,
)


def completion_routes(engine: Callable[[], QueryEngine]) -> APIRouter:
    """The routes; `engine` is asked at each request, since a node may start after its app."""
    routes = APIRouter(tags=["query"])

    async def names(request: Request) -> Response:
        current = engine()
        asked = fields.parse(parameters_of(request), now_ms=current.clock.now_ms())

        def listed(found: fields.SeenFields) -> dict[str, Any]:
            return {"fields": found.fields, "all_fields": found.complete}

        within = restricted(request, asked.search)
        work = _sampled(current, within, lambda search: fields.fields(search, asked), listed)
        return await counted(work, request)

    async def frequent(request: Request) -> Response:
        current = engine()
        asked = ValuesRequest.parse(parameters_of(request), now_ms=current.clock.now_ms())

        def listed(found: values.SeenValues) -> dict[str, Any]:
            rows = [
                {"value": seen.value, "text": seen.text, "records": seen.records}
                for seen in found.values
            ]
            return {"field": asked.name, "values": rows, "all_values": found.complete}

        within = restricted(request, asked.sample.search)
        work = _sampled(current, within, lambda search: values.values(search, asked), listed)
        return await counted(work, request)

    for path, answer, summary, description in (
        ("/query/fields", names, "List fields that records have", FIELDS),
        ("/query/values", frequent, "List values of a field", VALUES),
    ):
        routes.add_api_route(
            path,
            answer,
            methods=["GET"],
            summary=summary,
            response_class=Response,
            openapi_extra=description,
        )
    return routes


async def _sampled(
    engine: QueryEngine,
    asked: QueryRequest,
    work: Callable[[Search], T],
    listed: Callable[[T], dict[str, Any]],
) -> dict[str, Any]:
    async with await engine.open(asked) as running:
        found = await running.totals(work)
        return listed(found) | _looked(found.looked, running.stats())


def _looked(looked: Looked, stats: dict[str, Any]) -> dict[str, Any]:
    """The record beyond the sample, by which one knows that there are more, is not counted."""
    return {
        "records": looked.records,
        "all_records": looked.complete,
        "stats": stats | {"matches": looked.records, "next": None},
    }
