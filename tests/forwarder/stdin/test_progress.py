"""`tailrace forward` shows on a terminal how far it is, and leaves nothing of that behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.client.programs import FQN, messages
from tests.e2e.service_process import ServiceProcess


def test_a_terminal_shows_how_much_is_delivered(service: ServiceProcess, tmp_path: Path) -> None:
    terminal, end = os.openpty()
    words = ["forward", service.url, "--fqn", FQN, "--run", "shown", "--spool", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tailrace", *words],
        stdin=subprocess.PIPE,
        stderr=end,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(end)
    assert process.stdin is not None
    process.stdin.write(b"one\ntwo\n")
    process.stdin.flush()
    said = b""
    while b"2 records delivered" not in said:
        said += os.read(terminal, 4096)
    process.stdin.close()
    assert process.wait(timeout=60) == 0
    said += os.read(terminal, 4096)
    os.close(terminal)
    assert said.endswith(b"\r\x1b[2K")
    assert messages(service.url, "shown") == ["one", "two"]
