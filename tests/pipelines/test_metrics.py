"""Metrics of a process of pipelines: each declared one moves, and probes are answered."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tailrace.coordination.groups import PipelineReplay, change_group, evict, pipeline_group
from tailrace.coordination.pipelines import ask_for_replay
from tailrace.logstore import keys, ulid
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.prometheus import ProgramHealth, serve
from tailrace.logstore.runs.deletions import Deletion, encode_deletion
from tailrace.pipelines.definition import PipelineFolder
from tailrace.pipelines.process import METRICS, PipelinesProcess, collect, health
from tailrace.pipelines.world import admin_of
from tests.pipelines.lake import Lake
from tests.pipelines.remembering import Remembering, forget, named, pipeline, until
from tests.servers.ports import free_port

__all__ = ["forget"]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def sample(process: PipelinesProcess, name: str, *labels: str) -> float:
    """The sum of a metric's samples with these first values of their labels."""
    metrics = [one for one in collect(process) if one.name == f"tailrace_pipelines_{name}"]
    return sum(
        one.value
        for metric in metrics  # none before an appender has declared its own
        for one in metric.samples
        if list(one.labels.values())[: len(labels)] == list(labels)
    )


async def test_each_metric_moves(lake: Lake, tmp_path: Path) -> None:
    moved: set[str] = set()
    watched = True

    async def watch(process: PipelinesProcess) -> None:
        while watched:
            for metric in METRICS:
                if any(one.value for one in metric.family(process).samples):
                    moved.add(metric.name)
            await asyncio.sleep(0.005)

    clock = SystemClock()
    first = await lake.put("1", "2", node="a")
    gone = await lake.put("gone", run="gone", node="a")
    deletion = Deletion("shop.load", "gone", gone | 0xFFFF, "v")
    await lake.store.put(deletion.key, encode_deletion(deletion))
    await lake.store.put(keys.segment("a", 3), b"no segment")
    lake.seqs["a"] = 3
    failing = {"error_threshold": 3, "dead_letter_dir": str(tmp_path / "dead")}
    tight = named("tight", pipeline("t", buffer_size_bytes=1, event_delay_ms=900_000))
    waits = named("waits", pipeline("w", event_delay_ms=900_000, idle_node_ms=900_000))
    broken = named("broken", pipeline("broken", **failing))
    Remembering.failing = {"broken"}
    async with lake.running(pipeline("x"), tight, waits, broken) as process:
        task = asyncio.ensure_future(watch(process))
        await until(lambda: len(Remembering.lines.get("x", ())) == 2)
        await lake.put("1", "2", node="b", ulid_=first)
        await lake.put("0", node="b", ulid_=first - (600_000 << 80))
        await lake.put("3", node="a")
        await until(lambda: sample(process, "late_events", "p") == 1)
        await until(lambda: sample(process, "copies", "p") == 2)
        await until(lambda: sample(process, "dead_letters", "broken") == 4)
        await until(lambda: sample(process, "forced_events", "tight") >= 3)
        await until(lambda: len(Remembering.lines["x"]) == 4)
        fresh = ulid.fresh_text(clock, system_entropy())
        asked = PipelineReplay(fresh, ulid.encode(0), clock.now_ms())
        await ask_for_replay(lake.store, "p", asked, fresh_id=lambda: fresh)
        await until(lambda: sample(process, "again_events", "p") == 4)
        await change_group(
            lake.store,
            pipeline_group("waits"),
            lambda one: evict(one, 1, "it kept 9"),
            fresh_id=lambda: "v",
        )
        await until(lambda: sample(process, "evicted", "waits") == 1)
        await until(lambda: "tailrace_pipelines_evicted" in moved)
        assert abs(sample(process, "last_checkpoint_timestamp_seconds", "p") - time.time()) < 600
        assert sample(process, "events", "p") == 8
        assert sample(process, "deleted_events", "p") >= 1
        said = health(process)
        assert (said.live, said.ready) == (True, True)
        assert "waits: it is evicted and does nothing: it kept 9" in said.problems
        watched = False
        await task
    await lake.put("4", node="a")
    await lake.put("5", node="a")
    await lake.remove("a", 5)
    ahead = datetime.now(UTC) + timedelta(days=3)
    await lake.put(f"{ahead:%Y-%m-%dT%H:%M:%SZ} ahead", node="a")
    watched = True
    made, wrong = pipeline("x"), {"w.yaml": InvalidInput("w.yaml: unknown key filtr")}
    async with lake.running(made, read_again=lambda: PipelineFolder([made], wrong)) as process:
        task = asyncio.ensure_future(watch(process))
        await until(lambda: sample(process, "lost_segments", "p") == 1)
        await until(lambda: "tailrace_pipelines_lost_segments" in moved)
        await until(lambda: "tailrace_pipelines_wrong_files" in moved)
        await until(lambda: not health(process).ready)
        await until(lambda: "tailrace_pipelines_clamped_events" in moved)
        Remembering.refused = {"never"}
        await lake.put("never", node="a")
        await until(lambda: sample(process, "refused_events", "p") == 1)
        await until(lambda: "tailrace_pipelines_refused_events" in moved)
        Remembering.refused = set()
        async with lake.world() as world:
            await admin_of(world).redeliver("p", "x")
        await until(lambda: "tailrace_pipelines_redelivered_events" in moved)
        watched = False
        await task
    assert {metric.name for metric in METRICS} == moved


async def test_what_an_appender_declares_is_told_by_its_parts(lake: Lake) -> None:
    await lake.put("1", "22")
    Remembering.failing = {"y"}
    async with lake.running(pipeline("x"), named("other", pipeline("y"))) as process:
        await until(lambda: sample(process, "appender_remembered", "p", "x", "0") == 2)
        # The count goes on where the appender is started again.
        await until(lambda: sample(process, "appender_remembered", "other", "y", "0") > 2)
        assert sample(process, "appender_newest_length", "p") == 2


def asked(port: int, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


async def test_it_is_served_with_health(lake: Lake) -> None:
    port = free_port()
    await lake.put("1")
    async with lake.running(pipeline("x")) as process:
        await until(lambda: sample(process, "events", "p") == 1)
        stop = serve(f"127.0.0.1:{port}", lambda: collect(process), lambda: health(process))
        try:
            status, body = await asyncio.to_thread(asked, port, "/metrics")
            assert status == 200
            (line,) = re.findall(r"tailrace_pipelines_events_total\{(.*)\} 1\.0", body.decode())
            assert sorted(line.split(",")) == ['appender="x"', 'part="0"', 'pipeline="p"']
            status, body = await asyncio.to_thread(asked, port, "/health/ready")
            assert (status, json.loads(body)) == (200, {"status": "ok", "problems": []})
        finally:
            await asyncio.to_thread(stop)


@pytest.mark.parametrize(
    ("state", "live", "ready"),
    [
        (ProgramHealth(), 200, 200),
        (ProgramHealth(ready=False, problems=("no store",)), 200, 503),
        (ProgramHealth(live=False, problems=("stuck",)), 503, 503),
    ],
)
def test_probes(state: ProgramHealth, live: int, ready: int) -> None:
    port = free_port()
    stop = serve(f"127.0.0.1:{port}", list, lambda: state)
    try:
        assert asked(port, "/health/live")[0] == live
        status, body = asked(port, "/health/ready")
        assert status == ready
        assert json.loads(body)["problems"] == list(state.problems)
        with pytest.raises(InvalidInput, match=r"a\.key: .* cannot be used"):
            serve(f"127.0.0.1:{port}", list, key="a.key")
    finally:
        stop()
