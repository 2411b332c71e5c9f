"""A service over a store that hangs: a frozen MinIO, or a port that nobody answers at."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.service_process import ServiceProcess
from tests.servers.minio import Bucket, Minio

STOP_SECONDS = 2
SETTINGS = {
    "TAILRACE_NODES__SECRET": "the secret of nodes over a store that hangs",
    "TAILRACE_NODES__REFRESH_SECONDS": "0.2",
    "TAILRACE_SERVER__STORE_SECONDS": "1",
    "TAILRACE_SERVER__STOP_SECONDS": f"{STOP_SECONDS}",
    "TAILRACE_FLUSH__SEGMENT_SECONDS": "0.2",
    "TAILRACE_RUNS__CLOSE_WAIT_SECONDS": "0.5",
    "TAILRACE_RUNS__PARTIAL_FLUSH_INTERVAL_MINUTES": "0.005",
}


def service_over(bucket: Bucket, folder: Path, **settings: str) -> ServiceProcess:
    """A service with a short deadline for its store, not started."""
    service = ServiceProcess(folder / "node")
    service.settings |= SETTINGS | bucket.environment | settings
    return service


def start_all(*services: ServiceProcess) -> None:
    """Starts them at once, for most of a start is waiting."""
    with ThreadPoolExecutor(len(services)) as threads:
        list(threads.map(ServiceProcess.start, services))


class Freezer:
    """Freezes a server, and thaws it."""

    def __init__(self, server: Minio) -> None:
        self._pid = server.process.pid

    def freeze(self) -> None:
        """SIGSTOP: it takes connections and answers nothing. Returns when all threads stand."""
        os.kill(self._pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._pid, os.WSTOPPED)  # it is a child of this process

    def thaw(self) -> None:
        """SIGCONT; may be repeated."""
        os.kill(self._pid, signal.SIGCONT)


@contextmanager
def black_hole() -> Iterator[str]:
    """The URL of a port whose connections are taken by the kernel, and by nobody else."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen(1024)
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
