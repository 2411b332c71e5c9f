"""A real forwarder and a real service, of which both are killed: each line once, in order."""

from __future__ import annotations

import gzip
import os
import pty
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.client.programs import state_of
from tests.e2e.service_process import BASE, ServiceProcess
from tests.faults.kinds import KNOWABLE, Kind
from tests.faults.schedule import Schedule, evenly
from tests.faults.thread import fault_proxy
from tests.forwarder.forwarder_process import FQN, ForwarderProcess, stored
from tests.servers.logrotate import logrotate

_ROTATE = """{log} {{
  rotate 100
  size 1
  missingok
  nodateext
  {how}
}}
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    started = ServiceProcess(tmp_path_factory.mktemp("service") / "node")
    started.start()
    yield started
    started.stop()


def _append(path: Path, first: int, last: int) -> list[str]:
    lines = [f"line {number} {'x' * 60}" for number in range(first, last)]
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))
    return lines


def test_rotated_killed_compressed_and_closed(service: ServiceProcess, tmp_path: Path) -> None:
    run = "rotated"
    forwarder = ForwarderProcess(tmp_path, service.url, run=run, rotate_wait="500ms")
    log = forwarder.logs / "a.log"
    forwarder.start()
    expected = _append(log, 0, 1000)
    forwarder.until(lambda: stored(service.url, run) == expected)
    for generation in range(1, 4):
        forwarder.kill()
        expected += _append(log, generation * 1000, generation * 1000 + 500)
        log.rename(forwarder.logs / f"a.log.{generation}")
        expected += _append(log, generation * 1000 + 500, generation * 1000 + 1000)
        forwarder.start()
        forwarder.until(lambda: stored(service.url, run) == expected)  # noqa: B023
    rotated = forwarder.logs / "a.log.3"
    (forwarder.logs / "a.log.3.gz").write_bytes(gzip.compress(rotated.read_bytes()))
    rotated.unlink()
    shutil.copy(log, forwarder.logs / "a.log.copy")
    os.truncate(log, 0)
    expected += _append(log, 9000, 9100)
    forwarder.until(lambda: stored(service.url, run) == expected)
    for path in forwarder.logs.iterdir():
        path.unlink()
    forwarder.until(lambda: state_of(service.url, run)[0] == "closed")
    assert forwarder.stop() == 0
    assert stored(service.url, run) == expected


@pytest.mark.logrotate
def test_logrotate_under_a_writer_and_while_it_is_stopped(
    service: ServiceProcess, tmp_path: Path
) -> None:
    """Each line that a file has is stored once: copies are known, and unseen generations read."""
    run = "written"
    forwarder = ForwarderProcess(tmp_path, service.url)
    log = forwarder.logs / "a.log"
    log.touch()
    forwarder.configure(
        targets=[service.url],
        storage=str(tmp_path / "state"),
        include=[str(log)],
        archive_include=[str(forwarder.logs / "a.log.*")],
        start_at="beginning",  # the writer may begin before the first scan
        include_file_name=False,
        fqn=FQN,
        run=run,
        rotate_wait="1s",
    )
    written: list[str] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.005):
            written.extend(_append(log, len(written), len(written) + 1))

    def rotate(how: str) -> None:
        config = tmp_path / "logrotate.conf"
        config.write_text(_ROTATE.format(log=log, how=how))
        config.chmod(0o600)
        before = len(written)
        forwarder.until(lambda: len(written) > before + 20)
        logrotate(config, tmp_path / "logrotate.state")

    def there() -> list[str]:
        found: set[str] = set()
        for path in forwarder.logs.iterdir():
            data = path.read_bytes()
            text = gzip.decompress(data) if path.suffix == ".gz" else data
            found.update(text.decode().splitlines())
        return [line for line in written if line in found]

    forwarder.start()
    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        forwarder.until(lambda: bool(stored(service.url, run)))
        for _ in range(4):
            rotate("copytruncate\n  compress\n  delaycompress")
        assert forwarder.stop() == 0
        for _ in range(3):
            rotate("nocreate\n  compress\n  delaycompress")
        forwarder.start()
        rotate("copytruncate\n  compress\n  delaycompress")
    finally:
        stop.set()
        writer.join(timeout=10)
    forwarder.until(lambda: set(there()) <= set(stored(service.url, run)))
    assert forwarder.stop() == 0
    found = stored(service.url, run)
    assert found == [line for line in written if line in set(found)]


@pytest.mark.in_turn(3)
def test_killed_again_and_again_behind_a_bad_network(
    service: ServiceProcess, tmp_path: Path
) -> None:
    dice, run = Random(15), "killed"
    kinds = [kind for kind in KNOWABLE if kind is not Kind.ERROR_IN_200]
    schedule = Schedule(15, evenly(0.2, kinds))
    expected: list[str] = []
    with fault_proxy(service.url, schedule) as url:
        forwarder = ForwarderProcess(tmp_path, url, run=run, batch_bytes="16KiB")
        log = forwarder.logs / "a.log"
        for number in range(6):
            forwarder.start()
            for part in range(10):
                first = number * 10_000 + part * 300
                expected += _append(log, first, first + 300)
                forwarder.until(lambda: (tmp_path / "state").exists())
            before = len(stored(service.url, run))
            some = before + dice.randrange(1, 1500)
            forwarder.until(lambda: len(stored(service.url, run)) >= min(some, len(expected)))  # noqa: B023
            forwarder.kill()
            if dice.randrange(2):
                log.rename(forwarder.logs / f"a.log.{number}")
        schedule.calm()
        forwarder.start()
        forwarder.until(lambda: len(stored(service.url, run)) >= len(expected))
        assert forwarder.stop() == 0
    assert stored(service.url, run) == expected
    assert sum(schedule.injected.values()) > 0


@pytest.mark.in_turn(3)
def test_the_service_is_killed_meanwhile(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path / "node")
    service.start()
    forwarder = ForwarderProcess(tmp_path / "forwarder", service.url, run="away")
    log = forwarder.logs / "a.log"
    forwarder.start()
    expected = _append(log, 0, 2000)
    forwarder.until(lambda: stored(service.url, "away") == expected)
    service.kill()
    expected += _append(log, 2000, 4000)
    log.rename(forwarder.logs / "a.log.1")
    expected += _append(log, 4000, 4100)
    forwarder.until(lambda: "Connection refused" in forwarder.said())
    service.start()
    forwarder.until(lambda: stored(service.url, "away") == expected)
    assert forwarder.stop() == 0
    service.stop()


@pytest.mark.in_turn(3)
def test_a_stop_waits_for_what_is_on_its_way(service: ServiceProcess, tmp_path: Path) -> None:
    forwarder = ForwarderProcess(tmp_path, service.url, run="stopped", unfinished_wait="1s")
    log = forwarder.logs / "a.log"
    expected = _append(log, 0, 100_000)
    with log.open("a") as file:
        file.write("unfinished")
    forwarder.start()
    assert forwarder.stop() == 0
    part = stored(service.url, "stopped")
    assert part == expected[: len(part)]
    forwarder.start()
    forwarder.until(lambda: len(stored(service.url, "stopped")) == len(expected) + 1)
    assert forwarder.stop() == 0
    assert stored(service.url, "stopped") == [*expected, "unfinished"]


def test_a_second_forwarder_on_the_storage_refuses(service: ServiceProcess, tmp_path: Path) -> None:
    first = ForwarderProcess(tmp_path, service.url, run="two")
    first.start()
    second = ForwarderProcess(tmp_path, service.url, run="two")
    second.start(wait=False)
    assert second.process is not None
    assert second.process.wait(timeout=60) == 1
    assert "Stop the other forwarder" in second.said()
    assert first.stop() == 0


@pytest.mark.in_turn(3)
def test_a_bar_in_a_file_moves_on_a_terminal_and_is_stored_once(
    service: ServiceProcess, tmp_path: Path
) -> None:
    """Its forwarder is killed meanwhile, and starts again."""
    run, unfinished = "bar", f"{service.url}{BASE.removesuffix('/logs')}/unfinished/{FQN}/bar"
    forwarder = ForwarderProcess(tmp_path, service.url, run=run, unfinished_wait="1h")
    log = forwarder.logs / "a.log"

    def write(text: str) -> None:
        with log.open("a") as file:
            file.write(text)

    def shown() -> list[str]:
        lines = httpx.get(unfinished, timeout=60).raise_for_status().json()["lines"]
        return [line["text"] for line in lines]

    forwarder.start()
    write("begins\nGo on? ")
    forwarder.until(lambda: shown() == ["Go on? "])
    ours, theirs = pty.openpty()
    tail = subprocess.Popen(
        [sys.executable, "-m", "tailrace", "tail", "--url", service.url, FQN, run],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "80", "TERM": "dumb"},
    )
    os.close(theirs)
    written = b""

    def read_until(text: bytes) -> None:
        nonlocal written
        while text not in written:
            written += os.read(ours, 4096)

    read_until(b"Go on? ")
    write("yes\n10%\r20%\r30%")
    read_until(b"30%")
    forwarder.kill()
    write("\r40%\r50%")
    forwarder.start()
    read_until(b"50%")
    write("\r99%\r100%\r\ndone\n")
    read_until(b"done")
    forwarder.until(lambda: shown() == [])
    httpx.post(f"{service.url}{BASE}/{FQN}/{run}/close", timeout=60).raise_for_status()
    with suppress(OSError):  # the terminal is closed: the tail has ended
        while piece := os.read(ours, 4096):
            written += piece
    os.close(ours)
    assert tail.wait(timeout=60) == 0
    assert forwarder.stop() == 0
    lines = ["begins", "Go on? yes", "100%", "done"]
    assert stored(service.url, run) == lines
    assert [line.rpartition("\r\x1b[K")[2] for line in written.decode().split("\r\n")] == [
        *lines,
        "",
    ]
    assert b"10%\r" not in written
