"""What tests need from package registries: fetched once for a machine, into the user's cache."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

TRIES = 3
"""One answer of a registry that breaks off is not the end of all tests."""


def cache_folder(name: str) -> Path:
    """Where the thing of that name is, or will be."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "tailrace" / name


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Waits until no other process on this machine is making `folder`, and keeps them off."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def why_not_fetched(
    folder: Path, what: str, command: Callable[[Path], Sequence[str]], cwd: Path | None = None
) -> str | None:
    """None once `folder` is there; else why `command` could not make it.

    The command makes the folder that it is given, in `cwd` or beside it.
    """
    if folder.is_dir():
        return None
    with alone(folder):
        return None if folder.is_dir() else _fetch(folder, what, command, cwd)


def _fetch(
    folder: Path, what: str, command: Callable[[Path], Sequence[str]], cwd: Path | None
) -> str | None:
    print(f"fetching {what}, once for this machine", file=sys.stderr, flush=True)
    failure = ""
    for _ in range(TRIES):
        # Aside and renamed: this run may be killed.
        with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
            made = Path(aside) / "made"
            done = subprocess.run(
                command(made), cwd=cwd or aside, capture_output=True, text=True, check=False
            )
            if done.returncode == 0:
                os.rename(made, folder)
                return None
        failure = f"fetching {what} failed: {(done.stdout + done.stderr).strip()[-300:]}"
    return failure
