"""`serve --workers N`: one service of several processes, killed, restarted and made smaller."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.http.server import owner
from tailrace_client.records import BatchIds
from tests.e2e.service_process import BASE, ServiceProcess

PLAIN = {"content-type": "text/plain"}
IDS = BatchIds()


def owner_of(run: str) -> int | None:
    return owner(f"POST {BASE}/p/{run} HTTP/1.1\r\n".encode(), 2)


RUNS = [f"r{n}" for n in range(6)]
assert {owner_of(run) for run in RUNS} == {0, 1}


def post(service: ServiceProcess, run: str, text: str) -> httpx.Response:
    """By a connection of its own, again under the same id until it is acknowledged."""
    batch = {**PLAIN, "Tailrace-Batch": IDS.mint()}
    while True:
        try:
            reply = httpx.post(
                f"{service.url}{BASE}/p/{run}", content=text, headers=batch, timeout=60
            )
        except httpx.TransportError:
            continue
        if reply.status_code == 200:
            return reply


def lines(service: ServiceProcess, run: str) -> list[str]:
    page = httpx.get(f"{service.url}{BASE}/p/{run}", timeout=60).json()
    return [] if page["logs"] == "" else page["logs"].split("\n")


def by_worker(service: ServiceProcess, metric: str) -> dict[str, float]:
    text = httpx.get(f"{service.url}/metrics", timeout=60).text
    return {
        sample.labels["worker"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == metric
    }


def workers(service: ServiceProcess) -> list[int]:
    """The processes of the workers, by number."""
    pids = Path(f"/proc/{service.pid}/task/{service.pid}/children").read_text().split()
    return sorted(int(pid) for pid in pids if b"service.worker" in _command(pid))


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has just ended
        return b""


def replaced(service: ServiceProcess, before: list[int]) -> bool:
    return bool(set(workers(service)) - set(before))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def made(data: Path, workers: int) -> ServiceProcess:
    """A service whose lines stay in its journals until it stops."""
    return ServiceProcess(
        data,
        TAILRACE_SERVER__WORKERS=str(workers),
        TAILRACE_FLUSH__SEGMENT_SECONDS="3600",
        TAILRACE_SERVER__STOP_SECONDS="60",
    )


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    running = made(tmp_path / "data", 2)
    running.start()
    yield running
    if running.running:
        running.kill()


@pytest.mark.in_turn(4)
def test_each_run_has_its_worker_and_every_worker_reads_all(service: ServiceProcess) -> None:
    expected = {run: [f"{run} {n}" for n in range(20)] for run in RUNS}
    for n in range(20):
        for run in RUNS:
            post(service, run, f"{run} {n}\n")
    for run in RUNS:
        for _ in range(4):
            assert lines(service, run) == expected[run]
    share = Counter(owner_of(run) for run in RUNS)
    until(lambda: len(by_worker(service, "tailrace_worker_up")) == 2)
    assert by_worker(service, "tailrace_lines_total") == {
        "0": 20.0 * share[0],
        "1": 20.0 * share[1],
    }
    assert by_worker(service, "tailrace_worker_up") == {"0": 1.0, "1": 1.0}
    assert service.stop() == 0


@pytest.mark.in_turn(4)
def test_killed_workers_come_back_and_nothing_is_lost_or_doubled(service: ServiceProcess) -> None:
    def producer(run: str) -> list[str]:
        for n in range(60):
            post(service, run, f"{run} {n}\n")
        return [f"{run} {n}" for n in range(60)]

    with ThreadPoolExecutor(len(RUNS)) as threads:
        writing = [threads.submit(producer, run) for run in RUNS]
        for victim in (0, 1):
            before = workers(service)
            os.kill(before[victim], signal.SIGKILL)
            until(partial(replaced, service, before))
            until(lambda: by_worker(service, "tailrace_worker_up") == {"0": 1.0, "1": 1.0})
        expected = dict(zip(RUNS, [done.result() for done in writing], strict=True))
    for run in RUNS:
        assert sorted(lines(service, run)) == sorted(expected[run])
        assert httpx.post(f"{service.url}{BASE}/p/{run}/close", timeout=120).status_code == 200
        assert sorted(lines(service, run)) == sorted(expected[run])
    assert service.stop() == 0


@pytest.mark.in_turn(4)
def test_workers_that_are_too_many_bring_their_lines_away(service: ServiceProcess) -> None:
    for run in RUNS:
        post(service, run, f"{run}\n")
    children = workers(service)
    service.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))  # they stop alone
    fewer = made(service.data, 1)
    fewer.start()
    until((service.data / "workers" / "1" / "drained").exists)
    assert {run: lines(fewer, run) for run in RUNS} == {run: [run] for run in RUNS}
    assert len(workers(fewer)) == 1
    assert fewer.stop() == 0
    alone = made(service.data, 1)
    alone.start()
    assert workers(alone) == []
    assert {run: lines(alone, run) for run in RUNS} == {run: [run] for run in RUNS}
    assert alone.stop() == 0


def test_a_service_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "data" / "journal").mkdir(parents=True)
    (tmp_path / "data" / "node.json").write_text("{}")
    broken = ServiceProcess(tmp_path / "data", TAILRACE_SERVER__WORKERS="2")
    with pytest.raises(RuntimeError, match="does not hold a node's identity"):
        broken.start()
