"""A journal whose newest file does not read up to its end: damage, or a write that was torn."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from service.journal import format as wal
from service.journal.journal import Journal
from tailrace.verification.findings import Fault, Findings
from tailrace.verification.journal import JournalCheck
from tests.seeds import some
from tests.service.journal.rig import RUN, Rig, held, journal_settings, put
from tests.service.journal.test_damage import (
    SETTINGS,
    copy_with,
    opened,
    read,
    wals,
    write,
    written,
)
from tests.simulation.powercut import PowerCutFileSystem

FIFTY = [b"line %02d\n" % number for number in range(50)]


def verified(fs: PowerCutFileSystem) -> list[Fault]:
    """What `tailrace verify` says of the journal."""
    faults: list[Fault] = []
    check = JournalCheck(fs, "/data/journal", Findings(faults.append))
    check.confirmed()
    return faults


def of_an_older_program(data: bytes) -> bytes:
    """The same file without marks before writes and after the last one."""
    header = wal.decode_header(data)
    out, offset = data[: header.size], header.size
    while offset < len(data):
        length, _ = wal.PREFIX.unpack_from(data, offset)
        body = data[offset + wal.PREFIX.size : offset + wal.PREFIX.size + length]
        offset += wal.PREFIX.size + length
        if body[0] == wal.STATE:
            state = orjson.loads(body[1:])
            del state[wal.WRITE_MARKS]
            out += wal.sealed(wal.encode_json(wal.STATE, state), wal.NO_SECRET)
        elif body[0] != wal.MARK:
            out += wal.sealed(body, header.secret)
    return out


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


@pytest.mark.parametrize("older", [False, True])
def test_any_bit_of_fifty_lines_costs_its_entry_and_is_reported(older: bool) -> None:
    """By `verify` before a start and by the start, in the same words; no line is invented."""
    fs = written(FIFTY)
    data = read(fs, wals(fs)[0])
    data = of_an_older_program(data) if older else data
    # The mark that a close leaves, and what an older program wrote last, are known to nobody.
    end = len(data) - (wal.MARK_BYTES if not older else 0)
    closed = wal.encode_json(wal.CLOSE, {"fqn": RUN.fqn, "run": RUN.run, "pos": 50})
    end -= len(wal.sealed(closed, b"")) if older else 0
    for bit in some(range(8 * end), 397, f"fifty {older}"):
        copy = copy_with(fs, 0, flipped(data, bit))
        faults = verified(copy)

        def ask(rig: Rig, journal: Journal, faults: list[Fault] = faults) -> None:
            texts = [text for _, _, text in held(journal)]
            assert [line for line in FIFTY if line in texts] == texts
            assert len(texts) >= len(FIFTY) - 1
            (found,) = rig.recovered.found
            assert not rig.recovered.torn
            assert found.lines == rig.recovered.lost_lines == len(FIFTY) - len(texts)
            (fault,) = faults
            assert (fault.kind, fault.lines) == ("journal-damaged", found.lines)
            assert found.reason in fault.detail
            (problem,) = rig.recovered.problems()
            assert found.loss() in problem
            if found.lines:
                assert FIFTY[found.first] not in texts

        asyncio.run(opened(copy, ask))


def test_the_run_of_a_damaged_line_is_named() -> None:
    fs = written(FIFTY)
    data = read(fs, wals(fs)[0])
    copy = copy_with(fs, 0, flipped(data, 8 * data.index(b"line 10")))
    (fault,) = verified(copy)
    assert "1 line is lost" in fault.detail
    assert repr(RUN.run) in fault.detail
    assert "position 10" in fault.detail


def test_the_end_of_a_write_that_was_broken_off_is_no_problem() -> None:
    lines = [b"line %d\n" % number for number in range(3)]
    fs = written(lines)
    data = read(fs, wals(fs)[0])
    for size in range(data.index(lines[1]), data.index(lines[2]) + len(lines[2])):
        copy = copy_with(fs, 0, data[:size])
        assert verified(copy) == []

        def ask(rig: Rig, journal: Journal) -> None:
            assert [*journal.problems(), *rig.recovered.problems()] == []

        asyncio.run(opened(copy, ask))


def one_write() -> tuple[PowerCutFileSystem, bytes]:
    """A file of one durable line and one write of three batches, and its bytes."""
    fs = PowerCutFileSystem()

    async def main() -> None:
        journal = Rig(fs=fs, settings=SETTINGS).open()
        await put(journal, b"synced\n", 1)
        await asyncio.gather(*[put(journal, b"%d of three\n" % n, n) for n in range(2, 5)])
        # The process ends here: nothing was written after the sync.

    asyncio.run(main())
    return fs, read(fs, wals(fs)[0])


def torn(data: bytes) -> bytes:
    """The same, where the disk has of the write all but the first batch."""
    return data.replace(b"2 of three", bytes(10))


def test_whole_batches_after_a_torn_one_are_kept_and_no_start_reports_it_as_damage() -> None:
    fs, data = one_write()
    write(fs, wals(fs)[0], torn(data))
    assert verified(fs) == []

    async def start() -> int:
        rig = Rig(fs=fs, settings=SETTINGS)
        journal = rig.open()
        assert [text for _, _, text in held(journal)] == [
            b"synced\n",
            b"3 of three\n",
            b"4 of three\n",
        ]
        assert not rig.recovered.found
        await journal.close()
        return len(rig.recovered.torn)

    assert [asyncio.run(start()) for _ in range(3)] == [1, 0, 0]
    assert verified(fs) == []


def test_of_an_older_program_a_whole_entry_after_a_bad_one_tells_of_damage() -> None:
    """Its files do not say what was synced, and nobody is to lose lines without a word."""
    fs, data = one_write()
    (fault,) = verified(copy_with(fs, 0, torn(of_an_older_program(data))))
    assert (fault.kind, fault.lines) == ("journal-damaged", 1)


async def test_an_idle_journal_says_that_its_last_line_was_synced() -> None:
    """A bit that turns in it after `kill -9` is damage and not a torn write."""
    rig = Rig(settings=journal_settings(fast_sync_seconds=0.01))
    journal = rig.open()
    await put(journal, b"the last line\n", 1)
    before = journal.files[-1].size
    while journal.files[-1].size == before:
        await asyncio.sleep(0.01)
    data = read(rig.fs, wals(rig.fs)[0])
    copy = copy_with(rig.fs, 0, data.replace(b"the last", b"the lost"))
    (fault,) = verified(copy)
    assert (fault.kind, fault.lines) == ("journal-damaged", 1)
    await journal.close()


def test_the_newest_file_that_is_gone_is_reported_once() -> None:
    fs = written([b"%d\n" % number for number in range(6)], starts=3)
    gone = wals(fs)[-1]
    fs.unlink(gone)
    (fault,) = verified(fs)
    assert (fault.kind, fault.place) == ("journal-gap", gone)

    async def start() -> list[str]:
        rig = Rig(fs=fs, settings=SETTINGS)
        await rig.open().close()
        return list(rig.recovered.problems())

    (problem,) = asyncio.run(start())
    assert gone in problem
    assert asyncio.run(start()) == []


def test_the_newest_file_that_was_moved_aside_is_not_gone() -> None:
    fs = written([b"%d\n" % number for number in range(6)], starts=3)
    write(fs, wals(fs)[-1], b"?")

    async def start() -> list[str]:
        rig = Rig(fs=fs, settings=SETTINGS)
        await rig.open().close()
        return [found.reason for found in rig.recovered.found]

    assert len(asyncio.run(start())) == 1
    assert not [reason for reason in asyncio.run(start()) if "newest" in reason]


def test_of_a_file_that_was_cut_at_the_end_of_an_entry_verify_has_a_note() -> None:
    fs = written(FIFTY)
    data = read(fs, wals(fs)[0])
    copy = copy_with(fs, 0, data[: data.index(FIFTY[9]) + len(FIFTY[9])])
    findings = Findings(lambda _fault: None)
    JournalCheck(copy, "/data/journal", findings).confirmed()
    assert [
        "does not end like the file of an idle or closed journal" in n for n in findings.notes
    ] == [True]
