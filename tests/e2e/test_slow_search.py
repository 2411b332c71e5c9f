"""A regular expression that takes minutes over one line, at a real service.

It ends at its limit, others are served meanwhile, and its process ends with the service. Readers of
runs need none of the slots that such searches hold.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import PATIENCE_SECONDS, children_of, wait_for, works
from tests.e2e.service_process import BASE, ServiceProcess

RUN = f"{BASE}/p/r"
A_OR_B = bytes(b"ab"[value % 2] for value in range(256))
SLOW = {"q": "(a|b)*a(a|b){900}c", "regex": "true", "fqn": "p"}
MODULE = "service.query.duckdb_process"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    running = ServiceProcess(tmp_path / "node", TAILRACE_QUERY__TIME_LIMIT_SECONDS="6")
    running.start()
    write_line(running)
    yield running
    if running.running:
        running.kill()


def write_line(running: ServiceProcess) -> None:
    line = random.Random(1).randbytes(8 << 20).translate(A_OR_B) + b"\n"
    headers = {"content-type": "text/plain"}
    reply = httpx.post(f"{running.url}{RUN}", content=line, headers=headers, timeout=60)
    assert reply.status_code == 200


def searched(service: ServiceProcess) -> httpx.Response:
    return httpx.get(f"{service.url}/query", params=SLOW, timeout=PATIENCE_SECONDS)


def one_that_searches(service: ServiceProcess) -> int:
    """Waits for a search under way, giving its process."""
    wait_for(lambda: bool(children_of(service.pid, MODULE)))
    return children_of(service.pid, MODULE)[0]


@pytest.mark.in_turn(4)
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
    assert children_of(service.pid, MODULE) == []
    assert list((service.data / "scratch").rglob("*")) == []
    assert service.stop() == 0
    assert "Traceback" not in service.output()


@pytest.mark.in_turn(4, "a killed search")
def test_it_ends_with_a_killed_service(service: ServiceProcess) -> None:
    with ThreadPoolExecutor(1) as clients:
        slow = clients.submit(searched, service)
        child = one_that_searches(service)
        service.kill()
        with pytest.raises(httpx.TransportError):
            slow.result()
    wait_for(lambda: not works(child))


@pytest.mark.in_turn(4)
def test_a_run_is_read_as_records_while_a_search_has_every_slot(tmp_path: Path) -> None:
    service = ServiceProcess(
        tmp_path / "node",
        TAILRACE_QUERY__MAX_CONCURRENT="1",
        TAILRACE_QUERY__MAX_WAITING="0",
        TAILRACE_QUERY__TIME_LIMIT_SECONDS="600",
        TAILRACE_FLUSH__SEGMENT_SECONDS="0.2",
        TAILRACE_RUNS__PARTIAL_FLUSH_INTERVAL_MINUTES="0.005",
    )
    service.start()
    write_line(service)
    runs = {name: f"{BASE}/q/{name}" for name in ("stored", "hot")}
    body = b'{"message":"one","level":"WARN"}\n{"message":"two","level":"ERROR"}\n'
    headers = {"content-type": "application/x-ndjson"}
    with (
        ThreadPoolExecutor(1) as clients,
        httpx.Client(base_url=service.url, timeout=PATIENCE_SECONDS) as client,
    ):
        assert client.post(runs["stored"], content=body, headers=headers).status_code == 200
        wait_for(lambda: "etag" in client.head(f"{runs['stored']}/download").headers)
        slow = clients.submit(searched, service)
        one_that_searches(service)
        assert client.post(runs["hot"], content=body, headers=headers).status_code == 200
        for name, run in runs.items():
            page = {"format": "ndjson"}
            first = client.get(run, params=page).text.partition("\n")[0]
            around = page | {"at": json.loads(first)["ulid"], "limit": "2"}
            for path, asked in (
                *((run, page), (run, around), (run, page | {"order": "ulid"})),
                *((f"{run}/download", page), (f"{run}/download", page | {"order": "ulid"})),
            ):
                reply = client.get(path, params=asked)
                *records, last = map(json.loads, reply.text.splitlines())
                assert (reply.status_code, last["stats"]["complete"]) == (200, True)
                assert [record["level"] for record in records] == ["WARN", "ERROR"]
            events = client.get(f"{run}/next", params={"format": "json"})
            assert [event["log"]["logLevel"] for event in events.json()] == ["WARN", "ERROR"]
            assert client.post(f"{run}/close").status_code == 200
            stream = client.get(f"{BASE}/q/stream/{name}", params={"format": "ndjson"})
            assert stream.text.count('"level":"WARN"') == 1
        refused = client.get("/query", params={"fqn": "q"})
        assert (refused.status_code, refused.json()["type"]) == (503, "unavailable")
        service.kill()
        with pytest.raises(httpx.TransportError):
            slow.result()
