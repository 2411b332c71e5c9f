"""Lines that are not finished yet, such as progress bars and prompts: shown live, never stored.

`PUT /unfinished/{fqn}/{runId}` says what the last line of a producer looks like now. A live view
asks for `GET /unfinished/{fqn}/stream/{runId}`, server-sent events beside the stream of lines:

    data: {"lines": [{"producer": …, "number": …, "text": …}, …]}

The stream begins with all unfinished lines of the run, also if there are none. It has all again
after each change: each event replaces the one before. The stream of lines is not touched, so
clients that know only that one get what they always got. `complete` is the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import orjson
from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from logstore.batch import RunKey
from service.http import sse
from service.http.body import json_object
from service.http.node import NodeApi
from service.http.status import RunStatusStream, run_is_over
from service.http.targets import ROOT, run_key
from service.runtime.counters import HttpCounters
from service.status.unfinished import MOST_CHARS, UnfinishedLine

_EVENTS: Final = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
_TAKES: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["producer", "number", "text"],
                    "properties": {
                        "producer": {
                            "type": "string",
                            "minLength": 1,
                            "maxLength": 100,
                            "description": "Who writes the line; it has one unfinished line.",
                        },
                        "number": {
                            "type": "integer",
                            "description": "Grows with each state: an older one is ignored.",
                        },
                        "text": {
                            "type": "string",
                            "maxLength": MOST_CHARS,
                            "description": "The line as it is now; empty: it is finished.",
                        },
                    },
                }
            }
        },
    }
}


class UnfinishedList(BaseModel):
    """The lines of a run that are not finished, by producer."""

    lines: list[dict[str, Any]]


def unfinished_routes(node: NodeApi, max_readers: int, counters: HttpCounters) -> APIRouter:
    """The routes of `…/unfinished/…`."""
    router = APIRouter(prefix=ROOT, tags=["status"])

    @router.put(
        "/unfinished/{fqn}/{runId}",
        summary="Say what an unfinished line of a run looks like",
        response_class=Response,
        responses={200: {"description": "Shown to live views; it is not stored."}},
        openapi_extra=_TAKES,
    )
    async def put_unfinished(fqn: str, runId: str, request: Request) -> Response:  # noqa: N803
        line = UnfinishedLine.from_json(await json_object(request))
        key, lines = run_key(fqn, runId), node.status.unfinished
        lines.put(key, line)
        lines.tell(key, line)
        return Response()

    @router.get(
        "/unfinished/{fqn}/{runId}",
        summary="The unfinished lines of a run",
        response_model=UnfinishedList,
    )
    async def get_unfinished(fqn: str, runId: str) -> dict[str, Any]:  # noqa: N803
        return _shown(node, run_key(fqn, runId))

    @router.get(
        "/unfinished/{fqn}/stream/{runId}",
        summary="The unfinished lines of a run, live, as server-sent events",
        response_class=Response,
        responses={200: {"description": "All of them, again after each change.", **_EVENTS}},
    )
    async def stream_unfinished(fqn: str, runId: str) -> Response:  # noqa: N803
        key = run_key(fqn, runId)
        return UnfinishedStream(node, key, max_readers=max_readers, counters=counters)

    return router


def _shown(node: NodeApi, key: RunKey) -> dict[str, Any]:
    return {"lines": [line.to_json() for line in node.status.unfinished.of_run(key)]}


class UnfinishedStream(RunStatusStream):
    """All unfinished lines of a run, again after each change."""

    async def _events(self) -> AsyncIterator[bytes]:
        tail = self._node.tail
        if tail.readers >= self._max_readers:
            return
        with sse.watching(tail, self._key, self._counters) as watcher:
            sent: dict[str, Any] | None = None
            over: bool | None = None
            while not watcher.gone:
                # Nothing is awaited between the look and the wait: no change is missed.
                now = _shown(self._node, self._key)
                if now != sent:  # at first also none: a view that comes back shows older ones
                    sent = now
                    yield self._counted(sse.json_data(orjson.dumps(now)))
                elif over is None:
                    over = await watcher.unless_left(run_is_over(self._node, self._key))
                elif over or watcher.channel.ended is not None:
                    yield self._counted(sse.COMPLETE)
                    return
                elif await watcher.wait() == "heartbeat":
                    over = None
