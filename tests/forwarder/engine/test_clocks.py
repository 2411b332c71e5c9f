"""A wall clock that is set while the forwarder runs, or while it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forwarder.engine.world import World

_DAY_MS = 24 * 3600 * 1000


def _known(world: World) -> set[str]:
    return {Path(state.path).name for state in world.checkpoints.files.values()}


def _hours(world: World, count: int) -> None:
    for _ in range(count):
        world.clock.move(3600)
        world.poll()


@pytest.mark.parametrize("days", [400, -400])
def test_a_clock_that_is_set_makes_no_file_older(tmp_path: Path, days: int) -> None:
    world = World(tmp_path, forget_after="1d")
    expected = world.lines("a.log", 0, 10)
    world.poll()
    world.path("a.log").rename(tmp_path / "moved")
    world.over()
    world.clock.wall_ms += days * _DAY_MS
    _hours(world, 2)
    assert _known(world) == {"a.log"}
    (tmp_path / "moved").rename(world.path("b.log"))
    world.poll()
    assert world.store.lines() == expected, "it is known, and not read again"
    world.path("b.log").unlink()
    world.over()
    _hours(world, 26)
    assert _known(world) == set()


@pytest.mark.parametrize("days", [400, -400])
def test_what_is_saved_goes_by_the_clock_as_it_was_set(tmp_path: Path, days: int) -> None:
    """A machine that starts with the wrong time gets the right one, and the forwarder restarts."""
    world = World(tmp_path, forget_after="2d")
    expected = world.lines("a.log", 0, 10)
    world.poll()
    world.path("a.log").rename(tmp_path / "moved")
    world.over()
    world.clock.wall_ms += days * _DAY_MS
    _hours(world, 2)
    world.restart()
    _hours(world, 2)
    assert _known(world) == {"a.log"}
    (tmp_path / "moved").rename(world.path("a.log"))
    world.poll()
    assert world.store.lines() == expected


def test_a_clock_that_was_set_back_while_it_was_stopped(tmp_path: Path) -> None:
    """How long the file is gone nobody can tell: it counts from the start."""
    world = World(tmp_path, forget_after="1d")
    world.lines("a.log", 0, 10)
    world.poll()
    world.path("a.log").unlink()
    world.over()
    world.kill()
    world.clock.wall_ms -= 400 * _DAY_MS
    world.start()
    _hours(world, 20)
    assert _known(world) == {"a.log"}
    _hours(world, 6)
    assert _known(world) == set()


def test_a_file_that_was_idle_for_long_is_known_when_it_goes(tmp_path: Path) -> None:
    """`forget_after` counts from when it went, not from its last line."""
    world = World(tmp_path, forget_after="1d", close_after="1h")
    expected = world.lines("a.log", 0, 10)
    world.poll()
    _hours(world, 72)
    world.path("a.log").rename(tmp_path / "moved")
    world.over()
    _hours(world, 20)
    assert _known(world) == {"a.log"}
    (tmp_path / "moved").rename(world.path("a.log.1"))
    world.poll()
    assert world.store.lines() == expected


def test_a_file_that_went_after_an_idle_time_while_it_was_stopped(tmp_path: Path) -> None:
    world = World(tmp_path, forget_after="1d")
    expected = world.lines("a.log", 0, 10)
    world.settle(2)  # the acknowledgement is saved
    world.kill()
    world.clock.move(72 * 3600)
    world.path("a.log").rename(tmp_path / "moved")
    world.start()
    world.over()
    _hours(world, 20)
    (tmp_path / "moved").rename(world.path("b.log"))
    world.poll()
    assert world.store.lines() == expected
