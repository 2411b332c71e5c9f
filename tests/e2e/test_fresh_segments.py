"""What a search asks of the store, of a real service and by its own metrics."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import PATIENCE_SECONDS
from tests.e2e.service_process import BASE, ServiceProcess

CALL = re.compile(r'^tailrace_store_requests_total\{operation="(\w+)",outcome="\w+"\} (\d+)')
BULK = {"tailrace-durability": "bulk", "content-type": "text/plain"}
TRIES = 20


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    service = ServiceProcess(tmp_path / "node")
    service.start()
    with httpx.Client(base_url=service.url, timeout=PATIENCE_SECONDS) as client:
        yield client
    service.stop()


def calls(client: httpx.Client) -> Counter[str]:
    found: Counter[str] = Counter()
    for line in client.get("/metrics").text.splitlines():
        if call := CALL.match(line):
            found[call[1]] += int(call[2])
    return found


def test_a_search_lists_and_reads_no_footer_of_its_node(client: httpx.Client) -> None:
    """The node itself reads now and then, for run logs; what each search reads is in all tries."""
    asked: list[Counter[str]] = []
    for number in range(TRIES):
        line = f"number {number}\n"
        assert client.post(f"{BASE}/p/r", content=line, headers=BULK).status_code == 200
        before = calls(client)
        reply = client.get("/query", params={"q": f'"number {number}"', "fqn": "p"})
        asked.append(calls(client) - before)
        assert (reply.status_code, reply.text.count(f'"number {number}"')) == (200, 1)
        if asked[-1] == {"list": 1}:
            return
    pytest.fail(f"each search asked for more than one listing: {asked}")
