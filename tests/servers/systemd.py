"""systemd-analyze, which checks units: on `PATH`, or where `.ci/debian` put it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.servers.debian import environment, find_program, why_no_program


def verify(unit: Path) -> subprocess.CompletedProcess[str]:
    """Has systemd check a unit, without starting anything."""
    command = find_program("systemd-analyze")
    assert command is not None, why_no_program("systemd-analyze")
    return subprocess.run(
        [command, "verify", "--man=no", str(unit)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
