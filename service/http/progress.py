"""`GET /progress/{fqn}/stream/{runId}`: how far a run is, over server-sent events.

    id: <version>
    data: <the JSON object that the client sent>

First what was sent last, then each change; of several between two sends only the newest.
It ends, with an event named `complete`, when the run's live streams end. What was sent to
another node is found at the next heartbeat.
"""

from __future__ import annotations

from contextlib import suppress

from starlette.responses import Response

from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.errors import TailraceError
from logstore.runs.report import Report
from service.http import sse as frames
from service.http.body import Receive, Scope, Send
from service.http.node import NodeApi
from service.http.sse import HEADERS, watching
from service.runtime.counters import HttpCounters
from service.tail import Watcher


class ProgressStream(Response):
    """A response that lasts until its run ends, its client leaves or the node stops."""

    def __init__(
        self, node: NodeApi, key: RunKey, *, max_readers: int, counters: HttpCounters
    ) -> None:
        super().__init__()
        self._node = node
        self._key = key
        self._max_readers = max_readers
        self._counters = counters
        self._sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tail = self._node.tail
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        if scope["method"] == "HEAD" or tail.readers >= self._max_readers:
            await send({"type": "http.response.body", "body": b""})
            return
        async with watching(tail, self._key, receive, self._counters) as watcher:
            await self._run(watcher, send)
        await send({"type": "http.response.body", "body": b""})

    async def _run(self, watcher: Watcher, send: Send) -> None:
        await self._look(send)
        over = await self._over()
        while not watcher.gone:
            # Nothing is awaited between the last look and the wait: no nudge is missed.
            if await self._show(self._node.status.progress_here(self._key), send):
                continue
            if over or watcher.channel.ended is not None:
                await self._send(send, frames.COMPLETE)
                return
            if await watcher.wait() == "heartbeat":
                await self._send(send, frames.HEARTBEAT)
                await self._look(send)
                over = await self._over()

    async def _look(self, send: Send) -> None:
        """Shows what the store has; while it is away, the next look has to do."""
        with suppress(TailraceError):
            await self._show(await self._node.status.progress(self._key), send)

    async def _over(self) -> bool:
        with suppress(TailraceError):
            if (await self._node.text.size(self._key)).state == "closed":
                return True
        return await self._node.status.over(self._key)

    async def _show(self, report: Report | None, send: Send) -> bool:
        """Sends what is newer than what was sent; whether it was."""
        if report is None or report.version <= self._sent:
            return False
        self._sent = report.version
        version = ulids.encode(report.version).encode()
        await self._send(send, b"id: %b\n%b" % (version, frames.json_data(report.body)))
        return True

    async def _send(self, send: Send, frame: bytes) -> None:
        self._counters.stream_events += 1
        self._counters.stream_bytes += len(frame)
        await send({"type": "http.response.body", "body": frame, "more_body": True})
