"""What an appender is told beside its events, in a process that runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailrace.logstore.runs.deletions import Deletion, encode_deletion
from tailrace.pipelines.appenders.registry import AppenderRegistry
from tailrace.pipelines.definition import parse
from tests.pipelines.lake import Lake
from tests.waiting import until

FAST = {
    "event_delay_ms": 0,
    "idle_node_ms": 200,
    "checkpoint_interval_ms": 50,
}


def has(folder: Path, name: str, text: str) -> Callable[[], bool]:
    path = folder / name
    return lambda: path.exists() and path.read_text() == text


async def test_an_appender_is_flushed_and_told_of_deletions_while_nothing_comes(
    tmp_path: Path,
) -> None:
    lake, out = Lake(tmp_path), tmp_path / "out"
    files: dict[str, Any] = {"type": "rolling_file", "name": "files", "dir": str(out)}
    more = {"path": "{fqn}/{run}/x.log", "roll_idle": "300ms", "on_delete": "remove"}
    config = parse({"name": "p", **FAST, "appenders": [{**files, **more}]}, AppenderRegistry())
    first = await lake.put("1", "2", run="r")
    async with lake.running(config):
        await until(has(out, "shop.load/r/x.000001.log", "1\n2\n"))
        deletion = Deletion("shop.load", "r", first | 0xFFFF, "v")
        await lake.store.put(deletion.key, encode_deletion(deletion))
        await until(lambda: not (out / "shop.load" / "r").exists())
        await lake.put("3", run="r")
        await until(lambda: [p.read_text() for p in out.glob("shop.load/r~*/x.*log")] == ["3\n"])
        assert not (out / "shop.load" / "r").exists()
