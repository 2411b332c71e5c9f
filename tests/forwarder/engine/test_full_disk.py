"""The disk of the checkpoints is full while files are read."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.forwarder.engine.world import World
from tests.simulation.powercut import PowerCutFileSystem


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_nothing_is_read_while_nothing_can_be_saved(tmp_path: Path, number: int) -> None:
    disk = PowerCutFileSystem()
    world = World(tmp_path, disk=disk)
    expected = world.lines("a.log", 0, 10)
    world.poll()
    disk.fail_with(number, at=len(disk.calls) + 1)
    expected += world.lines("a.log", 10, 20)
    world.lines("b.log", 0, 10)
    world.settle(60)
    assert world.store.lines() == expected[:10], "what is not in the log is not sent"
    (said,) = [said for said in world.said if "reading stops" in said]
    assert os.strerror(number) in said
    disk.heal()
    world.settle(5)
    assert sorted(world.store.lines()) == sorted([*expected, *_lines_of("b.log")])
    world.restart()
    world.settle(5)
    assert len(world.store.lines()) == 30


def test_killed_while_nothing_can_be_saved(tmp_path: Path) -> None:
    disk = PowerCutFileSystem()
    world = World(tmp_path, disk=disk)
    expected = world.lines("a.log", 0, 10)
    world.engine.round()  # one batch is on its way
    disk.fail_with(errno.ENOSPC, at=len(disk.calls) + 1)
    world.settle(20)
    expected += world.lines("a.log", 10, 20)
    world.settle(20)
    world.kill()
    disk.heal()
    disk.end_processes()
    world.start()
    world.settle(5)
    assert world.store.lines() == expected


def _lines_of(name: str) -> list[str]:
    return [f"{name} line {number} {'x' * 20}" for number in range(10)]
