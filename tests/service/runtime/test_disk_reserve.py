"""The reserve of a disk is given up when the disk is full, and taken again later."""

from __future__ import annotations

import errno

import pytest

from service.runtime.free_disk import INODES, DiskReserve
from tests.simulation.powercut import PowerCutFileSystem

SIZE = 1 << 20
FOLDER = "/data/reserve"


class FewInodes(PowerCutFileSystem):
    """A disk with so many free inodes."""

    inodes = 1 << 20

    def free_inodes(self, path: str) -> int:
        return self.inodes


def files(fs: PowerCutFileSystem, purpose: str) -> int:
    return len(list(fs.contents(f"{FOLDER}/{purpose}")))


def leave(fs: PowerCutFileSystem, free: int) -> None:
    fs.capacity_bytes += free - fs.free_bytes("/")


@pytest.mark.parametrize("what", ["bytes", "inodes"])
def test_each_purpose_has_its_own_and_gets_it_back(what: str) -> None:
    fs = FewInodes()
    reserve = DiskReserve(fs, [FOLDER], SIZE)
    before = fs.free_bytes("/")
    reserve.restore()
    assert before - fs.free_bytes("/") == 2 * SIZE
    assert (files(fs, "start"), files(fs, "deletion")) == (INODES, INODES)

    def have(size: int) -> None:
        if what == "bytes":
            leave(fs, size * SIZE)
        else:
            fs.inodes = size * INODES

    reserve.give_up_if_full("start")
    assert files(fs, "start") == INODES, "there is room"
    have(0)
    reserve.give_up_if_full("start")
    assert (files(fs, "start"), files(fs, "deletion")) == (0, INODES)
    have(0)
    reserve.give_up_if_full("deletion")
    assert files(fs, "deletion") == 0
    have(2)
    reserve.restore()
    assert files(fs, "start") + files(fs, "deletion") == 0, "others have the room first"
    have(7)
    reserve.restore()
    assert (files(fs, "start"), files(fs, "deletion")) == (INODES, INODES)


def test_a_disk_that_fills_up_meanwhile_has_no_half_reserve() -> None:
    fs = PowerCutFileSystem()
    reserve = DiskReserve(fs, [FOLDER], SIZE)
    fs.fail_with(errno.ENOSPC, at=len(fs.calls) + 1, under=f"{FOLDER}/start/bytes")
    reserve.restore()
    assert files(fs, "start") == 0
    assert files(fs, "deletion") == INODES
    fs.heal()
    reserve.restore()
    assert files(fs, "start") == INODES


def test_without_a_size_nothing_is_taken() -> None:
    fs = PowerCutFileSystem()
    reserve = DiskReserve(fs, [FOLDER], 0)
    reserve.restore()
    reserve.give_up_if_full("start")
    assert list(fs.contents("/")) == []
