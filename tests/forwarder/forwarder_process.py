"""`tailrace forward --config` as a real process, which is killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.client.programs import records

FQN = "shop.orders"
_PATIENCE_SECONDS = 90.0


class ForwarderProcess:
    """A forwarder that reads `folder/logs` and keeps its state in `folder/state`."""

    def __init__(self, folder: Path, url: str, **config: Any) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.output = folder / "forwarder.log"
        self._config = folder / "forwarder.yaml"
        self.process: subprocess.Popen[bytes] | None = None
        self.configure(
            targets=[url],
            storage=str(folder / "state"),
            include=[str(self.logs / "*.log*")],
            start_at="beginning",
            include_file_name=False,
            fqn=FQN,
            retry_on_failure={"initial_interval": "100ms", "max_interval": "1s"},
            **config,
        )

    def configure(self, **config: Any) -> None:
        self._config.write_text(yaml.safe_dump(config))

    def start(self, *, wait: bool = True) -> None:
        """Starts it, and waits until it forwards."""
        assert self.process is None
        before = len(self.said()) if self.output.exists() else 0
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tailrace", "forward", "--config", str(self._config)],
                stdout=output,
                stderr=output,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        if wait:
            self.until(lambda: "forwards to" in self.said()[before:])

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM: the exit status."""
        return self._end(signal.SIGTERM)

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def _end(self, how: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(how)
        status = self.process.wait(timeout=60)
        self.process = None
        return status

    def until(self, there: Callable[[], bool]) -> None:
        """Waits; `AssertionError` with what it said if it takes too long, or if it ends."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while not there():
            assert self.process is None or self.process.poll() is None, self.said()
            assert time.monotonic() < until, self.said()
            time.sleep(0.02)


def stored(url: str, run: str) -> list[str]:
    """The lines of a run, in its order."""
    return [record["message"] for record in records(url, run, FQN)]
