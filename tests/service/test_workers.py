"""What each worker of a service gets: its share of the settings, its folder, its connections."""

from __future__ import annotations

import asyncio
import pickle
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from service.http.server import owner
from service.http.targets import BASE
from service.metrics.workers import WorkerPlace
from service.settings import Settings, load_settings
from service.workers import DIVIDED, WorkerAssignment, WorkerProcess, left_behind, settings_of
from tests.settings import settings_with


def test_a_worker_has_its_part_and_the_first_is_the_folders_own_node(tmp_path: Path) -> None:
    sections = {"journal": {"max_bytes": 1001}, "query": {"scan_copies_bytes": 0}}
    whole = settings_with(Settings(data=str(tmp_path), node_id="n"), **sections)
    whole = whole.model_copy(update={"query": whole.query.sized()})
    first, third = (settings_of(whole, k, 4, f"http://h:{k}") for k in (0, 2))
    assert (first.data, first.store, first.node_id) == (str(tmp_path), "", "n")
    assert third.data == str(tmp_path / "workers" / "2")
    assert (third.store, third.node_id) == (str(tmp_path / "store"), "n.2")
    assert (first.compaction.enabled, third.compaction.enabled) == (True, False)
    assert (first.nodes.url, third.nodes.url) == ("http://h:0", "http://h:2")
    assert third.journal.max_bytes == 251
    assert third.query.scan_copies_bytes == 0, "none is none for each"
    assert third.query.index_bytes == -(-whole.query.index_budget // 4) >= 16 << 20
    for section, names in DIVIDED.items():
        for name in names:
            assert hasattr(getattr(whole, section), name), f"{section}.{name}"


def test_loaded_settings_go_to_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_NODES__SECRET", "a secret of some length")
    loaded, _ = load_settings({"data": str(tmp_path)})
    whole = loaded.model_copy(update={"query": loaded.query.sized()})
    got: Settings = pickle.loads(pickle.dumps(settings_of(whole, 1, 2, "")))
    assert got.nodes.secret == SecretStr("a secret of some length")
    assert got.data == str(tmp_path / "workers" / "1")


def test_workers_that_are_too_many_are_found_until_they_have_drained(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path))
    assert left_behind(settings, 1) == []
    for name in ("1", "2", "10", "not-one"):
        (tmp_path / "workers" / name).mkdir(parents=True)
    assert left_behind(settings, 2) == [2, 10]
    (tmp_path / "workers" / "10" / "drained").touch()
    assert left_behind(settings, 2) == [2]


def request(method: str, path: str) -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n".encode()


@pytest.mark.parametrize(
    "path",
    [
        *("/p/r", "/p/r?limit=5", "/p/r/download", "/p/r/logs", "/p/stream/r", "/%70/r"),
        *("/p/r/next", "/p/%72"),
    ],
)
def test_all_requests_for_a_run_have_the_same_worker(path: str) -> None:
    of_append = owner(request("POST", f"{BASE}/p/r"), 97)
    assert of_append == owner(request("POST", f"{BASE}/p/r/close"), 97)
    assert owner(request("GET", f"{BASE}{path}"), 97) == of_append


@pytest.mark.parametrize(
    "head",
    [
        *(b"", b"\x16\x03\x01", b"GET", b"GET / HTTP/1.1\r\n", b"GET /query?q=a HTTP/1.1\r\n"),
        *(request("GET", BASE), request("GET", f"{BASE}/p"), request("GET", f"{BASE}/p/last")),
        request("POST", f"{BASE}/p"),
    ],
)
def test_what_names_no_run_is_anybodys(head: bytes) -> None:
    assert owner(head, 97) is None


def test_runs_are_spread() -> None:
    owners = [owner(request("POST", f"{BASE}/p/run-{n}"), 4) for n in range(400)]
    assert {owners.count(k) > 60 for k in range(4)} == {True}


async def test_a_stop_reaches_a_worker_that_is_just_being_started(tmp_path: Path) -> None:
    with socket.socket() as own, (tmp_path / "serving").open("wb") as serving:
        place = WorkerPlace(0, ())
        settings = Settings(data=str(tmp_path / "data"))

        def assign(ready: int) -> WorkerAssignment:
            return WorkerAssignment(
                settings, place, None, own.fileno(), (), serving.fileno(), ready
            )

        worker = WorkerProcess(0, assign, lambda _: None, drains=False)
        life = asyncio.create_task(worker.live())
        await asyncio.sleep(0)
        await worker.stop(60)
        async with asyncio.timeout(60):
            assert await life == -signal.SIGTERM


@pytest.mark.parametrize(
    "said",
    [b"", b"\x00" * 7, (1 << 20).to_bytes(8, "big") + b"half"],
    ids=["nothing", "a part", "half"],
)
def test_a_worker_whose_parent_dies_before_it_has_begun_ends_without_a_word(said: bytes) -> None:
    """Killed while the worker starts, the parent says nothing, or half of what it had to."""
    command = [sys.executable, "-m", "service.worker"]
    done = subprocess.run(command, input=said, capture_output=True, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
