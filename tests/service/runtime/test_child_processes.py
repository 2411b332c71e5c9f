"""Children start in sessions of their own and leave nothing alive."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from service.runtime.process import start_session, start_with_socket, stop_session
from tests.waiting import until

_OBEYS = "print('up', flush=True); import signal; signal.pause()"
_REFUSES = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + _OBEYS
_HAS_A_CHILD = (
    "import subprocess, sys; child = subprocess.Popen(['sleep', '600']);"
    "print(child.pid, flush=True); import signal; signal.pause()"
)


async def started(program: str) -> tuple[asyncio.subprocess.Process, bytes]:
    child = await start_session([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.stdout is not None
    return child, await child.stdout.readline()


def runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(("program", "by_itself"), [(_OBEYS, True), (_REFUSES, False)])
async def test_a_child_that_does_not_stop_is_killed(program: str, by_itself: bool) -> None:
    child, _ = await started(program)
    assert await stop_session(child, 60 if by_itself else 0.1) is by_itself
    assert child.returncode is not None


async def test_nothing_of_a_session_is_left() -> None:
    child, said = await started(_HAS_A_CHILD)
    assert os.getsid(child.pid) == child.pid
    assert await stop_session(child, 60)
    await until(lambda: not runs(int(said)))


async def test_a_stop_that_is_cancelled_leaves_nothing_alive() -> None:
    child, _ = await started(_REFUSES)
    stopping = asyncio.create_task(stop_session(child, 600))
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait({stopping})
    assert child.returncode is not None


def test_a_child_with_a_socket_ends_with_it() -> None:
    child, ours = start_with_socket("service.query.duckdb_process")
    assert os.getpgid(child.pid) == child.pid
    ours.close()
    child.wait(60)
