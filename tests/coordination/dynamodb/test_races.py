"""Processes that share a table, with clocks a minute apart, one of them killed -9."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from pathlib import Path

import pytest

from tailrace.coordination.partitions import NewPartition, Status
from tests.contracts.partition_acquire import SOURCE
from tests.coordination.dynamodb.tables import settings_of, standing
from tests.coordination.dynamodb.workers import HELD, Job, effects, hold, work
from tests.servers.dynamodb import DynamoDb

pytestmark = pytest.mark.dynamodb

TOTAL = 120
MINUTE_MS = 60_000


async def test_every_partition_is_done_once_though_a_worker_is_killed(
    dynamodb: DynamoDb, tmp_path: Path
) -> None:
    settings = settings_of(dynamodb)
    async with standing(settings) as store:
        keys = [f"{i:03d}" for i in range(TOTAL)]
        await store.create(SOURCE, [NewPartition(key) for key in keys])

        def job(name: str, skew_ms: int) -> Job:
            lines = str(tmp_path / name)
            return Job(settings.model_dump(), f"{name}/A", skew_ms, TOTAL, lines)

        victim = job("victim", MINUTE_MS)
        jobs = [job("right", 0), job("fast", MINUTE_MS), job("slow", -MINUTE_MS)]
        spawn = multiprocessing.get_context("spawn")
        holder = spawn.Process(target=hold, args=(victim,), daemon=True)
        holder.start()
        until = time.monotonic() + 120
        while len(effects(victim.lines)) < HELD:
            assert holder.is_alive()
            assert time.monotonic() < until
            time.sleep(0.02)
        workers = [spawn.Process(target=work, args=(one,), daemon=True) for one in jobs]
        for worker in workers:
            worker.start()
        holder.kill()
        holder.join()
        for worker in workers:
            worker.join(400)
        assert [worker.exitcode for worker in workers] == [0, 0, 0]
        done = {one.key: one.epoch for one in (await store.page(SOURCE)).partitions}
        assert await store.counts(SOURCE) == {Status.COMPLETED: TOTAL}
    lost = dict(effects(victim.lines))
    assert len(lost) == HELD
    assert all(done[key] > epoch for key, epoch in lost.items()), "taken over under other epochs"
    made = Counter([line for one in jobs for line in effects(one.lines)])
    assert [made[item] for item in done.items()] == [1] * TOTAL
    assert sorted(done) == keys
