"""logrotate, as it rotates logs on most machines: on `PATH`, or where `.ci/debian` put it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_THERE = "/usr/sbin/logrotate"


def find_logrotate() -> str | None:
    """Where it is; None if it is missing."""
    beside = Path(sys.executable).with_name("logrotate")
    found = shutil.which("logrotate") or (_THERE if os.path.exists(_THERE) else None)
    return found or (str(beside) if beside.exists() else None)


def why_no_logrotate() -> str | None:
    """A sentence that says what is missing; None if logrotate can be run."""
    if find_logrotate() is None:
        return "logrotate is not on PATH; `.ci/debian logrotate` fetches it where apt-get works"
    return None


def logrotate(config: Path, state: Path) -> None:
    """Rotates once, whatever the logs' ages are."""
    command = find_logrotate()
    assert command is not None, why_no_logrotate()
    library = str(Path(sys.executable).parent.with_name("lib"))
    environment = {**os.environ, "LD_LIBRARY_PATH": library}
    arguments = [command, "--force", "--state", str(state), str(config)]
    subprocess.run(arguments, check=True, env=environment)
