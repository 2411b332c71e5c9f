"""The time of every request is observed under its method, its route and its status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from service.http.replies import APPEND, CLOSE, NO_ROUTE
from service.http.targets import BASE
from tests.service.http.conftest import Serve, Served

PLAIN = {"content-type": "text/plain"}


def observed(served: Served) -> dict[tuple[str, str, str], int]:
    """How many requests of each kind were timed."""
    found = {key: sum(times.counts) for key, times in served.counters.request_seconds.items()}
    return {key: count for key, count in found.items() if count}


async def test_routes_are_patterns_and_statuses_are_those_sent(direct: Serve) -> None:
    served = await direct()
    for run in ("r", "s"):
        assert (await served.post(f"/p/{run}", "a\n", **PLAIN)).status_code == 200
        assert (await served.get(f"/p/{run}")).status_code == 200
    assert (await served.post("/p/r", "{", content_type="application/json")).status_code == 400
    assert (await served.post("/p/r/close")).status_code == 200
    assert (await served.client.head(f"{BASE}/p/r")).status_code == 200
    assert (await served.get("/p/r?limit=x")).status_code == 400
    assert (await served.client.get("/nothing/here")).status_code == 404
    foreign = {"origin": "http://elsewhere", "sec-fetch-site": "cross-site"}
    assert (await served.client.post(f"{BASE}/p/r", headers=foreign)).status_code == 403
    assert (await served.client.request("BREW", "/nothing")).status_code in (404, 405)
    assert observed(served) == {
        ("POST", APPEND, "200"): 2,
        ("POST", APPEND, "400"): 1,
        ("POST", CLOSE, "200"): 1,
        ("GET", f"{BASE}/{{fqn}}/{{runId}}", "200"): 2,
        ("GET", f"{BASE}/{{fqn}}/{{runId}}", "400"): 1,
        ("HEAD", f"{BASE}/{{fqn}}/{{runId}}", "200"): 1,
        ("GET", NO_ROUTE, "404"): 1,
        ("POST", NO_ROUTE, "403"): 1,
        ("other", NO_ROUTE, "404"): 1,
    }


async def test_a_client_that_leaves_before_the_answer_is_told_apart(serve: Serve) -> None:
    served = await serve()

    async def half() -> AsyncIterator[bytes]:
        yield b"a\n"
        await asyncio.sleep(3600)

    asking = asyncio.ensure_future(served.client.post(f"{BASE}/p/r", content=half(), headers=PLAIN))
    while not served.counters.append_requests:
        await asyncio.sleep(0.01)
    asking.cancel()
    async with asyncio.timeout(60):
        while not observed(served):
            await asyncio.sleep(0.01)
    assert observed(served) == {("POST", APPEND, "499"): 1}
