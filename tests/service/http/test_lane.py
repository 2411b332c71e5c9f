"""The quick lane answers as the ordinary way does, in order, and hands over what is not its."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import pytest

from logstore.errors import JournalFailed, JournalFull
from tests.service.http.conftest import RUNS, Serve, Served
from tests.service.http.memory_node import MemoryNode

pytestmark = pytest.mark.anyio
PLAIN = {"content_type": "text/plain"}
_CHANGES = re.compile(rb"[0-9A-HJKMNP-TV-Z]{21,26}|date: [^\r]*")


class Wire:
    """A connection on which requests are bytes, and replies are read one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def post(self, body: bytes, *headers: str, path: str = "/p/r", version: str = "1.1") -> None:
        """Writes a request; with a `content-length` unless a header says otherwise."""
        lines = [f"POST {RUNS}{path} HTTP/{version}", "host: localhost", "content-type: text/plain"]
        lines += headers
        framed = ("transfer-encoding", "content-length")
        if not any(header.startswith(framed) for header in headers):
            lines.append(f"content-length: {len(body)}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def reply(self) -> tuple[bytes, bytes]:
        """Head and body of the next reply."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head)
        assert found is not None
        return head, await self.reader.readexactly(int(found[1]))


@contextlib.asynccontextmanager
async def wire(served: Served) -> AsyncIterator[Wire]:
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


async def known(served: Served, path: str = "/p/r") -> None:
    """Makes a run known: its first append goes the ordinary way."""
    await served.post(path, b"first\n", **PLAIN)
    served.node.batches.clear()
    served.node.submitted = 0


async def test_both_ways_answer_alike(serve: Serve) -> None:
    served = await serve()
    async with wire(served) as connection:
        connection.post(b"a\nb\n")
        ordinary = await connection.reply()
        assert served.node.submitted == 0
        connection.post(b"a\nb\n")
        quick = await connection.reply()
        assert served.node.submitted == 1
    assert [_CHANGES.sub(b"", part) for part in quick] == [
        _CHANGES.sub(b"", part) for part in ordinary
    ]
    assert [batch.text for batch in served.node.batches] == [b"a\nb\n", b"a\nb\n"]
    assert served.counters.append_requests == 2
    assert served.counters.body_bytes == 8


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"", [], b"200"),
        (b"x\n", ["tailrace-batch: 01HZZZZZZZZZZZZZZZZZZ00000"], b"200"),
        (b"x\n", ["tailrace-durability: never"], b"400"),
        (b"x\n", ["content-encoding: gzip"], b"400"),
        (b"x\n", ["expect: 100-continue"], b"100"),
        (b"x\n", ["upgrade: websocket", "connection: upgrade"], b"200"),
        (b"2\r\nx\n\r\n0\r\n\r\n", ["transfer-encoding: chunked"], b"200"),
        (b"x" * 70_000, [], b"200"),
    ],
)
async def test_what_is_not_its_goes_the_ordinary_way(
    serve: Serve, body: bytes, headers: list[str], status: bytes
) -> None:
    served = await serve()
    await known(served)
    async with wire(served) as connection:
        connection.post(body, *headers)
        head = await connection.reader.readline()
        assert head.split()[1] == status
    assert served.node.submitted == 0


async def test_a_refusal_is_answered_and_the_connection_lives(serve: Serve) -> None:
    served = await serve()
    await known(served)
    async with wire(served) as connection:
        connection.post(b"{", "content-type: application/json")
        head, body = await connection.reply()
        assert b" 400 " in head
        assert b'"code":400' in body
        connection.post(b"after\n")
        head, _ = await connection.reply()
        assert b" 200 " in head
    assert [batch.text for batch in served.node.batches] == [b"after\n"]


@pytest.mark.parametrize(
    ("error", "status"), [(JournalFull("full"), b" 507 "), (JournalFailed("broken"), b" 500 ")]
)
async def test_a_batch_that_the_disk_did_not_take_is_refused(
    serve: Serve, error: Exception, status: bytes
) -> None:
    served = await serve(MemoryNode())
    await known(served)
    served.node.lost = error
    async with wire(served) as connection:
        connection.post(b"a\n")
        head, body = await connection.reply()
    assert status in head
    assert b"application/problem+json" in head
    assert b'"message"' in body
    assert served.counters.append_refused == 1


async def test_nothing_is_answered_before_it_is_safe_and_all_in_order(serve: Serve) -> None:
    served = await serve()
    await known(served)
    served.node.gate = asyncio.Event()
    async with wire(served) as connection:
        for line in (b"1\n", b"2\n", b"3\n"):
            connection.post(line, f"x-request-id: {line[:1].decode()}")
        connection.post(b"{", "content-type: application/json")
        connection.post(b"4\n", "tailrace-durability: fast")
        while not served.node.submitted:
            await asyncio.sleep(0.001)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await connection.reader.read(1)
        served.node.gate.set()
        statuses = [(await connection.reply())[0].split()[1] for _ in range(5)]
    assert statuses == [b"200", b"200", b"200", b"400", b"200"]
    assert [batch.text for batch in served.node.batches] == [b"1\n", b"2\n", b"3\n", b"4\n"]


async def test_a_body_in_pieces_is_one_batch(serve: Serve) -> None:
    served = await serve()
    await known(served)
    async with wire(served) as connection:
        head = f"POST {RUNS}/p/r HTTP/1.1\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\n"
        for piece in (head[:50].encode(), head[50:].encode() + b"ab", b"\nc", b"d\n"):
            connection.writer.write(piece)
            await connection.writer.drain()
            await asyncio.sleep(0.01)
        reply, _ = await connection.reply()
    assert b" 200 " in reply
    assert served.node.submitted == 1
    assert [batch.text for batch in served.node.batches] == [b"ab\ncd\n"]


async def test_a_client_that_leaves_while_it_is_written_keeps_its_lines(serve: Serve) -> None:
    served = await serve()
    await known(served)
    served.node.gate = asyncio.Event()
    async with wire(served) as connection:
        connection.post(b"a\n")
        while not served.node.submitted:
            await asyncio.sleep(0.001)
    served.node.gate.set()
    while not served.node.batches:
        await asyncio.sleep(0.001)
    assert [batch.text for batch in served.node.batches] == [b"a\n"]
    assert (await served.get("")).status_code == 200


@pytest.mark.parametrize(("version", "headers"), [("1.1", ["connection: close"]), ("1.0", [])])
async def test_a_client_that_wants_no_more_is_let_go(
    serve: Serve, version: str, headers: list[str]
) -> None:
    served = await serve()
    await known(served)
    async with wire(served) as connection:
        connection.post(b"a\n", *headers, version=version)
        head, _ = await connection.reply()
        assert b"connection: close" in head
        assert await connection.reader.read() == b""
    assert served.node.submitted == 1


async def test_a_run_of_another_name_is_learned_once(serve: Serve) -> None:
    served = await serve()
    await known(served)
    async with wire(served) as connection:
        for expected in (0, 1):
            connection.post(b"a\n", path="/other/r")
            await connection.reply()
            assert served.node.submitted == expected
        connection.post(b"", path="/p/r/close")
        _, body = await connection.reply()
        assert b'"state":"closed"' in body


async def test_a_client_that_stands_still_in_its_body_is_told_so_and_let_go(serve: Serve) -> None:
    served = await serve(body_timeout_seconds=0.2)
    await known(served)
    async with wire(served) as client:
        client.post(b"half", "content-length: 100")
        async with asyncio.timeout(120):
            head, _ = await client.reply()
            assert head.startswith(b"HTTP/1.1 408")
            assert await client.reader.read() == b""
    assert served.node.batches == []


async def test_a_client_that_leaves_in_its_body_is_counted_as_gone(serve: Serve) -> None:
    served = await serve()
    await known(served)
    before = served.counters.append_requests
    async with wire(served) as client:
        client.post(b"half", "content-length: 100")
        await client.writer.drain()
        await asyncio.sleep(0.05)
    async with asyncio.timeout(120):
        while served.counters.disconnects == 0:
            await asyncio.sleep(0.01)
    assert served.counters.append_requests == before + 1
    assert served.node.batches == []


async def test_the_quick_lane_says_what_was_replaced(serve: Serve) -> None:
    served = await serve()
    for sent, replaced in ((b"a\n", None), (b"\xff\n", 1), (b"\xff \xfe\n", 2)):
        response = await served.post("/p/r", sent, **PLAIN)
        assert response.json().get("replaced") == replaced
    assert (
        served.node.batches[-1].text
        == "\N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER}\n".encode()
    )
