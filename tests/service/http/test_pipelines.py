"""Log pipelines over HTTP: what is stored of them, what operators say, and refusals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from service.http.admin import pipeline_routes
from service.http.app import HttpApi, build_app
from tailrace.coordination.groups import (
    ConsumerGroup,
    GroupStart,
    State,
    change_group,
    create_group,
    evict,
    pipeline_group,
    read_group,
)
from tailrace.coordination.memory_store import InMemoryPartitions
from tailrace.coordination.partitions import Claim, NewPartition
from tailrace.coordination.pipelines import (
    Checkpoint,
    PipelinesAdmin,
    Reading,
    change_control,
    encode,
    read_control,
)
from tailrace.logstore import keys, ulid
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import StoreUnavailable
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tests.service.http.memory_node import MemoryNode

CLOCK, ENTROPY = SystemClock(), system_entropy()


def fresh_id() -> str:
    return ulid.fresh_text(CLOCK, ENTROPY)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path), Disk(), CLOCK, ENTROPY)


@pytest.fixture
async def client(store: LocalStore) -> AsyncIterator[httpx.AsyncClient]:
    """Of a service with two pipelines: `p`, of which one appender is behind, and `q`."""
    partitions = InMemoryPartitions(CLOCK, ENTROPY)
    for seq in (1, 2, 3):
        await store.put(keys.segment("n", seq), b"x" * 10 * seq)
    for name in ("p", "q"):
        made = ConsumerGroup(
            pipeline_group(name), State.ACTIVE, GroupStart.OLDEST, 1, 1, version=fresh_id()
        )
        await create_group(store, made)
    for key, at in (("a/0-1", 4), ("b/0-1", 2)):
        counts = {"events": at, "late": 1}
        progress = Checkpoint({"n": Reading(at, at, 5)}, counts=counts, saved_ms=1000 + at)
        await partitions.create("pipelines|p", [NewPartition(key, progress=encode(progress))])
    claim = Claim("host/P", 600_000, CLOCK.now_ms(), CLOCK.now_ms())
    await partitions.acquire("pipelines|p", claim, 1, only="b/0-1")
    await change_control(
        store, "p", lambda one: one.fail("b/0-1", 7, "disk full"), fresh_id=fresh_id
    )
    admin = PipelinesAdmin(store, partitions, CLOCK, fresh_id, prefix=None)

    async def opened() -> PipelinesAdmin:
        return admin

    app = build_app(MemoryNode(), HttpApi(pipelines=opened))
    async with AsyncExitStack() as stack:
        stack.callback(app.append.shut)
        transport = httpx.ASGITransport(cast("Any", app))
        yield await stack.enter_async_context(
            httpx.AsyncClient(base_url="http://localhost", transport=transport)
        )


async def test_the_list_says_how_far_each_part_is(client: httpx.AsyncClient) -> None:
    found = (await client.get("/pipelines")).json()["pipelines"]
    assert [(one["pipeline"], one["state"], one["segments_behind"]) for one in found] == [
        ("p", "running", 2),
        ("q", "running", 0),
    ]
    a, b = found[0]["appenders"]
    assert (a["appender"], a["part"], a["segments_behind"], a["lag_seconds"]) == ("a", "0-1", 0, 0)
    assert (a["owner"], a["checkpoint_at"], a["events"], a["late"]) == (None, 1004, 4, 1)
    assert (b["segments_behind"], b["bytes_behind"], b["owner"]) == (2, 50, "host")
    assert (b["error"], b["lag_seconds"] >= 0) == ("disk full", True)
    one = (await client.get("/pipelines/p")).json()
    assert [row["appender"] for row in one["appenders"]] == ["a", "b"]


async def test_it_is_paused_and_goes_on(client: httpx.AsyncClient, store: LocalStore) -> None:
    assert (await client.post("/pipelines/p/pause")).json()["state"] == "paused"
    assert (await read_control(store, "p")).paused
    assert (await client.get("/pipelines/q")).json()["state"] == "running"
    assert (await client.post("/pipelines/p/resume")).json()["state"] == "running"
    assert not (await read_control(store, "p")).paused


async def test_an_appender_is_disabled_and_enabled(client: httpx.AsyncClient) -> None:
    params = {"appender": "b", "reason": "rotten"}
    a, b = (await client.post("/pipelines/p/disable", params=params)).json()["appenders"]
    assert (a["state"], b["state"], b["reason"]) == ("running", "disabled", "rotten")
    after = await client.post("/pipelines/p/enable", params={"appender": "b"})
    assert [row["state"] for row in after.json()["appenders"]] == ["running", "running"]


async def test_a_replay_brings_an_evicted_pipeline_back(
    client: httpx.AsyncClient, store: LocalStore
) -> None:
    name = pipeline_group("p")
    await change_group(store, name, lambda one: evict(one, 1, "it kept 9"), fresh_id=fresh_id)
    found = (await client.get("/pipelines/p")).json()
    assert (found["state"], found["reason"]) == ("evicted", "it kept 9")
    answer = (await client.post("/pipelines/p/replay", params={"from": "1700000000"})).json()
    assert (answer["state"], answer["low"]) == (
        "running",
        ulid.encode(ulid.lowest_at(1_700_000_000_000)),
    )
    group = await read_group(store, name)
    assert group is not None
    assert group.replay is not None
    assert (group.replay.id, group.replay.low) == (answer["replay"], answer["low"])
    exact = "01HF7YAT000000000000000ABC"
    assert (await client.post("/pipelines/p/replay", params={"from": exact})).json()["low"] == exact
    assert (await client.post("/pipelines/p/skip")).json()["low"] is None


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/pipelines/none", 404, "no pipeline 'none' has run"),
        ("POST", "/pipelines/none/pause", 404, "no pipeline 'none' has run"),
        ("POST", "/pipelines/none/replay?from=0", 404, "no pipeline 'none' has run"),
        ("POST", "/pipelines/p/replay?from=whenever", 400, "from is not a time: 'whenever'"),
        ("POST", "/pipelines/p/replay", 400, "from"),
        ("POST", "/pipelines/p/disable?appender=c", 400, "p has no appender 'c'"),
        ("POST", "/pipelines/p/enable", 400, "appender"),
        ("DELETE", "/pipelines/p", 405, ""),
    ],
)
async def test_what_cannot_be_is_a_problem(
    client: httpx.AsyncClient, method: str, path: str, status: int, says: str
) -> None:
    answer = await client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert says in answer.json()["detail"]


async def test_a_store_that_is_away_is_said() -> None:
    async def refused() -> PipelinesAdmin:
        raise StoreUnavailable("no answer")

    app = build_app(MemoryNode(), HttpApi(routers=(pipeline_routes(refused),)))
    async with AsyncExitStack() as stack:
        stack.callback(app.append.shut)
        transport = httpx.ASGITransport(cast("Any", app))
        made = httpx.AsyncClient(base_url="http://localhost", transport=transport)
        client = await stack.enter_async_context(made)
        answer = await client.get("/pipelines")
    assert (answer.status_code, answer.json()["type"]) == (503, "store-unavailable")


async def test_a_pipeline_that_cannot_be_read_hides_no_other(
    client: httpx.AsyncClient, store: LocalStore
) -> None:
    await store.put(keys.pipeline_control("p"), b"garbage")
    rows = (await client.get("/pipelines")).json()["pipelines"]
    assert [(row["pipeline"], row["state"]) for row in rows] == [("p", "damaged"), ("q", "running")]
    assert keys.pipeline_control("p") in rows[0]["reason"]
