"""Real disks of a few kilobytes, to be full or read-only."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_PIECE = 512


class SmallDisk:
    """A file system in memory at `folder`, with so many bytes and `inodes`."""

    def __init__(self, folder: Path, size: int, inodes: int = 1 << 20) -> None:
        self.folder = folder
        self.size = size
        self.inodes = inodes

    def mount(self) -> None:
        """Raises `OSError` with what `mount` says."""
        self.folder.mkdir(parents=True, exist_ok=True)
        limits = f"size={self.size},nr_inodes={self.inodes}"
        _run("mount", "-t", "tmpfs", "-o", limits, "none", str(self.folder))

    def unmount(self) -> None:
        _run("umount", "--lazy", str(self.folder))

    def fill(self, leave: int = 0) -> None:
        """Takes all its room but about `leave` bytes."""
        with self._filler.open("ab", 0) as file:
            try:
                while True:
                    file.write(b"x" * _PIECE)
            except OSError:
                pass
            file.truncate(max(file.tell() - leave, 0))

    def fill_inodes(self) -> None:
        """Takes all its inodes, and no bytes."""
        number = 0
        try:
            while True:
                (self.folder / f"filler-{number}").touch()
                number += 1
        except OSError:
            pass

    def empty(self) -> None:
        """Gives the room back that `fill` took."""
        self._filler.unlink()

    def make_read_only(self) -> None:
        _run("mount", "-o", "remount,ro", str(self.folder))

    @property
    def _filler(self) -> Path:
        return self.folder / "filler"


@contextmanager
def small_disk(
    folder: Path, size: int = 256 << 10, *, inodes: int = 1 << 20
) -> Iterator[SmallDisk]:
    """A disk that is mounted until the end."""
    disk = SmallDisk(folder, size, inodes)
    disk.mount()
    try:
        yield disk
    finally:
        disk.unmount()


@cache
def why_no_small_disks() -> str | None:
    """The reason why none can be mounted; None if one can."""
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            small_disk(Path(folder) / "disk"),
        ):
            return None
    except OSError as error:
        return str(error)


def _run(*words: str) -> None:
    made = subprocess.run(words, check=False, capture_output=True, text=True)
    if made.returncode != 0:
        raise OSError(made.stderr.strip())
