"""However many partitions there are: what they take in memory is bounded."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from random import Random

from tailrace.coordination.partitions import NewPartition
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore, inline
from tests.coordination.object_store.counted import SOURCE, START_MS, Slow, process
from tests.simulation.virtual_time import VirtualClock, simulate

BATCH = 2000
BATCHES = 5


def test_making_and_listing_take_no_more_memory_than_they_may(tmp_path: Path) -> None:
    """All rows take some 7 MB, those of a shard 2 MB, and all shards are asked for at a time."""

    async def scenario(clock: VirtualClock) -> None:
        disk = LocalStore(str(tmp_path), Disk(), clock, Random(1), run=inline)
        store = process(Slow(disk, clock, 1), clock, shards=4, cache_bytes=1 << 20)
        tracemalloc.start()
        try:
            for batch in range(BATCHES):
                new = [NewPartition(f"{batch:03d}/{number:06d}") for number in range(BATCH)]
                assert len(await store.create(SOURCE, new)) == BATCH
            made, after, listed = tracemalloc.get_traced_memory()[1], None, 0
            tracemalloc.reset_peak()
            while True:
                page = await store.page(SOURCE, after=after, limit=1000)
                listed += len(page.partitions)
                if (after := page.after) is None:
                    break
            seen = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert listed == BATCH * BATCHES
        assert made < 6_500_000
        assert seen < 7_500_000

    simulate(scenario, start_ms=START_MS)
