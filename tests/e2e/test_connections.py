"""A client that opens connections and says nothing, against a node that may open few files."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.e2e.service_process import BASE, ServiceProcess

FILES = 256
IDLE = 400
PLAIN = {"content-type": "text/plain"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    """One whose journal rolls and whose segments leave all the time."""
    started = ServiceProcess(
        tmp_path / "node",
        store=tmp_path / "store",
        TAILRACE_FLUSH__SEGMENT_SECONDS="0.2",
        TAILRACE_RUNS__PARTIAL_FLUSH_INTERVAL_MINUTES="0.01",
        TAILRACE_JOURNAL__FILE_BYTES="1048576",
    )
    started.open_files = FILES
    started.start()
    yield started
    if started.running:
        started.kill()


def from_address(host: str) -> httpx.Client:
    """A client that comes from this address of the machine."""
    return httpx.Client(transport=httpx.HTTPTransport(local_address=host), timeout=120)


def test_idle_connections_beyond_the_open_files_end_neither_node_nor_journal(
    service: ServiceProcess,
) -> None:
    lines = [b"%d %b\n" % (number, b"x" * 40_000) for number in range(60)]
    with ExitStack() as stack, from_address("127.0.0.9") as client:
        idle = [
            stack.enter_context(
                socket.create_connection(
                    ("127.0.0.1", service.port), timeout=60, source_address=("127.0.0.2", 0)
                )
            )
            for _ in range(IDLE)
        ]
        for connection in idle:
            connection.setblocking(False)
        for line in lines:
            answer = client.post(f"{service.url}{BASE}/p/r", content=line, headers=PLAIN)
            assert answer.status_code == 200, answer.text
        refused = told = 0
        for connection in idle:
            try:
                first = connection.recv(4096)
            except BlockingIOError:
                continue
            except ConnectionError:
                first = b""  # beyond those that are told why
            refused += 1
            told += b"503 Service Unavailable" in first
        assert IDLE - FILES // 2 < refused < IDLE
        assert told
        assert client.get(f"{service.url}/health/ready").status_code == 200
        text = client.get(f"{service.url}{BASE}/p/r/download").content
    assert text == b"".join(lines)
    assert service.running
    assert "JournalFailed" not in service.output()
    assert service.stop() == 0
