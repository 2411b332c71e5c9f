"""Positions of lost lines are not given out again, and where damage ends and a torn tail begins."""

from __future__ import annotations

import asyncio

import pytest

from service.journal import format as wal
from service.journal.file import Damage, JournalEntry, Passed, Torn, scan
from service.journal.recovery import recover
from tests.edited import flips
from tests.service.journal.rig import NODE, Rig, put
from tests.service.journal.test_damage import SETTINGS, read, wals, write
from tests.simulation.powercut import PowerCutFileSystem

FOLDER = "/data/journal"
SECRET = b"\x07" * 8
FILE = "01J00000000000000000000000"


def begun(files: int, lines: int) -> PowerCutFileSystem:
    """A journal of so many files with so many lines in each."""
    fs = PowerCutFileSystem()

    async def main() -> None:
        rig = Rig(fs=fs, settings=SETTINGS)
        for _ in range(files):
            journal = rig.open()
            for number in range(lines):
                await put(journal, b"%d\n" % number, rig.next_ulid())
            await journal.close()

    asyncio.run(main())
    return fs


def lose(fs: PowerCutFileSystem, path: str) -> None:
    """Nothing of the file can be read any more, not even what it is."""
    write(fs, path, b"?" * len(read(fs, path)))


async def next_position(fs: PowerCutFileSystem) -> int:
    """The position of the next line, after a start that goes on."""
    rig = Rig(fs=fs, settings=SETTINGS)
    rig.ids = 1000
    journal = rig.open()
    pos = await put(journal, b"afterwards\n", rig.next_ulid())
    await journal.close()
    return pos


@pytest.mark.parametrize("lost", [[3], [2, 3], [1, 2, 3], [0, 1, 2, 3]])
def test_positions_of_wholly_lost_files_are_not_given_out_again(lost: list[int]) -> None:
    fs = begun(files=4, lines=5)
    for number in lost:
        lose(fs, wals(fs)[number])
    assert asyncio.run(next_position(fs)) >= 20


def test_nor_by_the_start_after_one_that_went_no_further() -> None:
    fs = begun(files=2, lines=5)
    lose(fs, wals(fs)[1])
    recover(fs, FOLDER)  # sets it aside, and dies
    assert asyncio.run(next_position(fs)) >= 10


def test_what_a_later_file_says_is_enough() -> None:
    """A lost file in the middle costs no positions: the one behind it begins at its own."""
    fs = begun(files=3, lines=5)
    lose(fs, wals(fs)[1])
    assert asyncio.run(next_position(fs)) == 15
    assert asyncio.run(next_position(fs)) == 16


def _file(claim: int) -> tuple[bytes, int]:
    """Header, state, an entry, one that does not read, and a mark that claims `claim` more
    bytes than stand before that; and where the bad one begins.
    """
    head = wal.encode_header(file=FILE, secret=SECRET, first_pos=0, node=NODE)
    state = wal.sealed(
        wal.encode_json(wal.STATE, {"node": NODE, wal.WRITE_MARKS: True}), wal.NO_SECRET
    )
    whole = wal.sealed(wal.encode_json(wal.CLOSE, {"fqn": "a", "run": "b", "pos": 1}), SECRET)
    bad = len(head) + len(state) + len(whole)
    data = head + state + whole + whole[:-1] + bytes((whole[-1] ^ 1,))
    return data + wal.encode_mark(SECRET, len(data), bad + claim, 0) + whole, bad


@pytest.mark.parametrize(("claim", "damaged"), [(-1, False), (0, False), (1, True)])
def test_a_mark_that_claims_all_up_to_the_bad_entry_does_not_claim_the_entry(
    claim: int, damaged: bool
) -> None:
    """Synced up to there is what was synced: the entry itself was promised to nobody."""
    fs = PowerCutFileSystem()
    fs.make_folders(FOLDER)
    data, bad = _file(claim)
    write(fs, f"{FOLDER}/{FILE}.wal", data)
    file = fs.open(f"{FOLDER}/{FILE}.wal", "read")
    size = len(wal.encode_header(file=FILE, secret=SECRET, first_pos=0, node=NODE))
    header = wal.FileHeader(FILE, SECRET, 0, NODE, size)
    found = [item for item in scan(file, header) if not isinstance(item, Passed)]
    if damaged:
        assert [type(item) for item in found] == [JournalEntry, JournalEntry, Damage, JournalEntry]
        assert isinstance(found[2], Damage)
        assert found[2].offset == bad
        assert wal.MARK in data[found[2].offset + found[2].size :]
    else:
        assert [type(item) for item in found] == [JournalEntry, JournalEntry, Torn, JournalEntry]
        assert isinstance(found[2], Torn)
        assert found[2].followed
    assert sum(isinstance(item, JournalEntry) for item in found) == 3


@pytest.mark.parametrize(("synced", "damaged"), [(-1, False), (0, False), (1, True)])
def test_so_does_what_the_caller_knows_to_be_synced(synced: int, damaged: bool) -> None:
    fs = PowerCutFileSystem()
    fs.make_folders(FOLDER)
    data, bad = _file(-100)
    write(fs, f"{FOLDER}/{FILE}.wal", data)
    file = fs.open(f"{FOLDER}/{FILE}.wal", "read")
    size = len(wal.encode_header(file=FILE, secret=SECRET, first_pos=0, node=NODE))
    found = list(scan(file, wal.FileHeader(FILE, SECRET, 0, NODE, size), synced=bad + synced))
    assert any(isinstance(item, Damage) for item in found) == damaged


@pytest.mark.parametrize("checksum", [True, False], ids=["with a checksum", "of an older program"])
def test_only_a_name_that_is_whole_says_that_the_newest_file_is_gone(*, checksum: bool) -> None:
    fs = begun(files=2, lines=3)
    newest = f"{FOLDER}/{wal.NEWEST}"
    body = read(fs, newest)
    for changed in [*flips(body), *[body[:size] for size in range(len(body))]]:
        write(fs, newest, changed)
        assert not recover(fs, FOLDER).found, changed
    write(fs, newest, body if checksum else body[:26])
    assert not recover(fs, FOLDER).found
    fs.unlink(wals(fs)[-1])
    (found,) = recover(fs, FOLDER).found
    assert "the newest file of the journal is gone" in str(found)
