"""logrotate, as it rotates logs on most machines: on `PATH`, or where `.ci/debian` put it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.servers.debian import environment, find_program, why_no_program


def logrotate(config: Path, state: Path) -> None:
    """Rotates once, whatever the logs' ages are."""
    command = find_program("logrotate")
    assert command is not None, why_no_program("logrotate")
    arguments = [command, "--force", "--state", str(state), str(config)]
    subprocess.run(arguments, check=True, env=environment())
