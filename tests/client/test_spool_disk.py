"""A spool on a real disk that is full or read-only never stops the program that logs."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tailrace_client import Handler, Options
from tailrace_client.records import BatchIds
from tailrace_client.spool import SpoolEntry, SpoolQueue
from tests.client.programs import messages, start_command, state_of
from tests.e2e.service_process import ServiceProcess
from tests.servers.small_disks import SmallDisk, small_disk

pytestmark = pytest.mark.small_disks
FQN = "shop.orders"
QUICK = Options(linger_seconds=0, exit_seconds=60)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as made:
        yield made


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    made = logging.Logger("disk")  # noqa: LOG001 -- nobody else has it
    yield made
    for handler in made.handlers:
        handler.close()


def file_in_place(disk: SmallDisk) -> None:
    (disk.folder / "spool").write_text("no folder")


HARMS: list[Callable[[SmallDisk], None]] = [SmallDisk.fill, SmallDisk.make_read_only, file_in_place]


@pytest.mark.parametrize("harm", HARMS)
def test_a_command_runs_and_its_lines_arrive_without_a_spool(
    service: ServiceProcess, disk: SmallDisk, harm: Callable[[SmallDisk], None]
) -> None:
    harm(disk)
    run = f"without-{harm.__name__}"
    script = "echo one; echo two >&2; sleep 0.2; echo three; exit 3"
    process = start_command(service.url, disk.folder / "spool", run, "sh", "-c", script)
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, out) == (3, b"one\nthree\n")
    assert sorted(messages(service.url, run)) == ["one", "sh exited with 3", "three", "two"]
    assert state_of(service.url, run) == ("closed", "failed")
    said = [line for line in errors.decode().splitlines() if line != "two"]
    assert len(said) == 1
    assert "the spool cannot be written: " in said[0]
    assert [path.name for path in disk.folder.rglob(".*")] == [], "drafts of failed tries"


def test_a_handler_goes_on_while_the_disk_is_full_and_every_record_comes_once(
    service: ServiceProcess, disk: SmallDisk, log: logging.Logger
) -> None:
    said: list[str] = []
    spool = str(disk.folder / "spool")
    disk.fill()
    made = Handler(service.url, FQN, "full-disk", spool=spool, options=QUICK, say=said.append)
    log.addHandler(made)
    for number in range(500):
        log.info("%d %s", number, "x" * 100)
    assert made.wait(60)
    disk.empty()
    # One record at a time: without a pause they would fill the small disk or the memory again.
    while "the spool can be written again" not in said[-1]:
        log.info("empty")
        assert made.wait(60)
    for number in range(500, 700):
        log.info("%d %s", number, "x" * 100)
    assert made.wait(60)
    disk.fill()
    for number in range(700, 1200):
        log.info("%d %s", number, "x" * 100)
    made.close()
    numbers = [text for text in messages(service.url, "full-disk") if text != "empty"]
    assert numbers == [f"{number} {'x' * 100}" for number in range(1200)]
    assert made.stats.dropped == 0
    turns = ["cannot be written" in sentence for sentence in said]
    assert turns[:3] == [True, False, True]
    assert all(turn is not after for turn, after in pairwise(turns)), "each change is said once"
    assert len(said) == 3


def test_a_full_disk_costs_an_attempt_now_and_then_and_what_is_lost_is_said(
    disk: SmallDisk, log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service hangs too: records stay in memory, and no call encodes them again."""
    attempts, append = list[int](), SpoolQueue.append

    def counted(queue: SpoolQueue, entries: list[SpoolEntry], ids: BatchIds) -> None:
        attempts.append(len(entries))
        append(queue, entries, ids)

    monkeypatch.setattr(SpoolQueue, "append", counted)
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        options = Options(linger_seconds=0, exit_seconds=0.2)
        spool = str(disk.folder / "spool")
        made = Handler(url, FQN, "r", spool=spool, options=options, say=said.append)
        log.addHandler(made)
        disk.fill()
        for number in range(3000):
            log.info("%d", number)
        made.close()
    assert made.stats.pending == 3000
    assert len(attempts) < 300
    assert "the spool cannot be written: No space left on device" in said[0]
    lost = "3000 records could not be delivered in time and are lost"
    assert len([sentence for sentence in said if lost in sentence]) == 1


def test_what_memory_held_is_kept_for_the_next_program_once_the_disk_has_room(
    service: ServiceProcess, disk: SmallDisk, log: logging.Logger
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        away = f"http://127.0.0.1:{silent.getsockname()[1]}"
        spool, said = disk.folder / "spool", list[str]()
        disk.fill()
        options = Options(linger_seconds=0, exit_seconds=0.2)
        made = Handler(away, FQN, "kept", spool=str(spool), options=options, say=said.append)
        log.addHandler(made)
        for number in range(100):
            log.info("%d", number)
        disk.empty()
        made.close()
    waits = "100 records could not be delivered in time, and wait in"
    assert len([sentence for sentence in said if waits in sentence]) == 1
    for thread in threading.enumerate():  # one that still sends has the queue
        if thread.name == "tailrace-sender":
            thread.join()
    for target in spool.glob("*/target.json"):
        target.write_text(target.read_text().replace(away, service.url))
    again = Handler(service.url, FQN, "kept", spool=str(spool), options=QUICK, say=said.append)
    again.close()
    assert messages(service.url, "kept") == [str(number) for number in range(100)]
