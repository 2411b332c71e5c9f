"""`GET /query/histogram`: how many records match, by time and level, as one JSON object.

It takes a slot, and has the limits of a search; one whose client goes away ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from logstore import ulid
from service.http.gate import restricted
from service.http.query import PARAMETERS, described, parameters_of
from service.http.search_response import counted
from service.http.segment_bodies import rfc3339
from service.query.engine import QueryEngine
from service.query.histogram import (
    DEFAULT_BUCKETS,
    MAX_BUCKETS,
    Bucket,
    HistogramRequest,
    histogram,
    oldest_ms,
)
from service.query.request import SEARCH_PARAMETERS, QueryRequest

_FROM: Final = f"{PARAMETERS['from'][0]} `0` is the time of the first record."
_TO: Final = f"{PARAMETERS['to'][0].partition(' Without')[0]} Without it, now."
_OWN: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "from": (_FROM, PARAMETERS["from"][1]),
    "to": (_TO, {"type": "string", "default": "now"}),
    "buckets": (
        "About so many: the shortest round step that needs no more, beside a cut one, is taken.",
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
OPENAPI: Final[dict[str, Any]] = {
    "description": (
        "Each record is counted once, by the time of its ULID, or with `time=ts` by its own. "
        "Lines that continue a record (`carried`) do not count beside it, unless the search asks "
        "for text: a traceback is one error. "
        "Buckets begin at multiples of the step since the epoch (UTC), the empty ones are there, "
        "and `from` and `to` may cut the first and the last one."
    ),
    "parameters": described({name: PARAMETERS[name] for name in (*SEARCH_PARAMETERS, "by")} | _OWN),
    "responses": {
        "200": {"description": "All counts.", "content": _RESULT},
        "206": {"description": "Counts of what could be read.", "content": _RESULT},
        "400": {"description": "A parameter is wrong; the problem names its field."},
        "422": {"description": "The search needs more time or memory than its limit."},
        "503": {"description": "Too many searches, or the store does not answer."},
    },
}


def histogram_routes(engine: Callable[[], QueryEngine]) -> APIRouter:
    """The route; `engine` is asked at each request, since a node may start after its app."""
    routes = APIRouter(tags=["query"])

    async def counts(request: Request) -> Response:
        parameters = parameters_of(request)
        return await counted(_counts(engine(), parameters, request), request)

    routes.add_api_route(
        "/query/histogram",
        counts,
        methods=["GET"],
        summary="Count records by time and level",
        response_class=Response,
        openapi_extra=OPENAPI,
    )
    return routes


async def _counts(
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
    """The time of the first record of the time and the runs, whatever it holds."""
    if search.times is not None:
        async with await engine.open(restricted(request, search)) as running:
            return await running.totals(oldest_ms)
    oldest = replace(search, condition=None, levels=(), limit=1, descending=False)
    async with await engine.open(restricted(request, oldest)) as running:
        async for batch in running.batches():
            return ulid.time_ms(ulid.decode(batch.column("ulid")[0].as_py()))
    return None


def _described(bucket: Bucket) -> dict[str, Any]:
    levels = {level or "null": count for level, count in bucket.levels.items()}
    return {"at": rfc3339(bucket.at_ms), "count": bucket.count, "levels": levels}
