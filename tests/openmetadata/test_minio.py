"""OpenMetadata's integration tests of its storage on MinIO: here of a whole service on MinIO.

Upstream's pass with much less: they tolerate an empty answer, and look for some of the lines.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from service.settings import Settings
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.objects.config import StoreSettings
from tests.openmetadata.server import numbered
from tests.servers.minio import Bucket
from tests.service.test_main import scrape, service

pytestmark = pytest.mark.minio
LOGS = "/api/v1/services/ingestionPipelines/logs"
FQN = "service.pipeline_minio"


def settings_on(store: StoreSettings, folder: Path, **sections: Any) -> Settings:
    """A service on a store, with a journal in a folder; what is closed is closed at once."""
    sections["runs"] = {"close_wait_seconds": 100, **sections.get("runs", {})}
    return Settings(
        data=str(folder / "data"),
        store=store.store,
        s3=store.s3,
        **{"server": {"port": 0}, "compaction": {"enabled": False}, **sections},
    )


class Runs:
    """What clients do with the runs of one pipeline."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def append(self, run: str, logs: str) -> None:
        reply = await self.client.post(f"{LOGS}/{FQN}/{run}", json={"logs": logs})
        assert reply.status_code == 200, reply.text

    async def close(self, run: str) -> dict[str, Any]:
        reply = await self.client.post(f"{LOGS}/{FQN}/{run}/close")
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    async def page(self, run: str, **query: Any) -> dict[str, Any]:
        reply = await self.client.get(f"{LOGS}/{FQN}/{run}", params=query)
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    async def text(self, run: str) -> str:
        reply = await self.client.get(f"{LOGS}/{FQN}/{run}/download")
        assert reply.status_code == 200, reply.text
        return reply.text


@pytest.fixture
async def runs(bucket: Bucket, tmp_path: Path) -> AsyncIterator[Runs]:
    """On a running service over an empty bucket."""
    flush = {"segment_seconds": 0.2}
    async with service(settings_on(bucket.settings, tmp_path, flush=flush)) as (client, _):
        yield Runs(client)


def stored(bucket: Bucket, run: str, name: str) -> bytes:
    """An object of a run, asked of the server itself."""
    with closing(bucket.client()) as s3:
        key = f"{bucket.prefix}/pipeline-logs/{FQN}/{run}/{name}"
        return bytes(s3.get_object(Bucket=bucket.name, Key=key)["Body"].read())


def keys_of(bucket: Bucket, run: str) -> list[str]:
    """The names of a run's objects below the texts."""
    with closing(bucket.client()) as s3:
        prefix = f"{bucket.prefix}/pipeline-logs/{FQN}/{run}/"
        found = s3.list_objects_v2(Bucket=bucket.name, Prefix=prefix)
        return [entry["Key"].removeprefix(prefix) for entry in found.get("Contents", [])]


async def test_what_is_written_is_read(runs: Runs, bucket: Bucket) -> None:
    """MinioIT.1: write and read."""
    run = str(uuid4())
    for line in ("INFO Starting pipeline", "INFO Processing data", "INFO Pipeline completed"):
        await runs.append(run, f"2024-01-15 10:00:00 {line}\n")
    text = await runs.text(run)
    assert text.count("\n") == 3
    await runs.close(run)
    assert stored(bucket, run, "logs.txt").decode() == text == await runs.text(run)


async def test_a_hundred_lines_in_pages_of_twenty(runs: Runs) -> None:
    """MinioIT.2: 100 lines, 20 on each page, each line once."""
    run = str(uuid4())
    await runs.append(run, numbered(0, 100))
    for closed in (False, True):
        if closed:
            await runs.close(run)
        pages, after = [], None
        for _ in range(5):
            page = await runs.page(run, limit=20, **({} if after is None else {"after": after}))
            pages.append(page["logs"])
            after = page["after"]
        assert after is None
        assert "\n".join(pages) + "\n" == numbered(0, 100)


async def test_ten_writers_at_once(runs: Runs) -> None:
    """MinioIT.3: 10 threads with 10 appends each: all 100 lines are there."""
    run = str(uuid4())

    async def write(thread: int) -> None:
        for number in range(10):
            await runs.append(run, f"Thread-{thread} Log-{number}\n")

    await asyncio.gather(*[write(thread) for thread in range(10)])
    await runs.close(run)
    lines = (await runs.text(run)).splitlines()
    assert sorted(lines) == sorted(f"Thread-{t} Log-{n}" for t in range(10) for n in range(10))
    for thread in range(10):
        own = [line for line in lines if line.startswith(f"Thread-{thread} ")]
        assert own == [f"Thread-{thread} Log-{number}" for number in range(10)]


async def test_six_megabytes_at_once(runs: Runs, bucket: Bucket) -> None:
    """MinioIT.4: a single append of 6 MB; `logs.txt` exists after the close."""
    run = str(uuid4())
    whole = numbered(0, 6 << 17, "x")
    assert len(whole) > 6_000_000
    await runs.append(run, whole)
    await runs.close(run)
    for _ in range(1200):
        if (await runs.page(run, limit=1))["state"] == "closed":
            break
        await asyncio.sleep(0.1)
    assert stored(bucket, run, "logs.txt").decode() == whole
    with closing(bucket.client()) as s3:
        assert not s3.list_multipart_uploads(Bucket=bucket.name).get("Uploads")


async def test_runs_are_listed(runs: Runs) -> None:
    """MinioIT.5: 5 runs are listed, and a limit of 3 is honoured. Ours: the newest three."""
    made = [str(uuid4()) for _ in range(5)]
    for run in made:
        await runs.append(run, "x\n")
        await asyncio.sleep(0.002)
    for run in made[:3]:
        await runs.close(run)
    reply = (await runs.client.get(f"{LOGS}/{FQN}", params={"limit": 10})).json()
    assert reply["runs"] == made[::-1]
    reply = (await runs.client.get(f"{LOGS}/{FQN}", params={"limit": 3})).json()
    assert reply["runs"] == made[:1:-1]


async def test_a_run_is_deleted(runs: Runs, bucket: Bucket) -> None:
    """MinioIT.6: after a deletion the run does not exist. Ours: no object of it, either."""
    run = str(uuid4())
    await runs.append(run, "x\n")
    await runs.close(run)
    assert keys_of(bucket, run)
    reply = await runs.client.delete(f"{LOGS}/{FQN}/{run}")
    assert reply.status_code == 200
    assert keys_of(bucket, run) == []
    assert (await runs.client.get(f"{LOGS}/{FQN}/{run}/download")).status_code == 404


async def test_an_empty_run(runs: Runs) -> None:
    """MinioIT.7: a run without lines is an empty page."""
    await runs.append(str(uuid4()), "of another run\n")
    page = await runs.page(str(uuid4()))
    assert (page["logs"], page["after"], page["total"]) == ("", None, 0)


async def test_a_line_can_be_read_while_it_waits(runs: Runs) -> None:
    """MinioIT.8: a buffered line is readable after 6 s. Ours: at once, and ever after."""
    run = str(uuid4())
    await runs.append(run, "buffered\n")
    assert (await runs.page(run))["logs"] == "buffered"
    await asyncio.sleep(0.6)  # it is in a segment now
    assert (await runs.page(run))["logs"] == "buffered"


async def test_a_server_that_is_not_there(bucket: Bucket, tmp_path: Path) -> None:
    """MinioIT.9: a wrong endpoint fails the start.

    Ours: a store that cannot be reached does not: it may come back, and what clients send
    waits in the journal. A new node takes nothing before it is registered, and says why; what
    the server refuses fails the start.
    """
    unreachable = bucket.through("http://127.0.0.1:9").settings
    async with service(settings_on(unreachable, tmp_path)) as (client, _):
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()["code"]) == (503, 503)
        problems: list[str] = []
        while not any("not registered yet" in problem for problem in problems):
            problems = (await client.get("/health/live")).json()["problems"]
    wrong = bucket.through(bucket.endpoint_url, secret_access_key="wrong").settings
    with pytest.raises(InvalidInput):
        async with service(settings_on(wrong, tmp_path)):
            pass


async def test_a_third_stream_at_a_limit_of_two(bucket: Bucket, tmp_path: Path) -> None:
    """MinioIT.10: at `maxConcurrentStreams` 2 the third stream is refused.

    Ours: it bounds the runs with state in memory; none is refused, and none loses a line.
    """
    few = {"max_concurrent_streams": 2}
    async with service(settings_on(bucket.settings, tmp_path, runs=few)) as (client, _):
        runs = Runs(client)
        made = [str(uuid4()) for _ in range(5)]
        for part in range(3):
            for run in made:
                await runs.append(run, f"{part}\n")
        for run in made:
            assert await runs.text(run) == "0\n1\n2\n"


async def test_metrics_move(runs: Runs) -> None:
    """MinioIT.11: writes, reads and their durations are counted."""
    run = str(uuid4())
    before = await scrape(runs.client)
    await runs.append(run, "x\n")
    await runs.close(run)
    await runs.text(run)
    after = await scrape(runs.client)
    for name in (
        "om_streamable_logs_sent_total",
        "om_s3_writes_total",
        "om_s3_reads_total",
        "om_s3_operation_duration_seconds_count",
    ):
        assert after[name] > before.get(name, 0), name


async def test_written_and_read_over_http(runs: Runs) -> None:
    """MinioIT.12: a REST write, then a REST read."""
    run = str(uuid4())
    await runs.append(run, "REST line 1\nREST line 2\n")
    page = await runs.page(run)
    assert (page["logs"], page["total"]) == ("REST line 1\nREST line 2", 2)


async def test_the_message_of_a_close(runs: Runs) -> None:
    """MinioIT.13: a REST close returns the exact message."""
    run = str(uuid4())
    await runs.append(run, "x\n")
    assert (await runs.close(run))["message"] == "Log stream closed successfully"


async def test_what_a_client_reports_is_kept_on_a_real_server(runs: Runs, bucket: Bucket) -> None:
    """Not upstream's, which keeps it in its database: swapped under a condition, and listed."""
    root = f"/api/v1/services/ingestionPipelines/{FQN}/pipelineStatus"
    made = [str(uuid4()) for _ in range(3)]

    async def say(run: str, state: str, number: int) -> None:
        value = {"runId": run, "pipelineState": state, "timestamp": number}
        assert (await runs.client.put(root, json=value)).status_code == 200

    for number, run in enumerate(made):
        await say(run, "running", number)
    await asyncio.gather(*[say(made[1], "running", 1) for _ in range(8)])
    await say(made[1], "success", 1)
    found = (await runs.client.get(root)).json()["data"]
    assert [entry["runId"] for entry in found] == made[::-1]
    assert found[1]["pipelineState"] == "success"
    last = await runs.client.get(f"{LOGS}/{FQN}/last")
    assert last.headers["tailrace-run"] == made[2]
    await runs.client.delete(f"{LOGS}/{FQN}")
    assert (await runs.client.get(root)).json()["data"] == []
    with closing(bucket.client()) as s3:
        prefix = f"{bucket.prefix}/coordination/status/"
        assert "Contents" not in s3.list_objects_v2(Bucket=bucket.name, Prefix=prefix)
