"""Where a real service makes large segments: in a process that may die, and ends with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest

from tests.e2e.processes import children_of, wait_for, works
from tests.e2e.service_process import BASE, ServiceProcess

MODULE = "service.shipping.encoding"
LINES = 20_000
MOVE_WITH_A_PROCESS = {"tailrace_segment_process_failures"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    running = ServiceProcess(
        tmp_path / "node", TAILRACE_FLUSH__SEGMENT_BYTES="16MiB", TAILRACE_STORE=str(tmp_path / "s")
    )
    running.start()
    yield running
    if running.running:
        running.kill()


def post(service: ServiceProcess, number: int) -> list[str]:
    """A batch of 5 MB, acknowledged; its lines."""
    lines = [f"{number:04} {line:06} " + "word " * 48 for line in range(LINES)]
    reply = httpx.post(
        f"{service.url}{BASE}/p/r{number % 3}",
        content="".join(f"{line}\n" for line in lines),
        headers={"content-type": "text/plain"},
        timeout=120,
    )
    assert reply.status_code == 200
    return lines


def one_that_encodes(service: ServiceProcess, sent: list[str]) -> int:
    """Posts until there is a process; its number."""
    while not (found := children_of(service.pid, MODULE)):
        sent += post(service, len(sent) // LINES)
    return found[0]


def failures(service: ServiceProcess) -> int:
    (name,) = MOVE_WITH_A_PROCESS
    metrics = httpx.get(f"{service.url}/metrics", timeout=60).text.splitlines()
    (value,) = [line.split()[1] for line in metrics if line.startswith(f"{name}_total ")]
    return int(float(value))


def stored(folder: Path) -> list[str]:
    """The lines of all segments."""
    found: list[str] = []
    for path in folder.rglob("segments/**/*.parquet"):
        found += pq.read_table(path, columns=["message"])["message"].to_pylist()
    return found


@pytest.mark.in_turn(4)
def test_one_that_is_killed_costs_no_line(service: ServiceProcess, tmp_path: Path) -> None:
    sent: list[str] = []
    os.kill(one_that_encodes(service, sent), signal.SIGKILL)
    while not failures(service):
        sent += post(service, len(sent) // LINES)
    for _ in range(4):
        sent += post(service, len(sent) // LINES)
    assert service.stop() == 0
    assert sorted(stored(tmp_path / "s")) == sorted(sent)


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("end", [ServiceProcess.kill, ServiceProcess.stop])
def test_it_ends_with_the_service(
    service: ServiceProcess, tmp_path: Path, end: Callable[[ServiceProcess], object]
) -> None:
    sent: list[str] = []
    encoder = one_that_encodes(service, sent)
    for _ in range(4):
        sent += post(service, len(sent) // LINES)
    end(service)
    wait_for(lambda: not works(encoder))
    service.start()
    assert service.stop() == 0
    assert sorted(stored(tmp_path / "s")) == sorted(sent)
