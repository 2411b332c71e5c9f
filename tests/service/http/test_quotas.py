"""Over real connections: quotas of a token on both ways in, and streams that end with theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.access.access import REMEMBERED_SECONDS, Access
from service.access.audit import AuditLog
from service.access.rules import BURST_SECONDS
from service.http.authorization import AccessControl
from tailrace.logstore.errors import TooManyAtOnce
from tailrace.logstore.filesystem import Disk
from tests.service.access.rules_file import rule, token_of, written
from tests.service.http.conftest import RUNS, Serve, Served
from tests.service.http.journal_node import JournalNode
from tests.service.http.memory_node import MemoryNode
from tests.service.http.test_stream import events, put
from tests.simulation.clocks import ManualClock

TOKEN, STAYS = token_of("limited"), token_of("stays")
HEADERS = {"authorization": f"Bearer {TOKEN}", "content-type": "text/plain"}
BOTH = {"ingest": ["p"], "read": ["p"]}


@asynccontextmanager
async def control_with(
    tmp_path: Path, *tokens: Any
) -> AsyncIterator[tuple[AccessControl, ManualClock]]:
    clock = ManualClock()
    access = Access(written(tmp_path / "rules.yaml", *tokens), clock)
    control = AccessControl(
        access, AuditLog(str(tmp_path / "audit.log"), Disk(), clock), clock, lambda: "id"
    )
    yield control, clock
    await control.audit.close()


def is_refused(reply: httpx.Response, seconds: int) -> None:
    assert reply.status_code == 429, reply.text
    assert reply.headers["retry-after"] == str(seconds)
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json()["type"] == "over-quota"
    assert TOKEN not in reply.text


async def test_requests_of_both_ways_are_one_quota(serve: Serve, tmp_path: Path) -> None:
    limited = rule(TOKEN, BOTH, requests_per_second=1)
    async with control_with(tmp_path, limited) as (control, clock):
        node = JournalNode()
        served = await serve(node, control=control)

        async def post() -> httpx.Response:
            return await served.client.post(f"{RUNS}/p/r", content=b"line\n", headers=HEADERS)

        for number in range(int(BURST_SECONDS)):
            assert (await post()).status_code == 200
            assert node.taken == number, "all but the first take the fast path"
        stored = node.gated.texts()
        is_refused(await post(), 1)
        is_refused(await served.client.get(f"{RUNS}/p/r", headers=HEADERS), 1)
        assert node.gated.texts() == stored
        assert control.access.refused["quota"] == 2
        clock.pass_seconds(1)
        assert (await post()).status_code == 200
        assert node.taken == BURST_SECONDS
        is_refused(await post(), 1)
        await node.gated.journal.close()


async def test_bytes_sent_on_both_ways_are_one_quota(serve: Serve, tmp_path: Path) -> None:
    limited = rule(TOKEN, BOTH, bytes_per_second=100)
    async with control_with(tmp_path, limited) as (control, clock):
        node = JournalNode()
        served = await serve(node, control=control)

        async def post() -> httpx.Response:
            body = b"x" * 399 + b"\n"
            return await served.client.post(f"{RUNS}/p/r", content=body, headers=HEADERS)

        assert [(await post()).status_code for _ in range(2)] == [200, 200]
        assert node.taken == 1
        is_refused(await post(), 3)  # 800 of 500 bytes are used
        clock.pass_seconds(4)
        assert (await post()).status_code == 200
        assert node.taken == 2
        await node.gated.journal.close()


async def test_bytes_that_are_read_count(serve: Serve, tmp_path: Path) -> None:
    limited = rule(TOKEN, {"read": ["p"]}, bytes_per_second=100)
    async with control_with(tmp_path, limited) as (control, clock):
        served = await serve(control=control)
        await put(served.node, "y" * 999)

        page = await served.client.get(f"{RUNS}/p/r", headers=HEADERS)
        assert page.status_code == 200
        is_refused(
            await served.client.get(f"{RUNS}/p/r", headers=HEADERS),
            -(-(len(page.content) - 500) // 100),
        )
        clock.pass_seconds(60)
        assert (await served.client.get(f"{RUNS}/p/r", headers=HEADERS)).status_code == 200


async def in_two_parts(served: Served, method: str, path: str, size: int) -> Any:
    """A request of which the head and half of the body are sent; ends it and reads the status."""
    url = httpx.URL(served.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    body = b'{"runId":"r","message":"' + b"x" * (size - 26) + b'"}'
    kind = "Content-Type: application/json" if method == "PUT" else "Content-Type: text/plain"
    writer.write(f"{head}{kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body[:20])
    await writer.drain()

    async def ended() -> int:
        writer.write(body[20:])
        status = int((await reader.readline()).split()[1])
        writer.close()
        await writer.wait_closed()
        return status

    return ended


async def arrived(served: Served) -> None:
    """Waits until the service has looked at what was sent before, which came over before it."""
    assert (await served.client.get("/health/live")).status_code == 200


ROOT = RUNS.removesuffix("/logs")


@pytest.mark.parametrize(
    ("method", "path", "size"),
    [
        ("POST", f"{RUNS}/p/r", 100),
        ("POST", f"{RUNS}/p/other", 100),
        ("POST", f"{RUNS}/p/r", 300_000),
        ("PUT", f"{ROOT}/progress/p/r", 100),
        ("PUT", f"{ROOT}/p/pipelineStatus", 100),
    ],
    ids=["fast path", "new run", "large", "progress", "status"],
)
async def test_a_token_that_is_taken_away_while_its_body_arrives_stores_nothing(
    serve: Serve, tmp_path: Path, method: str, path: str, size: int
) -> None:
    async with control_with(tmp_path, rule(TOKEN, BOTH), rule(STAYS, BOTH)) as (control, _):
        node = JournalNode()
        served = await serve(node, control=control)
        for _ in range(2):  # the second one takes the fast path
            before = await served.client.post(f"{RUNS}/p/r", content=b"line\n", headers=HEADERS)
            assert before.status_code == 200
        assert node.taken == 1
        stored = node.gated.texts()
        again = await in_two_parts(served, method, path, size)
        await arrived(served)
        assert control.access.reload(), "the rules are read again, and the token is there"
        assert await again() == 200
        stored_again = node.gated.texts()
        assert (stored_again != stored) is (method == "POST")
        taken_away = await in_two_parts(served, method, path, size)
        await arrived(served)
        written(tmp_path / "rules.yaml", rule(STAYS, BOTH))
        assert control.access.reload()
        assert await taken_away() == 401
        assert node.gated.texts() == stored_again
        assert control.access.refused["invalid-token"] == 1
        await node.gated.journal.close()


async def test_a_token_has_so_many_requests_in_progress_on_both_ways(
    serve: Serve, tmp_path: Path
) -> None:
    limited = rule(TOKEN, BOTH, concurrent_requests=2)
    async with control_with(tmp_path, limited, rule(STAYS, BOTH)) as (control, _):
        served = await serve(control=control)
        await put(served.node, "first")

        async def post(token: str) -> httpx.Response:
            headers = HEADERS | {"authorization": f"Bearer {token}"}
            return await served.client.post(f"{RUNS}/p/r", content=b"line\n", headers=headers)

        opened = [await begun(served, TOKEN) for _ in range(2)]
        for _ in range(2):
            is_refused(await post(TOKEN), 1)
        assert (await post(STAYS)).status_code == 200
        is_refused(await served.client.get(f"{RUNS}/p/r", headers=HEADERS), 1)
        assert control.access.refused["concurrency"] == 3
        await opened[0][0].__aexit__(None, None, None)
        async with asyncio.timeout(120):
            while (await post(TOKEN)).status_code != 200:
                await asyncio.sleep(0)
        for _ in range(3):  # each of them is over
            assert (await post(TOKEN)).status_code == 200
        await opened[1][0].__aexit__(None, None, None)


async def test_appends_in_progress_on_the_fast_path_count(serve: Serve, tmp_path: Path) -> None:
    limited = rule(TOKEN, BOTH, concurrent_requests=2)
    async with control_with(tmp_path, limited) as (control, _):
        node = JournalNode()
        served = await serve(node, control=control)

        async def post() -> httpx.Response:
            return await served.client.post(f"{RUNS}/p/r", content=b"line\n", headers=HEADERS)

        assert (await post()).status_code == 200
        node.gated.syncer.gate.clear()
        held = [asyncio.create_task(post()) for _ in range(2)]
        async with asyncio.timeout(120):
            while node.taken < 2:
                await asyncio.sleep(0)
        is_refused(await post(), 1)
        node.gated.syncer.gate.set()
        assert [(await task).status_code for task in held] == [200, 200]
        assert (await post()).status_code == 200
        await node.gated.journal.close()


async def test_users_of_a_proxy_have_so_many_requests_in_progress_each(tmp_path: Path) -> None:
    proxy = {
        "addresses": ["10.0.0.1"],
        "user_header": "X-User",
        "users": {name: {"read": ["*"]} for name in ("anna", "bert")},
        "concurrent_requests": 1,
    }
    access = Access(written(tmp_path / "rules.yaml", proxy=proxy), ManualClock())
    anna, bert = [
        await access.identify([(b"x-user", name)], "10.0.0.1") for name in (b"anna", b"bert")
    ]
    access.begin(anna)
    access.begin(bert)
    with pytest.raises(TooManyAtOnce, match="anna has 1 requests"):
        access.begin(anna)
    access.end(anna)
    access.begin(anna)


async def begun(served: Any, token: str) -> tuple[Any, Any, Any]:
    """A stream that has sent the run's first line."""
    opened = served.client.stream(
        "GET", f"{RUNS}/p/stream/r", headers={"authorization": f"Bearer {token}"}
    )
    response = await opened.__aenter__()
    assert response.status_code == 200
    stream = events(response)
    async for event in stream:
        if "first" in event.get("data", ""):
            return opened, stream, response
    raise AssertionError("the stream ended at once")


async def ends_unsaid(stream: Any) -> None:
    """It ends, and what comes behind the end of the rights is not told."""

    async def rest() -> None:
        async for event in stream:
            assert "secret" not in str(event)

    with pytest.raises(httpx.TransportError):
        await rest()


async def test_lines_that_are_followed_count(serve: Serve, tmp_path: Path) -> None:
    limited = rule(TOKEN, {"read": ["p"]}, bytes_per_second=1000)
    async with control_with(tmp_path, limited) as (control, _):
        served = await serve(control=control)
        await put(served.node, "first")
        opened, stream, _ = await begun(served, TOKEN)
        for text in ("y" * 9999, "last"):
            await put(served.node, text)
            async for event in stream:
                if text in event.get("data", ""):
                    break
        refused = await served.client.get(f"{RUNS}/p/r", headers=HEADERS)
        assert refused.status_code == 429
        await opened.__aexit__(None, None, None)


async def test_a_stream_ends_when_its_token_is_taken_away(serve: Serve, tmp_path: Path) -> None:
    both = [rule(token, {"read": ["p"]}) for token in (TOKEN, STAYS)]
    async with control_with(tmp_path, *both) as (control, _):
        served = await serve(control=control)
        await put(served.node, "first")
        opened, stream, _ = await begun(served, TOKEN)
        other, goes_on, _ = await begun(served, STAYS)
        written(tmp_path / "rules.yaml", both[1])
        assert control.access.reload()
        await put(served.node, "secret")
        await ends_unsaid(stream)
        async for event in goes_on:
            if "secret" in event.get("data", ""):
                break
        for each in (opened, other):
            await each.__aexit__(None, None, None)
        assert served.counters.readers <= 1


async def test_a_stream_ends_when_its_pipeline_is_taken_away(serve: Serve, tmp_path: Path) -> None:
    async with control_with(tmp_path, rule(TOKEN, {"read": ["p"]})) as (control, _):
        served = await serve(control=control)
        await put(served.node, "first")
        opened, stream, _ = await begun(served, TOKEN)
        written(tmp_path / "rules.yaml", rule(TOKEN, {"read": ["q"]}))
        assert control.access.reload()
        await put(served.node, "secret")
        await ends_unsaid(stream)
        await opened.__aexit__(None, None, None)


async def test_a_stream_ends_with_its_token(serve: Serve, tmp_path: Path) -> None:
    clock = ManualClock()
    for seconds in (REMEMBERED_SECONDS / 6, REMEMBERED_SECONDS * 3):
        end = datetime.fromtimestamp(clock.now_ms() / 1000 + seconds, UTC).isoformat()
        one = rule(TOKEN, {"read": ["p"]})
        one["secrets"][0]["expires"] = end
        async with control_with(tmp_path, one) as (control, moved):
            served = await serve(MemoryNode(), control=control)
            await put(served.node, "first")
            opened, stream, _ = await begun(served, TOKEN)
            moved.pass_seconds(seconds - 1)
            await put(served.node, "second")
            async for event in stream:
                if "second" in event.get("data", ""):
                    break
            moved.pass_seconds(2)
            await put(served.node, "secret")
            await ends_unsaid(stream)
            await opened.__aexit__(None, None, None)
        (tmp_path / "audit.log").unlink(missing_ok=True)
