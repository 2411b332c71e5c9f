"""Verification of all stored data over HTTP: a report that grows line by line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

from fastapi import APIRouter, Query
from starlette.responses import StreamingResponse

from service.http.body import Receive, Scope, Send
from service.runtime.verification import Lines, Verification

Verifier: TypeAlias = Callable[[], Verification]

_MEDIA_TYPE = "application/x-ndjson"
_DESCRIPTION = """
As `tailrace verify --json`: a line `{"kind", "place", "detail", "lines", "repaired"}` for each
fault when it is found, last `{"summary": {"sound", "compared", "faults", "repaired", "notes"}}`.
A report without a summary is of a comparison that broke off: its last line is `{"error", "hint"}`,
or it was cut off. While nothing is found, `{"progress": {"seconds"}}` says every 15 seconds that
work goes on. Whoever closes the connection ends the work. One at a time: 409 for a second.
This node's journal is not compared, because it is in use.
"""


def verify_routes(verification: Verifier) -> APIRouter:
    """The route that verifies and, with `repair`, repairs what can be repaired."""
    router = APIRouter(tags=["operation"])

    @router.post(
        "/verify",
        summary="Compare everything that is stored, line by line",
        description=_DESCRIPTION,
        response_class=StreamingResponse,
        responses={200: {"content": {_MEDIA_TYPE: {}}, "description": "Faults, then a summary"}},
    )
    async def verify(
        repair: Annotated[
            bool,
            Query(
                description="Quarantine damage, and restore what reads again; nothing is deleted."
            ),
        ] = False,
    ) -> StreamingResponse:
        return _Report(await verification().begin(repair=repair))

    return router


class _Report(StreamingResponse):
    """Ends the work when the connection ends, even if no client reads."""

    def __init__(self, lines: Lines) -> None:
        super().__init__(lines, media_type=_MEDIA_TYPE)
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._lines.aclose()
