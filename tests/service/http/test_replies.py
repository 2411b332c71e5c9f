"""Long replies have places: who finds none waits, and who does not read gives theirs back.

Real connections of a server over a node in memory.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from service.http import replies
from service.http.app import LONG_REPLIES, documented
from service.http.replies import PLACE_BYTES
from service.http.targets import ROOT
from tests.service.http.conftest import RUNS, Serve, Served

TEXT = b"".join(b"%06d %b\n" % (i, b"x" * 93) for i in range(70_000))
PATIENCE_SECONDS = 60.0


class Reader:
    """A client that reads its download when it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def begun(self) -> None:
        """The head is there: it has a place, and takes nothing more."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert b" 200 " in await self.reader.readuntil(b"\r\n\r\n")
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def taken(self, pieces: int, pause_seconds: float) -> bool:
        """Whether so many pieces came, with pauses, and no end."""
        for _ in range(pieces):
            if not await self.reader.readexactly(20_000):
                return False
            await asyncio.sleep(pause_seconds)
        return True

    async def cut_off(self) -> bool:
        """Whether it ends before the last chunk."""
        self.writer.transport.resume_reading()  # type: ignore[attr-defined]
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return not (await self.reader.read(-1)).endswith(b"0\r\n\r\n")
        except ConnectionResetError:
            return True


@asynccontextmanager
async def download(served: Served) -> AsyncIterator[Reader]:
    host, port = served.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    reader, writer = await asyncio.open_connection(sock=connection, limit=4096)
    writer.write(
        f"GET {RUNS}/p/r/download HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    )
    try:
        yield Reader(reader, writer)
    finally:
        writer.close()


@pytest.fixture
async def served(serve: Serve) -> Served:
    """Two places, and a run of 7 MB: more than sockets hold."""
    made = await serve(reply_bytes=2 * PLACE_BYTES)
    assert (await made.post("/p/r", TEXT, content_type="text/plain")).status_code == 200
    return made


async def test_who_does_not_read_is_cut_off_when_another_waits(served: Served) -> None:
    async with AsyncExitStack() as stack:
        unread = [await stack.enter_async_context(download(served)) for _ in range(2)]
        for reader in unread:
            await reader.begun()
        page = await served.get("/p/r?limit=1")
        assert page.json()["logs"].startswith("000000 ")
        cut_off = [await reader.cut_off() for reader in unread]
    assert sorted(cut_off) == [False, True], "only as many as waited"
    assert served.counters.connections_timed_out == 1


async def test_while_nobody_waits_nobody_is_cut_off(served: Served) -> None:
    async with download(served) as reader, download(served) as other:
        await reader.begun()
        await other.begun()
        await asyncio.sleep(2.5)
        assert not await reader.cut_off()
        assert not await other.cut_off()


async def test_who_reads_slowly_keeps_the_place_and_others_are_told_to_try_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "_PATIENCE_SECONDS", 2.5)  # that of who waits; 10 in a service
    async with download(served) as reader, download(served) as other:
        readers = [asyncio.create_task(each.taken(20, 0.2)) for each in (reader, other)]
        await asyncio.sleep(0.5)
        refused = await served.get("/p/r?limit=1")
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        assert refused.json()["type"] == "unavailable"
        # What is short needs no place.
        assert (await served.post("/p/r", b"more\n", content_type="text/plain")).status_code == 200
        assert (await served.client.get("/health/live")).status_code == 200
        assert await asyncio.gather(*readers) == [True, True]
    page = await served.get("/p/r?limit=1")
    assert page.status_code == 200


async def test_places_are_given_back_whatever_became_of_the_reply(served: Served) -> None:
    for _ in range(3):
        async with download(served) as reader:
            await reader.begun()
        assert (await served.get("/p/none/download")).status_code == 404
    for _ in range(3):
        assert (await served.get("/p/r?limit=1")).status_code == 200
    assert served.counters.connections_timed_out == 0


def test_each_route_that_is_read_is_long_or_known_to_be_short() -> None:
    paths = documented().openapi()["paths"]
    read = {path.removeprefix(ROOT) for path in paths if "get" in paths[path]}
    long = {path.removeprefix(ROOT) for path in LONG_REPLIES}
    streams = {  # `sse.max_readers`
        "/logs/{fqn}/stream/{runId}", "/progress/{fqn}/stream/{runId}", "/query/stream",
        "/unfinished/{fqn}/stream/{runId}",
    }  # fmt: skip
    searches = {  # `query.max_concurrent`
        "/query", "/query/count", "/query/histogram", "/query/fields", "/query/values",
    }  # fmt: skip
    reports = {  # at most `openmetadata.report_reply_bytes`
        "/metrics/{fqn}/{runId}", "/progress/{fqn}/{runId}",
        "/{fqn}/pipelineStatus", "/{fqn}/pipelineStatus/{runId}", "/unfinished/{fqn}/{runId}",
    }  # fmt: skip
    small = {
        "/health/live", "/health/ready", "/leases", "/leases/one", "/metrics",
        "/segments/groups/{group}", "/segments/next", "/api/v1/system/version",
        "/pipelines", "/pipelines/{name}", "/deletions",
    }  # fmt: skip
    loki = "/loki/api/v1/"
    searches |= {  # each is a search, or a count of one
        f"{loki}{name}" for name in (
            "query", "query_range", "labels", "label", "label/{name}/values", "series",
            "index/stats", "index/volume", "index/volume_range", "detected_labels",
            "detected_fields", "detected_field/{name}/values",
        )
    }  # fmt: skip
    small |= {"/ready", f"{loki}patterns", f"{loki}status/buildinfo", f"{loki}tail"}
    kinds = [long, streams, searches, reports, small]
    assert set().union(*kinds) == read
    assert sum(map(len, kinds)) == len(read), "a route is of two kinds"
