"""The power goes, the disk fails or is full at call n, for each n: what was synced is there.

A forwarder's life: batches are prepared and synced before they are sent, acknowledged, and files
forgotten, through several compactions and restarts.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from tailrace.forwarder.checkpoints import Checkpoints, StorageFailed, read_states
from tailrace.forwarder.model import FileState
from tailrace.logstore.errors import NotFound
from tests.forwarder.checkpoints.states import batch, state
from tests.seeds import seeds
from tests.simulation.powercut import PowerCut, PowerCutFileSystem

STORAGE = "/var/lib/storage"
FILES, ROUNDS, LIVES = 4, 9, 3
# A fault that lasts: the log goes on in memory, and is saved once it is over.
FAULTS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS)


@dataclass
class Life:
    """What was promised: states as of the last `sync` that returned, and those put since."""

    fs: PowerCutFileSystem
    synced: dict[str, FileState] = field(default_factory=dict)
    put: dict[str, list[FileState | None]] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    failures: int = 0
    cut_after_failures: int | None = None

    def open(self) -> Checkpoints:
        return Checkpoints(STORAGE, self.fs, say=self.said.append, compact_from_bytes=6000)

    def sync(self, log: Checkpoints) -> None:
        try:
            log.sync()
        except StorageFailed:
            self.failures += 1
            if self.failures == self.cut_after_failures:
                raise PowerCut("while the disk refuses") from None
            return
        self.saved(log)

    def saved(self, log: Checkpoints) -> None:
        """All that the log knows is on the disk."""
        self.synced = dict(log.files)
        self.put.clear()

    def change(self, log: Checkpoints, number: int, made: FileState | None) -> None:
        self.put.setdefault(f"file-{number}", []).append(made)
        if made is None:
            log.forget(f"file-{number}")
        else:
            log.put(made)

    def run(self) -> None:
        for life in range(LIVES):
            log = self.open()
            check(log.files, self)
            self.saved(log)
            try:
                for turn in range(life * ROUNDS, (life + 1) * ROUNDS):
                    self.turn(log, turn)
            finally:
                try:
                    self.close(log)
                except StorageFailed:
                    self.failures += 1

    def turn(self, log: Checkpoints, turn: int) -> None:
        number, offset = turn % FILES, turn * 100
        self.change(log, number, state(number, offset, batch(turn, offset, offset + 100)))
        self.sync(log)
        self.change(log, number, state(number, offset + 100))
        if turn % 5 == 0:
            self.change(log, (turn + 1) % FILES, None)
            self.sync(log)

    def close(self, log: Checkpoints) -> None:
        log.close()
        self.saved(log)


def check(found: Mapping[str, FileState], life: Life) -> None:
    """What was synced is there, or what was put later in its place; nothing else is."""
    for name in {*found, *life.synced, *life.put}:
        assert found.get(name) in [life.synced.get(name), *life.put.get(name, [])], name


def check_after_restart(fs: PowerCutFileSystem, life: Life) -> None:
    with suppress(NotFound):  # before the first file had its name
        check(read_states(STORAGE, fs), life)
    later = Life(fs)
    log = later.open()
    check(log.files, life)
    later.saved(log)
    later.turn(log, 1000)
    later.close(log)
    log = Life(fs).open()
    assert log.files == later.synced
    log.close()


@pytest.mark.parametrize("seed", seeds(4))
def test_a_power_cut_at_every_call(seed: int) -> None:
    torn, call = 0, 0
    while True:
        call += 1
        fs = PowerCutFileSystem(fail_at=call)
        life = Life(fs)
        with suppress(PowerCut):
            life.run()
        after = fs.reboot(seed * 1000 + call)
        check_after_restart(after, life)
        torn += any(name.endswith(".torn") for name, _ in after.scan(STORAGE))
        if len(fs.calls) < call:
            break
    assert call > 150
    assert torn > 3, "no power cut came into a write"
    assert life.failures == 0


@pytest.mark.parametrize("seed", seeds(2))
def test_a_power_cut_at_every_call_of_a_start_behind_a_power_cut(seed: int) -> None:
    """However often a start is interrupted, it finds the same."""
    calls = len(_calls_of_a_run())
    for first in range(30, calls, 11):
        fs = PowerCutFileSystem(fail_at=first)
        life = Life(fs)
        with pytest.raises(PowerCut):
            life.run()
        call = 0
        while True:
            call += 1
            again = fs.reboot(first + seed)
            again.fail_at = call
            try:
                Life(again).open().close()
            except PowerCut:
                check_after_restart(again.reboot(call), life)
                continue
            break
        assert call > 3


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("number", FAULTS)
@pytest.mark.parametrize("once", [True, False], ids=["once", "lasting"])
def test_a_disk_that_refuses_at_every_call(number: int, once: bool) -> None:
    """The log raises, goes on in memory, and has all of it on the disk once the disk is well."""
    calls = len(_calls_of_a_run())
    failed = 0
    for call in range(1, calls + 1):
        fs = PowerCutFileSystem()
        fs.fail_with(number, at=call, once=once)
        life = Life(fs)
        try:
            life.run()
        except StorageFailed:  # at a start: nothing was changed
            failed += 1
        failed += life.failures
        fs.heal()
        fs.end_processes()
        check_after_restart(fs, life)
    assert failed > 20


@pytest.mark.parametrize("number", FAULTS)
def test_a_power_cut_while_the_disk_refuses(number: int) -> None:
    """What was synced before is there; what a `sync` raised for may be there or not."""
    for call in range(20, len(_calls_of_a_run()), 3):
        fs = PowerCutFileSystem()
        fs.fail_with(number, at=call)
        life = Life(fs, cut_after_failures=2)
        with suppress(PowerCut, StorageFailed):
            life.run()
        check_after_restart(fs.reboot(call), life)


def test_what_was_put_while_the_disk_refused_is_saved_when_it_is_well() -> None:
    for number in FAULTS:
        for call in range(15, 60, 4):
            fs = PowerCutFileSystem()
            life = Life(fs)
            log = life.open()
            fs.fail_with(number, at=call)
            for turn in range(ROUNDS):
                life.turn(log, turn)
            fs.heal()
            life.change(log, 1, state(1, 12345))
            failures = life.failures
            life.sync(log)
            assert life.failures == failures
            found = Life(fs.reboot(call)).open()
            assert found.files == log.files == life.synced


def test_a_close_that_cannot_save_says_so_and_lets_go_of_the_folder() -> None:
    fs = PowerCutFileSystem()
    log = Life(fs).open()
    log.put(state(1))
    fs.fail_with(errno.EIO, at=1)
    with pytest.raises(StorageFailed):
        log.close()
    fs.heal()
    Life(fs).open().close()


def _calls_of_a_run() -> list[str]:
    fs = PowerCutFileSystem()
    Life(fs).run()
    return fs.calls
