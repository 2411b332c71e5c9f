"""Serves the queries of Loki's API, so that Grafana, logcli and other clients of Loki read runs.

`/loki/api/v1/query_range` and `/query` take LogQL (`tailrace.logstore.search.logql`), by GET or as
a form. Replies and errors have Loki's shapes: an error is a line of plain text. A reply of which a
part is missing has `warnings`.

The search itself is `service.query.logql_search`; the labels of records stand in
`tailrace.logstore.search.conditions`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl

import orjson
from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from service.http.authorization import restricted
from service.http.errors import classify
from service.http.query import described, unless_gone
from service.query.engine import QueryEngine
from service.query.request import QueryRequest
from service.query.search import Search
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import InvalidInput, TailraceError, TooLarge, Unavailable, with_hint
from tailrace.logstore.search.conditions import STREAM_LABELS

if TYPE_CHECKING:
    from service.query.logql_lines import LogLine
    from service.query.logql_metrics import MetricRequest

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]

PREFIX: Final = "/loki/api/v1"
MOST_LINES: Final = 5_000
MOST_STEPS: Final = 11_000
_DEFAULT_LINES: Final = 100
_DEFAULT_STEPS: Final = 250
_SECOND_NS: Final = 1_000_000_000
HOUR_NS: Final = 3_600 * _SECOND_NS
_CATEGORIZE: Final = "categorize-labels"
_FORM: Final = "application/x-www-form-urlencoded"
_WHOLE: Final = re.compile(r"-?[0-9]{1,20}")
_DECIMAL: Final = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{0,20})?(?:[eE][-+]?[0-9]{1,2})?")
_RFC3339: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(Z|[-+][0-9]{2}:[0-9]{2})"
)


# --- Parameters ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LokiParameters:
    """The parameters of a request, from its URL and its form."""

    values: Mapping[str, Sequence[str]]
    now_ns: int

    @staticmethod
    async def read(request: Request, clock: Clock) -> LokiParameters:
        """Reads the parameters. Raises `InvalidInput`, `BodyTooLarge`."""
        pairs = list(request.query_params.multi_items())
        if request.method == "POST":
            kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
            if kind not in ("", _FORM):
                raise InvalidInput(f"the Content-Type is {kind[:80]!r}", hint=f"Send {_FORM}.")
            body = (await request.body()).decode("utf-8", "replace")
            pairs += parse_qsl(body, keep_blank_values=True, max_num_fields=1_000)
        found: dict[str, list[str]] = {}
        for name, value in pairs:
            found.setdefault(name, []).append(value)
        return LokiParameters(found, clock.now_ms() * 1_000_000)

    def get(self, name: str, default: str = "") -> str:
        """Returns the first value of a parameter."""
        return next(iter(self.values.get(name, ())), "") or default

    def all(self, *names: str) -> list[str]:
        """Returns all values of some parameters."""
        return [value for name in names for value in self.values.get(name, ()) if value]

    def bounds(self, default_ns: int = HOUR_NS) -> tuple[int, int]:
        """Returns start and end. Raises `InvalidInput`."""
        end = self.time("end", self.now_ns)
        since = self.get("since")
        length = default_ns if not since else self._duration("since", since)
        start = self.time("start", min(end, self.now_ns) - length)
        if end < start:
            raise InvalidInput("end timestamp must not be before or equal to start time")
        return start, end

    def time(self, name: str, default: int) -> int:
        """Returns a time in nanoseconds: seconds, nanoseconds, or RFC 3339."""
        text = self.get(name)
        if not text:
            return default
        if _WHOLE.fullmatch(text):
            return int(text) * (_SECOND_NS if len(text) <= 10 else 1)
        if _DECIMAL.fullmatch(text):
            return round(float(text) * 1_000) * 1_000_000
        found = _RFC3339.fullmatch(text)
        try:
            if found is None:
                raise ValueError("another form")
            moment = datetime.fromisoformat(f"{found[1]}{found[3]}")
        except ValueError as error:
            raise InvalidInput(
                f"could not parse {name!r} parameter: {text[:80]!r}",
                hint="Write seconds or nanoseconds since the epoch, or 2026-11-21T10:00:00Z.",
            ) from error
        seconds = (moment - _EPOCH) // timedelta(seconds=1)
        return seconds * _SECOND_NS + int(f"{found[2] or ''}000000000"[:9])

    def limit(self) -> int:
        """Returns the most lines of a reply. Raises `InvalidInput`."""
        text = self.get("limit", str(_DEFAULT_LINES))
        if not _WHOLE.fullmatch(text):
            raise InvalidInput(f'strconv.Atoi: parsing "{text[:80]}": invalid syntax')
        if int(text) <= 0:
            raise InvalidInput("limit must be a positive value")
        if int(text) > MOST_LINES:
            raise InvalidInput(
                "max entries limit per query exceeded, limit > max_entries_limit_per_query "
                f"({int(text)} > {MOST_LINES})"
            )
        return int(text)

    def descending(self) -> bool:
        """Returns whether the newest line comes first. Raises `InvalidInput`."""
        text = self.get("direction", "backward").lower()
        if text not in ("backward", "forward"):
            raise InvalidInput(f"invalid direction '{text[:80]}'")
        return text == "backward"

    def step(self, start: int, end: int) -> int:
        """Returns the length of a step. Raises `InvalidInput`, also for too many steps."""
        text = self.get("step")
        if text:
            step = self._duration("step", text)
        else:
            step = max((end - start) // (_DEFAULT_STEPS * _SECOND_NS), 1) * _SECOND_NS
        if step <= 0:
            raise InvalidInput(
                "zero or negative query resolution step widths are not accepted. Try a positive "
                "integer"
            )
        if (end - start) // step > MOST_STEPS:
            raise InvalidInput(
                "exceeded maximum resolution of 11,000 points per time series. Try increasing the "
                "value of the step parameter"
            )
        return step

    def _duration(self, name: str, text: str) -> int:
        from tailrace.logstore.search.logql import duration_ns

        if _DECIMAL.fullmatch(text):
            return round(float(text) * _SECOND_NS)
        found = duration_ns(text)
        if found is None:
            raise InvalidInput(f'cannot parse "{text[:80]}" to a valid duration ({name})')
        return found


_EPOCH: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


# --- Replies ------------------------------------------------------------------------------------


def success(data: Any, *searches: Mapping[str, Any]) -> Response:
    """Returns a reply with Loki's envelope; `searches` are the stats of what it is made of."""
    return json_reply({"status": "success", **warnings_of(*searches), "data": data})


def warnings_of(*searches: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the member of a reply that says what its searches could not read; none if nothing."""
    partial = [stats for stats in searches if not stats["complete"]]
    missing = [part for stats in partial for part in (*stats["missing"], *stats["unreadable"])]
    named = ", ".join(dict.fromkeys(missing))[:500]
    return {"warnings": [f"a part could not be read: {named}"]} if partial else {}


def json_reply(body: Any) -> Response:
    """Returns JSON."""
    return Response(orjson.dumps(body), media_type="application/json; charset=UTF-8")


def categorizes(request: Request) -> bool:
    """Returns whether labels are wanted apart by their kinds."""
    flags = request.headers.get("x-loki-response-encoding-flags", "")
    return _CATEGORIZE in [flag.strip() for flag in flags.split(",")]


def encoding(*, categorized: bool) -> dict[str, Any]:
    """Returns the part of a reply that says so."""
    return {"encodingFlags": [_CATEGORIZE]} if categorized else {}


def plainly(answer: Handler) -> Handler:
    """Answers errors as Loki does: a status and a line of text."""

    @wraps(answer)
    async def answered(request: Request) -> Response:
        try:
            return await answer(request)
        except TailraceError as error:
            status, _ = classify(error)
            if isinstance(error, TooLarge):
                status = 400
            headers = {"x-content-type-options": "nosniff"}
            if isinstance(error, Unavailable):
                headers["retry-after"] = str(error.retry_after_seconds)
            return PlainTextResponse(with_hint(error), status, headers)

    return answered


async def searched(
    engine: QueryEngine, request: Request, asked: QueryRequest, work: Callable[[Search], T]
) -> tuple[T, dict[str, Any]]:
    """Returns the result of `work` on a search within the caller's rights, and its stats.

    The search ends with its client: then nobody waits for the result.
    """

    async def found() -> tuple[T, dict[str, Any]]:
        async with await engine.open(restricted(request, asked)) as running:
            return await running.totals(work), running.stats()

    result = await unless_gone(found(), request.receive)
    if result is None:
        raise Unavailable("the client has gone")
    return result


def _summary(stats: Mapping[str, Any], returned: int) -> dict[str, Any]:
    """Returns the statistics of a query in Loki's shape, as far as a search knows them."""
    summary = {
        "bytesProcessedPerSecond": 0,
        "linesProcessedPerSecond": 0,
        "totalBytesProcessed": stats["bytes"],
        "totalLinesProcessed": stats["matches"],
        "execTime": 0,
        "queueTime": 0,
        "totalEntriesReturned": returned,
    }
    return {"summary": summary, "querier": {"store": {"chunk": {}}}, "ingester": {"store": {}}}


def streams_of(lines: Sequence[LogLine], *, categorized: bool) -> list[dict[str, Any]]:
    """Returns lines grouped by their labels, each group in the order of the lines."""
    groups: dict[tuple[tuple[str, str], ...], list[Any]] = {}
    for line in lines:
        value: list[Any] = [str(line.ts_ns), line.line]
        if categorized:
            labels = {name: line.base[name] for name in STREAM_LABELS if name in line.base}
            metadata = {name: text for name, text in line.base.items() if name not in labels}
            parsed = line.parsed | line.errors()
            kinds = {"structuredMetadata": metadata, "parsed": parsed}
            value.append({kind: found for kind, found in kinds.items() if found})
        else:
            labels = line.labels()
        groups.setdefault(tuple(sorted(labels.items())), []).append(value)
    return [{"stream": dict(labels), "values": values} for labels, values in groups.items()]


# --- Routes -------------------------------------------------------------------------------------


_TIMES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "start": (
        "Lowest time of a line: seconds, nanoseconds, or RFC 3339; without it, an hour ago.",
        {"type": "string"},
    ),
    "end": ("The time before which lines are; without it, now.", {"type": "string"}),
    "since": ("How long before `end` the time begins, instead of `start`.", {"type": "string"}),
}
QUERY: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "query": ("LogQL; `docs/use/grafana.md` says what is supported.", {"type": "string"}),
    "limit": (
        "Maximum number of lines.",
        {"type": "integer", "minimum": 1, "maximum": MOST_LINES, "default": _DEFAULT_LINES},
    ),
    "direction": (
        "Newest line first, or oldest.",
        {"type": "string", "enum": ["backward", "forward"], "default": "backward"},
    ),
}
_STEP: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "step": ("Seconds or a duration between two numbers.", {"type": "string"}),
}
_RESPONSES: Final[dict[str, Any]] = {
    "200": {
        "description": "As Loki answers; `warnings` says what is missing.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    },
    "400": {
        "description": "A parameter is wrong, or the query is outside of the subset.",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    },
    "422": {"description": "The search needs more time or memory than its limit."},
    "503": {"description": "Too many searches, or the store does not answer."},
}
WITHIN: Final = described(_TIMES)


def operation(
    description: str, parameters: Sequence[Mapping[str, Any]] = (), responses: Any = None
) -> dict[str, Any]:
    """Describes a route of this API for OpenAPI."""
    return {
        "description": f"{description} Clients of Loki may also POST a form.",
        "parameters": list(parameters),
        "responses": responses or _RESPONSES,
    }


def add_loki_route(
    routes: APIRouter,
    path: str,
    answer: Handler,
    summary: str,
    described_as: dict[str, Any],
    methods: Sequence[str] = ("GET", "POST"),
) -> None:
    """Adds a route for GET, and one for a form by POST."""
    for method in methods:
        routes.add_api_route(
            f"{PREFIX}{path}",
            plainly(answer),
            methods=[method],
            summary=summary,
            response_class=Response,
            openapi_extra=described_as,
            include_in_schema=method == "GET",
        )


def loki_query_routes(engine: Callable[[], QueryEngine]) -> APIRouter:
    """Returns the routes; they call `engine` at each request: a node may start after its app."""
    routes = APIRouter(tags=["loki"])

    async def query_range(request: Request) -> Response:
        # Imported here: a node without searches runs without the parser.
        from service.query.logql_metrics import MetricRequest, Steps
        from tailrace.logstore.search.logql import LogExpression, parse_logql

        current = engine()
        given = await LokiParameters.read(request, current.clock)
        start, end = given.bounds()
        expression = parse_logql(given.get("query"))
        if isinstance(expression, LogExpression):
            return await _lines(current, request, given, expression, start, end)
        step = given.step(start, end)
        steps = Steps.between(start, end, step)
        return await _numbers(current, request, MetricRequest.of(expression, steps), "matrix")

    async def query(request: Request) -> Response:
        from service.query.logql_metrics import MetricRequest, Steps
        from tailrace.logstore.search.logql import LogExpression, parse_logql

        current = engine()
        given = await LokiParameters.read(request, current.clock)
        expression = parse_logql(given.get("query"))
        if isinstance(expression, LogExpression):
            raise InvalidInput(
                "log queries are not supported as an instant query type, please change your query "
                "to a range query type"
            )
        steps = Steps(given.time("time", given.now_ns), 1, 1)
        return await _numbers(current, request, MetricRequest.of(expression, steps), "vector")

    parameters = described(QUERY)
    add_loki_route(
        routes,
        "/query_range",
        query_range,
        "Search with LogQL as Loki does",
        operation(
            "Lines of a log query, or numbers of a metric query at each step.",
            [*parameters, *WITHIN, *described(_STEP)],
        ),
    )
    moment = {"time": ("The time of the numbers; without it, now.", {"type": "string"})}
    add_loki_route(
        routes,
        "/query",
        query,
        "Count with LogQL at one time as Loki does",
        operation("Numbers of a metric query at one time.", [*parameters, *described(moment)]),
    )
    return routes


async def _lines(
    engine: QueryEngine,
    request: Request,
    given: LokiParameters,
    expression: Any,
    start: int,
    end: int,
) -> Response:
    from service.query.logql_search import LinesRequest, find_lines

    limit, descending = given.limit(), given.descending()
    given.step(start, end)
    asked = LinesRequest.of(expression, start, end, limit=limit, descending=descending)
    found, stats = await searched(
        engine, request, asked.search, lambda search: find_lines(search, asked)
    )
    categorized = categorizes(request)
    data = {
        "resultType": "streams",
        **encoding(categorized=categorized),
        "result": streams_of(found, categorized=categorized),
        "stats": _summary(stats, len(found)),
    }
    return success(data, stats)


async def _numbers(
    engine: QueryEngine, request: Request, asked: MetricRequest, kind: str
) -> Response:
    from service.query.logql_metrics import evaluate, shown_number

    searches: list[dict[str, Any]] = []
    if asked.counted is None:
        series = evaluate(None, asked)
    else:
        series, stats = await searched(
            engine, request, asked.search, lambda search: evaluate(search, asked)
        )
        searches.append(stats)

    def shown(number: int, value: float) -> list[Any]:
        milliseconds = asked.steps.at(number) // 1_000_000
        whole, rest = divmod(milliseconds, 1_000)
        return [milliseconds / 1_000 if rest else whole, shown_number(value)]

    result: list[dict[str, Any]] = []
    for labels, points in sorted(series.items()):
        values = [shown(number, value) for number, value in sorted(points.items())]
        found = {"value": values[0]} if kind == "vector" else {"values": values}
        result.append({"metric": dict(labels), **found})
    counted = searches[0] if searches else {"bytes": 0, "matches": 0}
    data = {"resultType": kind, "result": result, "stats": _summary(counted, len(result))}
    return success(data, *searches)
