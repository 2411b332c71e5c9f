"""A bit turns in the journal of a killed node: `tailrace verify` and the start name it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.journal import format as wal
from service.journal.file import Passed, read_header, scan
from tailrace.logstore.filesystem import Disk
from tests.e2e.service_process import BASE, ServiceProcess
from tests.waiting import PATIENCE_SECONDS

LINES = [f"line {number:02d}" for number in range(50)]
ONLY_JOURNAL = {
    "TAILRACE_FLUSH__SEGMENT_SECONDS": "3600",
    "TAILRACE_FLUSH__SEGMENT_BYTES": "1GiB",
}


def wait_for_mark(path: Path) -> None:
    """Until the idle journal says on the disk that all 50 lines are synced."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        file = Disk().open(str(path), "read")
        try:
            items = list(scan(file, read_header(file)))
        finally:
            file.close()
        if Passed(len(LINES)) in items:
            return
        time.sleep(0.05)
    raise TimeoutError(f"no mark after the last line of {path}")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    """One that keeps lines in its journal, and is ended with the test."""
    process = ServiceProcess(tmp_path / "data", store=None, **ONLY_JOURNAL)
    yield process
    if process.running:
        process.kill()


@pytest.mark.in_turn(4)
@pytest.mark.parametrize(("number", "place"), [(30, "length"), (49, "text")])
def test_one_bit_costs_one_line_and_everybody_says_so(
    service: ServiceProcess, number: int, place: str
) -> None:
    service.start()
    with httpx.Client(base_url=service.url, timeout=60) as client:
        for line in LINES:
            plain = {"content-type": "text/plain"}
            client.post(f"{BASE}/p/r", content=f"{line}\n", headers=plain).raise_for_status()
    (path,) = (service.data / "journal").glob("*.wal")
    wait_for_mark(path)
    service.kill()

    data = bytearray(path.read_bytes())
    text = data.index(f"{LINES[number]}\n".encode())
    head = text - len("pr") - wal.BATCH_HEAD.size - wal.PREFIX.size
    data[text if place == "text" else head] ^= 1
    path.write_bytes(data)

    verify = subprocess.run(
        [sys.executable, "-m", "tailrace", "verify", "--json"],
        env=service.settings | {"TAILRACE_DATA": str(service.data)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    faults = [json.loads(line) for line in verify.stdout.splitlines()[:-1]]
    assert verify.returncode == 1
    assert [(fault["kind"], fault["lines"]) for fault in faults] == [("journal-damaged", 1)]

    service.start()
    with httpx.Client(base_url=service.url, timeout=60) as client:
        page = client.get(f"{BASE}/p/r", params={"limit": 100}).json()
        ready = client.get("/health/ready").json()
        metrics = client.get("/metrics").text.splitlines()
    whole = [line for line in LINES if line != LINES[number]]
    assert page["logs"].splitlines() == whole
    (problem,) = [found for found in ready["problems"] if path.name in found]
    assert f"1 line is lost of run 'r' of 'p', from position {number} on" in problem
    assert problem in service.output()
    assert "tailrace_damaged_entries 1.0" in metrics
    assert "tailrace_journal_lost_lines 1.0" in metrics
