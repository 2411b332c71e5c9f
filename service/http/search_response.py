"""A running search as an ASGI response that ends with its client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

import orjson
import pyarrow as pa
from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from logstore.errors import TailraceError
from service.http.errors import classify
from service.http.page_bodies import silence
from service.query.engine import QueryEngine
from service.query.output import Output
from service.query.request import QueryRequest
from service.query.running import RunningSearch

T = TypeVar("T")


class Opened:
    """A search whose first batch is there, so that the status is known."""

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
) -> Opened | None:
    """The search with its first batch; None if the client disconnected meanwhile."""
    started: list[RunningSearch] = []

    async def start() -> Opened:
        started.append(await engine.open(asked))
        found = Opened(started[0], head=head)
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
    """What a search came to, as one JSON object with `stats`; 206 if not all could be read."""
    found = await unless_gone(counting, request.receive)
    if found is None:  # the client has gone
        return Response(status_code=204)
    status = 200 if found["stats"]["complete"] else 206
    return Response(orjson.dumps(found), status, media_type="application/json")


class SearchResponse(Response):
    """Sends the result as the search finds it, and closes the search in any case."""

    def __init__(self, found: Opened, output: Output) -> None:
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
        del self.headers["content-length"]  # of the empty body that this class begins with
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
        """Sends all but the last piece if nothing is to be waited for behind it, and returns it."""
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
    """The result of `work`.

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
