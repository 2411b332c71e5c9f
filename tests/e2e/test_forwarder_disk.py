"""A real forwarder whose checkpoints are on a disk that is full, or are deleted."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.service_process import ServiceProcess
from tests.forwarder.forwarder_process import ForwarderProcess, stored
from tests.servers.ports import free_port
from tests.servers.small_disks import SmallDisk, small_disk


@pytest.fixture
def state(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "state") as made:
        yield made


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    made = ServiceProcess(tmp_path / "node")
    made.start()
    yield made
    made.stop()


@pytest.mark.small_disks
def test_a_real_disk_that_is_full_and_gets_room_again(
    service: ServiceProcess, tmp_path: Path, state: SmallDisk
) -> None:
    one = ForwarderProcess(tmp_path, service.url, run="full")
    path = one.logs / "full.log"
    expected = [f"line {number}" for number in range(100)]
    path.write_text("".join(f"{line}\n" for line in expected))
    state.fill()
    one.start(wait=False)
    try:
        one.until(lambda: "reading stops until" in one.said())
        state.empty()
        one.until(lambda: stored(service.url, "full") == expected)
        assert one.said().count("reading stops until") == 1
        state.fill()
        more = [f"more {number} {'y' * 400}" for number in range(2000)]
        with path.open("a") as file:
            file.writelines(f"{line}\n" for line in more)
        one.until(lambda: one.said().count("reading stops until") == 2)
        state.empty()
        one.until(lambda: stored(service.url, "full") == expected + more)
        assert one.stop() == 0
        assert "ALARM" not in one.said()
    finally:
        if one.process is not None:
            one.kill()


def test_a_state_folder_that_is_deleted_is_an_alarm_and_nothing_is_sent_twice(
    service: ServiceProcess, tmp_path: Path
) -> None:
    one = ForwarderProcess(tmp_path, service.url, run="deleted-state")
    path = one.logs / "a.log"
    path.write_text("one\ntwo\n")
    one.start()
    try:
        one.until(lambda: stored(service.url, "deleted-state") == ["one", "two"])
        shutil.rmtree(tmp_path / "state")
        one.until(lambda: "ALARM: somebody removed" in one.said())  # though it has nothing to do
        one.kill()
        one.start()
        with path.open("a") as file:
            file.write("three\n")
        one.until(lambda: stored(service.url, "deleted-state")[-1] == "three")
        assert stored(service.url, "deleted-state") == ["one", "two", "three"]
        assert one.stop() == 0
    finally:
        if one.process is not None:
            one.kill()


@pytest.mark.small_disks
def test_lines_of_stdin_that_only_memory_held_are_said_to_be_lost(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        disk.make_read_only()
        spool = ["--spool", str(disk.folder / "spool"), "--exit-seconds", "0.2"]
        nobody = f"127.0.0.1:{free_port()}"
        ended = subprocess.run(
            [sys.executable, "-m", "tailrace", "forward", nobody, "--fqn", "p.q", *spool],
            input="one\ntwo\n",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 1
    assert "2 records could not be delivered in time and are lost" in ended.stderr
    assert "not delivered yet" not in ended.stderr
