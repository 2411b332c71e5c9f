"""Over real connections: quotas of a token on both ways in, and streams that end with theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from logstore.disk import Disk
from service.access.access import REMEMBERED_SECONDS, Access
from service.access.audit import AuditLog
from service.access.quota import BURST_SECONDS
from service.http.gate import Gate
from tests.service.access.rules_file import rule, token_of, written
from tests.service.http.conftest import RUNS, Serve
from tests.service.http.journal_node import JournalNode
from tests.service.http.memory_node import MemoryNode
from tests.service.http.test_stream import events, put
from tests.simulation.clocks import ManualClock

TOKEN, STAYS = token_of("limited"), token_of("stays")
HEADERS = {"authorization": f"Bearer {TOKEN}", "content-type": "text/plain"}
BOTH = {"ingest": ["p"], "read": ["p"]}


@asynccontextmanager
async def gate_with(tmp_path: Path, *tokens: Any) -> AsyncIterator[tuple[Gate, ManualClock]]:
    clock = ManualClock()
    access = Access(written(tmp_path / "rules.yaml", *tokens), clock)
    gate = Gate(access, AuditLog(str(tmp_path / "audit.log"), Disk(), clock), clock, lambda: "id")
    yield gate, clock
    await gate.audit.close()


def is_refused(reply: httpx.Response, seconds: int) -> None:
    assert reply.status_code == 429, reply.text
    assert reply.headers["retry-after"] == str(seconds)
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json()["type"] == "over-quota"
    assert TOKEN not in reply.text


async def test_requests_of_both_ways_are_one_quota(serve: Serve, tmp_path: Path) -> None:
    limited = rule(TOKEN, BOTH, requests_per_second=1)
    async with gate_with(tmp_path, limited) as (gate, clock):
        node = JournalNode()
        served = await serve(node, gate=gate)

        async def post() -> httpx.Response:
            return await served.client.post(f"{RUNS}/p/r", content=b"line\n", headers=HEADERS)

        for number in range(int(BURST_SECONDS)):
            assert (await post()).status_code == 200
            assert node.taken == number, "all but the first take the fast path"
        stored = node.gated.texts()
        is_refused(await post(), 1)
        is_refused(await served.client.get(f"{RUNS}/p/r", headers=HEADERS), 1)
        assert node.gated.texts() == stored
        assert gate.access.refused["quota"] == 2
        clock.pass_seconds(1)
        assert (await post()).status_code == 200
        assert node.taken == BURST_SECONDS
        is_refused(await post(), 1)
        await node.gated.journal.close()


async def test_bytes_sent_on_both_ways_are_one_quota(serve: Serve, tmp_path: Path) -> None:
    limited = rule(TOKEN, BOTH, bytes_per_second=100)
    async with gate_with(tmp_path, limited) as (gate, clock):
        node = JournalNode()
        served = await serve(node, gate=gate)

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
    async with gate_with(tmp_path, limited) as (gate, clock):
        served = await serve(gate=gate)
        await put(served.node, "y" * 999)

        page = await served.client.get(f"{RUNS}/p/r", headers=HEADERS)
        assert page.status_code == 200
        is_refused(
            await served.client.get(f"{RUNS}/p/r", headers=HEADERS),
            -(-(len(page.content) - 500) // 100),
        )
        clock.pass_seconds(60)
        assert (await served.client.get(f"{RUNS}/p/r", headers=HEADERS)).status_code == 200


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
    async with gate_with(tmp_path, limited) as (gate, _):
        served = await serve(gate=gate)
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
    async with gate_with(tmp_path, *both) as (gate, _):
        served = await serve(gate=gate)
        await put(served.node, "first")
        opened, stream, _ = await begun(served, TOKEN)
        other, goes_on, _ = await begun(served, STAYS)
        written(tmp_path / "rules.yaml", both[1])
        assert gate.access.reload()
        await put(served.node, "secret")
        await ends_unsaid(stream)
        async for event in goes_on:
            if "secret" in event.get("data", ""):
                break
        for each in (opened, other):
            await each.__aexit__(None, None, None)
        assert served.counters.readers <= 1


async def test_a_stream_ends_when_its_pipeline_is_taken_away(serve: Serve, tmp_path: Path) -> None:
    async with gate_with(tmp_path, rule(TOKEN, {"read": ["p"]})) as (gate, _):
        served = await serve(gate=gate)
        await put(served.node, "first")
        opened, stream, _ = await begun(served, TOKEN)
        written(tmp_path / "rules.yaml", rule(TOKEN, {"read": ["q"]}))
        assert gate.access.reload()
        await put(served.node, "secret")
        await ends_unsaid(stream)
        await opened.__aexit__(None, None, None)


async def test_a_stream_ends_with_its_token(serve: Serve, tmp_path: Path) -> None:
    clock = ManualClock()
    for seconds in (REMEMBERED_SECONDS / 6, REMEMBERED_SECONDS * 3):
        end = datetime.fromtimestamp(clock.now_ms() / 1000 + seconds, UTC).isoformat()
        one = rule(TOKEN, {"read": ["p"]})
        one["secrets"][0]["expires"] = end
        async with gate_with(tmp_path, one) as (gate, moved):
            served = await serve(MemoryNode(), gate=gate)
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
