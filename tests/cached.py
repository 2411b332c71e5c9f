"""What tests need from package registries: fetched once for a machine, into the user's cache."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Where the thing of that name is, or will be."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "tailrace" / name


def why_not_fetched(
    folder: Path, what: str, command: Callable[[Path], Sequence[str]], cwd: Path | None = None
) -> str | None:
    """None once `folder` is there; else why `command` could not make it.

    The command makes the folder that it is given, in `cwd` or beside it.
    """
    if folder.is_dir():
        return None
    print(f"fetching {what}, once for this machine", file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Aside and renamed: another run may be at it, or this one may be killed.
    with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
        made = Path(aside) / "made"
        done = subprocess.run(
            command(made), cwd=cwd or aside, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            return f"fetching {what} failed: {(done.stdout + done.stderr).strip()[-300:]}"
        if not folder.is_dir():
            os.rename(made, folder)
    return None
