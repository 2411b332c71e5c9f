"""A real disk that is full, of bytes or of inodes: the service starts on it and empties it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tailrace.logstore.batch import RunKey
from tests.e2e.clients import run_path
from tests.e2e.processes import wait_for
from tests.e2e.service_process import ServiceProcess
from tests.servers.small_disks import SmallDisk, small_disk

LARGE = RunKey("service.pipeline", "6f1c2ab0-9a6e-4a68-8a43-0c1b9d0e7f12")
OTHER = RunKey("service.pipeline", "0d0a6a30-41f0-4c0c-8e1c-2f5a7f2f6b11")
LIMITS = {
    "TAILRACE_JOURNAL__FILE_BYTES": "1MiB",
    "TAILRACE_JOURNAL__MAX_BYTES": "8MiB",
    "TAILRACE_JOURNAL__MIN_FREE_BYTES": "1MiB",
    "TAILRACE_JOURNAL__RESERVE_BYTES": "256KiB",
    "TAILRACE_JOURNAL__ERASE_SECONDS": "0.1",
    "TAILRACE_FLUSH__SEGMENT_SECONDS": "0.2",
}
FILLS: dict[str, Callable[[SmallDisk], None]] = {
    "bytes": SmallDisk.fill,
    "inodes": SmallDisk.fill_inodes,
}


def append(client: httpx.Client, key: RunKey, text: bytes) -> int:
    head = {"Content-Type": "text/plain"}
    return client.post(run_path(key), content=text, headers=head).status_code


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.small_disks
@pytest.mark.in_turn(3, "full disks")
@pytest.mark.parametrize("what", FILLS)
def test_a_full_disk_is_emptied_through_the_service(what: str, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 24 << 20, inodes=800) as disk:
        service = ServiceProcess(disk.folder)
        service.settings |= LIMITS
        service.start()
        with httpx.Client(base_url=service.url, timeout=60) as client:
            for _ in range(4):
                assert append(client, LARGE, (b"x" * 1023 + b"\n") * 1024) == 200
            assert append(client, OTHER, b"kept\n") == 200
            for key in (LARGE, OTHER):
                closed = client.post(f"{run_path(key)}/close", json={"connectorId": "x"})
                assert closed.status_code == 200
            reserve = disk.folder / "reserve"
            wait_for(lambda: len(files_in(reserve)) == 64)
            FILLS[what](disk)
            service.kill()
            service.start("live")
            assert files_in(reserve / "start") == []
            FILLS[what](disk)  # what the start had left
            assert client.get(f"{run_path(OTHER)}/download").text == "kept\n"
            deleted = client.delete(run_path(LARGE))
            assert deleted.status_code == 200, deleted.text
            wait_for(lambda: append(client, OTHER, b"goes on\n") == 200)
            assert client.get(f"{run_path(OTHER)}/download").text == "kept\ngoes on\n"
        assert service.stop() == 0


@pytest.mark.small_disks
def test_a_start_on_a_read_only_disk_says_so(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        (disk.folder / "data" / "journal").mkdir(parents=True)
        disk.make_read_only()
        command = [sys.executable, "-m", "tailrace", "serve", "--data", str(disk.folder / "data")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    first, second = ended.stderr.splitlines()
    assert "its disk is read-only" in first
    assert second.startswith("hint: Mount the disk")
