"""A real forwarder whose checkpoints are on a real disk that is full."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.service_process import ServiceProcess
from tests.forwarder.forwarder_process import ForwarderProcess, stored
from tests.servers.small_disks import SmallDisk, small_disk


@pytest.fixture
def state(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "state") as made:
        yield made


@pytest.mark.small_disks
def test_a_real_disk_that_is_full_and_gets_room_again(tmp_path: Path, state: SmallDisk) -> None:
    service = ServiceProcess(tmp_path / "node")
    service.start()
    one = ForwarderProcess(tmp_path, service.url, run="full")
    path = one.logs / "full.log"
    expected = [f"line {number}" for number in range(100)]
    path.write_text("".join(f"{line}\n" for line in expected))
    one.start()
    try:
        one.until(lambda: stored(service.url, "full") == expected)
        state.fill()
        more = [f"more {number} {'y' * 400}" for number in range(2000)]
        with path.open("a") as file:
            file.writelines(f"{line}\n" for line in more)
        one.until(lambda: "nothing is read until" in one.said())
        state.empty()
        one.until(lambda: stored(service.url, "full") == expected + more)
        assert one.stop() == 0
    finally:
        if one.process is not None:
            one.kill()
        service.stop()
