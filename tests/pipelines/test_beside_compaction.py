"""No pipeline, however it is configured, keeps the compactor from its work: with real processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import yaml
from deltalake import DeltaTable

from tests.e2e.service_process import BASE, ServiceProcess
from tests.pipelines.torture.torture import PipelinesProcess

pytestmark = [pytest.mark.spark, pytest.mark.in_turn(4, "pipelines beside compaction")]

_PATIENCE_SECONDS = 120.0
_STUCK = '''
import threading
from typing import ClassVar

from tailrace.pipelines.section import Section


class Nothing(Section):
    """No keys."""


class Stuck:
    """Never comes back from its first events."""

    settings: ClassVar[type[Section]] = Nothing

    def __init__(self, settings):
        pass

    def start(self, context, state):
        pass

    def append(self, events):
        threading.Event().wait()

    def sync(self):
        return {}

    def saved(self):
        pass

    def stop(self):
        pass


APPENDERS = {"stuck": Stuck}
'''


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def definitions(folder: Path) -> dict[str, dict[str, Any]]:
    """A pipeline that keeps up, and some that hold segments for ever."""
    (folder / "in-the-way").write_text("a file, where a folder is to be")

    def files(name: str) -> dict[str, Any]:
        return {"type": "rolling_file", "name": "f", "dir": str(folder / name), "path": "all.log"}

    waits = {"event_delay_ms": 10**9, "idle_node_ms": 10**9}
    return {
        "good": {"appenders": [files("good")]},
        "behind": {**waits, "buffer_size_bytes": "1TiB", "appenders": [files("behind")]},
        "paused": {"appenders": [files("paused")]},
        "stuck": {"appenders": [{"type": "stuck", "name": "s"}, files("beside")]},
        "unable": {"appenders": [files("in-the-way"), {**files("unable"), "name": "g"}]},
        "rarely": {"checkpoint_interval_ms": 10**9, "appenders": [files("rarely")]},
    }


def test_a_compaction_ends_whatever_pipelines_do_and_they_hold_what_they_may(
    tmp_path: Path,
) -> None:
    service = ServiceProcess(
        tmp_path / "node",
        TAILRACE_FLUSH__SEGMENT_SECONDS="0.3",
        TAILRACE_RUNS__PARTIAL_FLUSH_INTERVAL_MINUTES="0.01",
    )
    store = {"TAILRACE_STORE": str(tmp_path / "node" / "store")}
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "stuck.py").write_text(_STUCK)
    fast = {"event_delay_ms": 0, "idle_node_ms": 300, "checkpoint_interval_ms": 300}
    for name, content in definitions(tmp_path).items():
        path = tmp_path / "pipelines" / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"name": name, **fast, **content}))
    process = PipelinesProcess(
        tmp_path / "process", tmp_path / "pipelines", store, libraries=tmp_path / "lib"
    )
    lines: list[str] = []

    def post(count: int) -> None:
        new = [f"line-{len(lines) + number:06}" for number in range(count)]
        answer = httpx.post(
            f"{service.url}{BASE}/shop.load/run1",
            content="".join(f"{line}\n" for line in new),
            headers={"Content-Type": "text/plain"},
            timeout=60,
        )
        answer.raise_for_status()
        lines.extend(new)

    def written(name: str) -> list[str]:
        path = tmp_path / name / "all.log"
        return path.read_text().split() if path.exists() else []

    def groups() -> dict[str, Any]:
        found = httpx.get(f"{service.url}/segments/groups", timeout=60).json()["groups"]
        return {group["group"].removeprefix("pipeline:"): group for group in found}

    def segments() -> int:
        return len(list((tmp_path / "node" / "store" / "segments").glob("*/*.parquet")))

    service.start()
    process.start()
    try:
        until(lambda: len(groups()) == len(definitions(tmp_path)))
        process.ask("pause", "paused")
        for _ in range(10):
            post(100)
            until(lambda: written("good") == lines)
        until(lambda: groups()["good"]["lag"]["segments"] == 0)
        stored = segments()
        report = compact(service)
        assert (report["segments"], report["rows_out"]) == (stored, len(lines))
        table = DeltaTable(str(tmp_path / "node" / "store" / "table")).to_pyarrow_table()
        assert sorted(table.column("message").to_pylist()) == lines
        assert segments() == stored  # held, within what a pipeline may hold
        report = compact(service, TAILRACE_SEGMENTS__MAX_BYTES="1000")
        assert (report["segments_removed"], segments()) == (stored, 0)
        found = groups()
        assert found.pop("good")["evicted"] is None
        assert {name for name, group in found.items() if "kept" in group["evicted"]["reason"]} == {
            *("behind", "paused", "stuck", "unable", "rarely")
        }
        post(100)
        until(lambda: written("good") == lines)
    finally:
        process.kill()
        service.stop()


def compact(service: ServiceProcess, **more: str) -> dict[str, Any]:
    """The report of a pass with Spark."""
    settings = {
        "TAILRACE_COMPACTION__SETTLE_SECONDS": "0",
        "TAILRACE_COMPACTION__GRACE_SECONDS": "0",
        **more,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tailrace", "compact", "--data", str(service.data), "--json"],
        env=service.settings | settings,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return cast(dict[str, Any], json.loads(done.stdout.splitlines()[-1]))
