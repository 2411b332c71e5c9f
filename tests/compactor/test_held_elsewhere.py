"""`tailrace compact` where another compactor has the work: it says so, or waits for it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from compactor.assignment import open_assigner
from compactor.settings import CompactorSettings
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.filesystem import Disk
from tests.compactor.lake import NOON, Lake, batch

HELD = "INFO nothing was done: another compactor has new segments of 1 node (--wait waits for it)"


@asynccontextmanager
async def another(lake: Lake) -> AsyncIterator[None]:
    """A driver that has node `a` as long as the block lasts."""
    settings = CompactorSettings(data=str(lake.data))
    opening = open_assigner(settings, lake.store, SystemClock(), system_entropy(), Disk())
    async with opening as assigner, assigner.joined() as assignment:
        assert await assignment.claim(["a"], ["a"]) == ["a"]
        yield


async def compact(lake: Lake, *flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "tailrace", "compact", "--data", str(lake.data), *flags],
        env={**os.environ, "TAILRACE_COMPACTION__DRIVER_MEMORY": "1g"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_it_says_who_has_the_work(lake: Lake) -> None:
    lake.put("a", [batch("f", "r", NOON, 3)])

    async def scenario() -> None:
        async with another(lake):
            process = await compact(lake)
            out, errors = await process.communicate()
        assert (process.returncode, errors.decode().splitlines()) == (0, [HELD])
        assert b'"held_elsewhere":1' in out

    lake.run(scenario())


@pytest.mark.spark
@pytest.mark.in_turn(4, "waits for the work")
def test_it_waits_for_the_work_when_told_to(lake: Lake) -> None:
    sent = batch("f", "r", NOON, 3)
    lake.put("a", [sent])

    async def scenario() -> None:
        async with another(lake):
            process = await compact(lake, "--wait", "--quiet")
            assert process.stderr is not None
            assert (await process.stderr.readline()).decode().strip() == HELD
        out, errors = await process.communicate()
        assert (process.returncode, out) == (0, b""), errors
        assert HELD not in errors.decode()

    lake.run(scenario())
    lake.holds([sent])


@pytest.mark.in_turn(3)
def test_where_nothing_waits_it_says_so(lake: Lake) -> None:
    async def scenario() -> None:
        process = await compact(lake)
        out, errors = await process.communicate()
        assert (process.returncode, out) == (0, b"")
        assert errors == b"INFO nothing to do: the table has every segment\n"
        process = await compact(lake, "--wait", "--every", "1s")
        _, errors = await process.communicate()
        assert process.returncode == 2
        assert b"--wait is for a single pass" in errors

    lake.run(scenario())
