"""`GET /progress/{fqn}/stream/{runId}`: the progress of a run, over server-sent events.

    id: <version>
    data: <the JSON object that the client sent>

The stream begins with the progress that was sent last. Then it sends each change; of several
between two sends only the newest. It ends, with an event named `complete`, when the run's live
streams end. Progress that was sent to another node is found at the tail's next heartbeat.

sse-starlette sends the events and a silent stream's comments, and ends the reply when its client
disconnects. `docs/decisions/074-sse-starlette-carries-progress-not-lines.md` explains why the live
view of lines does not use it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

from sse_starlette import EventSourceResponse, ServerSentEvent

from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.errors import TailraceError
from logstore.runs.report import Report
from service.http import sse
from service.http.node import NodeApi
from service.runtime.counters import HttpCounters

_HEARTBEAT: Final = ServerSentEvent(comment="heartbeat", sep="\n")


class ProgressStream(EventSourceResponse):
    """A response that lasts until its run ends, its client disconnects or the node stops."""

    def __init__(
        self, node: NodeApi, key: RunKey, *, max_readers: int, counters: HttpCounters
    ) -> None:
        super().__init__(
            self._events(),
            ping=node.tail.settings.heartbeat_seconds,
            ping_message_factory=self._heartbeat,
        )
        # Without the library's `connection: keep-alive`, which a client of HTTP/1.0 would take for
        # a promise: to such a client this reply ends with its connection.
        self.raw_headers = list(sse.HEADERS)
        self._node = node
        self._key = key
        self._max_readers = max_readers
        self._counters = counters
        self._sent = 0

    async def _events(self) -> AsyncIterator[bytes]:
        tail, status = self._node.tail, self._node.status
        if tail.readers >= self._max_readers:
            return
        with sse.watching(tail, self._key, self._counters) as watcher:
            stored = await self._stored()
            over: bool | None = None
            while not watcher.gone:
                # Nothing is awaited between the last look and the wait: no nudge is missed.
                news = self._newer(stored) or self._newer(status.progress_here(self._key))
                if news is not None:
                    self._sent = news.version
                    yield self._counted(_event(news))
                elif over is None:
                    over = await self._over()
                elif over or watcher.channel.ended is not None:
                    yield self._counted(sse.COMPLETE)
                    return
                elif await watcher.wait() == "heartbeat":
                    stored = await self._stored()
                    over = None

    async def _stored(self) -> Report | None:
        """The stored progress; while the store is unavailable, the next look has to do."""
        with suppress(TailraceError):
            return await self._node.status.progress(self._key)
        return None

    async def _over(self) -> bool:
        with suppress(TailraceError):
            if (await self._node.run_logs.reader.size(self._key)).state == "closed":
                return True
        return await self._node.status.over(self._key)

    def _newer(self, report: Report | None) -> Report | None:
        return None if report is None or report.version <= self._sent else report

    def _counted(self, event: bytes) -> bytes:
        self._counters.stream_events += 1
        self._counters.stream_bytes += len(event)
        return event

    def _heartbeat(self) -> ServerSentEvent:
        self._counted(sse.HEARTBEAT)
        return _HEARTBEAT


def _event(report: Report) -> bytes:
    return b"id: %b\n%b" % (ulids.encode(report.version).encode(), sse.json_data(report.body))
