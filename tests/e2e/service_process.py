"""The service as a real process: started, killed, stopped, started again."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from tests.repairs import repairs_in
from tests.servers.ports import free_port

BASE = "/api/v1/services/ingestionPipelines/logs"
_READY_SECONDS = 180.0


class ServiceProcess:
    """`tailrace serve` on a folder; the port stays the same over restarts.

    Whoever ends it hears of a run's log that it repaired: `AssertionError`.

    `module` is what Python runs, and `within` a command before it that runs another one in its
    own place. `open_files` is how many it may have open at most, `ulimit -n`; None: as this
    process.
    """

    def __init__(self, data: Path, *, store: Path | None = None, **settings: str) -> None:
        self.data = data
        self.open_files: int | None = None
        self.module = "tailrace"
        self.within: Sequence[str] = ()
        self.verify: ssl.SSLContext | bool = True
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.settings: dict[str, str] = {
            **os.environ,
            "TAILRACE_COMPACTION__ENABLED": "false",
            # A busy machine may need longer than the default for the last flush.
            "TAILRACE_SERVER__STOP_SECONDS": "120",
            **({"TAILRACE_STORE": str(store)} if store else {}),
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._log = data.with_name(data.name + ".log")

    def start(self, health: str = "ready") -> None:
        """Starts it and waits until it is ready, or `live`."""
        few = ["sh", "-c", f'ulimit -n {self.open_files}; exec "$@"', "sh"]
        self.data.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *([] if self.open_files is None else few),
                    *self.within,
                    sys.executable,
                    "-m",
                    self.module,
                    "serve",
                    "--data",
                    str(self.data),
                    "--port",
                    str(self.port),
                ],
                env=self.settings,
                stdout=log,
                stderr=log,
            )
        self._wait_for(health)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Asks it to stop, and waits: the exit status."""
        return self._end(signal.SIGTERM)

    def output(self) -> str:
        """What it wrote to stdout and stderr."""
        return self._log.read_text(errors="replace")

    @property
    def pid(self) -> int:
        """The running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def _end(self, how: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(how)
        status = self._process.wait(timeout=300)
        self._process = None
        repairs = repairs_in(self.output())
        assert repairs == [], f"nobody took anything away, yet: {repairs}"
        return status

    def _wait_for(self, health: str) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _READY_SECONDS
        # One for all looks: making a client costs 30 ms of the cores that the service starts on.
        with httpx.Client(base_url=self.url, timeout=10, verify=self.verify) as client:
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    raise RuntimeError(f"the service ended:\n{self.output()[-4000:]}")
                with suppress(httpx.TransportError):
                    if client.get(f"/health/{health}").status_code == 200:
                        return
                time.sleep(0.02)
        raise RuntimeError(f"the service was not ready in time:\n{self.output()[-4000:]}")
