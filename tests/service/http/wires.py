"""Connections without a network: bytes go into the server's own protocol, in the pieces a
test chooses, and what it writes is read back as replies.

A `Side` is a whole node in leaping time, its journal on a simulated disk, and its HTTP API. Its
requests go by the fast path where that takes them, or all by ASGI.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from uvicorn.config import Config
from uvicorn.server import ServerState

from service.http.app import HttpApi, build_app
from service.http.body import Clients
from service.http.connection import QUIET, SHUT, Connection
from service.http.server import configured
from service.runtime.counters import HttpCounters
from service.settings import HttpSettings, Tuning
from tests.service.simulated_node import Life
from tests.settings import SETTINGS
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock

RUNS = "/api/v1/services/ingestionPipelines/logs"
_MOST_TURNS = 20_000
_TIMELESS_TURNS = 500
_QUIET_TURNS = 60


def post(
    body: bytes, *headers: str, path: str = "/p/r", version: str = "1.1", method: str = "POST"
) -> bytes:
    """A request; with a `Content-Length` and `Content-Type` unless a header says otherwise."""
    lines = [f"{method} {RUNS}{path} HTTP/{version}", "Host: localhost", *headers]
    named = [header.partition(":")[0].lower() for header in headers]
    if "content-type" not in named:
        lines.append("Content-Type: text/plain")
    if "transfer-encoding" not in named and "content-length" not in named:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@dataclass
class Reply:
    """One response, as it stood on the wire."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """The first of this name."""
        return next((value for key, value in self.headers if key == name), None)


class Wire(asyncio.Transport):
    """A transport whose other end is a test; it takes all that is written, unless `unread`."""

    def __init__(self, peer: str = "127.0.0.1") -> None:
        super().__init__({"peername": (peer, 50_000), "sockname": ("127.0.0.1", 8790)})
        self.written = bytearray()
        self.over = self.eof = False
        self.closed = False
        self.paused = False
        self.unread = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not self.over:
            self.written += data

    def get_write_buffer_size(self) -> int:
        return len(self.written) if self.unread else 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It never asks anybody to pause."""

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """The client sees its end, though it may go on sending."""
        self.over = self.eof = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Who is told that the connection is gone."""
        self._told = protocol

    def close(self) -> None:
        """Ends it; whoever does not read keeps it from its end."""
        self.over = True
        if not self.unread:
            self.abort()

    def abort(self) -> None:
        self.over = True
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._told.connection_lost, None)

    def is_closing(self) -> bool:
        return self.closed or (self.over and self.unread)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def replies(self) -> list[Reply]:
        """All whole replies so far. Raises where what was written is no HTTP."""
        found, rest = [], bytes(self.written)
        while rest:
            head, end, rest = rest.partition(b"\r\n\r\n")
            if not end:
                break
            first, *lines = head.decode("latin-1").split("\r\n")
            matched = re.fullmatch(r"HTTP/1\.1 (\d{3}) .*", first)
            assert matched is not None, first
            headers = [(n.lower(), v) for n, _, v in (line.partition(": ") for line in lines)]
            reply = Reply(int(matched[1]), headers, b"")
            size = reply.header("content-length")
            if size is not None:
                if len(rest) < int(size):
                    break
                reply.body, rest = rest[: int(size)], rest[int(size) :]
            elif reply.header("transfer-encoding") == "chunked":
                body, end, rest = rest.partition(b"0\r\n\r\n")
                if not end:
                    break
                reply.body = body
            found.append(reply)
        return found


class Client:
    """One connection to a `Side`."""

    def __init__(self, side: Side, peer: str = "127.0.0.1") -> None:
        self.wire = Wire(peer)
        self.connection: Connection = side.config.http_protocol_class(  # type: ignore[assignment,call-arg]
            config=side.config,
            server_state=side.state,
            app_state={},
            _loop=asyncio.get_running_loop(),
        )
        self.wire.set_protocol(self.connection)
        self.connection.connection_made(self.wire)
        self._kept: list[bytes] = []

    async def send(self, *pieces: bytes) -> None:
        """Pieces as they arrive: the loop turns between, and none arrives while it is paused."""
        for piece in pieces:
            await self._until(lambda: self.wire.over or not self.wire.paused)
            if self.wire.over:
                return
            if piece:
                self.connection.data_received(piece)
            await asyncio.sleep(0)

    async def replies(self, count: int) -> list[Reply]:
        """Once there are so many replies, or the connection's end; and a moment later."""
        await self._until(lambda: self.wire.over or len(self.wire.replies()) >= count)
        for _ in range(3):
            await asyncio.sleep(0)
        return self.wire.replies()

    async def settled(self) -> list[Reply]:
        """Once nothing is at work: all is answered, or what was sent is half a request."""
        quiet, seen = 0, -1
        for _ in range(_MOST_TURNS):
            if self.wire.over or (quiet >= _QUIET_TURNS and not self._at_work()):
                return self.wire.replies()
            if quiet >= _QUIET_TURNS:
                time.sleep(0.001)  # a thread is at work, and has real time
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self.wire.written) == seen else 0
            seen = len(self.wire.written)
        raise AssertionError(f"no end in {_MOST_TURNS} turns: {bytes(self.wire.written)!r}")

    def _at_work(self) -> bool:
        """Whether a request that is there as a whole is not answered yet."""
        return self.connection.busy and self.connection.reading in (QUIET, SHUT)

    def ended(self) -> bool:
        """Whether the server ended the connection."""
        return self.wire.over

    def gone(self) -> bool:
        """Whether nothing is left of it, at the server's side too."""
        return self.wire.closed

    def leave(self) -> None:
        """The client goes away."""
        self.wire.abort()

    async def _until(self, true: Any) -> None:
        for turn in range(_MOST_TURNS):
            if true():
                return
            await asyncio.sleep(0 if turn < _TIMELESS_TURNS else 0.01)
        raise AssertionError(f"nothing came in {_MOST_TURNS} turns: {bytes(self.wire.written)!r}")


@dataclass
class Side:
    """A node with its HTTP API; `quick`: small appends may go by the fast path."""

    clock: VirtualClock
    quick: bool = True
    settings: HttpSettings = field(default_factory=HttpSettings)

    def __post_init__(self) -> None:
        self.fs = PowerCutFileSystem()
        self.node = Life(self.fs, self.clock, settings=SETTINGS, tuning=Tuning()).node
        self.counters = HttpCounters()
        api = HttpApi(
            settings=self.settings, counters=self.counters, clock=self.clock, entropy=Random(1)
        )
        self.app = build_app(self.node, api)
        self.clients = Clients(
            self.settings, self.counters, self.app.append.fresh_id, self.app.append.budget
        )
        self.state = ServerState()
        self.by_asgi = 0
        self.config: Config = configured(self.app, self.clients, stop_seconds=1, quick=self.quick)
        self.config.app = self._counted
        self.config.load()

    def _counted(self, scope: Any, receive: Any, send: Any) -> Any:
        self.by_asgi += 1
        return self.app(scope, receive, send)

    async def start(self) -> None:
        """Returns when batches are taken."""
        await self.node.start()
        while not self.node.ready:
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Lets everything go."""
        self.app.append.shut()
        await self.node.stop()

    async def say(self, *pieces: bytes, replies: int = 1) -> list[Reply]:
        """What one connection answers to these pieces; then its client leaves."""
        client = Client(self)
        await client.send(*pieces)
        try:
            return await client.replies(replies)
        finally:
            client.leave()
            await asyncio.sleep(0)

    def stored(self, since: int = 0) -> list[tuple[str, bytes, int]]:
        """(run, text, records) of the journal's batches, in order; `since` is how many to pass."""
        with self.node.writer.journal.pin() as pin:
            batches = pin.batches()
            return [
                (
                    batches.runs[int(row["run"])].run,
                    batches.text(np.array([i])),
                    int(row["records"]),
                )
                for i, row in enumerate(batches.rows)
                if i >= since
            ]


def statuses(replies: Sequence[Reply]) -> list[int]:
    """Of replies, in order."""
    return [reply.status for reply in replies]
