"""The processes that a service has started, and waiting for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_SECONDS = 120.0


def children_of(pid: int, module: str) -> list[int]:
    """Processes of a service that run this Python module."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (folder / "stat").read_text(), (folder / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        parent = int(stat.rpartition(")")[2].split()[1])
        if parent == pid and module.encode() in command:
            found.append(int(folder.name))
    return found


def works(pid: int) -> bool:
    """Whether the process is there; one that nobody has waited for has no command any more."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except FileNotFoundError:
        return False


def wait_for(holds: Callable[[], bool]) -> None:
    """Waits until it holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)  # between two looks at another process
