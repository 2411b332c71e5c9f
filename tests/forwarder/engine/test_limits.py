"""Bounds: open files, memory; and what happens when files cannot be opened."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.forwarder.engine.world import World

_NOBODY = 65534


def test_more_files_than_may_be_open(tmp_path: Path) -> None:
    world = World(tmp_path, max_concurrent_files=5)
    expected = [line for number in range(40) for line in world.lines(f"{number:02}.log", 0, 20)]
    world.poll()
    assert sorted(world.store.lines()) == sorted(expected)
    expected += [line for number in range(40) for line in world.lines(f"{number:02}.log", 20, 25)]
    world.poll()
    assert sorted(world.store.lines()) == sorted(expected)
    assert len(world.handles) == 5


def test_rotated_out_of_the_pattern_while_too_few_may_be_open(tmp_path: Path) -> None:
    """OpenTelemetry documents this as a loss. What is still on the disk is read."""
    world = World(tmp_path, max_concurrent_files=3, include=[str(tmp_path / "logs" / "*.log")])
    expected = [line for number in range(20) for line in world.lines(f"{number:02}.log", 0, 20)]
    world.poll()
    for number in range(20):
        expected += world.lines(f"{number:02}.log", 20, 30)
        world.path(f"{number:02}.log").rename(world.path(f"{number:02}.log.1"))
        expected += world.lines(f"{number:02}.log", 30, 40)
    world.poll()
    assert sorted(world.store.lines()) == sorted(expected)
    assert world.tally.lost_bytes == 0


def test_what_was_deleted_unread_for_lack_of_handles_is_counted(tmp_path: Path) -> None:
    world = World(tmp_path, max_concurrent_files=2)
    for number in range(10):
        world.lines(f"{number}.log", 0, 10)
    world.poll()
    world.store.away = True
    lost = 0
    for number in range(10):
        lost += sum(len(line) + 1 for line in world.lines(f"{number}.log", 10, 60_000))
    world.settle(3)
    before = sum(len(body) for _, body in world.store.batches.values())
    for number in range(10):
        world.path(f"{number}.log").unlink()
    world.settle(3)
    world.store.away = False
    world.over()
    stored = sum(len(body) for _, body in world.store.batches.values()) - before
    assert world.tally.lost_bytes > 0
    assert world.tally.lost_bytes + stored == lost


def test_the_process_may_open_no_more_files(tmp_path: Path) -> None:
    world = World(tmp_path, max_concurrent_files=1024)
    used = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 12, hard))
    try:
        expected = [line for number in range(60) for line in world.lines(f"{number}.log", 0, 5)]
        world.poll()
        assert sorted(world.store.lines()) == sorted(expected)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_backlog_does_not_hold_up_a_live_file(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(10):
        world.lines(f"large{number}.log", 0, 150_000)
    for _ in range(3):
        world.engine.round()
        world.post.carry()
    live = world.lines("live.log", 0, 3)
    world.clock.move(0.2)
    for _ in range(3):
        world.engine.round()
        world.post.carry()
    assert set(live) <= set(world.store.lines())
    assert world.engine.round() == 0.0  # the others are far from their end


def test_prepared_bytes_are_bounded(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store.away = True
    for number in range(30):
        world.lines(f"{number:02}.log", 0, 70_000)
    world.settle(5)
    assert world.engine.sending.bytes <= (16 << 20) + (1 << 20)
    world.store.away = False
    world.poll()
    assert len(world.store.lines()) == 30 * 70_000


@pytest.fixture
def not_root() -> Iterator[Path]:
    """A folder of a user who may not read everything."""
    root = os.geteuid() == 0
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if root:
            os.chown(folder, _NOBODY, _NOBODY)
            os.seteuid(_NOBODY)
        try:
            yield Path(folder)
        finally:
            if root:
                os.seteuid(0)


def test_a_file_that_may_not_be_read_for_a_while(not_root: Path) -> None:
    world = World(not_root)
    expected = world.lines("a.log", 0, 10)
    world.path("a.log").chmod(0)
    world.poll()
    assert world.tally.open_errors > 0
    world.path("a.log").chmod(0o600)
    world.settle(2)
    assert world.store.lines() == expected


def test_the_oldest_byte_first(tmp_path: Path) -> None:
    world = World(tmp_path, order="oldest")
    for number in (3, 1, 2):
        world.lines(f"{number}.log", 0, 60_000)
        os.utime(world.path(f"{number}.log"), (1000 + number, 1000 + number))
    world.poll()
    order = [line.split(".", 1)[0] for line in world.store.lines()]
    assert list(dict.fromkeys(order)) == ["1", "2", "3"]
