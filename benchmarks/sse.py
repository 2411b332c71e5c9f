"""What sse-starlette adds to an event: `python -m benchmarks.sse [--readers 200] [--events 200]`.

One uvicorn sends the same events to as many readers in two ways in turn: by an ASGI app that awaits
`send`, as the live view of lines does, and by sse-starlette's response. Printed for each round: the
server's CPU time for an event. The first is the limit of the second, which is built on it.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
import time
from collections.abc import AsyncIterator

import uvicorn
from sse_starlette import EventSourceResponse

from service.http import sse
from service.http.body import Receive, Scope, Send
from tests.servers.ports import free_port

_EVENT = sse.event("logs", "run", "cursor", logs="x" * 1000 + "\n")
_PAUSE_SECONDS = 0.01
_ROUNDS = 5
_WAYS = ("send", "sse-starlette")


class Ticker:
    """Wakes all readers at once, as a tick of a watched run does."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    async def next(self) -> None:
        """Returns at the next tick."""
        if self._next is None:
            loop = asyncio.get_running_loop()
            self._next = loop.create_future()
            loop.call_later(_PAUSE_SECONDS, self._tick)
        await self._next

    def _tick(self) -> None:
        if self._next is not None:
            self._next.set_result(None)
            self._next = None


class App:
    """`/send` and `/sse-starlette`, each so many events, and `/cpu`: seconds that were used."""

    def __init__(self, events: int) -> None:
        self._events = events
        self._ticker = Ticker()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/sse-starlette":
            await EventSourceResponse(self._stream())(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": sse.HEADERS})
        if scope["path"] == "/send":
            gone = asyncio.ensure_future(receive())
            async for event in self._stream():
                await send({"type": "http.response.body", "body": event, "more_body": True})
            gone.cancel()
        body = b"" if scope["path"] == "/send" else str(time.process_time()).encode()
        await send({"type": "http.response.body", "body": body})

    async def _stream(self) -> AsyncIterator[bytes]:
        for _ in range(self._events):
            await self._ticker.next()
            yield _EVENT


def _serve(port: int, events: int) -> None:
    uvicorn.run(
        App(events), port=port, http="httptools", loop="uvloop", lifespan="off", log_config=None
    )


async def _read(port: int, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    reply = await reader.read()
    writer.close()
    return reply


async def _cpu_seconds(port: int) -> float:
    return float((await _read(port, "cpu")).split(b"\r\n")[-4])


async def _measure(port: int, readers: int, events: int) -> None:
    while True:
        try:
            await _cpu_seconds(port)
            break
        except ConnectionError:
            await asyncio.sleep(0.1)
    for _ in range(_ROUNDS):
        told = []
        for way in _WAYS:
            before = await _cpu_seconds(port)
            replies = await asyncio.gather(*[_read(port, way) for _ in range(readers)])
            used = await _cpu_seconds(port) - before
            assert all(reply.count(_EVENT) == events for reply in replies)
            told.append(f"{way} {used / readers / events * 1e6:.1f} µs an event")
        print("; ".join(told), flush=True)


def main() -> int:
    """Always 0: it measures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--events", type=int, default=200)
    arguments = parser.parse_args()
    port = free_port()
    server = multiprocessing.Process(target=_serve, args=(port, arguments.events), daemon=True)
    server.start()
    asyncio.run(_measure(port, arguments.readers, arguments.events))
    server.terminate()
    server.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
