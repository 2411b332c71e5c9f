"""A real forwarder whose checkpoints are on a real disk that is full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.service_process import ServiceProcess
from tests.forwarder.forwarder_process import ForwarderProcess, stored

_BYTES = 256 << 10


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "state"
    folder.mkdir()
    options = f"size={_BYTES}"
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)],
        check=False,
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_real_disk_that_is_full_and_gets_room_again(tmp_path: Path, small_disk: Path) -> None:
    service = ServiceProcess(tmp_path / "node")
    service.start()
    one = ForwarderProcess(tmp_path, service.url, run="full")
    path = one.logs / "full.log"
    expected = [f"line {number}" for number in range(100)]
    path.write_text("".join(f"{line}\n" for line in expected))
    one.start()
    try:
        one.until(lambda: stored(service.url, "full") == expected)
        filler = small_disk / "filler"
        with filler.open("wb", 0) as file, pytest.raises(OSError, match="No space"):
            file.writelines([b"x" * 512] * (_BYTES // 512))
        more = [f"more {number} {'y' * 400}" for number in range(2000)]
        with path.open("a") as file:
            file.writelines(f"{line}\n" for line in more)
        one.until(lambda: "nothing is read until" in one.said())
        filler.unlink()
        one.until(lambda: stored(service.url, "full") == expected + more)
        assert one.stop() == 0
    finally:
        if one.process is not None:
            one.kill()
        service.stop()
