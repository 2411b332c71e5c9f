"""Retries that only the store knows of, over a real S3 server, through the fault proxy.

What `test_append`, `test_active_runs`, `test_gen1` and `test_taken_in` tell of a node whose
chunks are a dictionary or a folder, told once of a whole node.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from service.ingest.batch import IncomingBatch
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import SystemClock
from tailrace.logstore.errors import BatchConflict
from tests.service.client_model import downloaded
from tests.service.simulated_node import SMALL, START_MS, Life
from tests.service.test_main import PLAIN, RUN, service, settings_for
from tests.settings import settings_with
from tests.simulation.backing import open_place
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

pytestmark = pytest.mark.usefixtures("every_server")

FEW = settings_with(SMALL, runs={"max_concurrent_streams": 3})
RUNS = [RunKey("p", str(number)) for number in range(8)]


def sent(key: RunKey, turn: int, text: bytes = b"") -> IncomingBatch:
    """Batch number `turn` of the run."""
    return IncomingBatch(key, text or b"%d\n" % turn, 1, 1, ulids.lowest_at(START_MS + turn))


def test_batches_that_memory_and_journal_have_forgotten_are_known() -> None:
    async def scenario(clock: VirtualClock) -> None:
        fs = PowerCutFileSystem()
        node = Life(fs, clock, settings=FEW).node
        await node.start()
        for turn in range(2):
            for key in RUNS:
                assert not (await node.append(sent(key, turn))).duplicate
        for key in RUNS:
            assert await node.close_run(key) == "closed"
        await node.stop()

        again = Life(fs, clock, seed=1, settings=FEW).node
        await again.start()
        await clock.sleep(10)
        assert again.writer.journal.files[0].first_pos >= 2 * len(RUNS), (
            "the journal has let go of them"
        )
        for turn in range(2):
            for key in RUNS:
                assert (await again.append(sent(key, turn))).duplicate
        with pytest.raises(BatchConflict):
            await again.append(sent(RUNS[0], 1, b"other\n"))
        assert not (await again.append(sent(RUNS[0], 2))).duplicate
        for key in RUNS:
            assert await downloaded(again, key) == (b"0\n1\n2\n" if key == RUNS[0] else b"0\n1\n")
        await again.stop()

    simulate(scenario, start_ms=START_MS)


def test_a_retry_without_an_id_is_known_over_a_kill() -> None:
    async def scenario(clock: VirtualClock) -> None:
        fs, key = PowerCutFileSystem(), RUNS[0]
        node = Life(fs, clock).node
        await node.start()
        echo = await node.open_run(key, "host-1")
        batch = IncomingBatch(key, b"a\n", 1, 1, None, echo, "host-1")
        first = await node.append(batch)
        await clock.sleep(10)  # it is in a segment and a chunk
        fs.end_processes()

        again = Life(fs, clock, seed=1).node
        await again.start()
        retry = await again.append(batch)
        assert (retry.duplicate, retry.last) == (True, first.last)
        third = await again.append(replace(batch, above=first.last))
        assert not third.duplicate
        assert await downloaded(again, key) == b"a\na\n"
        await again.stop()

    simulate(scenario, start_ms=START_MS)


@pytest.mark.repairs(reason="all but the segments is taken away")
async def test_only_segments_are_left(tmp_path: Path) -> None:
    place = open_place(SystemClock())
    assert place is not None
    settings = settings_for(
        tmp_path, store=place.bucket.settings.store, s3=place.bucket.settings.s3
    )
    async with service(settings) as (client, _):
        assert (await client.post(RUN, content=b"a\nb\n", headers=PLAIN)).status_code == 200
    for prefix in ("runs/", "pipeline-logs/"):
        found = [info.key async for info in place.store.list(prefix)]
        assert found
        await place.store.delete(found)
    async with service(settings) as (client, _):
        assert (await client.get(RUN)).json()["logs"] == "a\nb"
        assert (await client.post(RUN, content=b"c\n", headers=PLAIN)).status_code == 200
        assert (await client.get(f"{RUN}/download")).content == b"a\nb\nc\n"
