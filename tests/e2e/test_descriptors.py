"""Idle connections take all descriptors of a real process: it goes on, and loses nothing."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tailrace.logstore.batch import RunKey
from tests.e2e.clients import run_path
from tests.e2e.service_process import ServiceProcess

KEY = RunKey("service.pipeline", "6f1c2ab0-9a6e-4a68-8a43-0c1b9d0e7f12")
BATCH_BYTES = 200_000
ROOM = 24
IDLE = 100
PATIENCE_SECONDS = 180.0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    service = ServiceProcess(
        tmp_path / "node", TAILRACE_JOURNAL__FILE_BYTES="1MiB", TAILRACE_FLUSH__SEGMENT_SECONDS="1"
    )
    service.start()
    yield service
    if service.running:
        service.kill()


@pytest.fixture
def client(service: ServiceProcess) -> Iterator[httpx.Client]:
    """Keeps its connection: a new one, opened after a pause, would be sent away."""
    kept = httpx.Limits(keepalive_expiry=None)
    with httpx.Client(base_url=service.url, timeout=120, limits=kept) as client:
        yield client


def journal_files(service: ServiceProcess) -> set[str]:
    """Names of the journal files that there are."""
    return {path.name for path in (service.data / "journal").glob("*.wal")}


def post(client: httpx.Client, number: int) -> bytes:
    """A batch that is acknowledged as durable."""
    text = (b"%05d " % number).ljust(BATCH_BYTES - 1, b"x") + b"\n"
    reply = client.post(run_path(KEY), content=text, headers={"Content-Type": "text/plain"})
    assert reply.status_code == 200, reply.text
    return text


def test_idle_connections_take_every_descriptor(
    service: ServiceProcess, client: httpx.Client
) -> None:
    pid = service.pid
    with ExitStack() as idle:
        sent = [post(client, 0)]
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + ROOM, limits[1]))
        for _ in range(IDLE):
            connection = idle.enter_context(socket.socket())
            connection.connect(("127.0.0.1", service.port))
        before = journal_files(service)
        sent += [post(client, number) for number in range(1, 31)]
        assert service.running, service.output()
        # The node took descriptors of its reserve for new files: the listener has none.
        assert len(journal_files(service) - before) >= 3
        idle.close()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        sent.append(post(client, 31))
        assert client.post(run_path(KEY, verb="close")).status_code == 200
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            reply = client.get("/health/ready")
            text = client.get(run_path(KEY, verb="download"))
            if reply.status_code == 200 and text.content == b"".join(sent):
                break
            time.sleep(0.5)  # between two looks at another process
        assert text.content == b"".join(sent)
        assert reply.status_code == 200, reply.text
    assert service.stop() == 0, service.output()


def answers(service: ServiceProcess) -> bool:
    """Whether a client that was not connected before is served."""
    try:
        return httpx.get(f"{service.url}/health/live", timeout=PATIENCE_SECONDS).status_code == 200
    except httpx.TransportError:
        return False


def test_whoever_cannot_be_let_in_is_sent_away_and_others_come_when_there_is_room(
    service: ServiceProcess, client: httpx.Client
) -> None:
    """The listener itself meets EMFILE, again and again, and the limit stays as it is."""
    pid = service.pid
    deadline = time.monotonic() + PATIENCE_SECONDS
    with ExitStack() as idle:
        sent = [post(client, 0)]
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + ROOM, limits[1]))
        for _ in range(IDLE):
            idle.enter_context(socket.create_connection(("127.0.0.1", service.port)))
        while answers(service):  # a flush that has ended left descriptors
            assert time.monotonic() < deadline
            idle.enter_context(socket.create_connection(("127.0.0.1", service.port)))
        sent.append(post(client, 1))
        idle.close()
        while not answers(service):
            assert time.monotonic() < deadline
            time.sleep(0.1)  # between two looks at another process
        assert client.get(run_path(KEY, verb="download")).content == b"".join(sent)
    assert service.stop() == 0, service.output()
    assert "Traceback" not in service.output()
