"""Which rights others have on what a service writes, started with whatever umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.service_process import BASE, ServiceProcess

BULK = {"content-type": "text/plain", "tailrace-durability": "bulk"}


@pytest.fixture(autouse=True)
def careless() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def rights(folder: Path) -> dict[str, int]:
    """What others than the owner may do with each file and folder, the folder itself too."""
    every = [folder, *folder.rglob("*")]
    return {str(p.relative_to(folder)): stat.S_IMODE(p.stat().st_mode) & 0o077 for p in every}


def lived(service: ServiceProcess, line: bytes) -> None:
    """It starts, takes a line into its store, closes the run, and stops."""
    service.start()
    with httpx.Client(base_url=service.url, timeout=120) as client:
        run = f"{BASE}/p/r{line.decode().strip()}"
        assert client.post(run, content=line, headers=BULK).status_code == 200
        assert client.post(f"{run}/close").status_code == 200
        assert client.get("/query").status_code == 200
        assert client.get(f"{run}/download").content == line
    assert service.stop() == 0


def test_nobody_else_may_read_what_is_written(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path / "node")
    lived(service, b"1\n")
    found = rights(tmp_path / "node")
    assert {name for name, others in found.items() if others} == set()
    assert any(name.endswith(".parquet") for name in found)
    assert any(name.endswith(".wal") for name in found)


def test_a_store_may_be_opened_to_others_and_the_journal_not(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path / "node", store=None, TAILRACE_UMASK="022")
    lived(service, b"1\n")
    found = rights(tmp_path / "node")
    journal = {name: others for name, others in found.items() if name.startswith("journal")}
    assert set(journal.values()) == {0}
    assert found["node.json"] == 0
    assert found["store"] == 0o055
    assert {o for name, o in found.items() if name.endswith(".parquet")} == {0o044}


@pytest.mark.in_turn(3)
def test_the_journal_of_an_older_version_is_closed_at_the_start(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path / "node")
    lived(service, b"1\n")
    for path in [tmp_path / "node" / "journal", *(tmp_path / "node" / "journal").iterdir()]:
        path.chmod(0o755)
    lived(service, b"2\n")
    assert stat.S_IMODE((tmp_path / "node" / "journal").stat().st_mode) == 0o700
