"""systemd-analyze, which checks units: on `PATH`, or where `.ci/debian` put it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def find_systemd_analyze() -> str | None:
    """The command, if this machine has it."""
    beside = Path(sys.executable).with_name("systemd-analyze")
    return shutil.which("systemd-analyze") or (str(beside) if beside.exists() else None)


def why_no_systemd() -> str | None:
    """A sentence that says what is missing; None if units can be checked."""
    if find_systemd_analyze() is None:
        return "no systemd-analyze; `.ci/debian systemd-analyze` fetches it where apt-get works"
    return None


def verify(unit: Path) -> subprocess.CompletedProcess[str]:
    """Has systemd check a unit, without starting anything."""
    command = find_systemd_analyze()
    assert command is not None, why_no_systemd()
    library = str(Path(sys.executable).parent.with_name("lib"))
    return subprocess.run(
        [command, "verify", "--man=no", str(unit)],
        env={**os.environ, "LD_LIBRARY_PATH": library},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
