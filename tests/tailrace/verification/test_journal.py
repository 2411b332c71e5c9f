"""A journal as it lies on a disk: damage and gaps are told, what was never synced is not."""

from __future__ import annotations

import asyncio

import pytest

from tailrace.logstore import ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.filesystem import FileSystem
from tailrace.verification.findings import Fault, Findings
from tailrace.verification.journal import JournalCheck
from tests.service.journal.rig import RUN, Rig, journal_settings, put
from tests.simulation.powercut import PowerCutFileSystem

FOLDER = "/data/journal"
OTHER = RunKey("other", "run")
EACH = 5  # batches of two lines in each of three files


def written(*, confirm: bool) -> PowerCutFileSystem:
    """Three starts, so three files, each whole; the lines of the first two are in a segment."""
    fs = PowerCutFileSystem()

    async def main() -> None:
        rig = Rig(fs=fs, settings=journal_settings(fast_sync_seconds=3600))
        for start in range(3):
            journal = rig.open()
            for number in range(EACH):
                text = b"line %d %d\nsecond\n" % (start, number)
                key = OTHER if number == 2 else RUN
                await put(journal, text, rig.next_ulid(), run=key)
            if start == 1:
                cut = await journal.record_cut(1, 0)
                if confirm:
                    journal.confirm(cut)
            await journal.close()

    asyncio.run(main())
    return fs


def names(fs: FileSystem) -> list[str]:
    found = [name for name, _ in fs.scan(FOLDER) if name.endswith(".wal")]
    return sorted(f"{FOLDER}/{name}" for name in found)


def change(fs: FileSystem, path: str, at: int) -> None:
    file = fs.open(path, "read")
    body = bytearray(file.pread(file.size(), 0))
    file.close()
    body[at] ^= 1
    fs.unlink(path)
    file = fs.open(path, "create")
    file.write([bytes(body)])
    file.close()


def checked(fs: FileSystem) -> tuple[JournalCheck, int | None, list[Fault]]:
    told: list[Fault] = []
    check = JournalCheck(fs, FOLDER, Findings(told.append))
    return check, check.confirmed(), told


def test_a_whole_journal_gives_its_confirmed_lines() -> None:
    check, below, told = checked(written(confirm=True))
    assert told == []
    assert below == 2 * EACH * 2
    messages: dict[RunKey, list[bytes]] = {}
    positions: list[int] = []
    for _, copies in check.files(below):
        for key, table in copies:
            messages.setdefault(key, []).extend(table.column("message").to_pylist())
            positions += table.column("pos").to_pylist()
            ulids = table.column("ulid").to_pylist()
            assert all(text.endswith(("00000", "00001")) for text in ulids)
    assert messages[OTHER] == [b"line 0 2", b"second", b"line 1 2", b"second"]
    assert len(messages[RUN]) == 2 * (EACH - 1) * 2
    assert sorted(positions) == list(range(below))


def test_what_is_in_no_confirmed_segment_is_not_compared() -> None:
    check, below, told = checked(written(confirm=False))
    assert (below, told) == (0, [])
    assert [list(copies) for _, copies in check.files(0)] == [[], [], []]


def test_a_changed_byte_of_an_older_file() -> None:
    fs = written(confirm=True)
    change(fs, names(fs)[1], -60)
    _, _, told = checked(fs)
    assert [(fault.kind, fault.place.split(" at ")[0]) for fault in told] == [
        ("journal-damaged", names(fs)[1])
    ]


def test_a_torn_tail_was_promised_to_nobody() -> None:
    fs = written(confirm=True)
    change(fs, names(fs)[-1], -3)
    _, _, told = checked(fs)
    assert told == []


def test_a_damaged_header_and_a_file_that_is_none() -> None:
    fs = written(confirm=True)
    change(fs, names(fs)[0], 3)
    file = fs.open(f"{FOLDER}/{ulid.encode(1)}.wal", "create")
    file.write([b"no journal"])
    file.close()
    _, _, told = checked(fs)
    assert {fault.kind for fault in told} == {"journal-damaged"}
    assert len(told) == 2


@pytest.mark.parametrize("gone", [0, 1])
def test_files_whose_lines_are_in_segments_may_be_gone(gone: int) -> None:
    fs = written(confirm=True)
    fs.unlink(names(fs)[gone])
    assert checked(fs)[2] == []


def test_a_file_that_is_gone_before_its_lines_were_in_a_segment() -> None:
    fs = written(confirm=False)
    fs.unlink(names(fs)[1])
    _, _, told = checked(fs)
    (fault,) = told
    assert fault.kind == "journal-gap"
    assert f"{EACH * 2} lines" in fault.detail


def test_nothing_is_written() -> None:
    fs = written(confirm=True)
    change(fs, names(fs)[0], -60)
    before = {name for name, _ in fs.scan(FOLDER)}
    check, below, _ = checked(fs)
    assert sum(len(list(copies)) for _, copies in check.files(below or 0)) > 0
    assert {name for name, _ in fs.scan(FOLDER)} == before
