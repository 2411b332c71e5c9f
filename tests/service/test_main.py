"""The service as it runs: start, serve, stop, start again, and what it counts meanwhile."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.main import ProblemLog, run
from service.metrics.scrape import METRICS
from service.settings import Settings
from service.workers import LINES_LEFT
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import FolderLocked, Unavailable

RUN = "/api/v1/services/ingestionPipelines/logs/p/r"
STREAM = "/api/v1/services/ingestionPipelines/logs/p/stream/r"
PLAIN = {"content-type": "text/plain"}
# Whatever it was sent is in the journal alone, also where sending took minutes.
STOPS_AT_ONCE: dict[str, Any] = {
    "server": {"port": 0, "stop_seconds": 0.001},
    "flush": {"segment_seconds": 3600, "segment_bytes": "1GiB"},
}
MOVE_OVER_HTTP = {
    *{
        f"tailrace_{name}"
        for name in (
            *("append_requests", "append_refused", "append_seconds", "batch_lines"),
            *("close_requests", "body_bytes", "replaced_characters", "disconnects"),
            *("stream_readers", "stream_events", "stream_bytes"),
            *("connections", "connections_refused", "connections_timed_out"),
            *("ingest_connected_clients", "api_request_duration_seconds"),
        )
    },
    *{
        f"om_streamable_logs_{name}"
        for name in (
            *("sent", "logs_sent", "failed", "logs_failed", "batch_size"),
            *("latency_seconds", "log_shipment_seconds"),
        )
    },
}


def settings_for(folder: Path, **sections: Any) -> Settings:
    """Of a service in `folder`; a close is over when it answers, however slow the machine is."""
    sections["runs"] = {"close_wait_seconds": 100, **sections.get("runs", {})}
    return Settings(
        data=str(folder / "data"),
        node_id="node-01",
        **{"server": {"port": 0}, "compaction": {"enabled": False}, **sections},
    )


@asynccontextmanager
async def service(
    settings: Settings, *, statuses: Container[int] = (0,)
) -> AsyncIterator[tuple[httpx.AsyncClient, asyncio.Event]]:
    """A running service; it is stopped with the block, and must end with one of `statuses`."""
    stop = asyncio.Event()
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run(settings, stop, on_listening=listening.set_result))
    ends: set[asyncio.Future[Any]] = {task, listening}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    async with httpx.AsyncClient(base_url=listening.result(), timeout=120) as client:
        yield client, stop
        stop.set()
        assert await task in statuses


async def test_what_was_taken_is_there_after_a_stop_and_a_start(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    async with service(settings) as (client, _):
        assert (await client.post(RUN, content=b"a\nb\n", headers=PLAIN)).status_code == 200
    assert list((tmp_path / "data" / "store").rglob("*.parquet"))
    async with service(settings) as (client, _):
        assert (await client.post(RUN, content=b"c\n", headers=PLAIN)).status_code == 200
        assert (await client.get(RUN)).json()["logs"] == "a\nb\nc"


async def test_a_stop_ends_live_streams_and_refuses_batches(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path)) as (client, stop):
        await client.post(RUN, content=b"a\n", headers=PLAIN)
        async with client.stream("GET", STREAM) as response:
            pieces = response.aiter_text()
            assert "event: logs" in await anext(pieces)
            stop.set()
            rest = "".join([piece async for piece in pieces])
        assert "complete" not in rest
        try:
            late = await client.post(RUN, content=b"late\n", headers=PLAIN)
        except httpx.TransportError:
            return  # it was over already
        assert late.status_code == 503
        assert late.json()["type"] == "node-not-ready"
        assert int(late.headers["retry-after"]) > 0


async def test_a_stop_does_not_wait_for_ever_for_clients_that_stand_still(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_for(tmp_path, server={"port": 0, "stop_seconds": 1})
    async with service(settings, statuses=(0, LINES_LEFT)) as (client, stop):
        await client.post(RUN, content=b"a" * 30_000_000, headers=PLAIN)
        host, port = client.base_url.host, client.base_url.port
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(f"POST {RUN} HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 9\r\n\r\nabc".encode())
        _, deaf = await asyncio.open_connection(host, port, limit=1024)
        deaf.write(f"GET {RUN}/download HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await writer.drain()
        await deaf.drain()
        await client.get("/health/live")
        stop.set()
        assert (await reader.readline()).split()[1] == b"503"
        writer.close()
    deaf.close()
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_stop_says_what_it_could_not_bring_into_the_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_for(tmp_path, **STOPS_AT_ONCE)
    async with service(settings, statuses=(LINES_LEFT,)) as (client, _):
        await client.post(RUN, content=b"a\n" * 100_000, headers=PLAIN)
    said = f"100000 lines are only in the journal: keep {settings.data}/journal,"
    assert said in caplog.text
    assert "They are of p/r" in caplog.text
    async with service(settings_for(tmp_path)) as (client, _):
        assert (await client.get(RUN, params={"limit": 1})).json()["totalLines"] == 100_000


async def test_a_stop_names_no_lines_that_are_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_for(tmp_path, **STOPS_AT_ONCE)
    other = RUN.removesuffix("r") + "other"
    async with service(settings, statuses=(LINES_LEFT,)) as (client, _):
        await client.post(RUN, content=b"a\n" * 10_000, headers=PLAIN)
        await client.post(other, content=b"a\n" * 100_000, headers=PLAIN)
        assert (await client.delete(RUN)).status_code == 200
    assert "100000 lines are only in the journal" in caplog.text
    assert "They are of p/other" in caplog.text


async def test_a_stop_with_nothing_but_deleted_lines_is_a_clean_one(tmp_path: Path) -> None:
    async with service(settings_for(tmp_path, **STOPS_AT_ONCE)) as (client, _):
        await client.post(RUN, content=b"a\n" * 100_000, headers=PLAIN)
        assert (await client.delete(RUN)).status_code == 200


async def test_damage_found_at_the_start_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_for(tmp_path, **STOPS_AT_ONCE)
    async with service(settings, statuses=(LINES_LEFT,)) as (client, _):
        for _ in range(5):
            await client.post(RUN, content=b"a\n" * 100_000, headers=PLAIN)
    (journal,) = (tmp_path / "data" / "journal").glob("*.wal")
    with journal.open("r+b") as file:
        file.seek(300_000)
        file.write(b"?")
    async with service(settings, statuses=(LINES_LEFT,)):
        pass
    assert f"{journal}: " in caplog.text


async def test_two_services_do_not_share_a_folder(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    async with service(settings):
        with pytest.raises(FolderLocked):
            async with service(settings):
                pass


async def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Unavailable, match=f"127.0.0.1:{port}") as caught:
            async with service(settings_for(tmp_path, server={"port": port})):
                pass
        assert "--port" in caught.value.hint


async def scrape(client: httpx.AsyncClient) -> dict[str, float]:
    """Every sample's value, summed over labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families((await client.get("/metrics")).text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


def sample_of(name: str, kind: str) -> str:
    return {"counter": f"{name}_total", "gauge": name, "histogram": f"{name}_count"}[kind]


async def test_every_metric_is_exported_and_the_metrics_of_http_move(tmp_path: Path) -> None:
    server = {"port": 0, "header_timeout_seconds": 0.2}
    async with service(settings_for(tmp_path, server=server)) as (client, _):
        before = await scrape(client)
        await client.post(RUN, content=b"a\xff\nb\n", headers=PLAIN)
        await client.post(RUN, content=b"{", headers={"content-type": "application/json"})
        batch = {
            "tailrace-batch": (await client.post(RUN, content=b"c", headers=PLAIN)).json()["batch"]
        }
        assert (await client.post(RUN, content=b"c", headers=PLAIN | batch)).json()["duplicate"]
        assert (await client.post(RUN, content=b"d", headers=PLAIN | batch)).status_code == 409
        async with client.stream("GET", STREAM) as response:
            await anext(response.aiter_text())
            during = await scrape(client)
        await _half_a_body(str(client.base_url))
        await _half_a_head(str(client.base_url))
        await client.post(RUN + "/close")
        await client.get("/query?q=a")
        await client.delete(RUN)
        await asyncio.sleep(0.05)
        after = await scrape(client)
    names = {declared.name: sample_of(declared.name, declared.kind) for declared in METRICS}
    for name, sample in names.items():
        labelled = next(d for d in METRICS if d.name == name).labels
        assert sample in after or labelled, f"{name} is not exported"
    assert during["tailrace_stream_readers"] == 1
    assert during["tailrace_connections"] == 2  # the stream's, and the one that asks
    moved = {sample for sample in after if after[sample] > before.get(sample, 0)}
    moved |= {"tailrace_stream_readers", "tailrace_connections"}
    assert during["tailrace_ingest_connected_clients"] == 2
    moved.add("tailrace_ingest_connected_clients")
    assert {name for name in MOVE_OVER_HTTP if names[name] not in moved} == set()


async def _half_a_body(url: str) -> None:
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        f"POST {RUN} HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\n"
        "content-length: 100\r\n\r\nhalf".encode()
    )
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.close()
    await writer.wait_closed()


async def _half_a_head(url: str) -> None:
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\nhost")
    assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
    writer.close()
    await writer.wait_closed()


def test_each_problem_is_said_once_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    problems: list[str] = []
    watch = ProblemLog(lambda: problems, SystemClock())
    for now in ([], ["disk"], ["disk"], ["disk", "store"], ["store"], [], ["disk"]):
        problems[:] = now
        watch.look()
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert said == [
        ("WARNING", "disk"),
        ("WARNING", "store"),
        ("INFO", "over: disk"),
        ("INFO", "over: store"),
        ("WARNING", "disk"),
    ]
