"""Journal files written over what is left of others: nothing of an earlier life is read."""

from __future__ import annotations

import asyncio
import errno
import random
from copy import deepcopy

import pytest

from service.journal import format as wal
from service.journal.journal import SPARE_FILES, Journal
from service.runtime.process import in_place
from tailrace.logstore import ulid as ulids
from tailrace.logstore.errors import JournalFull
from tailrace.logstore.filesystem import Disk, FileSystem, ThreadSyncer
from tests.seeds import seeds, some
from tests.service.journal.rig import START_MS, Rig, held, journal_settings, put, texts
from tests.service.journal.test_damage import read, wals, write
from tests.service.journal.test_journal import fill
from tests.service.journal.test_powercut import Promises, check
from tests.simulation.powercut import PowerCutFileSystem

FILE = 20_000
SIZES = {"file_bytes": FILE, "max_bytes": 1 << 24, "min_free_bytes": 0}
SETTINGS = journal_settings(**SIZES, fast_sync_seconds=3600)


def line(number: int, size: int = 1_000) -> bytes:
    """Lines of one size, so that entries of two lives begin at the same offsets."""
    return b"%06d " % number + b"x" * (size - 8) + b"\n"


async def ship(journal: Journal) -> None:
    """All that is held goes into a segment, and its files go."""
    last = journal.state.last_cut()
    cut = await journal.record_cut(last.seq + 1, last.end)
    journal.confirm(cut)
    journal.release(cut.end)
    await journal.synced(journal.next_pos + 1)
    await asyncio.sleep(0)


def names(fs: FileSystem, suffix: str) -> list[str]:
    return sorted(
        f"/data/journal/{name}" for name, _ in fs.scan("/data/journal") if name.endswith(suffix)
    )


async def recycled(rig: Rig, *, size: int = 1_000) -> tuple[Journal, int]:
    """A journal whose newest file is written over an older one; the next number."""
    journal = rig.open()
    number = 0
    while not names(rig.fs, wal.SPARE_SUFFIX):
        while len(journal.files) < 2:
            await put(journal, line(number, size), rig.next_ulid())
            number += 1
        await ship(journal)
    files = len(journal.state.files)
    while len(journal.state.files) == files:
        await put(journal, line(number, size), rig.next_ulid())
        number += 1
    await ship(journal)
    assert journal.files[-1].space > journal.files[-1].size
    rig.fs.sync_folder(rig.folder)  # so that no power cut brings back what was let go
    return journal, number


async def test_a_released_file_is_written_over_and_cut_to_its_end_when_full() -> None:
    rig = Rig(settings=SETTINGS)
    journal, number = await recycled(rig)
    inodes: set[int] = set()
    for _ in range(100):
        await put(journal, line(number), rig.next_ulid())
        number += 1
        for path in wals(rig.fs)[:-1]:
            stat = rig.fs.stat(path)
            assert stat is not None
            assert stat.size in [file.size for file in journal.files if file.path == path]
        stat = rig.fs.stat(journal.files[-1].path)
        assert stat is not None
        inodes.add(stat.inode)
        if len(journal.files) > 1:
            await ship(journal)
    assert len(inodes) <= 3
    assert journal.bytes < FILE
    await journal.close()


async def test_what_an_earlier_life_left_is_neither_read_nor_kept() -> None:
    rig = Rig(settings=SETTINGS)
    journal, number = await recycled(rig)
    shown = held(journal)
    for _ in range(8):
        await put(journal, line(number), rig.next_ulid())
        shown.append((number, 0, line(number)))
        number += 1
        again = Rig(fs=rig.fs.reboot(1), settings=SETTINGS)  # type: ignore[attr-defined]
        rig.fs.dead = False  # type: ignore[attr-defined]
        other = again.open()
        assert [(pos, text) for pos, _, text in held(other)] == [(p, t) for p, _, t in shown]
        assert not again.recovered.found
        assert not again.recovered.torn
        assert other.next_pos == number
        sizes = {file.path: file.size for file in other.files[:-1]}
        stats = {path: again.fs.stat(path) for path in sizes}
        assert sizes == {path: stat.size for path, stat in stats.items() if stat is not None}
        await other.close()
    await journal.close()


async def test_entries_of_an_earlier_life_do_not_fit_wherever_a_write_was_torn() -> None:
    """The newest file ends at an entry of an earlier life, with no end written between."""
    rig = Rig(settings=SETTINGS)
    first = rig.open()
    for number in range(15):
        await put(first, line(number), rig.next_ulid())
    await first.close()
    old = read(rig.fs, first.files[-1].path)
    second = rig.open()
    for number in range(15, 20):
        await put(second, line(number), rig.next_ulid())
    shown = held(second)
    await second.close()
    path = second.files[-1].path
    new = read(rig.fs, path)
    head = wal.decode_header(old).size
    length, _ = wal.PREFIX.unpack_from(old, head)
    old_at = head + wal.PREFIX.size + length
    for start in range(old_at, len(old), 97):
        # Aligned so that an entry of the earlier life begins where the new ones end.
        write(rig.fs, path, new + (old[old_at:] if start == old_at else old[start:]))
        journal = rig.open()
        assert held(journal) == shown
        assert not rig.recovered.found
        assert [torn.offset for torn in rig.recovered.torn] == [len(new)]
        await journal.close()
        for extra in wals(rig.fs)[2:]:
            rig.fs.unlink(extra)
        rig.fs.unlink(f"{rig.folder}/{wal.NEWEST}")
        for spare in names(rig.fs, wal.SPARE_SUFFIX):
            rig.fs.unlink(spare)


class Recycling:
    """Many files that go and come back, with pages torn over entries of the same sizes."""

    def __init__(self, fs: PowerCutFileSystem, *, fill: bool) -> None:
        self.rig = Rig(fs=fs, settings=SETTINGS, offload=in_place if fill else None)
        self.promises = Promises()
        self.number = 0

    async def run(self) -> None:
        journal = self.rig.open()
        for turn in range(24):
            fast = turn % 3 == 0
            sizes = (3_000, 100, 4_500) if turn % 2 else (4_500, 3_000)
            await asyncio.gather(*[self._one(journal, size, fast=fast) for size in sizes])
            if turn % 4 == 3:
                await self._ship(journal)
            if turn == 13:
                await journal.close()
                journal = self.rig.open()
        await journal.close()

    async def _one(self, journal: Journal, size: int, *, fast: bool) -> None:
        self.number += 1
        ulid = ulids.lowest_at(START_MS + self.number)
        text = line(self.number, size)
        self.promises.tried[ulid] = text
        pos = await put(journal, text, ulid, fast=fast)
        if not fast:
            self.promises.positions[ulid] = pos
            self.promises.durable[ulid] = text

    async def _ship(self, journal: Journal) -> None:
        last = journal.state.last_cut()
        cut = await journal.record_cut(last.seq + 1, last.end)
        self.promises.cuts.append(cut)
        self.promises.confirmed = cut.end
        journal.confirm(cut)
        journal.release(cut.end)


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("fill", [False, True])
@pytest.mark.parametrize("seed", seeds(6))
async def test_a_power_cut_at_every_call_while_files_come_back(seed: int, fill: bool) -> None:
    fs = PowerCutFileSystem()
    scenario = Recycling(fs, fill=fill)
    kept: list[tuple[PowerCutFileSystem, Promises]] = []
    wanted = some(range(1, 10_000), 4, f"{seed} {fill}")

    def keep(call: int) -> None:
        if call in wanted:
            kept.append((fs.after_power_cut(seed * 1_000 + call), deepcopy(scenario.promises)))

    fs.at_cut_point = keep
    await scenario.run()
    taken = [call for call in fs.calls if call.startswith("rename") and ".spare " in call]
    assert len([call for call in taken if call.endswith(".wal.new")]) >= 5
    for after, promises in kept:
        # Other dice: with the same ones a later file would have the secret of an earlier one.
        rig = Rig(fs=after, settings=SETTINGS, dice=random.Random(f"{seed} afterwards"))
        journal = rig.open()
        assert not rig.recovered.found
        check(journal, promises)
        ulid = ulids.lowest_at(START_MS + 99_999)
        promises.tried[ulid] = promises.durable[ulid] = line(99_999)
        promises.positions[ulid] = await put(journal, line(99_999), ulid)
        await journal.close()
        journal = rig.open()
        assert not rig.recovered.found
        assert not rig.recovered.torn
        check(journal, promises)
        await journal.close()


@pytest.mark.parametrize("seed", seeds(20))
async def test_a_refused_group_leaves_no_entry_behind_the_next_one(seed: int) -> None:
    rig = Rig(settings=SETTINGS)
    journal, number = await recycled(rig)
    fs = rig.fs
    assert isinstance(fs, PowerCutFileSystem)
    shown = [text for _, _, text in held(journal)]
    fs.fail_with(errno.ENOSPC, at=len(fs.calls) + 1, once=True)
    group = [put(journal, line(77_000 + i), rig.next_ulid()) for i in range(6)]
    results = await asyncio.gather(*group, return_exceptions=True)
    assert all(isinstance(result, JournalFull) for result in results)
    assert not names(fs, wal.SPARE_SUFFIX)
    shown.append(line(number))
    await put(journal, line(number), rig.next_ulid())
    # A torn write might end where a refused entry begins, so none may stand anywhere.
    assert b"07700" not in read(fs, journal.files[-1].path)
    after = Rig(fs=fs.reboot(seed), settings=SETTINGS)
    other = after.open()
    assert [text for _, _, text in held(other)] == shown
    assert not after.recovered.found
    await other.close()


async def test_damage_in_a_file_that_was_written_over_is_told_from_what_was_there() -> None:
    settings = journal_settings(file_bytes=6 * wal.MARK_EVERY, max_bytes=1 << 26, min_free_bytes=0)
    rig = Rig(settings=settings)
    journal, number = await recycled(rig, size=9_000)
    first = number
    while journal.files[-1].size < 3 * wal.MARK_EVERY:
        await put(journal, line(number, 9_000), rig.next_ulid())
        number += 1
    before = [text for _, _, text in held(journal)]
    path = journal.files[-1].path
    data = bytearray(read(rig.fs, path))
    assert len(data) > 5 * wal.MARK_EVERY
    data[data.index(b"%06d " % (first + 5))] ^= 255
    fs = rig.fs
    await journal.close()
    write(fs, path, bytes(data))
    again = Rig(fs=fs, settings=settings)
    other = again.open()
    after = [text for _, _, text in held(other)]
    (found,) = again.recovered.found
    assert found.size < wal.MARK_EVERY + 20_000
    assert not again.recovered.torn
    assert [text for text in before if text in after] == after
    assert after[-1] == line(number - 1, 9_000)
    assert line(first + 4, 9_000) in after
    assert line(first + 5, 9_000) not in after
    assert other.next_pos >= number
    await other.close()


async def test_a_pinned_file_is_not_written_over() -> None:
    rig = Rig(settings=SETTINGS)
    journal, number = await recycled(rig)
    pins = []
    for _ in range(5):
        while len(journal.files) < 2:
            await put(journal, line(number), rig.next_ulid())
            number += 1
        pin = journal.pin()
        pins.append((pin, texts(pin)))
        await ship(journal)
        for earlier, seen in pins:
            assert texts(earlier) == seen
    assert len(journal.files) == 1
    assert len(wals(rig.fs)) >= 5
    for pin, seen in pins:
        assert texts(pin) == seen
        pin.release()
    assert len(wals(rig.fs)) == 1
    assert len(names(rig.fs, wal.SPARE_SUFFIX)) == SPARE_FILES
    await journal.close()


async def test_a_pin_that_outlives_the_journal_takes_no_file_from_the_next_one() -> None:
    rig = Rig(settings=SETTINGS)
    journal, number = await recycled(rig)
    while len(journal.files) < 2:
        await put(journal, line(number), rig.next_ulid())
        number += 1
    pin = journal.pin()
    await ship(journal)
    await journal.close()
    journal = rig.open()
    shown = held(journal)
    pin.release()
    assert held(journal) == shown
    await journal.close()


async def test_spares_found_at_a_start_are_used_if_they_are_long_enough() -> None:
    rig = Rig(settings=SETTINGS)
    rig.fs.make_folders(rig.folder)
    write(rig.fs, f"{rig.folder}/half.spare.new", bytes(FILE))
    write(rig.fs, f"{rig.folder}/short.spare", bytes(FILE - 1))
    write(rig.fs, f"{rig.folder}/long.spare", bytes(2 * FILE + 1))
    write(rig.fs, f"{rig.folder}/full.spare", b"\xff" * FILE)
    journal = rig.open()
    assert journal.files[-1].space == FILE
    assert names(rig.fs, ".new") == names(rig.fs, wal.SPARE_SUFFIX) == []
    await put(journal, line(0), rig.next_ulid())
    again = Rig(fs=rig.fs, settings=SETTINGS)
    other = again.open()
    assert not again.recovered.found
    assert not again.recovered.torn
    assert [text for _, _, text in held(other)] == [line(0)]
    await other.close()
    await journal.close()


async def test_a_spare_is_filled_when_none_was_let_go() -> None:
    rig = Rig(settings=SETTINGS, offload=in_place)
    journal = rig.open()
    for number in range(3):
        await put(journal, line(number), rig.next_ulid())
    assert not names(rig.fs, wal.SPARE_SUFFIX)
    for number in range(3, 10):
        await put(journal, line(number), rig.next_ulid())
        await asyncio.sleep(0)
    (path,) = names(rig.fs, wal.SPARE_SUFFIX)
    spare = rig.fs.stat(path)
    assert spare is not None
    while len(journal.files) < 2:
        await put(journal, line(11), rig.next_ulid())
    newest = rig.fs.stat(journal.files[-1].path)
    assert newest is not None
    assert (newest.inode, newest.size) == (spare.inode, spare.size)
    await journal.close()


async def test_no_spare_is_filled_or_kept_where_room_is_scarce() -> None:
    fs = PowerCutFileSystem(capacity_bytes=200_000)
    settings = journal_settings(file_bytes=FILE, max_bytes=1 << 24, min_free_bytes=0)
    rig = Rig(fs=fs, settings=settings, offload=in_place)
    journal, _ = await recycled(rig)
    assert names(fs, wal.SPARE_SUFFIX)
    with pytest.raises(JournalFull):
        await fill(rig, journal, line(0))
    assert not names(fs, wal.SPARE_SUFFIX)
    assert not names(fs, wal.NEW_SPARE_SUFFIX)
    assert fs.free_bytes("/") < FILE
    await journal.close()


async def test_no_spares_are_kept_if_none_are_wanted() -> None:
    settings = journal_settings(file_bytes=FILE, min_free_bytes=0)
    rig = Rig(settings=settings, offload=in_place, spare_files=0)
    journal = rig.open()
    for number in range(100):
        await put(journal, line(number), rig.next_ulid())
    await ship(journal)
    assert not names(rig.fs, wal.SPARE_SUFFIX)
    assert not names(rig.fs, wal.NEW_SPARE_SUFFIX)
    await journal.close()


async def test_files_come_back_on_a_real_disk(tmp_path_factory: pytest.TempPathFactory) -> None:
    rig = Rig(
        fs=Disk(),
        folder=f"{tmp_path_factory.mktemp('data')}/journal",
        settings=SETTINGS,
        syncer=ThreadSyncer(),
    )
    journal = rig.open()
    kept: list[bytes] = []
    spaces: list[int] = []
    for number in range(120):
        await put(journal, line(number), rig.next_ulid())
        kept.append(line(number))
        spaces.append(journal.files[-1].space - journal.files[-1].size)
        if number % 30 == 29:
            await ship(journal)
            kept = kept[-len(held(journal)) :] if held(journal) else []
        assert [text for _, _, text in held(journal)] == kept
    assert max(spaces) > FILE // 2
    again = Rig(fs=rig.fs, folder=rig.folder, settings=SETTINGS, syncer=ThreadSyncer())
    other = again.open()  # as after kill -9
    assert [text for _, _, text in held(other)] == kept
    assert not again.recovered.torn
    await other.close()
    await journal.close()
