"""Loki's tail over a real WebSocket: what comes, in which shape, and how it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    Event,
    Ping,
    Pong,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

from service.access.access import Access
from service.access.audit import AuditLog
from service.http.app import HttpApi, build_app
from service.http.authorization import AccessControl
from service.http.server import listen, serving
from service.query.live_search import LiveMatches
from service.tail import ALL_RUNS
from tailrace.logstore import ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.segments.detect import Carry
from tests.service.access.rules_file import rule, token_of, written
from tests.service.http.memory_node import MemoryNode
from tests.service.query.live.rig import LIMITS
from tests.service.query.shipped import Shipped
from tests.service.query.world import World, engine_of
from tests.settings import http_settings

TAIL = "/loki/api/v1/tail"
PATIENCE_SECONDS = 60
MINE, THEIRS = token_of("mine"), token_of("theirs")


@dataclass
class Tailed:
    """A served node whose journal takes lines."""

    port: int
    node: MemoryNode
    shipped: Shipped
    live: LiveMatches
    _count: int = 0

    async def log(self, fqn: str, *lines: str) -> None:
        """One batch for each line, synced."""
        for line in lines:
            self._count += 1
            at = ulid.lowest_at(SystemClock().now_ms()) | self._count << 25
            await self.shipped.append([(RunKey(fqn, "r"), at, f"{line}\n".encode())])


@dataclass
class Viewer:
    """A client of WebSocket: its messages, and how the connection ended."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    socket: WSConnection = field(default_factory=lambda: WSConnection(ConnectionType.CLIENT))
    messages: list[dict[str, Any]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    _text: str = ""

    def send(self, event: Event) -> None:
        self.writer.write(self.socket.send(event))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Reads until it holds, or until the server has closed."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not holds() and (data := await self.reader.read(65_536)):
                self.socket.receive_data(data)
                for event in self.socket.events():
                    self.events.append(event)
                    if isinstance(event, TextMessage):
                        self._text += event.data
                        if event.message_finished:
                            self.messages.append(json.loads(self._text))
                            self._text = ""
        assert holds(), self.events

    @property
    def lines(self) -> list[str]:
        streams = [stream for message in self.messages for stream in message["streams"]]
        return [value[1] for stream in streams for value in stream["values"]]

    def has(self, kind: type[Event]) -> bool:
        return any(isinstance(event, kind) for event in self.events)


@asynccontextmanager
async def viewing(tailed: Tailed, query: str, *headers: tuple[str, str]) -> AsyncIterator[Viewer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", tailed.port)
    viewer = Viewer(reader, writer)
    target = f"{TAIL}?query={quote(query, safe='&=')}"
    more = [(name.encode(), value.encode()) for name, value in headers]
    viewer.send(Request(host="127.0.0.1", target=target, extra_headers=more))
    try:
        await viewer.until(lambda: bool(viewer.events))
        yield viewer
    finally:
        writer.close()


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def start(**values: Any) -> Tailed:
            world, node, clock = World(tmp_path), MemoryNode(), SystemClock()
            ruled = values.pop("rules", False)
            settings = http_settings(**values)
            node.tail.settings = settings.sse
            shipped = Shipped(world)
            stack.push_async_callback(shipped.journal.close)
            sources = replace(world.sources(), pin=shipped.pin)
            engine = await stack.enter_async_context(
                engine_of(world, sources=sources, stream_window_seconds=0)
            )
            live = LiveMatches(
                engine,
                sources,
                pin=shipped.pin,
                carry=Carry,
                wake=lambda: node.tail.nudge(ALL_RUNS),
                limits=LIMITS,
            )
            stack.push_async_callback(live.close)
            rules = written(
                tmp_path / "rules.yaml",
                rule(MINE, {"read": ["shop"]}),
                rule(THEIRS, {"read": ["*"]}),
            )
            audit = AuditLog(str(tmp_path / "audit.log"), Disk(), clock)
            stack.push_async_callback(audit.close)
            control = AccessControl(Access(rules, clock), audit, clock, lambda: "id")
            api = HttpApi(settings=settings, live=lambda: live, control=control if ruled else None)
            bound = listen("127.0.0.1", 0)
            await stack.enter_async_context(serving(build_app(node, api), bound, stop_seconds=2))
            stack.callback(node.tail.stop)
            return Tailed(bound.getsockname()[1], node, shipped, live)

        yield start


Serve = Callable[..., Any]


async def test_it_begins_with_the_newest_lines_and_goes_on_with_new_ones(serve: Serve) -> None:
    tailed = await serve()
    await tailed.log("shop", "a=1 old", "a=2 old", "b=1 old")
    await tailed.log("bank", "a=1 theirs")
    flags = ("X-Loki-Response-Encoding-Flags", "categorize-labels")
    query = '{pipeline="shop"} |~ "old|new" | logfmt | a>0'
    async with viewing(tailed, query, flags) as viewer, viewing(tailed, '{run="r"}') as every:
        await viewer.until(lambda: len(viewer.lines) == 2)
        await tailed.log("shop", "b=1 new", "a=3 new")
        await viewer.until(lambda: len(viewer.lines) == 3)
        await every.until(lambda: len(every.lines) == 6)
    assert viewer.lines == ["a=1 old", "a=2 old", "a=3 new"]
    assert every.lines == ["a=1 old", "a=2 old", "b=1 old", "a=1 theirs", "b=1 new", "a=3 new"]
    last = viewer.messages[-1]
    assert last["encodingFlags"] == ["categorize-labels"]
    [stream] = last["streams"]
    assert stream["stream"] == {"pipeline": "shop", "run": "r", "service_name": "shop"}
    [[at, line, kinds]] = stream["values"]
    assert abs(int(at) / 1e6 - SystemClock().now_ms()) < 600_000
    assert (line, kinds["parsed"]) == ("a=3 new", {"a": "3"})
    assert every.messages[-1]["streams"][0]["stream"]["detected_level"] == "unknown"


async def test_a_client_pings_and_closes(serve: Serve) -> None:
    tailed = await serve()
    async with viewing(tailed, '{run="r"}') as viewer:
        assert viewer.has(AcceptConnection)
        viewer.send(TextMessage("this says nothing"))
        viewer.send(Ping(b"here?"))
        await viewer.until(lambda: Pong(b"here?") in viewer.events)
        assert tailed.node.tail.readers == 1
        viewer.send(CloseConnection(1000, "enough"))
        await viewer.until(lambda: CloseConnection(1000, "enough") in viewer.events)
        assert await viewer.reader.read() == b""
    assert tailed.node.tail.readers == 0


async def test_what_is_no_frame_ends_it_and_says_so(serve: Serve) -> None:
    tailed = await serve()
    async with viewing(tailed, '{run="r"}') as viewer:
        viewer.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await viewer.until(lambda: viewer.has(CloseConnection))
        [end] = [event for event in viewer.events if isinstance(event, CloseConnection)]
        assert end.code == 1002
        assert await viewer.reader.read() == b""


async def test_a_quiet_one_is_pinged_and_a_stop_ends_it_without_a_word(serve: Serve) -> None:
    """Clients of Loki connect again if no close frame came."""
    tailed = await serve(heartbeat_seconds=0.05)
    async with viewing(tailed, '{run="r"}') as viewer:
        await viewer.until(lambda: viewer.has(Ping))
        tailed.node.tail.stop()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await viewer.reader.read(65_536):
                pass
        assert not viewer.has(CloseConnection)


async def test_a_search_that_fails_closes_with_its_reason(serve: Serve) -> None:
    tailed = await serve()
    async with viewing(tailed, '{run="r"}') as viewer:
        await tailed.live.close()
        await viewer.until(lambda: viewer.has(CloseConnection))
    reason = "the live end of searches has ended (Connect again.)"
    assert CloseConnection(1011, reason) in viewer.events


REFUSED = [
    ("{a=", [], 400, "parse error at line 1"),
    ('rate({a="b"}[1m])', [], 400, "a metric query cannot be followed"),
    ('{a="b"}&limit=0', [], 400, "limit must be a positive value"),
    ('{a="b"}&delay_for=6', [], 400, "delay_for can't be greater than 5"),
    ('{a="b"}', [("Origin", "http://evil.example")], 403, "sent by a page of"),
    ('{a="b"}', [("Sec-Fetch-Site", "cross-site")], 403, "sent by a page of"),
]


@pytest.mark.parametrize(("query", "headers", "status", "says"), REFUSED)
async def test_what_is_wrong_is_said_instead_of_the_switch(
    serve: Serve, query: str, headers: list[tuple[str, str]], status: int, says: str
) -> None:
    async with viewing(await serve(), query, *headers) as viewer:
        await viewer.until(lambda: viewer.has(RejectData))
        assert [e.status_code for e in viewer.events if isinstance(e, RejectConnection)] == [status]
        assert says.encode() in b"".join(e.data for e in viewer.events if isinstance(e, RejectData))


async def test_who_does_not_offer_a_switch_is_told_of_the_other_way(serve: Serve) -> None:
    tailed = await serve(max_readers=1)
    url = f"http://127.0.0.1:{tailed.port}{TAIL}"
    key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13"}
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket"}
    async with httpx.AsyncClient(params={"query": '{a="b"}'}) as client:
        for headers in ({}, key, upgrade, upgrade | key | {"Sec-WebSocket-Version": "8"}):
            reply = await client.get(url, headers=headers)
            assert (reply.status_code, "GET /query/stream" in reply.text) == (400, True), headers
        async with viewing(tailed, '{a="b"}'):
            reply = await client.get(url, headers=upgrade | key)
            assert (reply.status_code, reply.text[:28]) == (503, "there are too many live read")


async def test_a_token_follows_its_pipelines_alone(serve: Serve) -> None:
    tailed = await serve(rules=True)
    await tailed.log("bank", "theirs")
    await tailed.log("shop", "mine")
    async with viewing(tailed, '{run="r"}') as nobody:
        assert [e.status_code for e in nobody.events if isinstance(e, RejectConnection)] == [401]
    mine = ("Authorization", f"Bearer {MINE}")
    async with viewing(tailed, '{pipeline="bank"}', mine) as other:
        assert [e.status_code for e in other.events if isinstance(e, RejectConnection)] == [403]
    async with viewing(tailed, '{run="r"}', mine) as viewer:
        await viewer.until(lambda: len(viewer.lines) == 1)
        await tailed.log("bank", "theirs again")
        await tailed.log("shop", "mine again")
        await viewer.until(lambda: len(viewer.lines) == 2)
    assert viewer.lines == ["mine", "mine again"]
