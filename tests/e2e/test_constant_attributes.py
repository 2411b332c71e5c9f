"""Attributes that a batch of text says once: given out as if each line had carried them.

The same lines are sent twice, as text with `Tailrace-Attributes` and as records. At every door both
runs must be the same, in every state of the lines: in the journal, after kill -9, in the store.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.logstore.batch import RunKey
from tests.e2e.clients import BatchIds, close_run, run_path, stream_path
from tests.e2e.service_process import ServiceProcess

ONCE, EACH = RunKey("shop.orders", "once"), RunKey("shop.orders", "each")
SHARED = {"log.file.name": "ürün.log", "region": "eu"}
LINES = [
    "2026-01-31 12:00:00 ERROR no such column",
    "  at a.b.C(D.java:1)",
    "",
    "\r",
    '{"k": "v"} \u2028 🚀',
    "2026-01-31 12:00:01 plain",
]
# A line of text continues the one before it, a record does not.
LEVELS = {ONCE: ["ERROR", "ERROR", *[None] * 4], EACH: ["ERROR", *[None] * 5]}
SLOW = {"TAILRACE_FLUSH__SEGMENT_SECONDS": "3600"}
FAST = {"TAILRACE_FLUSH__SEGMENT_SECONDS": "0.2"}
Records = list[dict[str, Any]]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[ServiceProcess]:
    service = ServiceProcess(tmp_path / "node", store=tmp_path / "store", **SLOW)
    await asyncio.to_thread(service.start)
    yield service
    if service.running:
        service.kill()
    assert "Traceback" not in service.output()


async def _post(client: httpx.AsyncClient, ids: BatchIds) -> None:
    text = "".join(f"{line}\n" for line in LINES)
    records = [json.dumps({"message": line, "attributes": SHARED}) for line in LINES]
    batches = [
        (ONCE, text, {"Content-Type": "text/plain", "Tailrace-Attributes": json.dumps(SHARED)}),
        (EACH, "\n".join(records), {"Content-Type": "application/x-ndjson"}),
    ]
    for key, content, headers in batches:
        sent = {**headers, "Tailrace-Batch": ids.next()}
        response = await client.post(run_path(key), content=content.encode(), headers=sent)
        assert response.json()["lines"] == len(LINES), response.text


async def _ndjson(client: httpx.AsyncClient, path: str, **params: str) -> Records:
    response = await client.get(path, params={"format": "ndjson", **params})
    assert response.status_code == 200, response.text
    values = [json.loads(line) for line in response.text.split("\n") if line]
    return [value for value in values if "message" in value]


async def _events(client: httpx.AsyncClient, key: RunKey, count: int) -> Records:
    found: Records = []
    params = {"format": "ndjson", "after": "0"}
    async with client.stream("GET", stream_path(key), params=params) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
            if len(found) == count:
                break
    return found


async def _queued(client: httpx.AsyncClient) -> Records:
    """The records of all segments."""
    found: Records = []
    while True:
        answer = await client.post("/segments/next", params={"group": "g", "start": "oldest"})
        if answer.status_code == 204:
            return found
        segment = answer.json()
        found += await _ndjson(client, f"/segments/{segment['id']}")
        done = await client.post(
            f"/segments/{segment['id']}/commit",
            params={"group": "g", "epoch": str(segment["epoch"])},
        )
        assert done.status_code == 200, done.text


def _same(found: dict[str, Records], count: int) -> None:
    """Both runs have the lines, with the attributes and the levels that belong to them."""
    for door, records in found.items():
        for run in (ONCE, EACH):
            ours = [r for r in records if r.get("run_id", r.get("run")) == run.run]
            assert [r["message"] for r in ours] == LINES * count, (door, run)
            assert [r["attributes"] for r in ours] == [SHARED] * len(ours), (door, run)
        for run, levels in LEVELS.items():
            ours = [r for r in records if r.get("run_id", r.get("run")) == run.run]
            assert [r.get("level") for r in ours] == levels * count, (door, run)


async def _doors(client: httpx.AsyncClient, count: int) -> dict[str, Records]:
    found: dict[str, Records] = {}
    for key in (ONCE, EACH):
        parts = {
            "page": await _ndjson(client, run_path(key), limit="1000"),
            "small pages": await _pages(client, key),
            "download": await _ndjson(client, run_path(key, verb="download")),
            "in order of ULIDs": await _ndjson(client, run_path(key), order="ulid", limit="1000"),
            "live": await _events(client, key, count * len(LINES)),
        }
        for door, records in parts.items():
            found.setdefault(door, []).extend({**record, "run": key.run} for record in records)
    query = {"from": "0", "fqn": ONCE.fqn, "order": "asc", "limit": "1000"}
    found["query"] = await _ndjson(client, "/query", q="attributes.region:eu", **query)
    return found


async def _pages(client: httpx.AsyncClient, key: RunKey) -> Records:
    """Four lines at a time: pages that begin and end inside of batches."""
    found: Records = []
    after = "0"
    while True:
        params = {"format": "ndjson", "limit": "4", "after": after}
        response = await client.get(run_path(key), params=params)
        *records, last = [json.loads(line) for line in response.text.split("\n") if line]
        found += records
        if last["stats"]["after"] in (None, after):
            return found
        after = last["stats"]["after"]


@pytest.mark.in_turn(3)
async def test_every_door_gives_what_each_line_would_have_carried(served: ServiceProcess) -> None:
    service, ids = served, BatchIds()
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
        await _post(client, ids)
        await _post(client, ids)
        _same(await _doors(client, 2), 2)
        service.kill()
        await asyncio.to_thread(service.start)
        _same(await _doors(client, 2), 2)
        assert service.stop() == 0
        service.settings |= FAST
        await asyncio.to_thread(service.start)
        await _post(client, ids)
        for key in (ONCE, EACH):
            await close_run(client, key)
        _same(await _doors(client, 3), 3)
        queued: Records = []
        while len(queued) < 6 * len(LINES):
            queued += await _queued(client)
            await asyncio.sleep(0.1)
        _same({"queue": queued}, 3)
