"""Serves `GET /query/stream`: the records that match a search, live, over server-sent events.

    id: <cursor>
    data: <the record, as `/query` has it; a late one ends in "late":true>

    id: <cursor>
    event: gap
    data: {"reason": …}          records may be missing here, and why

    id: <cursor>
    event: silent
    data: {"nodes": […]}         these nodes do not answer; their newest records come once they do.
                                 An empty list: all answer again. `"store": true`: the object store
                                 does not answer either; records that need it come once it does

    : heartbeat
    id: <cursor>                 nothing matched up to here

    event: error
    data: {"type": …, "detail": …, "hint": …}

All readers of a search share the bytes of its events. The docstring of `service.query` explains why
each record comes once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

import orjson
import pyarrow as pa
from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.http import sse
from service.http.api import NodeApi
from service.http.authorization import restricted
from service.http.errors import classify
from service.http.query import PARAMETERS, described, parameters_of, unless_gone
from service.query.live_cursor import MatchedRecords, StreamCursor, names_text, seen_text
from service.query.live_search import LiveMatches, LiveReader, SearchStart, Silent
from service.query.live_sources import Gap
from service.query.output import lines
from service.query.request import QueryRequest, refuse_unknown, whole_number
from service.runtime.counters import HttpCounters
from service.tail import ALL_RUNS, Watcher
from tailrace.logstore.errors import InvalidInput, TailraceError, Unavailable
from tailrace.logstore.segments.file_format import KEY_COLUMNS

_SEARCHED: Final = ("q", "regex", "fqn", "run", "level")
_MOST_TAIL: Final = 10_000
_MOST_WINDOW_SECONDS: Final = 60
_FORMAT: Final = "ndjson"
_OWN: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "from": ("Begin with records from this time on; without it, now.", {"type": "string"}),
    "tail": (
        "Begin with this many of the newest matches.",
        {"type": "integer", "minimum": 1, "maximum": _MOST_TAIL},
    ),
    "after": ("Continue after this cursor, the `id` of an event.", {"type": "string"}),
    "window": (
        "Seconds by which records are delayed, to return them in the order of ULIDs.",
        {"type": "number", "minimum": 0, "maximum": _MOST_WINDOW_SECONDS, "default": 2},
    ),
    "format": (
        "A record for each event: there is no other format.",
        {"type": "string", "enum": [_FORMAT], "default": _FORMAT},
    ),
}
PARAMETERS_OF_STREAM: Final = frozenset((*_SEARCHED, *_OWN))
_DESCRIPTION: Final = (
    "Server-sent events, one for each record of any run that matches, once it is acknowledged and "
    "the window is over, in the order of ULIDs. A record that was acknowledged later than that "
    'comes late, with `"late": true`. Each `id` is a cursor: with `Last-Event-ID` or '
    "`after` a client goes on there and gets each record once. An event `gap` says that records "
    "may be missing, and why; `silent` names the nodes that do not answer, whose newest records "
    "come once they do; `error` says why the stream ends."
)
OPENAPI: Final[dict[str, Any]] = {
    "description": _DESCRIPTION,
    "parameters": [
        *described({name: PARAMETERS[name] for name in _SEARCHED} | _OWN),
        {
            "name": "Last-Event-ID",
            "in": "header",
            "required": False,
            "description": "As `after`, by clients that connect again.",
            "schema": {"type": "string"},
        },
    ],
    "responses": {
        "200": {
            "description": "Events, until the client leaves.",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        "400": {"description": "A parameter is wrong; the problem names its field."},
        "503": {"description": "Too many readers or searches, or the store does not answer."},
    },
}


def query_stream_routes(
    live: Callable[[], LiveMatches], node: NodeApi, max_readers: int, counters: HttpCounters
) -> APIRouter:
    """Returns the route; it calls `live` at each request, since a node may start after its app."""
    routes = APIRouter(tags=["query"])

    async def stream(request: Request) -> Response:
        parameters = parameters_of(request)
        refuse_unknown(parameters, PARAMETERS_OF_STREAM)
        _check_format(parameters)
        matches = live()
        asked, start, window = _parsed(parameters, request.headers, matches)
        asked = restricted(request, asked)
        if request.method == "HEAD":
            return Response(headers={"content-type": "text/event-stream; charset=utf-8"})
        refuse_more_than(max_readers, node)
        reader = await open_reader(request, LiveReader(matches, asked, round(window * 1000), start))
        if reader is None:
            return Response(status_code=204)
        return QueryStream(reader, node, counters)

    routes.add_api_route(
        "/query/stream",
        stream,
        methods=["GET"],
        summary="Follow matches in all runs, as server-sent events",
        response_class=Response,
        openapi_extra=OPENAPI,
    )
    return routes


def refuse_more_than(max_readers: int, node: NodeApi) -> None:
    """Raises `Unavailable` if the node has as many live readers as it may have."""
    if node.tail.readers >= max_readers:
        raise Unavailable("there are too many live readers", hint="Try again later.")


async def open_reader(request: Request, reader: LiveReader) -> LiveReader | None:
    """Opens a reader while its client waits; closes it and returns None if the client leaves."""
    opened = False
    try:
        opened = await unless_gone(reader.open(), request.receive) is not None
    finally:
        if not opened:
            reader.close()
    return reader if opened else None


class QueryStream(Response):
    """A response that lasts until its client disconnects or the node stops."""

    def __init__(self, reader: LiveReader, node: NodeApi, counters: HttpCounters) -> None:
        super().__init__()
        self._reader = reader
        self._node = node
        self._counters = counters

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": sse.HEADERS})
            with sse.watching(self._node.tail, ALL_RUNS, self._counters) as watcher:
                await unless_gone(watcher.unless_left(self._run(watcher, send)), receive)
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._reader.close()

    async def _run(self, watcher: Watcher, send: Send) -> None:
        try:
            async with aclosing(self._reader.follow(watcher.wait)) as pieces:
                async for piece in pieces:
                    await self._send(send, self._frame(piece))
                    if watcher.gone:
                        break
        except TailraceError as error:
            await self._send(send, _error(error))

    def _frame(self, piece: MatchedRecords | Gap | Silent | None) -> bytes:
        if piece is None:
            assert self._reader.cursor is not None
            return b": heartbeat\nid: %b\n\n" % self._reader.cursor.encode().encode()
        if isinstance(piece, Gap):
            head = b"id: %b\nevent: gap\n" % piece.cursor.encode().encode()
            return head + sse.data({"reason": piece.reason})
        if isinstance(piece, Silent):
            head = b"id: %b\nevent: silent\n" % piece.cursor.encode().encode()
            return head + sse.data(sse.silence(piece.nodes, store=piece.store))
        frame = piece.frames.get(_FORMAT)
        if frame is None:
            frame = piece.frames[_FORMAT] = events(piece)
        return frame

    async def _send(self, send: Send, frame: bytes) -> None:
        await sse.send_frame(send, self._counters, frame)


def events(piece: MatchedRecords) -> bytes:
    """Returns the piece's records as one event each."""
    objects = sse.one_line(lines(piece.batch)).split(b"\n")[:-1]
    if piece.late is not None:
        objects = [b'%b,"late":true}' % text[:-1] for text in objects]
    ids = _late_ids(piece, piece.late) if piece.late is not None else _ids(piece)
    ids[-1] = piece.after.encode()
    frames = [
        b"id: %b\ndata: %b\n\n" % (cursor.encode(), text)
        for cursor, text in zip(ids, objects, strict=True)
    ]
    return b"".join(frames)


def _ids(piece: MatchedRecords) -> list[str]:
    stem = seen_text(piece.before)
    ulids, fqns, runs = _columns(piece.batch, *KEY_COLUMNS)
    names = {key: names_text(*key) for key in {*zip(fqns, runs, strict=True)}}
    return [
        f"{stem}.{text}.{names[fqn, run]}" for text, fqn, run in zip(ulids, fqns, runs, strict=True)
    ]


def _late_ids(piece: MatchedRecords, node: str) -> list[str]:
    (positions,) = _columns(piece.batch, "pos")
    return [piece.before.at(node, pos + 1).encode() for pos in positions]


def _columns(batch: pa.RecordBatch, *names: str) -> list[list[Any]]:
    return [batch.column(name).to_pylist() for name in names]


def _error(error: TailraceError) -> bytes:
    _, kind = classify(error)
    return b"event: error\n" + sse.json_data(
        orjson.dumps({"type": kind, "detail": str(error), "hint": error.hint})
    )


def _check_format(parameters: Mapping[str, str]) -> None:
    if parameters.get("format", _FORMAT) != _FORMAT:
        raise InvalidInput(
            f"format is {parameters['format'][:80]!r}",
            field="format",
            hint=f"A live search has no other than {_FORMAT}: a record for each event.",
        )


def _parsed(
    parameters: Mapping[str, str], headers: Mapping[str, str], live: LiveMatches
) -> tuple[QueryRequest, SearchStart, float]:
    """Returns the request, the place where it begins, and its window in seconds."""
    now_ms = live.engine.clock.now_ms()
    searched = {name: parameters[name] for name in _SEARCHED if name in parameters}
    asked = QueryRequest.parse({**searched, "from": "0", "order": "asc"}, now_ms=now_ms)
    # A client that connects again keeps its first URL and adds the header.
    after = headers.get("last-event-id") or parameters.get("after")
    low = None
    if parameters.get("from"):
        bounds = QueryRequest.parse({"from": parameters["from"]}, now_ms=now_ms)
        low = bounds.low
    tail = whole_number(parameters, "tail", 1, _MOST_TAIL) if parameters.get("tail") else None
    start = SearchStart(StreamCursor.decode(after) if after else None, low, tail)
    return asked, start, _window(parameters, live.engine.settings.stream_window_seconds)


def _window(parameters: Mapping[str, str], default: float) -> float:
    text = parameters.get("window")
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _MOST_WINDOW_SECONDS:
        raise InvalidInput(
            f"window is {text[:80]!r}",
            field="window",
            hint=f"Write seconds from 0 to {_MOST_WINDOW_SECONDS}.",
        )
    return seconds
