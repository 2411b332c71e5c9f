"""promtool, which checks and tests alert rules: on `PATH`, or where `.ci/debian` put it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.servers.debian import find_program, why_no_program


def promtool(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs it in `folder`."""
    command = find_program("promtool")
    assert command is not None, why_no_program("promtool")
    return subprocess.run(
        [command, *arguments], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
