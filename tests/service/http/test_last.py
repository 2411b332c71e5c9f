"""`/last`: which run it is, in OpenMetadata's flat shape, and its download."""

from __future__ import annotations

from typing import Any

import pytest

from service.http.listing import TASKS
from service.ingest.batch import IncomingBatch
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import StoreUnavailable
from tests.service.http.conftest import Serve
from tests.service.http.memory_node import MemoryNode

IDENTITY = {"accept_encoding": "identity"}


async def put(node: MemoryNode, text: bytes, run: str = "r", fqn: str = "p") -> None:
    lines = text.count(b"\n")
    await node.append(IncomingBatch(RunKey(fqn, run), text, lines, lines))


async def report(node: MemoryNode, run: str, timestamp: int = 1, **more: Any) -> None:
    value = {"runId": run, "pipelineState": "running", "timestamp": timestamp, **more}
    await node.status.put(RunKey("p", run), value)


async def test_the_shape_is_flat_and_of_strings(direct: Serve) -> None:
    served = await direct()
    await put(served.node, b"a\n\nc\n")
    first = await served.get("/p/last?limit=2")
    assert first.json() == {
        "ingestion_task": "a\n\n",  # the next page is put behind it as it is
        "total": "3",
        "after": "2",
        "streaming": "true",
    }
    assert first.headers["tailrace-run"] == "r"
    assert (await served.get("/p/last?after=2")).json() == {
        "ingestion_task": "c",
        "total": "3",
        "streaming": "true",
    }
    assert (await served.get("/p/last?after=nonsense")).json()["ingestion_task"] == "a\n\nc"
    await served.node.close_run(RunKey("p", "r"))
    assert (await served.get("/p/last")).json() == {"ingestion_task": "a\n\nc", "total": "5"}


async def test_the_page_has_a_thousand_lines_unless_asked(direct: Serve) -> None:
    """OpenMetadata's page sends no limit."""
    served = await direct()
    await put(served.node, b"x\n" * 1500)
    found = (await served.get("/p/last")).json()
    assert found["ingestion_task"].count("x") == 1000
    rest = (await served.get(f"/p/last?after={found['after']}")).json()
    assert rest["ingestion_task"].count("x") == 500
    assert "after" not in rest


async def test_the_last_run_is_the_one_that_began_last(direct: Serve) -> None:
    """What its client reports later, and with which `timestamp`, does not move it."""
    served = await direct()
    served.node.run_logs.first_ms |= {"old": 1000, "new": 2000}
    for run in ("new", "old"):
        await put(served.node, run.encode() + b"\n", run)
        assert (await served.get("/p/last")).json()["ingestion_task"] == "new"
    await report(served.node, "new", 2000)
    await report(served.node, "old", 3000)
    assert (await served.get("/p/last")).json()["ingestion_task"] == "new"
    await report(served.node, "queued", 1)
    assert (await served.get("/p/last")).headers["tailrace-run"] == "queued"


async def test_a_run_that_only_has_a_status_is_empty(direct: Serve) -> None:
    served = await direct()
    await report(served.node, "queued")
    found = await served.get("/p/last")
    assert found.json() == {"ingestion_task": "", "total": "0"}
    assert found.headers["tailrace-run"] == "queued"


@pytest.mark.parametrize(("kind", "task"), TASKS.items())
async def test_the_key_is_by_type_of_pipeline(direct: Serve, kind: str, task: str) -> None:
    served = await direct()
    await put(served.node, b"x\n")
    assert (await served.get(f"/p/last?type={kind}")).json()[task] == "x"
    await report(served.node, "r", metadata={"pipelineType": kind})
    assert (await served.get("/p/last")).json()[task] == "x"


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ("DatabaseMetadata", "ingestion_task"),
        ("Profiler", "profiler_task"),
        ("DatabaseUsage", "usage_task"),
        ("DatabaseLineage", "lineage_task"),
        ("DBT", "dbt_task"),
        ("TestSuite", "test_suite_task"),
        ("no such type", "ingestion_task"),
    ],
)
async def test_the_key_by_what_the_status_says_of_its_source(
    direct: Serve, config: str, task: str
) -> None:
    served = await direct()
    await put(served.node, b"x\n")
    source = {"sourceConfig": {"config": {"type": config}}}
    await report(served.node, "r", config={"source": source})
    assert (await served.get("/p/last")).json()[task] == "x"


async def test_the_download_is_a_file_of_the_last_run(direct: Serve) -> None:
    served = await direct()
    await put(served.node, b"x\n" * 3000, fqn='svc."my pipe.line"')
    url = "/svc.%22my%20pipe.line%22/last/download"
    found = await served.get(url, **IDENTITY)
    assert found.content == b"x\n" * 3000
    assert found.headers["content-type"] == "application/octet-stream"
    name = found.headers["content-disposition"]
    assert name.startswith('attachment; filename="ingestion_logs_my_pipe.line_1')
    assert name.endswith('.txt"')
    head = await served.client.head(found.url, headers={"accept-encoding": "identity"})
    assert (head.status_code, head.content) == (200, b"")
    packed = await served.get(url, accept_encoding="gzip")
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == b"x\n" * 3000


async def test_a_store_that_is_away_is_a_503(direct: Serve) -> None:
    served = await direct()
    await put(served.node, b"x\n")
    served.node.run_logs.failures.append(StoreUnavailable("away"))
    reply = await served.get("/p/last")
    assert (reply.status_code, reply.json()["code"]) == (503, 503)


async def test_a_run_that_is_called_last_can_still_be_named(direct: Serve) -> None:
    served = await direct()
    await put(served.node, b"me\n", "last")
    assert (await served.get("/p/%6Cast")).json()["logs"] == "me"
    assert (await served.get("/p/%6Cast/download", **IDENTITY)).content == b"me\n"
