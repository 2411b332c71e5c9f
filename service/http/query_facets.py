"""Serves facets of a search as JSON: a histogram, fields, values, and counts by values.

    GET /query/histogram          how many records match, by time and level
    GET /query/fields, /values    fields and values for the completion of a search
    GET, POST /query/count        how many records match, by values of fields

Each reply is one JSON object. Each request takes a slot and has the limits of a search. It ends if
its client disconnects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.http.authorization import restricted
from service.http.query import (
    PARAMETERS,
    counted,
    described,
    parameters_of,
    posted,
    posted_parameters,
)
from service.query import facets
from service.query.engine import QueryEngine
from service.query.facets import (
    DEFAULT_BUCKETS,
    DEFAULT_ROWS,
    DEFAULT_SAMPLE,
    DEFAULT_VALUES,
    MAX_BUCKETS,
    MAX_GROUPS,
    MAX_ROWS,
    MAX_SAMPLE,
    MAX_VALUES,
    MOST_COUNTED_FIELDS,
    CountRequest,
    HistogramBucket,
    HistogramRequest,
    Looked,
    ValuesRequest,
    count_by,
    histogram,
    oldest_ms,
)
from service.query.request import SEARCH_PARAMETERS, QueryRequest
from service.query.search import Search
from tailrace.logstore import ulid
from tailrace.logstore.clock import rfc3339

_FROM: Final = f"{PARAMETERS['from'][0]} `0` is the time of the first record."
_TO: Final = f"{PARAMETERS['to'][0].partition(' Without')[0]} Without it, now."
_HISTOGRAM_PARAMETERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "from": (_FROM, PARAMETERS["from"][1]),
    "to": (_TO, {"type": "string", "default": "now"}),
    "buckets": (
        "About this many: the service takes the shortest round step that needs no more.",
        {"type": "integer", "minimum": 1, "maximum": MAX_BUCKETS, "default": DEFAULT_BUCKETS},
    ),
    "step": (
        "Length of a bucket, for example `30s`, `5m` or `1d`; instead of `buckets`.",
        {"type": "string"},
    ),
}
_BUCKET: Final = {
    "type": "object",
    "required": ["at", "count", "levels"],
    "properties": {
        "at": {"type": "string", "format": "date-time"},
        "count": {"type": "integer"},
        "levels": {
            "type": "object",
            "description": "Counts by level, `null` for records without one; zeros are left out.",
            "additionalProperties": {"type": "integer"},
        },
    },
}
_RESULT: Final = {
    "application/json": {
        "schema": {
            "type": "object",
            "required": ["from", "to", "step_ms", "buckets", "stats"],
            "properties": {
                "from": {"type": "string", "format": "date-time"},
                "to": {"type": "string", "format": "date-time"},
                "step_ms": {"type": "integer"},
                "by": {"type": "string", "enum": ["arrival", "ts"]},
                "buckets": {"type": "array", "items": _BUCKET},
                "stats": {"type": "object", "description": "As at the end of `GET /query`."},
            },
        }
    }
}
HISTOGRAM_OPENAPI: Final[dict[str, Any]] = {
    "description": (
        "Each record is counted once, by the time of its ULID, or with `time=ts` by its own. "
        "Lines that continue a record (`carried`) do not count separately, unless the search asks "
        "for text: a traceback is one error. "
        "Buckets begin at multiples of the step since the epoch (UTC), the empty ones are there, "
        "and `from` and `to` may cut the first and the last one."
    ),
    "parameters": described(
        {name: PARAMETERS[name] for name in (*SEARCH_PARAMETERS, "by")} | _HISTOGRAM_PARAMETERS
    ),
    "responses": {
        "200": {"description": "All counts.", "content": _RESULT},
        "206": {"description": "Counts of what could be read.", "content": _RESULT},
        "400": {"description": "A parameter is wrong; the problem names its field."},
        "422": {"description": "The search needs more time or memory than its limit."},
        "503": {"description": "Too many searches, or the store does not answer."},
    },
}


def histogram_routes(engine: Callable[[], QueryEngine]) -> APIRouter:
    """Returns the route.

    It calls `engine` at each request, since a node may start after its app.
    """
    routes = APIRouter(tags=["query"])

    async def counts(request: Request) -> Response:
        parameters = parameters_of(request)
        return await counted(_histogram(engine(), parameters, request), request)

    routes.add_api_route(
        "/query/histogram",
        counts,
        methods=["GET"],
        summary="Count records by time and level",
        response_class=Response,
        openapi_extra=HISTOGRAM_OPENAPI,
    )
    return routes


async def _histogram(
    engine: QueryEngine, parameters: Mapping[str, str], request: Request
) -> dict[str, Any]:
    now_ms = engine.clock.now_ms()
    search = HistogramRequest.parse_search(parameters, now_ms=now_ms)
    first = await _first(engine, search, request) if search.start_ms == 0 else None
    asked = HistogramRequest.parse(parameters, now_ms=now_ms, first=first)
    async with await engine.open(restricted(request, asked.search)) as running:
        buckets = await running.totals(lambda search: histogram(search, asked))
        return {
            "from": rfc3339(asked.start_ms),
            "to": rfc3339(asked.end_ms),
            "step_ms": asked.step_ms,
            "by": asked.search.time,
            "buckets": [_described(bucket) for bucket in buckets],
            "stats": running.stats(),
        }


async def _first(engine: QueryEngine, search: QueryRequest, request: Request) -> int | None:
    """Returns the time of the first record in the time range and the runs, whatever it holds."""
    if search.times is not None:
        async with await engine.open(restricted(request, search)) as running:
            return await running.totals(oldest_ms)
    oldest = replace(search, condition=None, levels=(), limit=1, descending=False)
    async with await engine.open(restricted(request, oldest)) as running:
        async for batch in running.batches():
            return ulid.time_ms(ulid.decode(batch.column("ulid")[0].as_py()))
    return None


def _described(bucket: HistogramBucket) -> dict[str, Any]:
    levels = {level or "null": count for level, count in bucket.levels.items()}
    return {"at": rfc3339(bucket.at_ms), "count": bucket.count, "levels": levels}


# --- Completion ---------------------------------------------------------------------------------


T = TypeVar("T", facets.SeenFields, facets.SeenValues)

_SAMPLE: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "sample": (
        "Number of the newest records to examine.",
        {"type": "integer", "minimum": 1, "maximum": MAX_SAMPLE, "default": DEFAULT_SAMPLE},
    )
}
_OF_VALUES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "field": (
        'The field as `q` has it: `level`, `attributes."a key"`, `json.user.id`. It must be given.',
        {"type": "string"},
    ),
    "prefix": ("Only values with this prefix; case-sensitive.", {"type": "string"}),
    "limit": (
        "Maximum number of values.",
        {"type": "integer", "minimum": 1, "maximum": MAX_VALUES, "default": DEFAULT_VALUES},
    ),
}
_FIELD: Final = {
    "type": "object",
    "required": ["name", "records", "kind"],
    "properties": {
        "name": {"type": "string", "description": "Name as `q` takes it, with quotes if needed."},
        "records": {"type": "integer", "description": "Number of records that have it."},
        "kind": {"type": "string", "enum": ["text", "number"]},
    },
}
_VALUE: Final = {
    "type": "object",
    "required": ["value", "text", "records"],
    "properties": {
        "value": {"type": "string", "description": "Name as `q` takes it, with quotes if needed."},
        "text": {"type": "string", "description": "The value without quotes."},
        "records": {"type": "integer", "description": "Number of records that have it."},
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
        f"all_{name}": {"type": "boolean", "description": "Whether the list is complete."},
        "records": {"type": "integer", "description": "Number of examined records."},
        "all_records": {
            "type": "boolean",
            "description": "Whether all matching records were examined.",
        },
        "stats": {"type": "object", "description": "As at the end of `GET /query`."},
    }
    schema = {"type": "object", "required": list(properties), "properties": properties}
    result = {"application/json": {"schema": schema}}
    asked = {name: PARAMETERS[name] for name in SEARCH_PARAMETERS}
    return {
        "description": description,
        "parameters": described(asked | _SAMPLE | dict(own)),
        "responses": {
            "200": {"description": "The fields or values of the records.", "content": result},
            "206": {
                "description": "The same, for the records that could be read.",
                "content": result,
            },
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
    """Returns the routes; they call `engine` at each request: a node may start after its app."""
    routes = APIRouter(tags=["query"])

    async def names(request: Request) -> Response:
        current = engine()
        asked = facets.parse(parameters_of(request), now_ms=current.clock.now_ms())

        def listed(found: facets.SeenFields) -> dict[str, Any]:
            return {"fields": found.fields, "all_fields": found.complete}

        within = restricted(request, asked.search)
        work = _sampled(current, within, lambda search: facets.fields(search, asked), listed)
        return await counted(work, request)

    async def frequent(request: Request) -> Response:
        current = engine()
        asked = ValuesRequest.parse(parameters_of(request), now_ms=current.clock.now_ms())

        def listed(found: facets.SeenValues) -> dict[str, Any]:
            rows = [
                {"value": seen.value, "text": seen.text, "records": seen.records}
                for seen in found.values
            ]
            return {"field": asked.name, "values": rows, "all_values": found.complete}

        within = restricted(request, asked.sample.search)
        work = _sampled(current, within, lambda search: facets.values(search, asked), listed)
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
    """Describes the sample without its extra record, which only proves that more records exist."""
    return {
        "records": looked.records,
        "all_records": looked.complete,
        "stats": stats | {"matches": looked.records, "next": None},
    }


# --- Counts -------------------------------------------------------------------------------------


_COUNT_PARAMETERS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "by": (
        f"Up to {MOST_COUNTED_FIELDS} fields, separated by commas: `level,json.status`.",
        {"type": "string"},
    ),
    "limit": (
        "Maximum number of combinations of values.",
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
    "all_counts": {"type": "boolean", "description": "Whether the list is complete."},
    "records": {"type": "integer", "description": "How many records match."},
    "time": {"type": "string", "enum": ["arrival", "ts"], "description": "The time range in use."},
    "stats": {"type": "object", "description": "As at the end of `GET /query`."},
}
_SCHEMA: Final = {
    "type": "object",
    "required": list(_PROPERTIES),
    "properties": _PROPERTIES,
}
COUNT_OPENAPI: Final[dict[str, Any]] = {
    "description": (
        "Each record that matches is counted once, whatever their number. Lines that continue a "
        "record (`carried`) do not count separately, unless the search asks for text. The most "
        "frequent "
        f"combinations come first. More than {MAX_GROUPS} of them are refused with 422."
    ),
    "parameters": described(
        {name: PARAMETERS[name] for name in SEARCH_PARAMETERS} | _COUNT_PARAMETERS
    ),
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
    """Returns the routes; they call `engine` at each request: a node may start after its app."""
    routes = APIRouter(tags=["query"])

    async def count(request: Request) -> Response:
        long = request.method == "POST"
        parameters = await posted_parameters(request) if long else parameters_of(request)
        return await counted(_count(engine(), parameters, request), request)

    for method, summary, operation in (
        ("GET", "Count records by values of fields", COUNT_OPENAPI),
        ("POST", "Count records by values, with a long expression", posted(COUNT_OPENAPI)),
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


async def _count(
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
