"""The route of live streams; `stream.py` is what they do."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query
from fastapi.responses import Response

from service.counters import HttpCounters
from service.http.limits import HttpLimits
from service.http.node import NodeApi
from service.http.stream import EventStream
from service.http.targets import BASE, name, run_key
from service.status.last import last_run

_EVENTS = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}


def live_routes(node: NodeApi, limits: HttpLimits, counters: HttpCounters) -> APIRouter:
    """`GET /logs/{fqn}/stream/{runId}`."""
    router = APIRouter(prefix=BASE, tags=["runs"])

    @router.get(
        "/{fqn}/stream/{runId}",
        summary="A run live, as server-sent events; `last` is the pipeline's last run",
        response_class=Response,
        responses={200: {"description": "Events logs, complete, error.", **_EVENTS}},
    )
    async def stream(
        fqn: str,
        runId: str,  # noqa: N803
        after: Annotated[str | None, Query(description="Cursor; all beyond it is sent.")] = None,
        last_event_id: Annotated[str | None, Header(description="The same, by clients.")] = None,
        format: Annotated[Literal["json", "text"], Query()] = "json",  # noqa: A002
    ) -> Response:
        if runId == "last":
            key, _ = await last_run(node.status, node.text, name(fqn.encode(), "fqn"))
        else:
            key = run_key(fqn, runId)
        return EventStream(
            node,
            key,
            # A client that reconnects keeps its first URL and adds the header.
            after=last_event_id or after or None,
            replay_lines=limits.replay_lines,
            as_text=format == "text",
            limits=limits,
            counters=counters,
        )

    return router
