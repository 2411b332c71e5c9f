"""Where segments come from: a service over HTTP, with a token, and memory for appenders' tests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tailrace.coordination.groups import change_group, evict, remote_group
from tailrace.coordination.pipelines import read_control
from tailrace.logstore import ulid
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import InvalidInput, NotFound, StoreUnavailable
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.config import PipelineSettings
from tailrace.logstore.objects.local import LocalStore
from tailrace.pipelines.appenders.registry import AppenderRegistry
from tailrace.pipelines.definition import PipelineConfig, parse
from tailrace.pipelines.events import Origin
from tailrace.pipelines.process import PipelinesProcess
from tailrace.pipelines.sources.service import (
    MemorySegments,
    ServiceClient,
    ServiceReply,
    ServiceSegments,
)
from tailrace.pipelines.world import admin_of, open_world
from tests.e2e.service_process import BASE, ServiceProcess
from tests.pipelines.events import events
from tests.pipelines.lake import Lake
from tests.pipelines.remembering import (
    FAST,
    Remembering,
    forget,
    has,
    named,
    pipeline,
    until,
)
from tests.service.access.rules_file import rule, token_of, written

__all__ = ["forget"]
CONSUMER, OPERATOR = token_of("consumer"), token_of("operator")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder = tmp_path_factory.mktemp("service")
    made = ServiceProcess(
        folder / "node",
        store=folder / "store",
        TAILRACE_ACCESS__RULES=written(
            folder / "rules.yaml",
            rule(CONSUMER, {"consume": ["*"]}),
            rule(OPERATOR, {scope: ["*"] for scope in ("ingest", "read", "admin", "consume")}),
        ),
        TAILRACE_FLUSH__SEGMENT_SECONDS="0.2",
        TAILRACE_QUEUE__POLL_SECONDS="0.1",
    )
    made.start()
    yield made
    made.stop()
    assert "Traceback" not in made.output()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def operator(service: ServiceProcess) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {OPERATOR}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=60) as client:
        yield client


def post(operator: httpx.Client, fqn: str, run: str, *lines: str) -> None:
    text = "".join(f"{line}\n" for line in lines)
    operator.post(
        f"{BASE}/{fqn}/{run}", content=text, headers={"content-type": "text/plain"}
    ).raise_for_status()


def over_http(lake: Lake, service: ServiceProcess, token: str) -> Path:
    """Makes the processes of the lake read from the service; the file of their token."""
    file = lake.folder / "token"
    file.write_text(f"{token}\n")
    lake.settings = lake.settings.model_copy(
        update={
            "pipelines": PipelineSettings(
                poll_seconds=0.05, source_url=service.url, source_token_file=str(file)
            )
        }
    )
    return file


async def test_a_pipeline_over_http_writes_each_line_once_and_lets_segments_go(
    lake: Lake, service: ServiceProcess, operator: httpx.Client, tmp_path: Path
) -> None:
    over_http(lake, service, CONSUMER)
    out = tmp_path / "out"
    files = {"type": "rolling_file", "name": "f", "dir": str(out), "path": "{fqn}.log"}
    made = parse({"name": "files", **FAST, "appenders": [files]}, AppenderRegistry())

    def written_lines() -> list[str]:
        path = out / "shop.load.log"
        return path.read_text().splitlines() if path.exists() else []

    lines = [f"line {number}" for number in range(6)]
    post(operator, "shop.load", "r", *lines[:2])
    async with lake.running(made):
        await until(lambda: written_lines() == lines[:2])
        post(operator, "shop.load", "r", *lines[2:4])
        await until(lambda: written_lines() == lines[:4])
    post(operator, "shop.load", "r", *lines[4:])
    group = f"/segments/groups/{remote_group('files').replace(':', '%3A').replace('@', '%40')}"
    async with lake.running(made) as process:
        await until(lambda: written_lines() == lines)
        await until(lambda: all(one.counts.checkpoints for one in process.workers))
        behind = operator.get(group).json()
        assert behind["lag"]["segments"] > 0
        async with asyncio.timeout(60):
            while operator.get(group).json()["lag"]["segments"] > 0:
                await process.move_groups()
                await asyncio.sleep(0.1)
    assert written_lines() == lines
    assert operator.get("/pipelines").json()["pipelines"] == []  # its state is not in this store


async def test_a_replay_of_a_pipeline_over_http_is_refused_wherever_it_is_asked_for(
    lake: Lake, service: ServiceProcess, operator: httpx.Client
) -> None:
    """Also by settings without `source_url`: its table is not in this store."""
    here = lake.settings
    over_http(lake, service, CONSUMER)
    post(operator, "shop.again", "r", "one")
    made = named("again", pipeline("a"))
    async with lake.running(made):
        await until(lambda: "one" in Remembering.lines.get("a", []))
    lake.settings = here
    async with open_world(here) as world:
        admin = admin_of(world)
        with pytest.raises(InvalidInput, match="again reads over HTTP") as refused:
            await admin.replay("again", "0")
        assert "without pipelines.source_url" in str(refused.value.hint)
        asked, _ = await admin.replay("again", None)
        assert asked.low is None
    async with lake.running(made):  # it reads from the store from now on
        async with open_world(here) as world:
            async with asyncio.timeout(30):
                while (await read_control(world.store, "again")).over_http:
                    await asyncio.sleep(0.05)
            asked, _ = await admin_of(world).replay("again", "0")
            assert asked.low is not None


async def test_deleted_lines_that_wait_are_not_given(
    lake: Lake, service: ServiceProcess, operator: httpx.Client
) -> None:
    over_http(lake, service, CONSUMER)
    post(operator, "shop.gone", "r", "deleted")
    post(operator, "shop.stays", "r", "kept")
    waits = pipeline(
        "a", event_delay_ms=600_000, idle_node_ms=1500, filter={"fqn": ["shop.gone", "shop.stays"]}
    )
    async with lake.running(waits) as process:
        await until(
            lambda: any(
                one.progress is not None and len(one.progress.buffer) == 2
                for one in process.workers
            )
        )
        operator.delete(f"{BASE}/shop.gone/r").raise_for_status()
        await until(has("a", "kept"))
        assert process.workers[0].counts.deleted == 1


async def test_a_token_that_is_refused_is_said_and_fails_no_appender(
    lake: Lake,
    service: ServiceProcess,
    operator: httpx.Client,
    caplog: pytest.LogCaptureFixture,
) -> None:
    token = over_http(lake, service, token_of("nobody"))
    post(operator, "shop.refused", "r", "1")
    async with lake.running(pipeline("a", filter={"fqn": "shop.refused"})) as process:
        await until(lambda: f"{service.url} answers 401" in caplog.text)
        assert process.workers == []
        token.write_text(CONSUMER)
        await until(has("a", "1"))
        token.write_text(token_of("nobody"))
        await until(lambda: any(one.failure is not None for one in process.workers))
        assert process.workers[0].counts.failures == 0
        token.write_text(CONSUMER)
        post(operator, "shop.refused", "r", "2")
        await until(has("a", "1", "2"))


async def test_an_eviction_by_the_service_stops_the_pipeline(
    lake: Lake, service: ServiceProcess, operator: httpx.Client, tmp_path: Path
) -> None:
    """What it has not read may be gone: it does nothing until an operator decides."""

    over_http(lake, service, CONSUMER)
    store = LocalStore(str(service.data.parent / "store"), Disk(), SystemClock(), random.Random(1))
    post(operator, "shop.evicted", "r", "1")
    made = pipeline("a", filter={"fqn": "shop.evicted"})
    async with lake.running(made):
        await until(has("a", "1"))
    await change_group(
        store, remote_group("p"), lambda one: evict(one, 1, "too much"), fresh_id=lambda: "v"
    )
    async with lake.running(made) as process:
        await until(lambda: process.evicted == {"p"})
    assert Remembering.lines["a"] == ["1"]


async def test_lists_are_read_by_pages_behind_what_is_known(
    lake: Lake, service: ServiceProcess, operator: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.pipelines.sources.service._PAGE", 2)
    file = lake.folder / "token"
    file.write_text(CONSUMER)
    async with aclosing(ServiceClient(service.url, token_file=str(file))) as client:
        segments = ServiceSegments(client, SystemClock())

        def stored() -> list[dict[str, Any]]:
            rows = operator.get("/segments", params={"limit": 1000}).json()["segments"]
            return list(rows)

        async def post_segment(line: str) -> None:
            had = len(stored())
            post(operator, "shop.pages", "r", line)
            await until(lambda: len(stored()) > had)

        for number in range(5):
            await post_segment(str(number))
        found = await segments.nodes({})
        ((node, known),) = found.items()
        assert known.sizes == {row["seq"]: row["bytes"] for row in stored()}
        assert len(known.sizes) > 4
        asked: list[dict[str, object]] = []
        original = client.ask

        async def counted(method: str, path: str, more: dict[str, Any]) -> ServiceReply:
            asked.append(more)
            return await original(method, path, more)

        monkeypatch.setattr(client, "ask", counted)
        assert (await segments.nodes(found)).keys() == {node}
        assert len(asked) == 2
        with pytest.raises(NotFound):
            await segments.fetch(Origin(node, 10_000))
        low, high, runs = await segments.held(Origin(node, max(known.sizes)))
        assert ulid.decode(low) <= ulid.decode(high)
        assert runs


async def test_what_is_wrong_with_the_address_is_said(tmp_path: Path) -> None:
    for url in ("host:1", "ftp://host", "http://user:word@host"):
        with pytest.raises(InvalidInput, match=r"pipelines.source_url"):
            ServiceClient(url)
    with pytest.raises(InvalidInput, match="cannot be read"):
        ServiceClient("http://localhost:1", token_file=str(tmp_path / "none"))
    with pytest.raises(InvalidInput, match="certificates"):
        ServiceClient("https://localhost:1", ca_file=str(tmp_path / "none"))
    async with aclosing(ServiceClient("http://127.0.0.1:1")) as client:
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await client.ask("GET", "/segments", {})


# --- in memory -------------------------------------------------------------------------------


@asynccontextmanager
async def in_memory(
    lake: Lake, segments: MemorySegments, *pipelines: PipelineConfig
) -> AsyncIterator[PipelinesProcess]:
    async with lake.world() as world:
        process = PipelinesProcess(replace(world, segments=segments), pipelines)
        task = asyncio.ensure_future(process.run())
        try:
            yield process
        finally:
            process.stop()
            await task


async def test_an_appender_is_tested_with_segments_in_memory(lake: Lake) -> None:
    segments = MemorySegments()
    segments.put(events(["1", "2"]))
    segments.put_damaged()
    segments.put(events(["3"], batch=1), node="other")
    segments.deleted["gone", None] = (1 << 128) - 1
    segments.put(events(["deleted"], fqn="gone"))
    async with in_memory(lake, segments, pipeline("a")) as process:
        await until(lambda: sorted(Remembering.lines.get("a", ())) == ["1", "2", "3"])
        await until(lambda: process.workers[0].counts.deleted == 1)
        assert process.workers[0].counts.damaged == 1
        await until(lambda: process.workers[0].counts.checkpoints > 1)
        async with asyncio.timeout(60):
            while len(segments) == 4:  # until a checkpoint has them
                await process.move_groups()
                await asyncio.sleep(0.05)
    segments.put(events(["4"], batch=2))
    async with in_memory(lake, segments, pipeline("a")):
        await until(lambda: sorted(Remembering.lines["a"]) == ["1", "2", "3", "4"])
