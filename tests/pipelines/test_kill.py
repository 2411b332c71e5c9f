"""Real processes of pipelines are killed -9: the short form of `make torture`, and replays."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from tailrace.logstore import ulid
from tailrace.logstore.clock import SystemClock
from tests.pipelines.lake import Lake
from tests.pipelines.torture.torture import PipelinesProcess, Torture
from tests.seeds import seeds, some
from tests.waiting import until

_HOURS = 40
_LINES = 400
_LINE = 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
@pytest.mark.parametrize("source", some(["store", "http"], 2, "killed pipelines"))
def test_killed_processes_write_each_record_once(tmp_path: Path, seed: int, source: str) -> None:
    torture = Torture(tmp_path, kills=3, seed=seed, http=source == "http")
    torture.run()
    assert torture.faults == []
    assert torture.told


def files(out: Path, *, replayed: bool) -> list[Path]:
    """Those of replays, or those that were there before; rolled ones too."""
    return [path for path in out.glob("p*") if ("replay" in path.name) is replayed]


def replayed_bytes(out: Path) -> int:
    """About so much was given again until now."""
    total = 0
    for path in files(out, replayed=True):
        with suppress(FileNotFoundError):  # just renamed
            total += path.stat().st_size
    return total


def lines(out: Path, *, replayed: bool) -> Counter[str]:
    return Counter(
        line for path in files(out, replayed=replayed) for line in path.read_text().split()
    )


@pytest.mark.slow
@pytest.mark.in_turn(4, "a killed replay")
async def test_a_replay_that_is_killed_twice_gives_each_record_once(tmp_path: Path) -> None:
    """From the table and segments, asked for on the command line, into files that are rolled."""
    lake, out, definitions = Lake(tmp_path), tmp_path / "out", tmp_path / "pipelines"
    appender = {"type": "rolling_file", "name": "f", "dir": str(out), "path": "p{hour}.log"}
    pipeline = {"name": "p", "event_delay_ms": 2 * 3_600_000, "idle_node_ms": 500}
    pipeline |= {"checkpoint_interval_ms": 100}
    pipeline |= {"appenders": [{**appender, "max_file_size": "3KiB"}]}
    definitions.mkdir()
    (definitions / "p.yaml").write_text(yaml.safe_dump(pipeline))
    begun, put = SystemClock().now_ms() - _HOURS * 3_600_000, Counter[str]()

    async def put_hours(first: int, last: int) -> None:
        for hour in range(first, last):
            new = [f"{hour:02}-{number:06}" for number in range(_LINES)]
            at = ulid.lowest_at(begun + hour * 3_600_000)
            await lake.put(*new, node="mn"[hour % 2], ulid_=at)
            put.update(new)

    process = PipelinesProcess(
        tmp_path / "process", definitions, {"TAILRACE_STORE": str(tmp_path / "store")}
    )

    def over(events: int) -> bool:
        rows = process.status()
        return any(row["replay"] is None and row["events"] >= events for row in rows)

    await put_hours(0, _HOURS - 4)
    had = Counter(put)
    process.start()
    await until(lambda: over(had.total()))
    assert process.stop() == 0
    assert lines(out, replayed=False) == had
    await lake.compact(upto={"m": 14, "n": 16})
    await put_hours(_HOURS - 4, _HOURS)  # what the appender has not had
    assert "continues at" in process.ask("replay", "p", "--from", "0")
    for enough in (had.total() * _LINE // 6, had.total() * _LINE // 2):
        process.start()
        await until(lambda: replayed_bytes(out) >= enough)  # noqa: B023
        process.kill()
        (row,) = process.status()
        assert row["replay"] is not None
        assert 0 < row["again"] < had.total()
    process.start()
    try:
        await until(lambda: over(put.total() + had.total()))
    finally:
        assert process.stop() == 0
    assert lines(out, replayed=True) == had
    assert lines(out, replayed=False) == put
    assert "Traceback" not in process.output()
