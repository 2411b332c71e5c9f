"""Two tests of CDAP's log framework, as they are there: see `tests/upstream/cdap.md`."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from tailrace.coordination.pipelines import decode
from tailrace.logstore.clock import SystemClock
from tailrace.pipelines.definition import PipelineConfig
from tests.pipelines.lake import Lake
from tests.pipelines.remembering import Remembering, forget, pipeline, until

__all__ = ["forget"]


async def test_fifty_events_that_come_newest_first_are_given_oldest_first(tmp_path: Path) -> None:
    """As DistributedLogFrameworkTest: and the checkpoint is behind all of them."""
    lake, first_ms = Lake(tmp_path), SystemClock().now_ms()
    moments = [datetime.fromtimestamp((first_ms + n) / 1000, UTC) for n in range(50)]
    oldest_first = [f"{at.isoformat(timespec='milliseconds')} INFO event" for at in moments]
    await lake.put(*oldest_first[:19:-1])
    await lake.put(*oldest_first[19::-1])
    async with lake.running(pipeline("a", event_delay_ms=60_000, idle_node_ms=500)) as process:
        await until(lambda: len(Remembering.lines.get("a", ())) == 50)
        await until(lambda: process.workers[0].counts.checkpoints > 1)
        assert process.workers[0].counts.late == 0
        (lease,) = [one.lease for one in process.workers]
    assert Remembering.lines["a"] == oldest_first
    saved = decode(lease.partition.progress)
    assert (saved.nodes["n"].low, saved.nodes["n"].next) == (3, 3)
    assert saved.frontier is not None
    assert saved.frontier.moment == (first_ms + 49) * 1000


async def test_forty_batches_of_six_of_which_one_is_debug_are_200_events(tmp_path: Path) -> None:
    """As LogBufferProcessorPipelineTest."""
    lake = Lake(tmp_path)
    made: PipelineConfig = pipeline("a", filter={"level": "INFO"})
    async with lake.running(made):
        for batch in range(40):
            await lake.put("DEBUG hidden", *[f"INFO {batch} {n}" for n in range(5)])
        await until(lambda: len(Remembering.lines.get("a", ())) >= 200)
    assert Remembering.lines["a"] == [f"INFO {batch} {n}" for batch in range(40) for n in range(5)]
