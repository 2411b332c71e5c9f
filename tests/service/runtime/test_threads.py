"""Work that is handed over runs in a thread behind the loop's, and gives back what it made."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from service.runtime.threads import in_thread, lower_priority


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


async def test_it_gives_the_result_and_raises_the_error_of_the_work() -> None:
    assert await in_thread(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 / 0)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities on Linux only")
async def test_its_threads_stand_behind_the_loop() -> None:
    ours = priority()
    assert await in_thread(priority) == min(ours + 10, 19)
    assert priority() == ours


def test_who_is_gone_is_left_alone() -> None:
    lower_priority(2**22 + 1)  # above the highest number that Linux gives
