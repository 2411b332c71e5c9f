"""Work that is handed over runs in a thread behind the loop's, and gives back what it made."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from subprocess import PIPE

import pytest

from service.runtime import process
from service.runtime.process import in_thread, lower_priority, lower_priority_of_session

_NOBODY = 2**22 + 1
"""Above the highest number that Linux gives."""


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def own() -> str:
    group = Path("/proc/self/autogroup")
    return group.read_text() if group.exists() else ""


async def test_it_gives_the_result_and_raises_the_error_of_the_work() -> None:
    assert await in_thread(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 / 0)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities on Linux only")
async def test_its_threads_stand_behind_the_loop() -> None:
    ours = priority()
    assert await in_thread(priority) == min(ours + 10, 19)
    assert priority() == ours


async def test_who_is_gone_is_left_alone() -> None:
    lower_priority(_NOBODY)
    await lower_priority_of_session(_NOBODY)


@pytest.mark.skipif(sys.platform != "linux", reason="sessions have priorities on Linux only")
async def test_children_in_sessions_of_their_own_stand_behind_us() -> None:
    ours, ours_of_session = priority(), own()
    children = [
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=PIPE, start_new_session=True)
        for _ in range(3)
    ]
    try:
        for child in children:
            await lower_priority_of_session(child.pid)
        for child in children:
            assert os.getpriority(os.PRIO_PROCESS, child.pid) == min(ours + 10, 19)
            group = Path(f"/proc/{child.pid}/autogroup")
            # A kernel that was built without it has no such file, and shares by priority alone.
            assert not group.exists() or group.read_text().split()[-1] == "10"
        assert (priority(), own()) == (ours, ours_of_session)
    finally:
        for child in children:
            child.communicate(b"\n")


@pytest.mark.skipif(not shutil.which("setpriv"), reason="nothing that gives privileges up")
def test_the_kernel_is_asked_again_if_we_have_no_privileges() -> None:
    """It refuses all but ten such changes a second, and takes any number from root."""
    test = f"{__file__}::test_children_in_sessions_of_their_own_stand_behind_us"
    without = ["setpriv", "--bounding-set=-sys_admin"] if os.geteuid() == 0 else []
    subprocess.run([*without, sys.executable, "-m", "pytest", "-q", test], check=True)


async def test_one_whose_session_may_not_be_changed_has_the_priority_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a container with a `/proc` that is read-only; there is none to be had here."""

    def refuses(path: str, _: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(process, "_write", refuses)
    ours = priority()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=PIPE) as child:
        await lower_priority_of_session(child.pid)
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == min(ours + 10, 19)
