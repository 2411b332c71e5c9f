"""The proxy: what each fault leaves at the server, and what the client sees of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from tests.faults.http1 import read_head
from tests.faults.kinds import Kind
from tests.faults.proxy import FaultProxy
from tests.faults.schedule import Schedule
from tests.faults.tiny_server import TinyServer, tiny_server

ABSENT = {"If-None-Match": "*"}
BODY = bytes(range(256)) * 1000


@dataclass
class Site:
    """Client, proxy and server."""

    server: TinyServer
    proxy: FaultProxy
    client: httpx.AsyncClient

    @property
    def schedule(self) -> Schedule:
        return self.proxy.schedule

    async def put(self, *, headers: dict[str, str] | None = None) -> httpx.Response:
        return await self.client.put("/b/k", content=BODY, headers=headers)


@asynccontextmanager
async def standing(schedule: Schedule) -> AsyncIterator[Site]:
    async with tiny_server() as server, FaultProxy(server.url, schedule) as proxy:
        async with httpx.AsyncClient(base_url=proxy.url, trust_env=False, timeout=120) as client:
            yield Site(server, proxy, client)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with standing(Schedule(delay_seconds=0.01, stall_seconds=0.2)) as made:
        yield made


async def test_without_faults_bytes_pass_unchanged_on_one_connection(site: Site) -> None:
    assert (await site.put(headers={"X-Signed": "Yes"})).status_code == 200
    got = await site.client.get("/b/k?versionId=1%2B2")
    assert got.content == BODY
    assert (await site.client.get("/b/k?chunked")).content == BODY
    head = await site.client.head("/b/k")
    assert (head.status_code, head.content) == (200, b"")
    assert (await site.client.delete("/b/k")).status_code == 204
    assert (await site.client.get("/b/k")).status_code == 404
    first, body = site.server.seen[0]
    assert body == BODY
    assert first.head.value("host") == site.proxy.url.removeprefix("http://")
    assert b"\r\nX-Signed: Yes\r\n" in first.head.raw
    assert site.server.calls()[1] == "GET /b/k?versionId=1%2B2"
    assert (site.server.connections, site.schedule.requests) == (1, 6)
    assert not site.schedule.injected


async def test_a_chunked_request_passes_with_its_chunk_marks(site: Site) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two" * 50_000

    assert (await site.client.put("/b/k", content=pieces())).status_code == 200
    _, raw = site.server.seen[0]
    assert raw.startswith(b"3\r\none\r\n249f0\r\ntwotwo")
    assert raw.endswith(b"two\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        (Kind.INTERNAL_ERROR, 500, b"<Code>InternalError</Code>"),
        (Kind.SLOW_DOWN, 503, b"<Code>SlowDown</Code>"),
        (Kind.CONFLICT, 409, b"<Code>ConditionalRequestConflict</Code>"),
    ],
)
async def test_a_refusal_comes_instead_of_the_request(
    site: Site, kind: Kind, status: int, code: bytes
) -> None:
    site.schedule.plan(kind)
    reply = await site.put(headers=ABSENT)
    assert (reply.status_code, code in reply.content) == (status, True)
    assert site.server.seen == []
    assert (await site.put(headers=ABSENT)).status_code == 200
    assert site.schedule.injected == {kind: 1}


async def test_what_is_done_may_be_answered_by_an_error(site: Site) -> None:
    site.schedule.plan(Kind.ERROR_AFTER)
    assert (await site.put()).status_code == 500
    assert site.server.objects == {"/b/k": BODY}
    assert (await site.client.get("/b/k")).content == BODY


async def test_what_is_done_may_be_answered_by_nothing(site: Site) -> None:
    site.schedule.plan(Kind.DROPPED)
    with pytest.raises(httpx.RemoteProtocolError):
        await site.put()
    assert site.server.objects == {"/b/k": BODY}


async def test_a_conditional_put_that_was_retried_on_the_way_hears_that_it_lost(site: Site) -> None:
    site.schedule.plan(Kind.RETRIED)
    assert (await site.put(headers=ABSENT)).status_code == 412
    assert site.server.calls() == ["PUT /b/k"] * 2
    assert site.server.objects == {"/b/k": BODY}


async def test_a_reset_comes_before_a_byte_is_passed_on(site: Site) -> None:
    site.schedule.plan(Kind.RESET)
    with pytest.raises((httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)):
        await site.put()
    assert (site.server.connections, site.server.seen) == (0, [])


async def test_half_of_a_request_is_none_for_the_server(site: Site) -> None:
    site.schedule.plan(Kind.CUT_REQUEST, times=2)
    with pytest.raises(httpx.TransportError):
        await site.put()
    with pytest.raises(httpx.TransportError):
        await site.client.get("/b/k")
    async with asyncio.timeout(120):
        while site.server.broken < 2:
            await asyncio.sleep(0.001)
    assert site.server.seen == []


@pytest.mark.parametrize("target", ["/b/k", "/b/k?chunked"])
async def test_half_of_a_response_is_an_error_for_the_client(site: Site, target: str) -> None:
    await site.put()
    site.schedule.plan(Kind.CUT_RESPONSE)
    with pytest.raises(httpx.RemoteProtocolError):
        await site.client.get(target)
    assert (await site.client.get(target)).content == BODY


async def test_a_response_without_body_is_cut_in_its_head(site: Site) -> None:
    site.schedule.plan(Kind.CUT_RESPONSE)
    with pytest.raises(httpx.RemoteProtocolError):
        await site.put()
    assert site.server.objects == {"/b/k": BODY}


async def test_a_delayed_request_is_done_in_the_end(site: Site) -> None:
    site.schedule.plan(Kind.DELAY)
    assert (await site.put()).status_code == 200
    assert site.schedule.injected == {Kind.DELAY: 1}


async def test_a_request_that_stalls_is_done_though_its_client_gave_up(site: Site) -> None:
    site.schedule.plan(Kind.STALL)
    with pytest.raises(httpx.ReadTimeout):
        await site.client.put("/b/k", content=b"late", timeout=httpx.Timeout(120, read=0.05))
    await site.client.put("/b/other", content=BODY)
    async with asyncio.timeout(120):
        while site.server.objects.get("/b/k") != b"late":
            await asyncio.sleep(0.01)
    assert len(site.server.seen) == 2


async def test_a_copy_and_a_completion_may_fail_behind_a_200(site: Site) -> None:
    site.schedule.plan(Kind.ERROR_IN_200, times=3)
    source = {"x-amz-copy-source": "/b/s"}
    replies = [
        await site.put(),
        await site.put(headers=source),
        await site.client.post("/b/k?uploadId=1", content=b"<Parts/>"),
    ]
    assert [reply.status_code for reply in replies] == [200, 200, 200]
    assert [b"<Error><Code>InternalError" in r.content for r in replies] == [False, True, True]
    keys = b"<Delete><Object><Key>a&amp;b</Key></Object><Object><Key>c</Key></Object></Delete>"
    deletion = (await site.client.post("/b?delete", content=keys)).content
    assert deletion.count(b"<Code>InternalError</Code>") == 2
    assert b"<Error><Key>a&amp;b</Key>" in deletion
    assert site.server.calls() == ["PUT /b/k"]


async def test_an_outage_lasts_until_it_is_told_to_end(site: Site) -> None:
    site.schedule.refuse()
    assert {(await site.put()).status_code for _ in range(5)} == {503}
    site.schedule.relent()
    assert (await site.put()).status_code == 200
    assert site.schedule.injected == {Kind.SLOW_DOWN: 5}


async def _raw(site: Site, *sent: bytes) -> tuple[list[int], bool]:
    """Statuses of the answers, and whether the connection went on."""
    host, port = site.proxy.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    statuses: list[int] = []
    goes_on = False
    try:
        for part in sent:
            writer.write(part)
            head = await read_head(reader)
            if head is None:
                break
            statuses.append(head.status())
            goes_on = not head.closes
    finally:
        writer.close()
    return statuses, goes_on


PUT_THAT_WAITS = (
    b"PUT /b/k HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
)


async def test_a_client_that_waits_for_leave_gets_it(site: Site) -> None:
    assert await _raw(site, PUT_THAT_WAITS, b"abc") == ([100, 200], True)
    assert site.server.objects == {"/b/k": b"abc"}


async def test_a_client_that_waits_for_leave_is_refused_without_it(site: Site) -> None:
    site.schedule.plan(Kind.SLOW_DOWN)
    assert await _raw(site, PUT_THAT_WAITS) == ([503], False)
    assert site.server.connections == 0


async def test_a_client_that_breaks_off_leaves_nothing_at_the_server(site: Site) -> None:
    host, port = site.proxy.url.removeprefix("http://").split(":")
    for sent in (b"PUT /b", PUT_THAT_WAITS, b"nonsense\r\n\r\n"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        writer.write_eof()
        while await reader.read(1000):
            pass
        writer.close()
    assert site.server.connections == 0


async def test_a_server_that_is_away_is_a_connection_that_ends() -> None:
    async with tiny_server() as server:
        gone = server.url
    async with FaultProxy(gone, Schedule()) as proxy:
        async with httpx.AsyncClient(base_url=proxy.url, trust_env=False, timeout=120) as client:
            with pytest.raises(httpx.TransportError):
                await client.get("/b/k")


async def test_the_end_of_the_proxy_does_not_wait_for_what_stalls() -> None:
    async with standing(Schedule(stall_seconds=3600)) as site:
        site.schedule.refuse(Kind.STALL)
        waiting = asyncio.create_task(site.put())
        async with asyncio.timeout(120):
            while not site.schedule.injected:
                await asyncio.sleep(0.001)
    with pytest.raises(httpx.TransportError):
        await waiting
    assert site.server.seen == []
