"""A regular expression that takes minutes over one line, at a real service.

It ends at its limit, others are served meanwhile, and its process ends with the service.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.service_process import BASE, ServiceProcess

RUN = f"{BASE}/p/r"
A_OR_B = bytes(b"ab"[value % 2] for value in range(256))
SLOW = {"q": "(a|b)*a(a|b){900}c", "regex": "true", "fqn": "p"}
PATIENCE_SECONDS = 120.0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    running = ServiceProcess(tmp_path / "node", TAILRACE_QUERY__TIME_LIMIT_SECONDS="6")
    running.start()
    line = random.Random(1).randbytes(8 << 20).translate(A_OR_B) + b"\n"
    headers = {"content-type": "text/plain"}
    assert httpx.post(f"{running.url}{RUN}", content=line, headers=headers).status_code == 200
    yield running
    if running.running:
        running.kill()


def searched(service: ServiceProcess) -> httpx.Response:
    return httpx.get(f"{service.url}/query", params=SLOW, timeout=PATIENCE_SECONDS)


def searches_of(pid: int) -> list[int]:
    """Processes that search for a service."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (folder / "stat").read_text(), (folder / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        parent = int(stat.rpartition(")")[2].split()[1])
        if parent == pid and b"service.query.child" in command:
            found.append(int(folder.name))
    return found


def one_that_searches(service: ServiceProcess) -> int:
    """Waits for a search under way, giving its process."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if found := searches_of(service.pid):
            return found[0]
        time.sleep(0.05)  # between two looks at another process
    raise AssertionError("no search began")


def works(pid: int) -> bool:
    """Whether the process is there; one that nobody has waited for has no command any more."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except FileNotFoundError:
        return False


def test_it_ends_at_its_limit_and_others_are_served(service: ServiceProcess) -> None:
    with ThreadPoolExecutor(4) as clients:
        slow = [clients.submit(searched, service) for _ in range(4)]  # all places there are
        one_that_searches(service)
        with httpx.Client(base_url=service.url, timeout=PATIENCE_SECONDS) as client:
            assert client.post(f"{BASE}/p/other", json="x\n").status_code == 200
            page = client.get(f"{BASE}/p/other")
            assert page.json()["logs"] == "x"
            found = client.get("/query", params={"fqn": "p", "run": "other"})
        assert '"matches":1' in found.text
        for reply in slow:
            problem = reply.result().json()
            assert (problem["status"], problem["type"]) == (422, "limit-reached")
            assert "after 6 s" in problem["detail"]
    assert searches_of(service.pid) == []
    assert list((service.data / "scratch").rglob("*")) == []
    assert service.stop() == 0
    assert "Traceback" not in service.output()


@pytest.mark.in_turn(2, "a killed search")
def test_it_ends_with_a_killed_service(service: ServiceProcess) -> None:
    with ThreadPoolExecutor(1) as clients:
        slow = clients.submit(searched, service)
        child = one_that_searches(service)
        service.kill()
        with pytest.raises(httpx.TransportError):
            slow.result()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while works(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)  # between two looks at another process
