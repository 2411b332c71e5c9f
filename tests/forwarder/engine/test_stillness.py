"""Rotations while a scan is under way: a list of a folder is no snapshot."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.forwarder.engine.state import Stillness, folders_of
from tailrace.forwarder.files.finder import FoundFile
from tests.forwarder.engine.world import World


class Interrupted(World):
    """Calls `meanwhile` once, behind a list of the files and before they are looked into."""

    meanwhile: Callable[[], None] | None = None

    def listed(self, found: list[FoundFile]) -> list[FoundFile]:
        call, self.meanwhile = self.meanwhile, None
        if call is not None:
            call()
        return found


@pytest.mark.parametrize("truncating", [False, True])
def test_a_generation_that_is_compressed_behind_the_list_comes_first(
    tmp_path: Path, truncating: bool
) -> None:
    world = Interrupted(tmp_path)
    expected = world.lines("a.log", 0, 100)
    world.settle(3)
    if truncating:
        shutil.copy(world.path("a.log"), world.path("a.log.2"))
        os.truncate(world.path("a.log"), 0)
    else:
        world.path("a.log").rename(world.path("a.log.2"))
    expected += world.lines("a.log", 100, 110)
    text = world.path("a.log").read_bytes()
    world.path("a.log").rename(world.path("a.log.1"))
    world.write("a.log", "")

    def compress() -> None:
        world.path("a.log.1").unlink()
        world.path("a.log.1.gz").write_bytes(gzip.compress(text))
        expected.extend(world.lines("a.log", 110, 120))

    world.meanwhile = compress
    world.over()
    assert len(expected) == 120, "it was compressed"
    assert world.store.lines() == expected


def test_a_file_that_is_being_compressed_is_waited_for(tmp_path: Path) -> None:
    """Behind a restart nobody has it open: it is out of sight until the archive is whole."""
    world = Interrupted(tmp_path)
    expected = world.lines("a.log", 0, 60)
    world.settle(3)
    world.store.away = True
    expected += world.lines("a.log", 60, 120)
    world.settle(1)
    world.kill()
    text = world.path("a.log").read_bytes()
    world.path("a.log").rename(world.path("a.log.1"))
    expected += world.lines("a.log", 120, 130)
    packed = gzip.compress(text)

    def compress() -> None:
        world.path("a.log.1").unlink()
        world.path("a.log.1.gz").write_bytes(packed[: len(packed) // 2])

    world.store.away = False
    world.start()
    world.meanwhile = compress
    world.settle(3)
    assert world.store.lines() == expected[:60]
    world.path("a.log.1.gz").write_bytes(packed)
    world.over()
    assert world.store.lines() == expected


def test_a_folder_that_never_rests_holds_nothing_up_for_long(tmp_path: Path) -> None:
    world = Interrupted(tmp_path)
    made = 0

    def another() -> None:
        nonlocal made
        made += 1
        world.path(f"{made}.txt").touch()
        world.meanwhile = another

    world.settle(1)
    world.meanwhile = another
    expected = world.lines("a.log", 0, 10)
    world.settle(3)
    assert world.store.lines() == expected


def test_stillness_is_that_of_the_folders_that_were_seen(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.touch()
    os.utime(tmp_path, ns=(0, 1_000_000_000_000))
    found = [FoundFile(str(log), 0, 0, 0, 0)]
    folders = folders_of(found)
    assert Stillness(folders, 2_000_000).holds(folders_of(found))
    assert not Stillness(folders, 1_000_010).holds(folders_of(found)), "in the same tick"
    still = Stillness(folders, 2_000_000_000_000_000)
    (tmp_path / "b.log").touch()
    assert not still.holds(folders_of(found))
