"""A real service whose state objects had a bit flipped while it was down: no line is lost."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.clock import SystemClock, system_entropy
from tailrace.logstore.errors import InvalidInput
from tailrace.logstore.state import decode_checked, encode_checked
from tests.e2e.service_process import BASE, ServiceProcess
from tests.edited import flips
from tests.waiting import until

FQN = "service.pipeline"
RUN = f"{BASE}/{FQN}/run-1"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    made = ServiceProcess(tmp_path / "node", store=tmp_path / "store")
    yield made
    if made.running:
        made.kill()
    assert "Traceback" not in made.output()


def post(service: ServiceProcess, lines: list[str], **headers: str) -> httpx.Response:
    sent = {"Content-Type": "text/plain", "Tailrace-Durability": "bulk", **headers}
    body = "".join(f"{line}\n" for line in lines)
    return httpx.post(service.url + RUN, content=body, headers=sent, timeout=60)


def problems(service: ServiceProcess) -> list[str]:
    found: list[str] = httpx.get(f"{service.url}/health/ready", timeout=60).json()["problems"]
    return found


def flip(path: Path, wanted: Callable[[dict[str, object]], bool]) -> None:
    """Turns a bit of a JSON object, so that it still reads and its members are as `wanted`."""
    for changed in flips(path.read_bytes()):
        try:
            value = orjson.loads(changed)
            if wanted(value):
                path.write_bytes(changed)
                return
        except (ValueError, KeyError, TypeError, InvalidInput):
            continue
    raise AssertionError(f"no flip of {path} is like that")


def verify(service: ServiceProcess, *arguments: str) -> list[dict[str, str]]:
    """The faults, those that were repaired too."""
    done = subprocess.run(
        [sys.executable, "-m", "tailrace", "verify", "--json", *arguments],
        env={**service.settings, "TAILRACE_DATA": str(service.data)},
        stdout=subprocess.PIPE,
        timeout=300,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert "summary" in lines[-1]
    assert (done.returncode == 0) == lines[-1]["summary"]["sound"]
    return lines[:-1]


@pytest.mark.in_turn(4)
def test_a_raised_watermark_costs_no_line(service: ServiceProcess, tmp_path: Path) -> None:
    """Believed, it says that lines are in their run's log which are in a segment alone."""
    lines = [f"line {number:04d}" for number in range(918)]
    service.start()
    assert post(service, lines[:900]).status_code == 200
    assert service.stop() == 0
    service.start()
    assert post(service, lines[900:]).status_code == 200
    service.kill()
    (mark,) = (tmp_path / "store" / keys.WATERMARKS).iterdir()
    assert orjson.loads(mark.read_bytes())["pos"] == 900
    flip(mark, lambda value: int(str(value["pos"])) >= 918 and value["seq"] == 1)
    (fault,) = verify(service)
    assert (fault["kind"], fault["place"]) == ("state-damaged", f"{keys.WATERMARKS}{mark.name}")
    service.start()
    assert any("watermark" in problem and "damaged" in problem for problem in problems(service))
    closed = httpx.post(f"{service.url}{RUN}/close", timeout=60)
    assert closed.json()["state"] == "closed"
    assert httpx.get(f"{service.url}{RUN}/download", timeout=60).text.splitlines() == lines
    assert verify(service) == []
    service.stop()


@pytest.mark.in_turn(4)
def test_a_raised_deletion_refuses_no_batch(service: ServiceProcess, tmp_path: Path) -> None:
    """Believed, it says that lines of the next years are deleted."""
    service.start()
    assert post(service, ["before"]).status_code == 200
    assert httpx.delete(f"{service.url}{BASE}/{FQN}", timeout=60).status_code in (200, 202, 204)
    service.stop()
    (record,) = (tmp_path / "store" / keys.DELETED / FQN).glob(".pipeline")
    key, intact = f"{keys.DELETED}{FQN}/.pipeline", record.read_bytes()
    late = ulids.fresh(SystemClock(), system_entropy()) + (1 << 100)
    flip(record, lambda value: ulids.decode(str(value["t"])) > late)
    service.start()
    (problem,) = [problem for problem in problems(service) if key in problem]
    assert "tailrace verify --repair" in problem
    batch = ulids.fresh(SystemClock(), system_entropy()) & ~ulids.LINE_MASK
    named = {"Tailrace-Batch": ulids.encode(batch)}
    assert post(service, ["after"], **named).status_code == 200
    assert httpx.get(f"{service.url}{RUN}/download", timeout=60).text == "after\n"
    assert [fault["place"] for fault in verify(service)] == [key]
    assert [fault["repaired"] != "" for fault in verify(service, "--repair")] == [True]
    assert record.read_bytes() == intact
    asyncio.run(until(lambda: not any(key in problem for problem in problems(service))))
    service.stop()


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("damage", ["flipped", "emptied"])
def test_a_manifest_that_cannot_be_read_does_not_fail_a_stop(
    service: ServiceProcess, tmp_path: Path, damage: str
) -> None:
    """A drain cannot bring lines into that run's log: it leaves them, and all parts still stop."""
    service.start()
    assert post(service, ["before"]).status_code == 200
    assert service.stop() == 0
    manifest = tmp_path / "store" / keys.RUNS / FQN / "run-1.json"
    intact = manifest.read_bytes()
    service.start()
    assert post(service, ["after"]).status_code == 200
    if damage == "flipped":
        flip(manifest, lambda value: True)
    else:
        manifest.write_bytes(b"")
    assert service.stop() == 0
    assert "not all lines came into the logs of their runs: " in service.output()
    manifest.write_bytes(intact)
    service.start()
    closed = httpx.post(f"{service.url}{RUN}/close", timeout=60)
    assert closed.json()["state"] == "closed"
    assert httpx.get(f"{service.url}{RUN}/download", timeout=60).text == "before\nafter\n"
    assert service.stop() == 0


def found(service: ServiceProcess, **asked: str) -> tuple[int, list[str], dict[str, object]]:
    """The status, the lines, and the stats of a search."""
    reply = httpx.get(f"{service.url}/query", params={"format": "ndjson", **asked}, timeout=60)
    rows = [orjson.loads(line) for line in reply.text.splitlines()]
    lines = sorted(str(row["message"]) for row in rows if "message" in row)
    return reply.status_code, lines, next(row["stats"] for row in rows if "stats" in row)


@pytest.mark.in_turn(4)
def test_a_deletion_that_cannot_be_read_harms_its_pipeline_alone(
    service: ServiceProcess, tmp_path: Path
) -> None:
    """Emptied, garbage, newer: what may be deleted is not shown, and replies say so."""
    damages = {"empty": b"", "garbage": b"\x00\xff", "newer": b""}
    service.start()
    for fqn in (*damages, "intact"):
        url = f"{service.url}{BASE}/{fqn}"
        headers = {"Content-Type": "text/plain", "Tailrace-Durability": "bulk"}
        httpx.post(
            f"{url}/r", content=f"{fqn} old\n", headers=headers, timeout=60
        ).raise_for_status()
        httpx.delete(url, timeout=60).raise_for_status()
        httpx.post(
            f"{url}/r", content=f"{fqn} new\n", headers=headers, timeout=60
        ).raise_for_status()
    assert service.stop() == 0
    records = {fqn: f"{keys.DELETED}{fqn}/.pipeline" for fqn in damages}
    newer = tmp_path / "store" / records["newer"]
    damages["newer"] = encode_checked(decode_checked(newer.read_bytes()) | {"format": 2})
    for fqn, body in damages.items():
        (tmp_path / "store" / records[fqn]).write_bytes(body)
    service.start()
    named = problems(service)
    assert all(sum(key in problem for problem in named) == 1 for key in records.values())
    assert any("upgrade this node" in problem for problem in named if records["newer"] in problem)
    assert post(service, ["after"]).status_code == 200
    assert found(service, fqn="intact")[:2] == (200, ["intact new"])
    status, lines, stats = found(service, q="*")
    assert (status, lines, stats["complete"]) == (206, ["after", "intact new"], False)
    assert sorted(map(str, stats["unreadable"])) == sorted(records.values())  # type: ignore[call-overload]
    for fqn, key in records.items():
        status, lines, stats = found(service, fqn=fqn)
        assert (status, lines, stats["unreadable"]) == (206, [], [key])
    assert sorted(fault["place"] for fault in verify(service)) == sorted(records.values())
    httpx.delete(f"{service.url}{BASE}/garbage", timeout=60).raise_for_status()
    dropped = [records["empty"], records["newer"]]
    command = [sys.executable, "-m", "tailrace", "verify"]
    where = {**service.settings, "TAILRACE_DATA": str(service.data)}
    told = subprocess.run(
        [*command, *[word for key in dropped for word in ("--drop", key)]],
        env=where,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.split()[1].rstrip(";") for line in told.stdout.splitlines()] == dropped
    assert (tmp_path / "node" / "dropped").is_dir()
    refused = subprocess.run(
        [*command, "--drop", f"{keys.DELETED}intact/.pipeline"],
        env=where,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode != 0
    assert "can be read" in refused.stderr
    asyncio.run(until(lambda: not any(keys.DELETED in one for one in problems(service))))
    service.stop()
    service.start()
    assert found(service, fqn="garbage")[:2] == (200, [])
    status, lines, _ = found(service, q="*")
    assert (status, {"empty new", "newer new", "intact new", "after"} - {*lines}) == (200, set())
    assert "intact old" not in lines
    service.stop()
