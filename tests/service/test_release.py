"""A node that is short of journal gives away what is confirmed, but not what was confirmed last."""

from __future__ import annotations

from random import Random

import pytest

from service.journal.file import JournalFile
from service.node import Node
from tailrace.logstore.batch import RunKey
from tests.service.client_model import Clients, downloaded
from tests.service.simulated_node import SMALL, START_MS, Life
from tests.settings import settings_with
from tests.simulation.backing import open_store
from tests.simulation.faulty_store import Fault, FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

pytestmark = pytest.mark.usefixtures("every_store")

RUN = RunKey("service.pipeline", "run-1")
_MOST = 64 << 10
_KEPT = _MOST // 16
_SETTINGS = settings_with(SMALL, journal={"max_bytes": _MOST})


def kept_by(node: Node) -> list[JournalFile]:
    """Files that are not needed for segments any more."""
    confirmed = node.writer.journal.state.confirmed.end
    return [file for file in node.writer.journal.files if file.end_pos <= confirmed]


def _is_run_log(call: str) -> bool:
    return call.startswith(("put pipeline-logs/", "put runs/"))


def test_run_logs_that_lag_are_made_from_segments_and_the_end_of_the_journal() -> None:
    async def scenario(clock: VirtualClock) -> None:
        fs, clients = PowerCutFileSystem(), Clients()
        faults = dict.fromkeys(range(1, 100_000), Fault.UNAVAILABLE)
        schedule = Schedule(faults, applies=_is_run_log)
        store = FaultyStore(open_store(fs, clock, Random(1)), schedule)
        node = Life(fs, clock, settings=_SETTINGS, store=store).node
        await node.start()
        while node.writer.journal.bytes <= _MOST // 2:
            await clients.send(node, clock, RUN)
            await clock.sleep(0.05)
        first = begin = node.writer.journal.files[0].first_pos
        while node.writer.journal.state.confirmed.end < node.writer.journal.next_pos:
            await clock.sleep(0.01)
            if (
                node.writer.journal.files[0].first_pos > begin
            ):  # a release gave away all but the newest
                begin = node.writer.journal.files[0].first_pos
                assert sum(file.size for file in kept_by(node)) <= _KEPT
        assert begin > first
        await clock.sleep(30)
        assert schedule.fired > 0
        assert node.run_logs.flushed_pos == 0
        confirmed = node.writer.journal.state.confirmed.end
        assert confirmed == node.writer.journal.next_pos
        assert len(kept_by(node)) > 1, "the newest file stays in any case"
        assert node.writer.journal.bytes <= _MOST // 2
        faults.clear()
        await clock.sleep(120)
        assert node.run_logs.flushed_pos == confirmed
        clients.check(RUN, await downloaded(node, RUN), where="download")
        await node.stop()

    simulate(scenario, start_ms=START_MS)
