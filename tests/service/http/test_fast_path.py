"""The fast path answers as the ordinary way does, in order, and hands over what is not its.

Behind it are the real appender and journal: what is asserted is what the journal holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from service.http.replies import appended
from service.http.targets import run_tag
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tests.service.http.conftest import RUNS, Serve, Served
from tests.service.http.journal_node import JournalNode
from tests.service.ingest.gated_appender import GatedAppender, at
from tests.service.journal.rig import journal_settings

PLAIN = {"content_type": "text/plain"}
KEY = RunKey("p", "r")
MINUTE = 60_000
ID = ulids.encode(at())
_CHANGES = re.compile(rb"[0-9A-HJKMNP-TV-Z]{21,26}|date: [^\r]*")


class Wire:
    """A connection on which requests are bytes, and replies are read one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def post(self, body: bytes, *headers: str, path: str = "/p/r", version: str = "1.1") -> None:
        """Writes a request; with a `content-length` and type unless a header says otherwise."""
        lines = [f"POST {RUNS}{path} HTTP/{version}", "host: localhost", *headers]
        if not any(header.startswith("content-type") for header in headers):
            lines.append("content-type: text/plain")
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

    async def stored(self, body: bytes, *headers: str) -> dict[str, Any]:
        """The receipt of a batch."""
        self.post(body, *headers)
        head, receipt = await self.reply()
        assert b" 200 " in head, receipt
        answer: dict[str, Any] = orjson.loads(receipt)
        return answer


@contextlib.asynccontextmanager
async def wire(served: Served) -> AsyncIterator[Wire]:
    host, port = served.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


@pytest.fixture
async def node() -> AsyncIterator[JournalNode]:
    made = JournalNode()
    yield made
    made.gated.syncer.gate.set()
    await made.gated.journal.close()


@pytest.fixture
async def served(serve: Serve, node: JournalNode) -> Served:
    """A server that knows the run p/r."""
    made = await serve(node)
    await known(made)
    return made


async def known(served: Served, path: str = "/p/r") -> None:
    """Makes a run known: its first append goes the ordinary way."""
    assert (await served.post(path, b"first\n", **PLAIN)).status_code == 200


async def taken(node: JournalNode, count: int) -> None:
    """Returns once the fast path has taken so many."""
    async with asyncio.timeout(120):
        while node.taken < count:
            await asyncio.sleep(0.001)


async def test_both_ways_answer_alike(serve: Serve, node: JournalNode) -> None:
    served = await serve(node)
    async with wire(served) as connection:
        connection.post(b"a\nb\n")
        ordinary = await connection.reply()
        assert node.taken == 0
        connection.post(b"a\nb\n")
        quick = await connection.reply()
        assert node.taken == 1
    assert [_CHANGES.sub(b"", part) for part in quick] == [
        _CHANGES.sub(b"", part) for part in ordinary
    ]
    assert node.news() == [b"a\nb\n", b"a\nb\n"]
    assert served.counters.append_requests == 2
    assert served.counters.body_bytes == 8
    assert (node.gated.appender.batches, node.gated.appender.lines) == (2, 4)


@pytest.mark.parametrize(
    ("body", "headers", "status", "stored"),
    [
        (b"", [], b"200", []),
        (b"x\n", [f"tailrace-batch: {ID}"], b"200", [b"x\n"]),
        (b"x\n", ["tailrace-durability: never"], b"400", []),
        (b"x\n", ["tailrace-durability: bulk"], b"200", [b"x\n"]),
        (b"x\n", ["content-encoding: gzip"], b"400", []),
        (b"x\n", ["host: localhost"], b"400", []),
        (b"x\n", ["upgrade: websocket"], b"200", [b"x\n"]),
        (b"2\r\nx\n\r\n0\r\n\r\n", ["transfer-encoding: chunked"], b"200", [b"x\n"]),
        (b"x" * 70_000, [], b"200", [b"x" * 70_000 + b"\n"]),
    ],
)
async def test_what_is_not_its_goes_the_ordinary_way(
    served: Served,
    node: JournalNode,
    body: bytes,
    headers: list[str],
    status: bytes,
    stored: list[bytes],
) -> None:
    async with wire(served) as connection:
        connection.post(body, *headers)
        head, _ = await connection.reply()
        assert head.split()[1] == status
    assert node.taken == 0
    assert node.news() == stored


async def test_who_waits_to_be_told_is_told_to_go_on(served: Served, node: JournalNode) -> None:
    async with wire(served) as connection:
        connection.post(b"", "expect: 100-continue", "content-length: 2")
        assert (await connection.reader.readline()).split()[1] == b"100"
        assert await connection.reader.readline() == b"\r\n"
        connection.writer.write(b"x\n")
        assert b" 200 " in (await connection.reply())[0]
    assert node.taken == 0
    assert node.news() == [b"x\n"]


async def test_bulk_is_answered_when_its_segment_is_in_the_store(
    served: Served, node: JournalNode
) -> None:
    async with wire(served) as connection:
        receipt = await connection.stored(b"a\nb\n", "tailrace-durability: bulk")
    assert receipt["durability"] == "bulk"
    assert node.gated.confirmed == [node.gated.journal.next_pos]
    assert node.news() == [b"a\nb\n"]


async def test_a_gen1_clients_retry_is_known_also_here(served: Served, node: JournalNode) -> None:
    lines = orjson.dumps({"logs": "a\n", "connectorId": "c"})
    json = "content-type: application/json"
    async with wire(served) as connection:
        connection.post(orjson.dumps({"timestamp": 1, "connectorId": "c"}), json)
        await connection.reply()
        first = await connection.stored(lines, json)
        again = await connection.stored(lines, json)
    assert not first["duplicate"]
    assert again == first | {"duplicate": True}
    assert node.news() == [b"a\n"]


async def test_a_run_begun_by_its_connector_is_for_the_fast_path(
    served: Served, node: JournalNode
) -> None:
    """Only who opened the run as the first generation does sends again without an id."""
    lines = orjson.dumps({"logs": "a\n", "connectorId": "c"})
    async with wire(served) as connection:
        for _ in range(2):
            receipt = await connection.stored(lines, "content-type: application/json")
            assert not receipt["duplicate"]
    assert node.taken == 2
    assert node.news() == [b"a\n", b"a\n"]


async def test_a_full_journal_slows_and_then_refuses(serve: Serve) -> None:
    limits = journal_settings(max_bytes=64 << 10, min_free_bytes=0, fast_sync_seconds=3600)
    node = JournalNode(gated=GatedAppender(settings=limits))
    served = await serve(node)
    await known(served)
    statuses, seen = [], 0
    async with wire(served) as connection:
        while b"507" not in statuses:
            connection.post(b"x" * 1000 + b"\n")
            statuses.append((await connection.reply())[0].split()[1])
            if node.gated.journal.fullness <= 0.6:
                assert node.gated.appender.slowed == 0
                seen = node.taken
    assert 0 < seen <= node.taken <= seen + 1  # the one that crossed the line
    stored = statuses.count(b"200")
    assert stored > node.taken
    assert node.gated.appender.slowed == stored - node.taken + 1
    assert len(node.news()) == stored
    await node.gated.journal.close()


async def test_an_id_given_here_is_above_what_the_client_echoes(
    served: Served, node: JournalNode
) -> None:
    echo = at(5 * MINUTE) + 3
    cookie = f"cookie: tailrace={ulids.encode(echo)}.{run_tag(KEY).decode()}"
    async with wire(served) as connection:
        receipt = await connection.stored(b"a\n", cookie)
    assert node.taken == 1
    assert ulids.decode(receipt["batch"]) > echo


async def test_an_id_given_here_is_above_a_deletion(served: Served, node: JournalNode) -> None:
    node.gated.deletions.note(*KEY, at(5 * MINUTE))
    async with wire(served) as connection:
        receipt = await connection.stored(b"a\n")
    assert node.taken == 1
    assert ulids.decode(receipt["batch"]) > node.gated.deletions.horizon(KEY)


async def test_an_id_given_here_is_above_the_runs_last_and_remembered(
    served: Served, node: JournalNode
) -> None:
    ahead = ulids.encode(at(5 * MINUTE))
    async with wire(served) as connection:
        await connection.stored(b"ahead\n", f"tailrace-batch: {ahead}")  # all of the run is known
        receipt = await connection.stored(b"a\n")
        assert node.taken == 1
        assert receipt["batch"] > ahead
        again = await connection.stored(b"a\n", f"tailrace-batch: {receipt['batch']}")
        assert again == receipt | {"duplicate": True}
        connection.post(b"other\n", f"tailrace-batch: {receipt['batch']}")
        assert b" 409 " in (await connection.reply())[0]
    assert node.news() == [b"ahead\n", b"a\n"]


async def test_a_refusal_is_answered_and_the_connection_lives(
    served: Served, node: JournalNode
) -> None:
    async with wire(served) as connection:
        connection.post(b"{", "content-type: application/json")
        head, body = await connection.reply()
        assert b" 400 " in head
        assert b'"code":400' in body
        await connection.stored(b"after\n")
    assert node.news() == [b"after\n"]


@pytest.mark.parametrize(("error", "status"), [(errno.ENOSPC, b" 507 "), (errno.EIO, b" 500 ")])
async def test_a_batch_that_the_disk_did_not_take_is_refused(
    serve: Serve, error: int, status: bytes
) -> None:
    node = JournalNode()
    served = await serve(node)
    await known(served)
    node.gated.fs.fail_with(error, at=len(node.gated.fs.calls) + 1, once=True)
    async with wire(served) as connection:
        connection.post(b"a\n")
        head, body = await connection.reply()
    assert node.taken == 1
    assert status in head
    assert b"application/problem+json" in head
    assert b'"message"' in body
    assert served.counters.append_refused == 1
    assert node.news() == []
    timed = appended(served.counters.request_seconds, int(status))
    assert sum(timed.counts) == 1


async def test_nothing_is_answered_before_it_is_safe_and_all_in_order(
    served: Served, node: JournalNode
) -> None:
    node.gated.syncer.gate.clear()
    async with wire(served) as connection:
        for line in (b"1\n", b"2\n", b"3\n"):
            connection.post(line, f"x-request-id: {line[:1].decode()}")
        connection.post(b"{", "content-type: application/json")
        connection.post(b"4\n", "tailrace-durability: fast")
        await taken(node, 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await connection.reader.read(1)
        node.gated.syncer.gate.set()
        statuses = [(await connection.reply())[0].split()[1] for _ in range(5)]
    assert statuses == [b"200", b"200", b"200", b"400", b"200"]
    await node.gated.journal.synced(node.gated.journal.next_pos)
    assert node.news() == [b"1\n", b"2\n", b"3\n", b"4\n"]


async def test_a_body_in_pieces_is_one_batch(served: Served, node: JournalNode) -> None:
    async with wire(served) as connection:
        head = (
            f"POST {RUNS}/p/r HTTP/1.1\r\nHost: localhost\r\n"
            "Content-Type: text/plain\r\nContent-Length: 6\r\n\r\n"
        )
        for piece in (head[:50].encode(), head[50:].encode() + b"ab", b"\nc", b"d\n"):
            connection.writer.write(piece)
            await connection.writer.drain()
            await asyncio.sleep(0.01)
        reply, _ = await connection.reply()
    assert b" 200 " in reply
    assert node.taken == 1
    assert node.news() == [b"ab\ncd\n"]


async def test_a_client_that_leaves_while_it_is_written_keeps_its_lines(
    served: Served, node: JournalNode
) -> None:
    node.gated.syncer.gate.clear()
    async with wire(served) as connection:
        connection.post(b"a\n")
        await taken(node, 1)
    node.gated.syncer.gate.set()
    await node.gated.journal.synced(node.gated.journal.next_pos)
    assert node.news() == [b"a\n"]
    assert (await served.get("")).status_code == 200


@pytest.mark.parametrize(
    ("version", "headers"),
    [("1.1", ["connection: close"]), ("1.0", []), ("1.0", ["connection: keep-alive"])],
)
async def test_a_client_that_wants_no_more_is_let_go(
    served: Served, node: JournalNode, version: str, headers: list[str]
) -> None:
    async with wire(served) as connection:
        connection.post(b"a\n", *headers, version=version)
        head, _ = await connection.reply()
        assert b"connection: close" in head
        assert await connection.reader.read() == b""
    assert node.taken == 1
    assert node.news() == [b"a\n"]


async def test_a_run_of_another_name_is_learned_once(served: Served, node: JournalNode) -> None:
    async with wire(served) as connection:
        for expected in (0, 1):
            connection.post(b"a\n", path="/other/r")
            await connection.reply()
            assert node.taken == expected
        connection.post(b"", path="/p/r/close")
        _, body = await connection.reply()
        assert b'"state":"closed"' in body


async def test_a_client_that_stands_still_in_its_body_is_told_so_and_let_go(
    serve: Serve, node: JournalNode
) -> None:
    served = await serve(node, body_timeout_seconds=0.2)
    await known(served)
    async with wire(served) as client:
        client.post(b"half", "content-length: 100")
        async with asyncio.timeout(120):
            head, _ = await client.reply()
            assert head.startswith(b"HTTP/1.1 408")
            assert await client.reader.read() == b""
    assert node.news() == []


async def test_a_client_that_leaves_in_its_body_is_counted_as_gone(
    served: Served, node: JournalNode
) -> None:
    before = served.counters.append_requests
    async with wire(served) as client:
        client.post(b"half", "content-length: 100")
        await client.writer.drain()
        await asyncio.sleep(0.05)
    async with asyncio.timeout(120):
        while served.counters.disconnects == 0:
            await asyncio.sleep(0.01)
    assert served.counters.append_requests == before + 1
    assert node.news() == []


async def test_the_quick_lane_says_what_was_replaced(served: Served, node: JournalNode) -> None:
    for sent, replaced in ((b"a\n", None), (b"\xff\n", 1), (b"\xff \xfe\n", 2)):
        response = await served.post("/p/r", sent, **PLAIN)
        assert response.json().get("replaced") == replaced
    assert node.taken == 3
    assert node.news()[-1] == "\N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER}\n".encode()
    for sent in ("a\n".encode("utf-16-be"), b"a\0b\0\n"):
        assert (await served.post("/p/r", sent, **PLAIN)).status_code == 400
    assert node.taken == 3
