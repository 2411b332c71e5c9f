"""Long, nested, cut, slow and pattern-heavy input to every route of a service process.

A probe beside it is answered, memory stays within what the settings state and 100 MB, and nothing
is answered as a defect. `make fuzz` attacks for `FUZZ_SECONDS`, and asks for the waits of the probe
by the clock as well, beyond those on the same machine without an attack. A run of the tests asks
for the processor's time that the event loop took meanwhile, which a loaded machine does not change.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.access.rules import SCOPES
from tests.e2e.service_process import BASE, ServiceProcess
from tests.fuzz.attack import Attack
from tests.fuzz.hostile import Hostile, operations
from tests.fuzz.probe import Memory, Probe, Wait
from tests.service.access.rules_file import rule, token_of, written

MIB = 1 << 20
SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
LONGEST_WAIT_SECONDS = 0.25
BEYOND_BUDGET_BYTES = 100 * 1000 * 1000
ALL, OTHER, PROBE = token_of("every"), token_of("other"), token_of("probe")
LARGEST = (64 if SECONDS else 16) * MIB
"""A batch's text, and what compressed bodies inflate to."""
# What docs/operate/threat-model.md adds up.
BUDGETS = {
    "TAILRACE_INGEST__IN_FLIGHT_BYTES": 2 * LARGEST,
    "TAILRACE_SERVER__REPLY_BYTES": 32 * MIB,
    "TAILRACE_QUERY__MEMORY_BYTES": 64 * MIB,
    "TAILRACE_OPENMETADATA__REPORT_CACHE_BYTES": 8 * MIB,
}


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServiceProcess]:
    pipelines = ["hostile*", "slow*"]
    process = ServiceProcess(
        tmp_path / "data",
        TAILRACE_ACCESS__RULES=written(
            tmp_path / "rules.yaml",
            rule(ALL, {scope: ["*"] for scope in SCOPES}),
            rule(OTHER, {"ingest": pipelines, "read": pipelines, "admin": pipelines}),
            rule(PROBE, {"ingest": ["probe"], "read": ["probe"]}),
        ),
        TAILRACE_QUERY__MAX_CONCURRENT="1",
        TAILRACE_QUERY__TIME_LIMIT_SECONDS="5",
        TAILRACE_QUEUE__MAX_WAIT_SECONDS="0.1",
        TAILRACE_RUNS__CLOSE_WAIT_SECONDS="0.1",
        TAILRACE_FLUSH__SEGMENT_SECONDS="1",
        TAILRACE_JOURNAL__FAST_SYNC_SECONDS="0.01",
    )
    process.settings |= {name: str(size) for name, size in BUDGETS.items()}
    for name in ("INGEST__MAX_TEXT_BYTES", "FLUSH__SEGMENT_BYTES"):
        process.settings[f"TAILRACE_{name}"] = str(LARGEST)
    if SECONDS:
        watch = str(Path(__file__).with_name("held"))
        process.settings |= {"PYTHONPATH": watch, "FUZZ_HELD": str(tmp_path / "held")}
    process.start()
    _prepare(process)
    yield process
    if process.running:
        process.kill()


def test_every_route_takes_what_no_client_sends(process: ServiceProcess) -> None:
    quiet = _quiet(process)
    hostile = Hostile(SEED, [OTHER, ALL, ALL], bomb_bytes=LARGEST)
    attack = Attack(process.port, hostile, seconds=SECONDS or 5, threads=6, slow=100)
    with Memory(process.pid) as memory, Probe(process.url, process.pid, PROBE) as probe:
        attack.run()
    grown = memory.most - memory.before
    print(f"{attack.shots} requests: {attack.statuses}; {probe.waits}; {grown >> 20} MiB")
    held = process.data.with_name("held")
    print(held.read_text() if held.exists() else "")
    assert attack.defects == [], "\n".join(attack.defects)
    assert process.running, process.output()
    assert "Traceback" not in process.output(), process.output()
    assert attack.statuses[200], "some are answered"
    others = BUDGETS["TAILRACE_OPENMETADATA__REPORT_CACHE_BYTES"] + 4 * LARGEST
    assert grown < sum(BUDGETS.values()) + others + BEYOND_BUDGET_BYTES
    assert probe.waits["live"].held < LONGEST_WAIT_SECONDS, probe.waits
    for what, wait in probe.waits.items():
        if SECONDS:
            assert wait.waited < LONGEST_WAIT_SECONDS + quiet[what].waited, (what, wait, quiet)
    assert process.stop() == 0


def _quiet(process: ServiceProcess) -> dict[str, Wait]:
    """What a probe waits for on this machine when nobody attacks: its disk, and its other work."""
    if not SECONDS:
        return {}
    with Probe(process.url, process.pid, PROBE) as probe:
        threading.Event().wait(SECONDS / 10)
    return probe.waits


def _prepare(process: ServiceProcess) -> None:
    """Runs to ask for, and each kind of work once: what is loaded then is no cost of the attack."""
    headers = {"authorization": f"Bearer {ALL}"}
    with httpx.Client(base_url=process.url, headers=headers, timeout=120) as client:
        for run in ("r", "closed"):
            client.post(
                f"{BASE}/hostile/{run}",
                content=b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ERROR two\n" * 200,
                headers={"content-type": "text/plain", "tailrace-durability": "bulk"},
            ).raise_for_status()
        client.post(f"{BASE}/hostile/closed/close").raise_for_status()
        client.get("/query", params={"q": "/a+b?ERROR/"}).raise_for_status()
        client.post("/segments/next", params={"group": "g"}).raise_for_status()
        client.get("/openapi.json").raise_for_status()  # made at the first request
        lines = {"query": '{pipeline="hostile"} |= "ERROR" | json'}
        client.get("/loki/api/v1/query_range", params=lines).raise_for_status()
        rate = {"query": 'sum(rate({pipeline="hostile"}[1m]))'}
        client.get("/loki/api/v1/query_range", params=rate).raise_for_status()
        for path in ("/v1/logs", "/loki/api/v1/push"):  # an empty protobuf, and empty JSON
            for kind in ("application/x-protobuf", "application/json"):
                client.post(path, content=b"", headers={"content-type": kind})


@pytest.mark.in_turn(2)
def test_many_results_of_a_door_hold_nobody_up(process: ServiceProcess) -> None:
    """Each item of `_bulk` has its own result: 100,000 of them are 15 MiB of JSON."""
    item = b'{"update":{"_index":"hostile"}}\n{}\n'
    headers = {"authorization": f"Bearer {ALL}", "content-type": "application/x-ndjson"}
    with Probe(process.url, process.pid, PROBE) as probe:
        url, body = f"{process.url}/_bulk", item * 99_999
        answer = httpx.post(url, content=body, headers=headers, timeout=120)
    assert len(answer.json()["items"]) == 99_999
    assert probe.waits["live"].held < LONGEST_WAIT_SECONDS, probe.waits


def test_every_operation_has_its_turn() -> None:
    hostile, asked = Hostile(0, [ALL]), operations()
    labels = {operation.label for operation in asked}
    assert len(labels) == len(asked) > 40
    assert {" ".join(hostile.shot().name.split()[:2]) for _ in asked} == labels
