"""A disk that has descriptors in reserve opens files when nobody else can."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import pytest

from tailrace.logstore.filesystem import Disk, ReservedDisk
from tests.refusals import refused
from tests.simulation.descriptors import no_descriptors


def reserved() -> set[str]:
    """The descriptors of this process that are open on nothing, as those in reserve are."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return {link for link in links if os.path.realpath(link) == os.devnull}


def test_it_opens_what_nobody_else_can(tmp_path: Path) -> None:
    disk, plain = ReservedDisk(4), Disk()
    path = str(tmp_path / "f")
    disk.open(path, "create").close()
    with no_descriptors() as take:
        with refused(errno.EMFILE):
            plain.open(path, "read")
        for _ in range(10):  # each takes one and gives it back
            out = disk.open(path, "update")
            out.write_at([b"x"], 0)
            out.close()
            disk.sync_folder(str(tmp_path))
            assert list(disk.scan(str(tmp_path))) == [("f", False)]
            assert take() == 0, "what was lent is taken back before anybody else has it"
        assert len(disk.reserve) == 4
        folder = disk.open_folder(str(tmp_path))
        lock = disk.lock(str(tmp_path / "lock"), wait=False)
        assert lock is not None
        assert len(disk.reserve) == 2
        lock.release()
        folder.close()
    plain.open(path, "read").close()


def test_readers_leave_half_of_it_to_what_writes(tmp_path: Path) -> None:
    disk = ReservedDisk(4)
    path = str(tmp_path / "f")
    disk.open(path, "create").close()
    with no_descriptors():
        readers = [disk.open(path, "read") for _ in range(2)]
        with refused(errno.EMFILE):
            disk.open(path, "read")
        writers = [disk.open(path, "update") for _ in range(2)]
        with refused(errno.EMFILE):
            disk.open(path, "update")
        assert len(disk.reserve) == 0
        for file in (*readers, *writers):
            file.close()
        assert len(disk.reserve) == 4


def test_what_could_not_be_taken_back_is_taken_later(tmp_path: Path) -> None:
    disk = ReservedDisk(4)
    path = str(tmp_path / "f")
    with no_descriptors():
        out = disk.open(path, "create")
        disk.lock(str(tmp_path / "lock"), wait=False)
        assert len(disk.reserve) == 2
    out.close()
    assert len(disk.reserve) == 4


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EISDIR])
def test_other_errors_take_nothing_of_it(tmp_path: Path, number: int) -> None:
    disk = ReservedDisk(4)
    path = tmp_path if number == errno.EISDIR else tmp_path / "absent"
    with no_descriptors(), refused(number):
        disk.open(str(path), "read")
    assert len(disk.reserve) == 4


def test_it_goes_with_the_disk() -> None:
    gc.collect()  # what tests before left behind must not close its own meanwhile
    before = reserved()
    disk = ReservedDisk(4)
    held = reserved() - before
    assert len(held) == 4
    del disk
    gc.collect()
    assert not held & reserved()
