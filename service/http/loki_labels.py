"""Serves the labels, series and volumes of Loki's API, and what its clients ask at their start.

A label may be of the stream or of a line's metadata: all of them are listed, and each can be
selected. Values and volumes are exact, over all matching lines. What a client only suggests to
people (`detected_fields`, `detected_labels`) comes from the newest lines.

`/patterns` answers that there are none: Tailrace finds no patterns.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from service.http.api import NodeApi
from service.http.loki import (
    HOUR_NS,
    PREFIX,
    WITHIN,
    LokiParameters,
    add_loki_route,
    json_reply,
    operation,
    searched,
    success,
    warnings_of,
)
from service.http.query import described
from service.query.engine import QueryEngine
from tailrace.logstore.errors import InvalidInput, LimitReached
from tailrace.logstore.search.conditions import (
    DETECTED_LEVEL,
    PIPELINE,
    RUN,
    SERVICE,
    STREAM_LABELS,
    attribute_label,
)

if TYPE_CHECKING:
    from service.query.logql_lines import LogLine
    from service.query.logql_metrics import Labels, MetricRequest, Points
    from tailrace.logstore.search.logql import LogExpression

API_VERSION: Final = "3.7.8"
"""The version of Loki whose API this is."""
_LABELS_NS: Final = 6 * HOUR_NS
_MOST_VALUES: Final = 100_000
_MOST_VOLUMES: Final = 1_000
_DEFAULT_VOLUMES: Final = 100
_SAMPLE: Final = 1_000
_DEFAULT_LINES: Final = 100
_DEFAULT_FIELDS: Final = 1_000
_INTEGER: Final = re.compile(r"[-+]?[0-9]{1,18}")
_COUNT: Final = {"type": "integer", "minimum": 1}
_SELECTOR: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "query": ("A stream selector.", {"type": "string"}),
}
_VOLUME: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    **_SELECTOR,
    "limit": (f"Maximum number of volumes; at most {_MOST_VOLUMES:,}.", _COUNT),
    "targetLabels": ("Labels to sum up by; else those of the selector.", {"type": "string"}),
    "aggregateBy": (
        "By values of labels, or by the labels alone.",
        {"type": "string", "enum": ["series", "labels"], "default": "series"},
    ),
}
_FIELDS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    **_SELECTOR,
    "line_limit": ("Number of the newest lines to examine.", {**_COUNT, "maximum": 5_000}),
    "limit": ("Maximum number of fields or values.", {**_COUNT, "maximum": 5_000}),
}


def loki_label_routes(engine: Callable[[], QueryEngine], node: NodeApi) -> APIRouter:
    """Returns the routes; they call `engine` at each request: a node may start after its app."""
    routes = APIRouter(tags=["loki"])

    def route(
        path: str,
        answer: Callable[[QueryEngine, Request, LokiParameters], Awaitable[Response]],
        summary: str,
        description: str,
        parameters: Mapping[str, tuple[str, dict[str, Any]]],
        *,
        also: bool = False,
    ) -> None:
        async def answered(request: Request) -> Response:
            current = engine()
            return await answer(current, request, await LokiParameters.read(request, current.clock))

        shown = operation(description, [*described(parameters), *WITHIN])
        add_loki_route(routes, path, answered, summary, shown, ("GET",) if also else _BOTH)

    route("/labels", _names, "List labels as Loki does", "Labels of lines.", _SELECTOR)
    route("/label", _names, "List labels, by an old name", "As `/labels`.", _SELECTOR, also=True)
    route(
        "/label/{name}/values",
        _values,
        "List values of a label as Loki does",
        "All values that lines have.",
        _SELECTOR,
        also=True,
    )
    route(
        "/series",
        _series,
        "List streams as Loki does",
        "Combinations of labels of lines; without their attributes if there are too many.",
        {"match[]": ("A stream selector; may be given several times.", {"type": "string"})},
    )
    route(
        "/index/stats", _stats, "Count lines and bytes as Loki does", "Counts of lines.", _SELECTOR
    )
    route("/index/volume", _volume, "Sum up bytes by labels", "Bytes of lines.", _VOLUME)
    step = {"step": ("Seconds or a duration between two volumes.", {"type": "string"})}
    route(
        "/index/volume_range",
        _volume_range,
        "Sum up bytes by labels and time",
        "Bytes of lines at each step.",
        _VOLUME | step,
    )
    route(
        "/detected_labels",
        _detected_labels,
        "List labels of the newest lines",
        f"Labels of the newest {_SAMPLE} lines, and how many values each has in them.",
        _SELECTOR,
    )
    route(
        "/detected_fields",
        _detected_fields,
        "List fields of the newest lines",
        "Labels that `json` and `logfmt` find in the newest lines, with their types.",
        _FIELDS,
    )
    route(
        "/detected_field/{name}/values",
        _detected_values,
        "List values of a field in the newest lines",
        "Values that `json` and `logfmt` find in the newest lines.",
        _FIELDS,
    )
    route("/patterns", _patterns, "List patterns of lines: none", "Always empty.", _SELECTOR)
    _add_starts(routes, node)
    return routes


_BOTH: Final = ("GET", "POST")


def _add_starts(routes: APIRouter, node: NodeApi) -> None:
    async def build() -> Response:
        names = ("revision", "branch", "buildUser", "buildDate", "goVersion")
        return json_reply({"version": API_VERSION, **dict.fromkeys(names, "")})

    async def ready() -> Response:
        if node.ready:
            return PlainTextResponse("ready\n")
        return PlainTextResponse("; ".join(node.problems()) or "not ready", 503)

    text = {"200": {"description": "The node is ready.", "content": {"text/plain": {}}}}
    for path, answer, summary, shown in (
        (
            f"{PREFIX}/status/buildinfo",
            build,
            "Show which version of Loki's API this is",
            operation(f"The version is {API_VERSION}: answers follow it."),
        ),
        (
            "/ready",
            ready,
            "Show whether the node is ready, as Loki does",
            operation(
                "As `/health/ready`, in one line of text.",
                responses=text
                | {"503": {"description": "The node is not ready; the text says why."}},
            ),
        ),
    ):
        routes.add_api_route(
            path,
            answer,
            methods=["GET"],
            summary=summary,
            response_class=Response,
            openapi_extra=shown,
        )


# --- Labels and series --------------------------------------------------------------------------


async def _names(engine: QueryEngine, request: Request, given: LokiParameters) -> Response:
    from service.query.logql_search import request_between, selected

    start, end = given.bounds(_LABELS_NS)
    condition, _ = selected(_selector(given).matchers)
    asked = request_between(start, end + 1, condition)

    def found(search: Any) -> set[str]:
        batches = search.totals(
            lambda statement, _, scans, live: statement.attribute_names(scans, live)
        )
        return {name for batch in batches for name in batch.column(0).to_pylist()}

    keys, stats = await searched(engine, request, asked, found)
    names = {PIPELINE, RUN, SERVICE, DETECTED_LEVEL, *map(attribute_label, keys)} - {""}
    return success(sorted(names), stats)


async def _values(engine: QueryEngine, request: Request, given: LokiParameters) -> Response:
    name = _name(request)
    asked = _sizes(given, _selector(given), (name,), most=_MOST_VALUES)
    series, stats = await _evaluated(engine, request, asked)
    return success(sorted(text for labels in series for _, text in labels), stats)


async def _series(engine: QueryEngine, request: Request, given: LokiParameters) -> Response:
    from tailrace.logstore.search.logql import LogExpression, parse_selector

    texts = given.all("match[]", "match", "query")
    if not texts:
        raise InvalidInput("0 matcher groups given", hint='Send match[]={pipeline="a"}.')
    if len(texts) > _MOST_SELECTORS:
        raise InvalidInput(f"more than {_MOST_SELECTORS} matcher groups given")
    found: dict[Labels, None] = {}
    searches: list[dict[str, Any]] = []
    for text in texts:
        selector = LogExpression(parse_selector(text).matchers)
        series, stats = await _all_labels(engine, request, given, selector)
        searches.append(stats)
        for labels in series:
            found[tuple([pair for pair in labels if pair[0] != DETECTED_LEVEL])] = None
    return success([dict(labels) for labels in sorted(found)], *searches)


_MOST_SELECTORS: Final = 10


async def _all_labels(
    engine: QueryEngine, request: Request, given: LokiParameters, selector: LogExpression
) -> tuple[dict[Labels, Points], dict[str, Any]]:
    try:
        return await _evaluated(engine, request, _sizes(given, selector, None))
    except LimitReached:  # attributes differ from line to line
        narrow = _sizes(given, selector, STREAM_LABELS, most=_MOST_VALUES)
        return await _evaluated(engine, request, narrow)


def _selector(given: LokiParameters) -> LogExpression:
    """Returns the selector of `query`; without one, or with an empty one, all lines."""
    from tailrace.logstore.search.logql import LogExpression, parse_selector

    text = given.get("query")
    if text.strip() in ("", "{}"):
        return LogExpression(())
    return LogExpression(parse_selector(text).matchers)


def _name(request: Request) -> str:
    name = str(request.path_params["name"])
    if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]{0,1000}", name):
        raise InvalidInput(f"invalid label name {name[:80]!r}")
    return name


def _sizes(
    given: LokiParameters,
    selector: LogExpression,
    by: tuple[str, ...] | None,
    *,
    most: int = 5_000,
    operator: str = "bytes_over_time",
) -> MetricRequest:
    from service.query.logql_metrics import MetricRequest

    start, end = given.bounds(_LABELS_NS)
    return MetricRequest.sizes(selector, start - 1, end, by, most_series=most, operator=operator)


async def _evaluated(
    engine: QueryEngine, request: Request, asked: MetricRequest
) -> tuple[dict[Labels, Points], dict[str, Any]]:
    from service.query.logql_metrics import evaluate

    return await searched(engine, request, asked.search, lambda search: evaluate(search, asked))


# --- Statistics and volumes ---------------------------------------------------------------------


async def _stats(engine: QueryEngine, request: Request, given: LokiParameters) -> Response:
    selector, found, searches = _selector(given), [], []
    for operator in ("count_over_time", "bytes_over_time"):
        asked = _sizes(given, selector, (PIPELINE, RUN), most=_MOST_VALUES, operator=operator)
        series, stats = await _evaluated(engine, request, asked)
        found.append([points[0] for points in series.values()])
        searches.append(stats)
    entries, sizes = found
    return json_reply(
        {
            "streams": len(entries),
            "chunks": 0,
            "bytes": int(sum(sizes)),
            "entries": int(sum(entries)),
            **warnings_of(*searches),
        }
    )


async def _volume(engine: QueryEngine, request: Request, given: LokiParameters) -> Response:
    selector = _selector(given)
    asked = _sizes(given, selector, _targets(given, selector), most=_MOST_VALUES)
    return await _volumes(engine, request, given, asked, "vector")


async def _volume_range(engine: QueryEngine, request: Request, given: LokiParameters) -> Response:
    from service.query.logql_metrics import MetricRequest, Steps
    from tailrace.logstore.search.logql import LabelGrouping, RangeAggregation, VectorAggregation

    start, end = given.bounds()
    step, selector = given.step(start, end), _selector(given)
    counted = RangeAggregation("bytes_over_time", selector, step)
    grouping = LabelGrouping(without=False, names=_targets(given, selector))
    asked = MetricRequest.of(
        VectorAggregation("sum", counted, grouping), Steps.between(start, end, step)
    )
    return await _volumes(engine, request, given, asked, "matrix")


def _targets(given: LokiParameters, selector: LogExpression) -> tuple[str, ...]:
    names = [name.strip() for name in given.get("targetLabels").split(",") if name.strip()]
    chosen = names or [matcher.name for matcher in selector.matchers]
    return tuple(dict.fromkeys(chosen)) or (PIPELINE,)


async def _volumes(
    engine: QueryEngine, request: Request, given: LokiParameters, asked: MetricRequest, kind: str
) -> Response:
    by = given.get("aggregateBy", "series")
    if by not in ("series", "labels"):
        raise InvalidInput("invalid aggregation option", hint="Write series or labels.")
    limit = min(_whole(given, "limit", _DEFAULT_VOLUMES, 10**9), _MOST_VOLUMES)
    series, stats = await _evaluated(engine, request, asked)
    totals: dict[Labels, dict[int, float]] = {}
    for labels, points in series.items():
        names = [labels] if by == "series" else [((name, ""),) for name, _ in labels]
        for name in names:
            total = totals.setdefault(name, {})
            for step, value in points.items():
                total[step] = total.get(step, 0) + value
    ordered = sorted(totals.items(), key=lambda one: (-sum(one[1].values()), one[0]))[:limit]
    result: list[dict[str, Any]] = []
    for labels, total in ordered:
        values = [
            [asked.steps.at(step) // 1_000_000 / 1_000, str(int(size))]
            for step, size in sorted(total.items())
        ]
        shown = {"value": values[0]} if kind == "vector" else {"values": values}
        result.append({"metric": dict(labels), **shown})
    return success({"resultType": kind, "result": result, "stats": {}}, stats)


def _whole(given: LokiParameters, name: str, default: int, most: int) -> int:
    text = given.get(name, str(default))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= most:
        raise InvalidInput(f"{name} is {text[:80]!r}", hint=f"Write a number from 1 to {most}.")
    return int(text)


# --- What the newest lines have -----------------------------------------------------------------


async def _detected_labels(
    engine: QueryEngine, request: Request, given: LokiParameters
) -> Response:
    lines, stats = await _sample(engine, request, given, _selector(given), _SAMPLE)
    values: dict[str, set[str]] = {}
    for line in lines:
        for name, text in line.base.items():
            values.setdefault(name, set()).add(text)
    found = [{"label": name, "cardinality": len(texts)} for name, texts in sorted(values.items())]
    return json_reply({"detectedLabels": found, **warnings_of(stats)})


async def _detected_fields(
    engine: QueryEngine, request: Request, given: LokiParameters
) -> Response:
    limit = _whole(given, "limit", _DEFAULT_FIELDS, 5_000)
    fields, stats = await _fields(engine, request, given)
    found = [
        {
            "label": name,
            "type": _type(values),
            "cardinality": len(values),
            "parsers": sorted(parsers) or None,
        }
        for name, (values, parsers) in sorted(fields.items())[:limit]
    ]
    return json_reply({"fields": found, "limit": limit, **warnings_of(stats)})


async def _detected_values(
    engine: QueryEngine, request: Request, given: LokiParameters
) -> Response:
    limit = _whole(given, "limit", _DEFAULT_FIELDS, 5_000)
    fields, stats = await _fields(engine, request, given)
    values, _ = fields.get(_name(request), ({}, set()))
    return json_reply({"values": list(values)[:limit], "limit": limit, **warnings_of(stats)})


async def _fields(
    engine: QueryEngine, request: Request, given: LokiParameters
) -> tuple[dict[str, tuple[dict[str, None], set[str]]], dict[str, Any]]:
    """Returns the values and the parsers of each field, of metadata and within lines, and stats."""
    from service.query.logql_lines import LinePipeline, LogLine
    from tailrace.logstore.search.logql import JsonStage, LogfmtStage, parse_selector

    expression = parse_selector(given.get("query"))
    count = _whole(given, "line_limit", _DEFAULT_LINES, 5_000)
    lines, stats = await _sample(engine, request, given, expression, count)
    parsers = {"json": LinePipeline([JsonStage()]), "logfmt": LinePipeline([LogfmtStage()])}
    fields: dict[str, tuple[dict[str, None], set[str]]] = {}
    for line in lines:
        own = [pair for pair in line.base.items() if pair[0] not in STREAM_LABELS]
        for name, text in (*own, *line.parsed.items()):
            fields.setdefault(name, ({}, set()))[0][text] = None
        for kind, pipeline in parsers.items():
            again = LogLine(line.ts_us, line.line, line.base)
            pipeline.keeps(again)
            if again.error or (kind == "logfmt" and line.line.lstrip()[:1] in ("{", "[")):
                continue
            for name, text in again.parsed.items():
                values, kinds = fields.setdefault(name, ({}, set()))
                values[text] = None
                kinds.add(kind)
    return fields, stats


async def _sample(
    engine: QueryEngine,
    request: Request,
    given: LokiParameters,
    expression: LogExpression,
    count: int,
) -> tuple[Sequence[LogLine], dict[str, Any]]:
    from service.query.logql_search import LinesRequest, find_lines

    start, end = given.bounds()
    asked = LinesRequest.of(expression, start, end, limit=count, descending=True)
    return await searched(engine, request, asked.search, lambda search: find_lines(search, asked))


def _type(values: Iterable[str]) -> str:
    from tailrace.logstore.search.logql import bytes_of, duration_ns

    kinds = set()
    for text in values:
        if _INTEGER.fullmatch(text):
            kinds.add("int")
        elif text in ("true", "false"):
            kinds.add("boolean")
        elif re.fullmatch(r"[-+]?[0-9]*\.[0-9]+(?:[eE][-+]?[0-9]+)?", text):
            kinds.add("float")
        elif duration_ns(text) is not None:
            kinds.add("duration")
        elif bytes_of(text) is not None:
            kinds.add("bytes")
        else:
            return "string"
    if kinds == {"int", "float"}:
        return "float"
    return kinds.pop() if len(kinds) == 1 else "string"


async def _patterns(_: QueryEngine, __: Request, ___: LokiParameters) -> Response:
    return success([])
