"""Serves `GET /query` and `HEAD /query`: parameters to a search, a search to a response.

The status says what was known at the first byte: 200, or 206 if something could not be read. Errors
before it are problem documents; later errors end the result as its format allows
(`service/query/output.py`). If the client disconnects, its search ends.

With `context=N` the reply has hits with the records around them, as ndjson or text:

    ndjson   {…, "group":0, "hit":true}     a record, as without context
             …                              the records of a group stand together, oldest first
             {"stats": {…}}                 as without; `context` counts the records around hits
    text     message                        with a line `--` between two groups, as in grep

All of such a reply is ready before its first byte is sent: there are at most 100 hits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

import orjson
import pyarrow as pa
from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.http.authorization import restricted
from service.http.body import json_object
from service.http.errors import classify
from service.http.pages import silence
from service.query.context import (
    MAX_AROUND,
    MAX_HITS,
    Around,
    ContextSearch,
    HitGroup,
    context_request,
)
from service.query.engine import QueryEngine, RunningSearch
from service.query.output import Ndjson, Parquet, ResultEncoder, Text, lines
from service.query.request import CONTEXT_PARAMETERS, QueryRequest
from tailrace.logstore.errors import InvalidInput, TailraceError
from tailrace.logstore.search.conditions import TIME_FORMS
from tailrace.logstore.segments.file_format import LEVELS

T = TypeVar("T")


class OpenedSearch:
    """A search whose first batch was found, so that the status is known."""

    def __init__(self, search: RunningSearch, *, head: bool) -> None:
        self.search = search
        self.head = head
        self.batches: AsyncGenerator[pa.RecordBatch] | None = None
        self.first: pa.RecordBatch | None = None

    async def begin(self) -> None:
        """Counts, or finds the first records."""
        if self.head or self.search.request.stats_only:
            await self.search.count()
        else:
            self.batches = self.search.batches()
            self.first = await anext(self.batches, None)


async def opened(
    engine: QueryEngine, asked: QueryRequest, request: Request, *, head: bool
) -> OpenedSearch | None:
    """Returns the search with its first batch; None if the client disconnected meanwhile."""
    started: list[RunningSearch] = []

    async def start() -> OpenedSearch:
        started.append(await engine.open(asked))
        found = OpenedSearch(started[0], head=head)
        await found.begin()
        return found

    found = None
    try:
        found = await unless_gone(start(), request.receive)
    finally:
        if found is None and started:
            await started[0].close()
    return found


async def counted(counting: Coroutine[Any, Any, dict[str, Any]], request: Request) -> Response:
    """Returns a search's counts as one JSON object with `stats`; 206 if not all could be read."""
    found = await unless_gone(counting, request.receive)
    if found is None:  # the client has gone
        return Response(status_code=204)
    status = 200 if found["stats"]["complete"] else 206
    return Response(orjson.dumps(found), status, media_type="application/json")


class SearchResponse(Response):
    """An ASGI response that sends the result as the search finds it.

    It ends with its client, and closes the search in any case.
    """

    def __init__(self, found: OpenedSearch, output: ResultEncoder) -> None:
        stats = found.search.stats()
        super().__init__(
            status_code=200 if stats["complete"] else 206,
            media_type=output.media_type,
            headers={
                "tailrace-node-count": str(stats["nodes"]),
                "tailrace-segment-count": str(stats["segments"]),
                "tailrace-file-count": str(stats["files"]),
                "tailrace-failed-count": str(stats["segments_failed"] + stats["files_failed"]),
                "tailrace-skipped-count": str(stats["segments_skipped"] + stats["files_skipped"]),
                "tailrace-complete": str(stats["complete"]).lower(),
                **silence((), held="store" in stats),
            },
        )
        del self.headers["content-length"]  # the base class sets it for an empty body
        if found.batches is None:
            self.headers["tailrace-matches"] = str(stats["matches"])
            self.headers["tailrace-size"] = str(stats["bytes"])
        self._found = found
        self._output = output

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(self._send(send), receive)
        finally:
            if self._found.batches is not None:
                await self._found.batches.aclose()
            await self._found.search.close()

    async def _send(self, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        last = b"" if self._found.head else await self._send_result(send)
        await send({"type": "http.response.body", "body": last})

    async def _send_result(self, send: Send) -> bytes:
        """Sends all but the last bytes, which it returns."""
        try:
            held = await self._send_records(send)
            return held + self._output.end(self._found.search.stats())
        except TailraceError as error:
            _, kind = classify(error)
            last = self._output.error({"type": kind, "detail": str(error), "hint": error.hint})
            if last is None:
                raise
            return last

    async def _send_records(self, send: Send) -> bytes:
        """Sends all but the last piece if nothing must be waited for after it, and returns it."""
        batch, self._found.first, held = self._found.first, None, b""
        while batch is not None and self._found.batches is not None:
            for piece in self._output.records(batch):
                if held:
                    await send({"type": "http.response.body", "body": held, "more_body": True})
                held = piece
            if held and not self._found.search.ended:
                await send({"type": "http.response.body", "body": held, "more_body": True})
                held = b""
            batch = await anext(self._found.batches, None)
        return held


async def unless_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T | None:
    """Returns the result of `work`.

    If the client disconnects, `work` is cancelled and the result is None.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait({working})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


_NUMBER: Final = {"type": "integer", "minimum": 0, "maximum": MAX_AROUND}
CONTEXT: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "context": (
        f"Records of its run around each hit; with it, `limit` is at most {MAX_HITS}.",
        _NUMBER,
    ),
    "context_before": ("Number of records before each hit; default: `context`.", _NUMBER),
    "context_after": ("Number of records after each hit; default: `context`.", _NUMBER),
}
_MEDIA_TYPES: Final = {"ndjson": "application/x-ndjson", "text": "text/plain; charset=utf-8"}


def around(parameters: Mapping[str, str]) -> Around | None:
    """Parses the requested context; None without any. Raises `InvalidInput`."""
    both, before, behind = (_count(parameters, name) for name in CONTEXT_PARAMETERS)
    if (both, before, behind) == (None, None, None):
        return None
    return Around(
        before if before is not None else both or 0, behind if behind is not None else both or 0
    )


async def context_response(
    engine: QueryEngine, asked: QueryRequest, wanted: Around, form: str, request: Request
) -> Response:
    """Responds with the groups of hits. Raises the errors of a search."""
    if form not in _MEDIA_TYPES:
        raise InvalidInput(
            f"there is no context with format {form}",
            field="format",
            hint=f"Write one of {', '.join(_MEDIA_TYPES)}, or leave the context out.",
        )
    context = ContextSearch(engine, context_request(asked), wanted)
    groups = await unless_gone(context.groups(), request.receive)
    if groups is None:
        return Response(status_code=204)
    stats = context.stats
    body = _ndjson(groups, stats) if form == "ndjson" else _text(groups)
    return Response(
        body,
        200 if stats["complete"] else 206,
        {"tailrace-complete": str(stats["complete"]).lower()},
        _MEDIA_TYPES[form],
    )


def _count(parameters: Mapping[str, str], name: str) -> int | None:
    text = parameters.get(name)
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= MAX_AROUND):
        raise InvalidInput(
            f"{name} is {text[:80]!r}",
            field=name,
            hint=f"Write a whole number from 0 to {MAX_AROUND}.",
        )
    return int(text)


def _ndjson(groups: Sequence[HitGroup], stats: Mapping[str, Any]) -> bytes:
    marked = [_marked(number, group) for number, group in enumerate(groups)]
    return b"".join([*marked, orjson.dumps({"stats": stats}), b"\n"])


def _marked(number: int, group: HitGroup) -> bytes:
    objects = b"".join([lines(batch) for batch in _batches(group)]).split(b"\n")[:-1]
    return b"".join(
        [
            b'%b,"group":%d,"hit":%b}\n' % (text[:-1], number, b"true" if hit else b"false")
            for text, hit in zip(objects, group.hits, strict=True)
        ]
    )


def _text(groups: Sequence[HitGroup]) -> bytes:
    pieces = ["".join(f"{m}\n" for m in g.records.column("message").to_pylist()) for g in groups]
    return "--\n".join(pieces).encode()


def _batches(group: HitGroup) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = group.records.combine_chunks().to_batches()
    return batches


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
        "The time that `from` and `to` apply to: arrival, or the line's own timestamp (`ts`).",
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
        "Maximum number of records; default: all.",
        {"type": "integer", "minimum": 1},
    ),
    "order": (
        "Order of ULIDs: newest first, or oldest first.",
        {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
    ),
    "after": ("Continue after this cursor (`next` of the stats).", {"type": "string"}),
    "format": (
        "Format of the result; without it, by `Accept`.",
        {"type": "string", "enum": ["ndjson", "text", "parquet"], "default": "ndjson"},
    ),
    "stats_only": (
        (
            "Only the stats: how much was searched, how many records match. Lines that continue a "
            "record (`carried`) do not count separately, unless the search asks for text."
        ),
        {"type": "boolean", "default": False},
    ),
}


def described(parameters: Mapping[str, tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Describes the parameters of a URL for OpenAPI, from their texts and schemas."""
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
    "Each record once, in ULID order, streamed: lines in journals, segments and the table. The "
    'last ndjson record is `{"stats": {…}}` and says whether the result is complete and where the '
    "next page begins; a result without it is partial. It counts the segments and the table's "
    "files that were to be read, those that failed and those that were skipped, and names what is "
    "missing. HEAD gives the counts as headers."
)

OPENAPI: Final[dict[str, Any]] = {
    "description": _DESCRIPTION,
    "parameters": described(PARAMETERS | CONTEXT),
    "responses": {
        "200": {"description": "The matches.", "content": _RESULT},
        "206": {"description": "The matches; something could not be read.", "content": _RESULT},
        "400": {"description": "A parameter is wrong; the problem names its field."},
        "422": {"description": "The search needs more time or memory than its limit."},
        "503": {"description": "Too many searches, or the store does not answer."},
    },
}


_OUTPUTS: Final[Mapping[str, Callable[[], ResultEncoder]]] = {
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
    """Returns the routes; they call `engine` at each request: a node may start after its app."""
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
    """Returns the URL's parameters. Raises `InvalidInput` for one that is given twice."""
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in found:
            raise InvalidInput(f"{name} is given twice", field=name, hint="Give it once.")
        found[name] = value
    return found


async def posted_parameters(request: Request) -> dict[str, str]:
    """Reads the parameters from a body, one JSON object. Raises `InvalidInput`, `BodyTooLarge`."""
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
    """Describes an operation whose parameters are in the body."""
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
    """Returns `format`, else the format of the first known type of `Accept`, else ndjson."""
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
    """Returns the format of the first known type of an `Accept` header, else ndjson."""
    types = [part.split(";")[0].strip().lower() for part in accept.split(",")]
    return next((_ACCEPTED[t] for t in types if t in _ACCEPTED), "ndjson")
