"""Leases over HTTP: lists with filters and pages, one of them, acts, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any, cast

import httpx
import pytest

from service.http.admin import lease_routes, open_leases
from service.http.app import HttpApi, build_app
from service.runtime.environment import Environment
from tailrace.coordination.admin import LeaseAdmin, LeaseFilter
from tailrace.coordination.lease import StoreTime
from tailrace.coordination.memory_store import InMemoryPartitions
from tailrace.coordination.named_leases import NamedLeases, StoredLeases, text_lease
from tailrace.coordination.partitions import Claim, NewPartition
from tailrace.coordination.settings import SourceCoordination
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import StoreUnavailable
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tests.service.http.memory_node import MemoryNode
from tests.simulation.backing import open_store
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule
from tests.simulation.powercut import DirectSyncer, PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

SOURCE = "s|logs|file"
KEY = "s3://bucket/a b?c#d&e/../é"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Of a service with three partitions, one of them held, and a named lease."""
    clock, entropy = SystemClock(), system_entropy()
    store = LocalStore(str(tmp_path), Disk(), clock, entropy)
    time = StoreTime(clock, None)
    partitions = InMemoryPartitions(clock, entropy)
    await partitions.create(SOURCE, [NewPartition(key, progress="7") for key in ("a", "b", KEY)])
    claim = Claim("host/P", 600_000, clock.now_ms(), clock.now_ms())
    await partitions.acquire(SOURCE, claim, 1, only=KEY)
    await NamedLeases(store, clock, entropy, time, node="node-A").acquire(text_lease("node-A"))
    admin = LeaseAdmin(partitions, StoredLeases(store, clock, entropy, time))

    async def opened() -> LeaseAdmin:
        return admin

    app = build_app(MemoryNode(), HttpApi(routers=(lease_routes(opened),)))
    async with AsyncExitStack() as stack:
        stack.callback(app.append.shut)
        transport = httpx.ASGITransport(cast("Any", app))
        yield await stack.enter_async_context(
            httpx.AsyncClient(base_url="http://localhost", transport=transport)
        )


def problem(answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert (body["type"], body["code"]) == (kind, status)
    return body


async def test_lists_pages_and_filters(client: httpx.AsyncClient) -> None:
    seen, after = [], None
    while True:
        params = {"limit": 1} | ({"after": after} if after else {})
        page = (await client.get("/leases", params=params)).json()
        seen += [(row["source"], row["key"]) for row in page["leases"]]
        after = page["after"]
        if after is None:
            break
    assert seen == [("text", "node-A"), (SOURCE, "a"), (SOURCE, "b"), (SOURCE, KEY)]
    (row,) = (await client.get("/leases", params={"status": "ASSIGNED", "source": SOURCE})).json()[
        "leases"
    ]
    assert (row["key"], row["owner"], row["held"], row["attempts"]) == (KEY, "host/P", True, 1)
    assert row["until"] > row["created_at"] > 1_700_000_000_000
    assert "progress" not in row
    for params, count in (
        ({"owner": "node-A"}, 1),
        ({"prefix": "s3:"}, 1),
        ({"older_than_seconds": 3600}, 0),
    ):
        assert len((await client.get("/leases", params=params)).json()["leases"]) == count
    assert (await client.head("/leases")).status_code == 200


async def test_one_with_any_key(client: httpx.AsyncClient) -> None:
    answer = await client.get("/leases/one", params={"source": SOURCE, "key": KEY})
    assert (answer.json()["key"], answer.json()["progress"]) == (KEY, "7")
    lock = await client.get("/leases/one", params={"source": "text", "key": "node-A"})
    assert (lock.json()["kind"], lock.json()["status"]) == ("lock", "ASSIGNED")


async def test_acts(client: httpx.AsyncClient) -> None:
    held = {"source": SOURCE, "key": KEY}
    told = problem(await client.post("/leases/reset", params=held), 409, "conflict")
    assert "held by host/P" in told["detail"]
    assert "force" in told["hint"]
    freed = await client.post("/leases/reset", params=held | {"force": True, "forget": True})
    assert (freed.json()["status"], freed.json()["progress"]) == ("UNASSIGNED", None)
    free = {"source": SOURCE, "key": "a"}
    failed = await client.post("/leases/fail", params=free | {"reason": "poison"})
    assert (failed.json()["status"], failed.json()["last_error"]) == ("FAILED", "poison")
    reopened = await client.post("/leases/reopen", params=free)
    assert (reopened.json()["status"], reopened.json()["progress"]) == ("UNASSIGNED", "7")
    purged = await client.post("/leases/purge", params={"source": SOURCE, "older_than_seconds": 0})
    assert purged.json() == {"purged": 0}


async def test_refusals(client: httpx.AsyncClient) -> None:
    nothing = {"source": SOURCE, "key": "nothing"}
    problem(await client.get("/leases/one", params=nothing), 404, "not-found")
    for verb in ("reset", "reopen"):
        problem(await client.post(f"/leases/{verb}", params=nothing), 404, "not-found")
    lock = {"source": "text", "key": "node-A", "reason": "x"}
    problem(await client.post("/leases/fail", params=lock), 400, "invalid-input")
    problem(await client.get("/leases", params={"after": "x"}), 400, "invalid-cursor")
    for params, field in (
        ({"status": "held"}, "status"),
        ({"limit": 0}, "limit"),
        ({"older_than_seconds": "nan"}, "older_than_seconds"),
        ({"older_than_seconds": "1e308"}, "older_than_seconds"),
    ):
        answer = await client.get("/leases", params=cast("dict[str, str]", params))
        assert problem(answer, 400, "invalid-input")["field"] == field
    problem(await client.post("/leases/fail", params=nothing), 400, "invalid-input")
    purge = {"source": SOURCE, "older_than_seconds": "1e308"}
    problem(await client.post("/leases/purge", params=purge), 400, "invalid-input")
    problem(await client.post("/leases"), 405, "method-not-allowed")


def test_a_store_that_is_away_keeps_nothing_from_starting() -> None:
    async def scenario(clock: VirtualClock) -> None:
        fs = PowerCutFileSystem()
        store = FaultyStore(open_store(fs, clock, Random(0)), Schedule({1: Fault.UNAVAILABLE}))
        environment = Environment(
            store=store, fs=fs, clock=clock, entropy=Random(1), syncer=DirectSyncer
        )
        async with open_leases(SourceCoordination(), environment) as leases:
            assert store.calls == []
            with pytest.raises(StoreUnavailable):
                await leases()
            first, second = await asyncio.gather(leases(), leases())
            assert first is second
            assert (await first.page(LeaseFilter())).entries == []

    simulate(scenario, start_ms=1_750_000_000_000)
