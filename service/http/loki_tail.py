"""Serves `GET /loki/api/v1/tail`: the lines that match LogQL, live, over a WebSocket.

Each message has Loki's shape: streams with their new lines. First come the newest `limit` lines
since `start`, then all that arrive, once the window of live searches is over. The search is the one
of `GET /query/stream`, so lines are in the order of their ULIDs.

    {"streams": [{"stream": {<labels>}, "values": [[<nanoseconds>, <line>], …]}, …]}
    {"streams": [], "dropped_entries": [{"timestamp": <nanoseconds>, "labels": {"reason": …}}]}
                                     lines may be missing here, and why

The reply is one of HTTP that switches protocols, with the bounds and checks of all replies. A
heartbeat is a ping. A search that fails ends with a close frame that says why. A stop of the node
ends without one, so that clients connect again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.http import sse
from service.http.api import NodeApi
from service.http.authorization import restricted
from service.http.live_query import open_reader, refuse_more_than
from service.http.loki import (
    PREFIX,
    QUERY,
    WITHIN,
    LokiParameters,
    categorizes,
    encoding,
    plainly,
    streams_of,
)
from service.http.query import described, unless_gone
from service.http.replies import CONNECTION, OFFER
from service.query.live_cursor import MatchedRecords
from service.query.live_search import LiveMatches, LiveReader, SearchStart
from service.query.live_sources import Gap
from service.query.request import QueryRequest
from service.runtime.counters import HttpCounters
from service.tail import ALL_RUNS, Watcher
from tailrace.logstore import ulid
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import InvalidInput, TailraceError, with_hint
from tailrace.logstore.search.conditions import required

if TYPE_CHECKING:
    from wsproto.events import CloseConnection

    from service.query.logql_lines import LogLine
    from tailrace.logstore.search.logql import Stage

_MOST_DELAY_SECONDS: Final = 5
_LINES_OF_A_MESSAGE: Final = 1_000
_VERSION: Final = "13"
_HINT: Final = "Follow a search without WebSockets by GET /query/stream."
_DELAY: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "delay_for": (
        "Seconds for which lines are held back, if more than the window of live searches.",
        {"type": "integer", "minimum": 0, "maximum": _MOST_DELAY_SECONDS, "default": 0},
    )
}
OPENAPI: Final[dict[str, Any]] = {
    "description": "Lines of a log query as they arrive, as messages of a WebSocket.",
    "parameters": [*described({n: QUERY[n] for n in ("query", "limit")} | _DELAY), WITHIN[0]],
    "responses": {
        "101": {"description": "Messages, until the client leaves."},
        "400": {
            "description": "A parameter is wrong, or the client offers no WebSocket.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        "503": {"description": "Too many readers or searches, or the store does not answer."},
    },
}


def loki_tail_routes(
    live: Callable[[], LiveMatches], node: NodeApi, max_readers: int, counters: HttpCounters
) -> APIRouter:
    """Returns the route; it calls `live` at each request, since a node may start after its app."""
    routes = APIRouter(tags=["loki"])

    async def tail(request: Request) -> Response:
        matches = live()
        given = await LokiParameters.read(request, matches.engine.clock)
        asked, stages = _parsed(given)
        start, _ = given.bounds()
        begin = SearchStart(low=ulid.lowest_at(max(start // 1_000_000, 0)), tail=given.limit())
        window = max(_delay(given), matches.engine.settings.stream_window_seconds)
        asked = restricted(request, asked)
        key = _offered_key(request)
        refuse_more_than(max_readers, node)
        reader = await open_reader(
            request, LiveReader(matches, asked, round(window * 1_000), begin)
        )
        if reader is None:
            return Response(status_code=204)
        messages = _Messages(given.get("query"), stages, categorized=categorizes(request))
        return LokiTail(reader, messages, key, node, counters, matches.engine.clock)

    routes.add_api_route(
        f"{PREFIX}/tail",
        plainly(tail),
        methods=["GET"],
        summary="Follow lines with LogQL as Loki does, by WebSocket",
        response_class=Response,
        openapi_extra=OPENAPI,
    )
    return routes


def _parsed(given: LokiParameters) -> tuple[QueryRequest, tuple[Stage, ...]]:
    """Returns the search of a log query, and its stages. Raises `InvalidInput`."""
    # Imported here: a node without searches runs without the parser.
    from service.query.logql_search import selected
    from tailrace.logstore.search.logql import LogExpression, parse_logql

    expression = parse_logql(given.get("query"))
    if not isinstance(expression, LogExpression):
        raise InvalidInput(
            "a metric query cannot be followed", hint="Follow its selector, or repeat the query."
        )
    condition, stages = selected(expression.matchers, expression.stages)
    fqn, run = required(condition, "fqn"), required(condition, "run_id")
    return QueryRequest(condition=condition, fqn=fqn, run=run, descending=False), stages


def _delay(given: LokiParameters) -> int:
    text = given.get("delay_for", "0")
    if not text.isascii() or not text.isdigit() or int(text[:9]) > _MOST_DELAY_SECONDS:
        raise InvalidInput(f"delay_for can't be greater than {_MOST_DELAY_SECONDS}")
    return int(text)


def _offered_key(request: Request) -> bytes:
    """Returns the key of the client's offer. Raises `InvalidInput` without one."""
    headers = request.headers
    key, version = headers.get("sec-websocket-key", ""), headers.get("sec-websocket-version")
    if request.scope.get(OFFER) != b"websocket" or not key or version != _VERSION:
        raise InvalidInput("the client does not offer to switch to WebSocket 13", hint=_HINT)
    return key.encode("latin-1")


class _Messages:
    """Makes the messages of one query; readers of the same query share their bytes."""

    def __init__(self, query: str, stages: tuple[Stage, ...], *, categorized: bool) -> None:
        self._form = f"loki {categorized} {query}"
        self._stages = stages
        self._categorized = categorized

    async def frames(self, piece: MatchedRecords) -> bytes:
        """Returns records as frames, none if the stages keep no line."""
        found = piece.frames.get(self._form)
        if found is None:
            # In a thread: stages take time for each line, and a piece may have many.
            found = piece.frames[self._form] = await asyncio.to_thread(
                lambda: b"".join(self._encoded(piece))
            )
        return found

    def _encoded(self, piece: MatchedRecords) -> Iterator[bytes]:
        from service.query.logql_lines import LinePipeline, RecordLines

        pipeline, lines = LinePipeline(self._stages), RecordLines().lines(piece.batch)
        kept: Iterator[LogLine] = filter(pipeline.keeps, lines)
        while some := list(islice(kept, _LINES_OF_A_MESSAGE)):
            streams = streams_of(some, categorized=self._categorized)
            yield _message({"streams": streams} | encoding(categorized=self._categorized))


def _gap(gap: Gap, now_ms: int) -> bytes:
    lost = {"timestamp": f"{now_ms}000000", "labels": {"reason": gap.reason}}
    return _message({"streams": [], "dropped_entries": [lost]})


def _message(body: Mapping[str, Any]) -> bytes:
    from wsproto.connection import Connection, ConnectionType
    from wsproto.events import TextMessage

    whole = TextMessage(data=orjson.dumps(body).decode())
    return Connection(ConnectionType.SERVER).send(whole)


class LokiTail(Response):
    """A response that lasts until its client closes it or leaves, or the node stops."""

    def __init__(
        self,
        reader: LiveReader,
        messages: _Messages,
        key: bytes,
        node: NodeApi,
        counters: HttpCounters,
        clock: Clock,
    ) -> None:
        # Imported here: a node that nobody follows so runs without the library.
        from wsproto.connection import Connection, ConnectionType

        super().__init__()
        self._reader = reader
        self._messages = messages
        self._key = key
        self._node = node
        self._counters = counters
        self._clock = clock
        self._socket = Connection(ConnectionType.SERVER)
        self._watcher: Watcher | None = None
        self._farewell = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from wsproto.utilities import generate_accept_token

        try:
            self._connection: Any = scope[CONNECTION]
            send = self._connection.switch(send, self._take)
            headers = [
                (b"upgrade", b"websocket"),
                (b"connection", b"Upgrade"),
                (b"sec-websocket-accept", generate_accept_token(self._key)),
            ]
            await send({"type": "http.response.start", "status": 101, "headers": headers})
            with sse.watching(self._node.tail, ALL_RUNS, self._counters) as watcher:
                self._watcher = watcher
                await unless_gone(watcher.unless_left(self._run(watcher, send)), receive)
            await send({"type": "http.response.body", "body": self._farewell})
        finally:
            self._reader.close()

    async def _run(self, watcher: Watcher, send: Send) -> None:
        from wsproto.events import CloseConnection, Ping
        from wsproto.frame_protocol import CloseReason

        try:
            async with aclosing(self._reader.follow(watcher.wait)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, MatchedRecords):
                        frames = await self._messages.frames(piece)
                    elif isinstance(piece, Gap):
                        frames = _gap(piece, self._clock.now_ms())
                    else:
                        frames = self._socket.send(Ping())
                    if frames:
                        await sse.send_frame(send, self._counters, frames)
                    if watcher.gone:
                        break
        except TailraceError as error:
            self._close(CloseConnection(CloseReason.INTERNAL_ERROR, with_hint(error)))

    def _take(self, data: bytes) -> None:
        """Answers the client's frames: it may ping and close, and its messages say nothing."""
        from wsproto.events import CloseConnection, Ping

        if self._farewell:
            return
        self._socket.receive_data(data)
        for event in self._socket.events():
            if isinstance(event, Ping):
                self._connection.push(self._socket.send(event.response()))
            elif isinstance(event, CloseConnection):
                self._close(event.response())

    def _close(self, event: CloseConnection) -> None:
        self._farewell = self._socket.send(event)
        if self._watcher is not None:
            self._watcher.leave()
