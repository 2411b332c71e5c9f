"""IngestionPipelineLogStreamingResourceIT: OpenMetadata's tests of the routes, over real HTTP.

Upstream's pass even if nothing is stored: they take 404, 500 and an empty page for an
answer. These do not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.service.test_main import service, settings_for

LOGS = "/api/v1/services/ingestionPipelines/logs"
FQN = "service.pipeline_log_test"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Of a running service."""
    async with service(settings_for(tmp_path)) as (client, _):
        yield client


async def post(client: httpx.AsyncClient, run: str, logs: str) -> None:
    reply = await client.post(f"{LOGS}/{FQN}/{run}", json={"logs": logs})
    assert reply.status_code == 200
    assert reply.headers["set-cookie"].startswith(
        f"PIPELINE_SESSION=service_pipeline_log_test_{run};"
    )


async def close(client: httpx.AsyncClient, run: str) -> None:
    reply = await client.post(f"{LOGS}/{FQN}/{run}/close")
    assert reply.status_code == 200
    assert reply.json()["message"] == "Log stream closed successfully"


async def test_a_page(client: httpx.AsyncClient) -> None:
    """LogStreamingResourceIT.testReadLogsWithPagination: it has `logs`, `after` and `total`."""
    run = str(uuid4())
    await post(client, run, "".join([f"{i}\n" for i in range(25)]))
    page = (await client.get(f"{LOGS}/{FQN}/{run}?limit=10")).json()
    assert page["logs"] == "\n".join([str(i) for i in range(10)])
    assert page["total"] == 25
    rest = (await client.get(f"{LOGS}/{FQN}/{run}", params={"after": page["after"]})).json()
    assert (rest["logs"], rest["after"]) == ("\n".join([str(i) for i in range(10, 25)]), None)


async def test_the_list_of_runs(client: httpx.AsyncClient) -> None:
    """LogStreamingResourceIT.testListPipelineRuns: it has `runs`."""
    runs = [str(uuid4()) for _ in range(7)]
    for run in runs:
        await post(client, run, "x\n")
    found = (await client.get(f"{LOGS}/{FQN}?limit=5")).json()["runs"]
    assert len(found) == 5
    assert set(found) <= set(runs)


async def test_a_write_with_the_default_storage(client: httpx.AsyncClient) -> None:
    """LogStreamingResourceIT.testWriteLogsWithDefaultStorage: 200, or 500, or 501.

    Upstream's default storage rejects writes. Ours: the default stores them.
    """
    run = str(uuid4())
    await post(client, run, "Test log entry\n")
    assert (await client.get(f"{LOGS}/{FQN}/{run}")).json()["logs"] == "Test log entry"


async def test_a_run_that_is_not_there(client: httpx.AsyncClient) -> None:
    """LogStreamingResourceIT.testGetLogsForNonExistentRun: an empty page."""
    await post(client, str(uuid4()), "x\n")
    reply = await client.get(f"{LOGS}/{FQN}/{uuid4()}")
    assert reply.status_code == 200
    assert {key: reply.json()[key] for key in ("logs", "after", "total")} == {
        "logs": "",
        "after": None,
        "total": 0,
    }


async def test_a_pipeline_without_runs(client: httpx.AsyncClient) -> None:
    """LogStreamingResourceIT.testListRunsForEmptyPipeline: an empty list.

    Ours: a pipeline exists from its first line or status on, and so does a run. Its log is empty.
    """
    run = str(uuid4())
    value = {"runId": run, "pipelineState": "queued"}
    said = await client.put(f"/api/v1/services/ingestionPipelines/{FQN}/pipelineStatus", json=value)
    assert said.status_code == 200
    reply = await client.get(f"{LOGS}/{FQN}?limit=10")
    assert (reply.status_code, reply.json()["runs"]) == (200, [run])
    page = await client.get(f"{LOGS}/{FQN}/{run}")
    assert (page.status_code, page.json()["logs"]) == (200, "")


async def test_a_pipeline_that_is_none(client: httpx.AsyncClient) -> None:
    """LogStreamingResourceIT.testInvalidPipelineFQN: 404."""
    reply = await client.get(f"{LOGS}/non.existent.pipeline/{uuid4()}")
    assert (reply.status_code, reply.json()["code"]) == (404, 404)
    assert reply.json()["message"]


async def test_parameters_of_a_page(client: httpx.AsyncClient) -> None:
    """LogStreamingResourceIT.testPaginationParameters: `limit=5&after=100` is valid."""
    run = str(uuid4())
    await post(client, run, "".join([f"{i}\n" for i in range(200)]))
    page = (await client.get(f"{LOGS}/{FQN}/{run}?limit=5&after=100")).json()
    assert page["logs"] == "100\n101\n102\n103\n104"
    beyond = (await client.get(f"{LOGS}/{FQN}/{run}?limit=5&after=1000")).json()
    assert (beyond["logs"], beyond["after"]) == ("", None)


async def test_two_bursts(client: httpx.AsyncClient) -> None:
    """LogStreamingResourceIT.testSequentialBurstsBothPersist: both are there."""
    run = str(uuid4())
    first = "".join([f"first-burst-line-{i}\n" for i in range(50)])
    second = "".join([f"second-burst-line-{i}\n" for i in range(30)])
    await post(client, run, first)
    await post(client, run, second)
    page = (await client.get(f"{LOGS}/{FQN}/{run}")).json()
    assert page["logs"] + "\n" == first + second
    assert page["total"] == 80


async def test_a_close_keeps_the_content(client: httpx.AsyncClient, tmp_path: Path) -> None:
    """LogStreamingResourceIT.testCloseProducesLogsTxtMatchingPartial."""
    run = str(uuid4())
    await post(client, run, f"close-test-marker-{run}\n")
    await close(client, run)
    page = (await client.get(f"{LOGS}/{FQN}/{run}")).json()
    assert page["logs"] == f"close-test-marker-{run}"
    assert page["state"] == "closed"
    (stored,) = (tmp_path / "data" / "store").rglob("logs.txt")
    assert stored.read_text() == page["logs"] + "\n"


async def test_a_double_close(client: httpx.AsyncClient) -> None:
    """LogStreamingResourceIT.testCloseIsIdempotent: both work, and the content stays."""
    run = str(uuid4())
    await post(client, run, "idempotent-close-test\n")
    await close(client, run)
    await close(client, run)
    assert (await client.get(f"{LOGS}/{FQN}/{run}")).json()["logs"] == "idempotent-close-test"
