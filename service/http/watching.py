"""A live reader's stay: from its registration at the tail until it leaves or is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from logstore.batch import RunKey
from service.counters import HttpCounters
from service.http.body import Receive
from service.tail import Tail, Watcher

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


@asynccontextmanager
async def watching(
    tail: Tail, key: RunKey, receive: Receive, counters: HttpCounters
) -> AsyncIterator[Watcher]:
    """A watcher of the run while the block runs; it is `gone` once the client is."""
    watcher = tail.watch(key)
    gone = asyncio.create_task(_until_gone(receive, watcher))
    counters.readers += 1
    try:
        yield watcher
    finally:
        counters.readers -= 1
        tail.unwatch(watcher)
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone


async def _until_gone(receive: Receive, watcher: Watcher) -> None:
    """Lets the watcher leave when the client does."""
    while (await receive())["type"] != "http.disconnect":
        pass
    watcher.leave()
