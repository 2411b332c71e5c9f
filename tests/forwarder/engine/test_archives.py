"""`archive_include`: generations that the forwarder never saw are read, oldest first, each once."""

from __future__ import annotations

import gzip
import lzma
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.forwarder.engine.world import World

_TICK = 10**9


def _world(tmp_path: Path, **config: Any) -> World:
    logs = tmp_path / "logs"
    config = {
        "include": [str(logs / "*.log")],
        "archive_include": [str(logs / "*.log?*"), str(logs / "old" / "*")],
        "run": "{stem}",
        **config,
    }
    return World(tmp_path, **config)


def _stamp(path: Path, number: int) -> None:
    os.utime(path, ns=(_TICK * number, _TICK * number))


def _numbered(world: World, generation: int) -> None:
    """`.1` is the newest; all but that are compressed."""
    for number in range(generation, 0, -1):
        for ending in ("", ".gz"):
            path = world.path(f"a.log.{number}{ending}")
            if path.exists():
                there = world.path(f"a.log.{number + 1}.gz")
                stat = path.stat()
                data = path.read_bytes()
                there.write_bytes(data if ending else gzip.compress(data))
                os.utime(there, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
                path.unlink()
    world.path("a.log").rename(world.path("a.log.1"))


def _dated(world: World, generation: int) -> None:
    world.path("a.log").rename(world.path(f"a.log-202611{generation:02}"))


def _of_the_kubelet(world: World, generation: int) -> None:
    """An archive is compressed at the next rotation, and has the time of that."""
    for path in list(world.logs.glob("a.log.2026*")):
        if path.suffix != ".gz":
            packed = path.with_name(f"{path.name}.gz")
            packed.write_bytes(gzip.compress(path.read_bytes()))
            _stamp(packed, 5000 + generation)
            path.unlink()
    world.path("a.log").rename(world.path(f"a.log.20261129-0000{generation:02}"))


def _elsewhere(world: World, generation: int) -> None:
    old = world.logs / "old"
    old.mkdir(exist_ok=True)
    world.path("a.log").rename(old / f"a.log.{100 - generation}")


Rotate = Callable[[World, int], None]
_ROTATIONS = [_numbered, _dated, _of_the_kubelet, _elsewhere]


def _rotate(world: World, rotate: Rotate, *, first: int, generations: int) -> list[str]:
    """So many generations, of which each is rotated; what is written to them and to the log."""
    lines: list[str] = []
    for generation in range(first, first + generations):
        lines += world.lines("a.log", generation * 100, generation * 100 + 40)
        _stamp(world.path("a.log"), 1000 + generation)
        rotate(world, generation)
    return lines + world.lines("a.log", 9000 + first, 9003 + first)


@pytest.mark.parametrize("rotate", _ROTATIONS)
@pytest.mark.parametrize("run", ["{stem}", ""], ids=["one run", "a run for each generation"])
def test_three_rotations_while_it_is_stopped(tmp_path: Path, rotate: Rotate, run: str) -> None:
    world = _world(tmp_path, run=run)
    expected = world.lines("a.log", 0, 20)
    world.poll()
    world.kill()
    expected += _rotate(world, rotate, first=1, generations=3)
    world.start()
    world.poll()
    assert world.store.lines() == expected
    for _ in range(2):
        world.over()
        world.restart()
    world.over()
    assert world.store.lines() == expected
    assert world.tally.lost_bytes == 0


def test_a_rotation_between_two_scans_is_no_loss(tmp_path: Path) -> None:
    world = _world(tmp_path)
    expected = world.lines("a.log", 0, 20)
    world.poll()
    expected += _rotate(world, _numbered, first=1, generations=3)
    world.poll()
    assert world.store.lines() == expected


@pytest.mark.parametrize("start_at", ["end", "beginning"])
def test_archives_that_were_there_at_the_first_start(tmp_path: Path, start_at: str) -> None:
    world = _world(tmp_path, start_at=start_at)
    world.kill()
    old = _rotate(world, _numbered, first=1, generations=3)
    world.start()
    expected = [] if start_at == "end" else old
    world.over()
    assert world.store.lines() == expected
    expected += world.lines("a.log", 200, 210)
    world.poll()
    world.kill()
    expected += _rotate(world, _numbered, first=4, generations=2)
    world.start()
    world.over()
    assert world.store.lines() == expected
    world.restart()
    world.over()
    assert world.store.lines() == expected


def test_names_shift_and_it_is_killed_while_archives_are_read(tmp_path: Path) -> None:
    world = _world(tmp_path)
    expected = world.lines("a.log", 0, 20)
    world.poll()
    world.kill()
    expected += _rotate(world, _numbered, first=1, generations=3)
    world.start()
    for generation in range(4, 10):
        world.store.away = generation % 3 == 0
        world.engine.round()
        if generation % 2:
            world.post.carry()
        expected += _rotate(world, _numbered, first=generation, generations=1)
        world.clock.move(0.3)
        world.engine.round()
        if generation % 3 == 1:
            world.restart()
    world.store.away = False
    world.over()
    world.over()
    assert world.store.lines() == expected
    assert world.tally.lost_bytes == 0


def test_archives_that_an_earlier_version_has_read_are_old(tmp_path: Path) -> None:
    """It knew its last generations alone, and had forgotten those before."""
    world = _world(tmp_path)
    expected = world.lines("a.log", 0, 20)
    world.poll()
    for state in list(world.checkpoints.files.values()):
        world.checkpoints.put(replace(state, archives=False))
    world.checkpoints.sync()
    world.kill()
    seconds = world.clock.wall_ms // 1000
    for number, moment in ((4, seconds - 2000), (3, seconds - 1000)):
        world.path(f"a.log.{number}").write_text(f"{number} was read long ago\n" * 100)
        _stamp(world.path(f"a.log.{number}"), moment)
    _stamp(world.path("a.log"), seconds - 1)
    world.path("a.log").rename(world.path("a.log.2"))
    expected += world.lines("a.log", 20, 40)
    _stamp(world.path("a.log"), seconds + 100)
    world.path("a.log").rename(world.path("a.log.1"))
    expected += world.lines("a.log", 40, 60)
    _stamp(world.path("a.log"), seconds + 200)
    world.start()
    world.over()
    assert world.store.lines() == expected
    world.path("a.log.3").write_text("new lines in the place of an old archive\n")
    world.over()
    assert world.store.lines() == [*expected, "new lines in the place of an old archive"]


def test_an_archive_is_known_as_long_as_it_is_there(tmp_path: Path) -> None:
    world = _world(tmp_path, poll_interval="1h", rotate_wait="1h", forget_after="1d")
    expected = world.lines("a.log", 0, 20)
    world.poll()
    world.kill()
    expected += _rotate(world, _numbered, first=1, generations=2)
    world.start()
    world.settle(3 * 86400)
    world.restart()
    world.settle(3 * 86400)
    assert world.store.lines() == expected


def test_an_archive_that_is_done_is_not_opened_at_a_start(tmp_path: Path) -> None:
    world = _world(tmp_path)
    world.lines("a.log", 0, 20)
    world.poll()
    world.kill()
    expected = _rotate(world, _numbered, first=1, generations=2)
    world.start()
    world.over()
    world.kill()
    archives = [path for path in world.logs.iterdir() if path.suffix == ".gz"]
    for path in archives:
        stat = path.stat()
        path.write_bytes(bytes(stat.st_size))  # as it would be seen, if it were read
        os.utime(path, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    world.start()
    world.over()
    assert archives
    assert world.store.lines()[20:] == expected


@pytest.mark.parametrize("encoding", ["utf-8", "nop"])
def test_an_archive_that_cannot_be_decompressed_is_said_and_not_read(
    tmp_path: Path, encoding: str
) -> None:
    world = _world(tmp_path, encoding=encoding)
    expected = world.lines("a.log", 0, 20)
    world.path("a.log.2.xz").write_bytes(lzma.compress(b"a line\n"))
    world.path("a.log.3.zst").write_bytes(zstandard.compress(b"another line\n"))
    world.over()
    if encoding == "utf-8":
        expected = ["another line", *expected]
    assert sorted(world.store.lines()) == sorted(expected)
    assert sum("is not read: it is compressed with xz" in said for said in world.said) == 1


def test_archives_are_not_deleted_after_they_were_read(tmp_path: Path) -> None:
    world = _world(tmp_path, delete_after_read=True, start_at="beginning")
    expected = _rotate(world, _numbered, first=1, generations=1)
    world.over()
    assert world.store.lines() == expected
    assert world.path("a.log.1").exists()
    assert not world.path("a.log").exists()


def test_lines_of_an_archive_are_in_the_run_of_their_log(tmp_path: Path) -> None:
    pod = tmp_path / "logs" / "shop_orders-0_0123-abc" / "web"
    pod.mkdir(parents=True)
    world = World(
        tmp_path,
        include=[str(tmp_path / "logs" / "*" / "*" / "*.log")],
        archive_include=[str(tmp_path / "logs" / "*" / "*" / "*.log.*")],
        fqn="",
        template="pods",
    )
    world.kill()
    for number, text in enumerate(("first\n", "second\n")):
        packed = pod / f"0.log.20261129-00000{number}.gz"
        packed.write_bytes(gzip.compress(text.encode()))
    (pod / "0.log").write_text("third\n")
    world.start()
    world.over()
    assert world.store.lines("0123-abc/0") == ["first", "second", "third"]
    assert not world.said
