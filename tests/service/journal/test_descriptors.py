"""A journal whose process has no descriptors left goes on, and loses nothing.

On the machine's disk with all descriptors taken, and on a simulated one at each call.
"""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from service.journal.file import MOST, ReadHandles
from service.journal.journal import Journal
from service.journal.recovery import recover
from tailrace.logstore.errors import NodeNotReady
from tailrace.logstore.filesystem import Disk, ReservedDisk, ThreadSyncer
from tests.service.journal.rig import Rig, held, journal_settings, put
from tests.service.journal.test_powercut import Simulation, check_after_restart
from tests.simulation.descriptors import no_descriptors
from tests.simulation.powercut import PowerCutFileSystem

FILE = 1200
SETTINGS = journal_settings(
    file_bytes=FILE, max_bytes=1 << 24, min_free_bytes=0, fast_sync_seconds=3600
)
LINE = b"%03d " + b"x" * 150 + b"\n"


async def fill(rig: Rig, journal: Journal, first: int, count: int) -> list[bytes]:
    """Appends batches of a line each, durable; what was acknowledged."""
    texts = [LINE % number for number in range(first, first + count)]
    for text in texts:
        await put(journal, text, rig.next_ulid())
    return texts


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return f"{tmp_path}/journal"


def a_rig(fs: Disk, folder: str) -> Rig:
    return Rig(fs=fs, folder=folder, settings=SETTINGS, syncer=ThreadSyncer())


async def test_with_descriptors_in_reserve_files_are_begun_and_read(folder: str) -> None:
    fs = ReservedDisk()
    rig = a_rig(fs, folder)
    journal = rig.open()
    kept = await fill(rig, journal, 0, 20)
    files = len(journal.files)
    with no_descriptors() as take:
        for first in range(20, 220, 20):
            kept += await fill(rig, journal, first, 20)
            assert [text for _, _, text in held(journal)] == kept
            take()
        assert len(journal.files) > files + 20
        assert journal.postponed is None
    assert journal.failure is None
    await journal.close()
    journal = rig.open()
    assert [text for _, _, text in held(journal)] == kept
    assert not rig.recovered.found
    await journal.close()


async def test_without_any_left_the_file_at_hand_goes_on_and_says_so(folder: str) -> None:
    rig = a_rig(Disk(), folder)
    journal = rig.open()
    kept = await fill(rig, journal, 0, 20)
    files = len(journal.files)
    with no_descriptors():
        kept += await fill(rig, journal, 20, 40)
        assert len(journal.files) == files
        assert journal.files[-1].size > 4 * FILE
        problems = [*journal.problems(), *rig.recovered.problems()]
        assert len(problems) == 1
        assert "no file descriptor is free" in problems[0]
        with pytest.raises(NodeNotReady, match="no file descriptor is free"):
            held(journal)
        assert journal.failure is None
    kept += await fill(rig, journal, 60, 10)
    assert len(journal.files) > files, "it rolls again by itself"
    assert [*journal.problems(), *rig.recovered.problems()] == []
    assert [text for _, _, text in held(journal)] == kept
    await journal.close()
    journal = rig.open()
    assert [text for _, _, text in held(journal)] == kept
    assert not rig.recovered.found
    await journal.close()


def test_a_folder_that_cannot_be_opened_is_not_damaged(folder: str) -> None:
    async def main() -> None:
        rig = a_rig(Disk(), folder)
        journal = rig.open()
        kept = await fill(rig, journal, 0, 20)
        await journal.close()
        with no_descriptors(), pytest.raises(NodeNotReady):
            recover(rig.fs, folder)
        journal = rig.open()
        assert [text for _, _, text in held(journal)] == kept
        assert not rig.recovered.found
        await journal.close()

    asyncio.run(main())


def test_no_call_that_finds_none_ends_the_journal() -> None:
    """From call n on none is left, for n = 1, 2, 3…; the scenario of the power cuts is run."""
    told = refused = call = 0
    while True:
        call += 1
        fs = PowerCutFileSystem()
        fs.fail_with(errno.EMFILE, at=call)
        scenario = Simulation(fs)
        try:
            asyncio.run(scenario.run())
            told += 1
        except NodeNotReady:
            refused += 1  # where the scenario opens its folder
        met = len(fs.calls) >= call
        fs.heal()
        asyncio.run(check_after_restart(fs, scenario))
        if not met:
            break
    assert told > 30
    assert refused > 10


async def test_a_journal_of_many_files_holds_few_descriptors() -> None:
    rig = Rig(settings=SETTINGS)
    journal = rig.open()
    kept = await fill(rig, journal, 0, 600)
    assert len(journal.files) > 2 * MOST
    assert [text for _, _, text in held(journal)] == kept
    handles = rig.recovered.handles
    assert handles is not None
    assert len(handles) == MOST
    await journal.close()
    assert len(handles) == 0


def test_a_handle_that_is_read_is_not_closed_for_another() -> None:
    fs = PowerCutFileSystem()
    for name in "abc":
        file = fs.open(f"/{name}", "create")
        file.write([name.encode()])
    handles = ReadHandles(fs, most=1)
    first = handles._take("/a")
    assert handles.read("/b", 1, 0) == b"b"
    assert handles.read("/c", 1, 0) == b"c"
    assert len(handles) == 2, "one that is read, and the last one"
    handles.drop("/a")
    assert first.file.pread(1, 0) == b"a", "it goes when nobody reads it any more"
    handles._give_back(first)
    with pytest.raises(OSError, match="Bad file"):
        first.file.pread(1, 0)
    assert handles.read("/a", 1, 0) == b"a"
