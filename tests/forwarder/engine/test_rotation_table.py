"""OpenTelemetry's table of rotations: four amounts, by rename and by copy, numbered and dated.

A line of 50 bytes each millisecond, a poll each ten, one backup. Upstream lets lines get lost where
backups are deleted; here every line arrives, as a poll comes before a backup is gone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forwarder.engine.test_hints import Live
from tests.forwarder.engine.world import World

AMOUNTS = {
    "no rotation": (10, 10),
    "no deletion": (20, 10),
    "deletion": (30, 10),
    "deletion beyond the fingerprint": (300, 100),
}
KINDS = ["move", "copy"]
NAMES = ["numbered", "dated"]

table = [
    pytest.mark.parametrize(("lines", "per_file"), AMOUNTS.values(), ids=AMOUNTS.keys()),
    pytest.mark.parametrize("kind", KINDS),
    pytest.mark.parametrize("names", NAMES),
]


class Rotator:
    """A logger that rotates its file after so many lines, and keeps one backup."""

    def __init__(self, world: World, per_file: int, kind: str, names: str) -> None:
        self._log = world.path("a.log")
        self._per_file = per_file
        self._kind = kind
        self._dated = names == "dated"
        self._backups: list[Path] = []
        self._in_file = 0
        self.written: list[str] = []
        self.rotations = 0

    def write(self) -> None:
        if self._in_file == self._per_file:
            self._rotate()
        line = f"{len(self.written):06} ".ljust(50, "x")
        with self._log.open("a") as file:
            file.write(f"{line}\n")
        self.written.append(line)
        self._in_file += 1

    def _rotate(self) -> None:
        self.rotations += 1
        name = f"a.log.2026-11-23T15-{self.rotations:06}" if self._dated else "a.log.1"
        backup = self._log.with_name(name)
        if self._kind == "move":
            self._log.replace(backup)  # over the last backup, if it has its name
        else:
            shutil.copy(self._log, backup)
            os.truncate(self._log, 0)
        if backup not in self._backups:
            self._backups.append(backup)
        while len(self._backups) > 1:
            self._backups.pop(0).unlink()
        self._in_file = 0


def _table(test: Callable[..., None]) -> Callable[..., None]:
    for mark in table:
        test = mark(test)
    return test


@_table
def test_polled(tmp_path: Path, lines: int, per_file: int, kind: str, names: str) -> None:
    world = World(tmp_path, poll_interval="10ms", run="all")
    rotator = Rotator(world, per_file, kind, names)
    for _ in range(lines):
        rotator.write()
        world.settle(0.001)
    world.poll()
    assert world.store.lines() == rotator.written


@_table
def test_hinted(tmp_path: Path, lines: int, per_file: int, kind: str, names: str) -> None:
    world = Live(tmp_path, hints=True, run="all")
    rotator = Rotator(world, per_file, kind, names)
    with world.running():
        for number in range(lines):
            rotator.write()
            if number % 10 == 9:  # a backup may go before anybody could have read it
                world.until_stored(rotator.written)
    assert world.store.lines() == rotator.written
