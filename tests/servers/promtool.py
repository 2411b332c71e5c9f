"""promtool, which checks and tests alert rules: on `PATH`, or where `.ci/debian` put it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def find_promtool() -> str | None:
    """The command, if this machine has it."""
    beside = Path(sys.executable).with_name("promtool")
    return shutil.which("promtool") or (str(beside) if beside.exists() else None)


def why_no_promtool() -> str | None:
    """A sentence that says what is missing; None if promtool can be run."""
    if find_promtool() is None:
        return "promtool is not on PATH; `.ci/debian promtool` fetches it where apt-get works"
    return None


def promtool(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs it in `folder`."""
    command = find_promtool()
    assert command is not None, why_no_promtool()
    return subprocess.run(
        [command, *arguments], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
