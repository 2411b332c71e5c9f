"""Every route of the app over a MinIO that is frozen: a plain answer within the deadline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest

from tests.e2e.hung_store import Freezer, service_over
from tests.e2e.processes import wait_for
from tests.e2e.service_process import BASE, ServiceProcess
from tests.fuzz.hostile import Operation, every_operation
from tests.servers.minio import Bucket, memory_folder, running_minio

pytestmark = [pytest.mark.minio, pytest.mark.in_turn(4)]
# Far beyond all deadlines together, and far below the time-outs of a store, which are minutes.
PATIENCE_SECONDS: Final = 40.0
PLAIN: Final = {"content-type": "text/plain"}
VALUES: Final = {
    "fqn": "p",
    "runId": "r",
    "name": "nobody",
    "index": "i",
    "group": "g",
    "epoch": "1",
    "source": "s",
    "key": "k",
    "reason": "why",
    "older_than_seconds": "1",
    "from": "0",
    "to": "now",
    "appender": "a",
}
"""A value of each parameter that some route requires."""
STATUS: Final = {"runId": "r", "pipelineState": "running", "startDate": 1}
EVENT: Final = {"create": {"_index": "i"}}
BODIES: Final[dict[str, tuple[str, bytes]]] = {
    "/_bulk": ("application/x-ndjson", json.dumps(EVENT).encode() + b'\n{"message": "a"}\n'),
    "/{index}/_bulk": ("application/x-ndjson", b'{"create": {}}\n{"message": "a"}\n'),
    "/loki/api/v1/push": (
        "application/json",
        b'{"streams": [{"stream": {"job": "a"}, "values": [["1", "a"]]}]}',
    ),
    "/services/collector/event": ("application/json", b'{"event": "a"}'),
    "/services/collector/raw": ("text/plain", b"a\n"),
    "/v1/logs": ("application/json", b'{"resourceLogs": []}'),
    f"{BASE}/{{fqn}}/{{runId}}": ("text/plain", b"a\n"),
    "/query": ("application/json", b'{"q": "a"}'),
    "/query/count": ("application/json", b'{"q": "a"}'),
}
"""Bodies by path; other routes get a report, or nothing."""
FORM: Final = "application/x-www-form-urlencoded"
LOKI: Final = {"start": "0", "end": "4000000000"}
SELECTOR: Final = '{fqn="p"}'
ANSWERS: Final = frozenset({200, 202, 204, 206, 503})
OTHERWISE: Final = {
    "HEAD /segments/next": 405,
    "GET /docs/{name}": 404,
    "HEAD /docs/{name}": 404,
    "GET /page/{name}": 404,
    "HEAD /page/{name}": 404,
    # An ordinary request, which does not ask for the other protocol.
    "GET /loki/api/v1/tail": 400,
    "HEAD /loki/api/v1/tail": 400,
}
"""Routes that need no store to say that there is nothing."""


class Outcome(NamedTuple):
    """What a route answered; `status` is 0 if it did not."""

    label: str
    status: int
    problem: dict[str, Any]


@pytest.fixture
def bucket() -> Iterator[tuple[Bucket, Freezer]]:
    with running_minio(memory_folder()) as server:
        freezer = Freezer(server)
        yield server.bucket(), freezer
        freezer.thaw()


@pytest.fixture
def service(bucket: tuple[Bucket, Freezer], tmp_path: Path) -> Iterator[ServiceProcess]:
    process = service_over(
        bucket[0],
        tmp_path,
        TAILRACE_SERVER__STORE_SECONDS="2",
        TAILRACE_QUEUE__REPORT_SECONDS="0.1",
        TAILRACE_QUEUE__POLL_SECONDS="0.1",
    )
    process.start()
    yield process
    process.kill()


def test_every_route_answers_while_the_store_hangs(
    service: ServiceProcess, bucket: tuple[Bucket, Freezer]
) -> None:
    with httpx.Client(base_url=service.url, timeout=PATIENCE_SECONDS) as client:
        for run in ("p/r", "doomed/r", "doomed-runs/r"):
            assert client.post(f"{BASE}/{run}", content="a\n", headers=PLAIN).status_code == 200
        leased: dict[str, Any] = {}

        def lease() -> bool:
            reply = client.post("/segments/next", params={"group": "g"})
            leased.update(reply.json() if reply.status_code == 200 else {})
            return bool(leased)

        wait_for(lease)
        values = {**VALUES, "id": str(leased["id"]), "epoch": str(leased["epoch"])}
        all_of_them = every_operation()
        missing = {name for one in all_of_them for name in one.required} - values.keys()
        assert not missing, f"VALUES has no value of {missing}"
        # Lines that wait: their flush hangs meanwhile, and holds the locks of their runs.
        for run in ("p/r", "doomed/r", "doomed-runs/r"):
            client.post(f"{BASE}/{run}", content="b\n", headers=PLAIN)
        bucket[1].freeze()
        with ThreadPoolExecutor(len(all_of_them)) as threads:
            asked = [threads.submit(ask, service.url, one, values) for one in all_of_them]
            found = [one.result() for one in asked]
        wrong = [one for one in found if not is_plain(one)]
        assert not wrong, "\n".join(map(str, wrong))
        assert service.running


def is_plain(one: Outcome) -> bool:
    """Whether it was answered, and an answer that it cannot be given now has a hint."""
    if one.label in OTHERWISE:
        return one.status == OTHERWISE[one.label]
    return one.status in ANSWERS and (one.status != 503 or bool(one.problem.get("hint", "HEAD")))


def ask(url: str, operation: Operation, values: dict[str, str]) -> Outcome:
    """Asks for one route, and reads the beginning of its reply."""
    path = operation.path
    known = dict(values)
    if operation.method == "DELETE" and "{fqn}" in path:
        known["fqn"] = "doomed-runs" if "{runId}" in path else "doomed"
    for name, value in known.items():
        path = path.replace(f"{{{name}}}", value)
    query = {
        name: known[name] for name in operation.required if f"{{{name}}}" not in operation.path
    }
    if path.endswith("/reset") and "group" in operation.required:
        query["to"] = "oldest"
    if path.startswith("/loki/") and "push" not in path:
        metric = path.endswith("/query")
        query |= LOKI | {"query": f"count_over_time({SELECTOR}[1h])" if metric else SELECTOR}
    if path == "/query/values":
        query["field"] = "level"
    kind, body = "", b""
    if operation.path.startswith("/loki/") and operation.path not in BODIES:
        kind = FORM if operation.method == "POST" else ""
    elif operation.method in ("POST", "PUT"):
        kind, body = BODIES.get(operation.path, ("application/json", json.dumps(STATUS).encode()))
        if operation.path.startswith("/api/") and "unfinished" in operation.path:
            body = b'{"producer": "a", "number": 1, "text": "a"}'
    headers = {"content-type": kind} if kind else {}
    try:
        with httpx.stream(
            operation.method,
            f"{url}{path}",
            params=query,
            headers=headers,
            content=body or None,
            timeout=PATIENCE_SECONDS,
        ) as reply:
            problem: dict[str, Any] = {}
            if "problem+json" in reply.headers.get("content-type", ""):
                text = reply.read()
                problem = json.loads(text) if text else {}
            return Outcome(operation.label, reply.status_code, problem)
    except httpx.TransportError as error:
        return Outcome(operation.label, 0, {"error": repr(error)})
