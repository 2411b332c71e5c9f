"""How long an event waits: for every node that sends, and for none that is silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.logstore import ulid
from tailrace.pipelines.process import PipelinesProcess
from tests.pipelines.events import BASE_MS
from tests.pipelines.lake import Lake
from tests.pipelines.remembering import Remembering, forget, has, pipeline, until

__all__ = ["forget"]

_LONG_MS = 900_000


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def at(second: float) -> int:
    """The ULID of a batch that came at that second."""
    return ulid.lowest_at(BASE_MS + int(second * 1000))


def known(process: PipelinesProcess, node: str) -> set[int]:
    """The segments of a node that the process knows of."""
    found = process.source.nodes.get(node)
    return set() if found is None else {*found.sizes}


def counted(process: PipelinesProcess) -> tuple[int, int]:
    """Events that were given, and how many of them late."""
    (worker,) = process.workers
    return worker.counts.given, worker.counts.late


async def test_rare_segments_of_a_node_are_not_late_beside_frequent_ones(lake: Lake) -> None:
    """One node's come every second, the other's every ten: events wait for the latter."""
    made = pipeline("x", event_delay_ms=2000, idle_node_ms=_LONG_MS)
    await lake.put("rare 0", node="rare", ulid_=at(0))
    async with lake.running(made) as process:
        for ten in range(3):
            frequent = [ten * 10 + second for second in range(1, 10)]
            for second in frequent:
                await lake.put(f"frequent {second}", node="frequent", run="f", ulid_=at(second))
            await until(lambda: lake.seqs["frequent"] in known(process, "frequent"))
            await lake.put(f"rare {ten * 10 + 5}", node="rare", ulid_=at(ten * 10 + 5))
            await lake.put(f"rare {ten * 10 + 10}", node="rare", ulid_=at(ten * 10 + 10))
        # Both have sent what is two seconds later than 27, and the frequent one ended with 29.
        await until(lambda: len(Remembering.lines["x"]) >= 31)
        times = [float(line.split()[1]) for line in Remembering.lines["x"]]
        assert times == sorted(times)
        assert times[-1] <= 27
        assert counted(process) == (len(times), 0)


async def test_a_node_that_is_silent_is_not_waited_for_and_what_it_sends_then_is_late(
    lake: Lake,
) -> None:
    made = pipeline("x", event_delay_ms=0, idle_node_ms=300)
    await lake.put("silent 0", node="silent", ulid_=at(0))
    await lake.put("speaks 1", node="speaks", ulid_=at(1))
    async with lake.running(made) as process:
        await until(has("x", "silent 0", "speaks 1"))
        for second in range(2, 5):
            await lake.put(f"speaks {second}", node="speaks", ulid_=at(second))
            await until(lambda: Remembering.lines["x"][-1] == f"speaks {second}")  # noqa: B023
        await lake.put("silent 2.5", node="silent", ulid_=at(2.5))
        await until(lambda: Remembering.lines["x"][-1] == "silent 2.5")
        assert counted(process) == (6, 1)
