"""What goes into a journal comes out of it: in order, grouped, over files and starts."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence

import numpy as np
import pytest

from service.journal import format as wal
from service.journal.file import back_from
from service.journal.format import encode_meta
from service.journal.journal import Appended, Journal
from service.journal.recovery import recover
from service.journal.state import Cut, JournalState
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RecordMeta, RunKey, digest
from tailrace.logstore.errors import InvalidName, JournalFailed, JournalFull, NodeNotReady
from tailrace.logstore.filesystem import Disk, File, syncer_for
from tests.service.journal.rig import NODE, RUN, Rig, held, journal_settings, put, texts
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.turns import turns

OTHER = RunKey("übung/..\0", "🎉" * 100)


class HeldSyncer:
    """Syncs when it is told to."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.calls = 0

    async def sync(self, file: File, _size: int = 0, /) -> None:
        self.calls += 1
        await self.gate.wait()
        file.sync()

    def close(self) -> None:
        self.gate.set()


async def fill(rig: Rig, journal: Journal, text: bytes) -> None:
    """Appends until the journal refuses."""
    while True:
        await put(journal, text, rig.next_ulid())


async def test_lines_come_back_in_order_with_all_that_came_with_them() -> None:
    rig = Rig()
    journal = rig.open()
    meta = RecordMeta([4, 9], [None, 5], ["INFO", None], [{}, {"k": "ü"}])
    await put(journal, b"a\nb\n", rig.next_ulid())
    pos, done = journal.append(
        OTHER,
        rig.next_ulid(),
        b"x\ny\n12345\n"[:9],
        records=2,
        lines=3,
        digest=digest(b"x\ny\n12345\n"[:9]),
        connector="c-1",
        meta=encode_meta(meta),
    )
    await done
    await put(journal, b"c\n", rig.next_ulid())
    for again in range(2):
        with journal.pin() as pin:
            assert texts(pin) == [b"a\nb\n", b"x\ny\n12345", b"c\n"]
            batches = pin.batches()
            assert pin.batches().text(np.arange(3)) == b"a\nb\nx\ny\n12345c\n"
            assert batches.text(np.array([2, 0])) == b"c\na\nb\n"
            assert batches.text(np.array([], np.int64)) == b""
            assert [batches.slice(2, 0, 9), batches.slice(1, 1, 3)] == [b"c\n", b"\ny"]
            assert [int(p) for p in batches.rows["pos"]] == [0, pos, 4]
            assert batches.runs[batches.rows["run"][1]] == OTHER
            assert batches.connectors[batches.rows["connector"][1]] == "c-1"
            assert batches.meta(0) is None
            assert batches.meta(1) == meta
            assert texts(pin, OTHER) == [b"x\ny\n12345"]
            assert texts(pin, RunKey("no", "run")) == []
            assert len(pin.batches(start=2, end=4).rows) == 1
        await journal.close()
        if not again:
            journal = rig.open()
            assert not rig.recovered.found
            assert not rig.recovered.torn


@pytest.mark.parametrize("size", [10, 3000, 5_000_000])
async def test_texts_of_any_size_come_out_in_the_order_asked_for(size: int) -> None:
    rig = Rig()
    journal = rig.open()
    put_in = [bytes([97 + k]) * (size + k) + b"\n" for k in range(6)]
    for k, text in enumerate(put_in):
        await put(journal, text, rig.next_ulid(), run=(RUN, OTHER)[k % 2])
    with journal.pin() as pin:
        batches = pin.batches()
        assert batches.text(np.arange(6)) == b"".join(put_in)
        assert batches.text(np.array([1, 3, 5, 4])) == b"".join([put_in[k] for k in (1, 3, 5, 4)])
        assert pin.batches(run=OTHER).text(np.arange(3)) == b"".join(put_in[1::2])
    await journal.close()


async def test_one_sync_serves_all_that_wait_and_nothing_is_shown_before_it() -> None:
    syncer = HeldSyncer()
    rig = Rig(syncer=syncer)
    journal = rig.open()
    waiting = [asyncio.create_task(put(journal, b"x\n", rig.next_ulid())) for _ in range(100)]
    await turns()
    assert not any(task.done() for task in waiting)
    assert held(journal) == []
    assert rig.heard == []
    syncer.gate.set()
    assert sorted(await asyncio.gather(*waiting)) == list(range(100))
    assert journal.syncs <= 2
    assert [batch.pos for batch in rig.heard] == list(range(100))
    assert len(held(journal)) == 100
    await journal.close()


async def test_a_fast_batch_is_acknowledged_before_its_sync_which_follows() -> None:
    syncer = HeldSyncer()
    rig = Rig(syncer=syncer)
    journal = rig.open()
    await put(journal, b"fast\n", rig.next_ulid(), fast=True)
    assert held(journal) == []
    waiting = asyncio.create_task(journal.synced(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    syncer.gate.set()
    await waiting
    assert len(held(journal)) == 1
    await put(journal, b"fast\n", rig.next_ulid(), fast=True)
    async with asyncio.timeout(120):
        while journal.synced_pos < 2:
            await asyncio.sleep(0.005)
    await journal.close()


async def test_others_go_on_while_a_large_batch_is_written_and_it_is_seen_all_the_time() -> None:
    syncer = HeldSyncer()
    rig = Rig(syncer=syncer)
    journal = rig.open()
    large = b"x" * (20 << 20) + b"\n"
    waiting = asyncio.create_task(put(journal, large, rig.next_ulid()))
    await asyncio.sleep(0)
    went_on = 0
    while not syncer.calls:
        assert [batch.text for batch in journal.unsynced(RUN)] == [large]
        await asyncio.sleep(0)
        went_on += 1
    assert went_on > 20
    syncer.gate.set()
    assert await waiting == 0
    assert [text for _, _, text in held(journal)] == [large]
    await journal.close()


async def test_a_disk_that_is_full_amid_a_large_batch_refuses_what_came_meanwhile_too() -> None:
    """It has a position behind those that are given out again."""
    fs = PowerCutFileSystem()
    rig = Rig(fs=fs)
    journal = rig.open()
    await put(journal, b"before\n", rig.next_ulid())
    large = asyncio.create_task(put(journal, b"x" * (8 << 20) + b"\n", rig.next_ulid()))
    await turns(3)
    assert journal.unsynced(RUN)
    later = asyncio.create_task(put(journal, b"later\n", rig.next_ulid()))
    await asyncio.sleep(0)
    room = fs.free_bytes("/") - (1 << 20)
    fs.capacity_bytes -= room
    for refused in (large, later):
        with pytest.raises(JournalFull):
            await refused
    fs.capacity_bytes += room
    assert await put(journal, b"after\n", rig.next_ulid()) == 1
    assert [text for _, _, text in held(journal)] == [b"before\n", b"after\n"]
    await journal.close()
    journal = rig.open()
    assert [text for _, _, text in held(journal)] == [b"before\n", b"after\n"]
    await journal.close()


async def test_fast_batches_do_not_gather_in_memory() -> None:
    rig = Rig(settings=journal_settings(fast_sync_seconds=3600))
    journal = rig.open()
    text = b"x" * 999_999 + b"\n"
    for _ in range(20):
        await put(journal, text, rig.next_ulid(), fast=True)
    await asyncio.sleep(0)
    assert journal.syncs >= 2
    await journal.close()
    assert journal.synced_pos == 20


async def test_closing_syncs_what_was_taken_while_a_sync_was_under_way() -> None:
    syncer = HeldSyncer()
    rig = Rig(syncer=syncer, settings=journal_settings(fast_sync_seconds=3600))
    journal = rig.open()
    first = asyncio.create_task(put(journal, b"1\n", rig.next_ulid()))
    await turns()
    second = asyncio.create_task(put(journal, b"2\n", rig.next_ulid(), fast=True))
    await asyncio.sleep(0)
    closing = asyncio.create_task(journal.close())
    await asyncio.sleep(0)
    with pytest.raises(NodeNotReady):
        await put(journal, b"3\n", rig.next_ulid())
    syncer.gate.set()
    await asyncio.gather(first, second, closing)
    assert journal.synced_pos == 2
    await journal.close()


async def test_who_waits_is_told_when_the_writer_is_cancelled() -> None:
    syncer = HeldSyncer()
    rig = Rig(syncer=syncer)
    journal = rig.open()
    waiting = asyncio.create_task(put(journal, b"1\n", rig.next_ulid()))
    await turns()
    next(task for task in asyncio.all_tasks() if task.get_name() == "journal").cancel()
    with pytest.raises(JournalFailed):
        await waiting
    with pytest.raises(JournalFailed):
        await put(journal, b"2\n", rig.next_ulid())
    await journal.close()


async def test_a_listener_that_fails_is_reported_and_harms_nobody() -> None:
    reported: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    fs = PowerCutFileSystem()

    def fail(_: Sequence[Appended]) -> None:
        raise ZeroDivisionError

    rig = Rig(fs=fs)
    journal = Journal(
        fs,
        rig.folder,
        rig.syncer,
        rig.clock,
        rig.dice,
        rig.settings,
        recover(fs, rig.folder),
        JournalState(NODE),
        fail,
    )
    await put(journal, b"1\n", rig.next_ulid())
    await put(journal, b"2\n", rig.next_ulid())
    await journal.close()
    assert len(reported) == 2
    assert len(held(journal)) == 2


async def test_files_roll_are_read_across_and_go_when_their_segments_are_confirmed() -> None:
    rig = Rig(settings=journal_settings(file_bytes=2000, max_bytes=1 << 20))
    journal = rig.open()
    lines = [b"line %03d %s\n" % (i, b"x" * 100) for i in range(60)]
    for line in lines:
        await put(journal, line, rig.next_ulid())
    assert len(journal.files) > 3
    assert [text for _, _, text in held(journal)] == lines
    cut = await journal.record_cut(1, 0)
    assert cut == Cut(1, 0, 60)
    files = len(journal.files)
    journal.release(60)
    assert len(journal.files) == files  # not confirmed
    pin = journal.pin()
    journal.confirm(cut)
    await journal.synced(journal.next_pos + 1)
    await asyncio.sleep(0)
    assert len(journal.files) == 1
    assert journal.bytes < 4000
    assert texts(pin) == lines  # what is pinned stays readable
    pin.release()
    pin.release()
    names = [name for name, _ in rig.fs.scan(rig.folder) if name != wal.NEWEST]
    assert len([name for name in names if name.endswith(".wal")]) == 1
    spares = [name for name in names if name.endswith(".spare")]
    assert len(names) == 1 + len(spares) == 3
    await journal.close()
    journal = rig.open()
    assert journal.state.confirmed == cut
    assert journal.next_pos == 60
    await journal.close()


async def test_so_many_bytes_back_from_a_position_are_whole_files() -> None:
    rig = Rig(settings=journal_settings(file_bytes=2000, max_bytes=1 << 20))
    journal = rig.open()
    for _ in range(60):
        await put(journal, b"x" * 100 + b"\n", rig.next_ulid())
    files = journal.files
    first, *others, last = files
    assert back_from(60, last.size - 1, files) == 60
    assert back_from(60, last.size, files) == last.first_pos
    assert back_from(59, others[-1].size, files) == others[-1].first_pos, "the last has more"
    assert back_from(60, journal.bytes - 1, files) == first.end_pos
    assert back_from(60, journal.bytes, files) == back_from(0, 0, files) == 0
    await journal.close()


async def test_the_state_is_kept_over_starts_and_rolls() -> None:
    rig = Rig()
    journal = rig.open()
    await put(journal, b"1\n2\n", rig.next_ulid())
    first = await journal.record_cut(1, 0)
    assert await journal.record_close(RUN) == 2
    t = rig.next_ulid()
    await journal.record_tombstone("a", None, t)
    await journal.record_tombstone("a", "r", t)
    await journal.record_tombstone("a", "r", t - 1)
    journal.confirm(first)
    await put(journal, b"3\n", rig.next_ulid())
    second = await journal.record_cut(2, 2)
    for _ in range(3):
        state = journal.state
        assert state.confirmed == first
        assert state.cuts == [second]
        assert state.closes == {RUN: 2}
        assert state.tombstones == {("a", None): t, ("a", "r"): t}
        assert journal.next_pos == 3
        await journal.close()
        journal = rig.open()
    assert state.files[:-1] == [file.ulid for file in journal.files][: len(state.files) - 1]
    await journal.close()


async def test_order_of_files_holds_when_the_clock_steps_back() -> None:
    rig = Rig()
    for start in range(4):
        rig.clock.ms -= 3_600_000
        journal = rig.open()
        await put(journal, b"%d\n" % start, rig.next_ulid())
        await journal.close()
    names = [file.ulid for file in journal.files]
    assert names == sorted(names)
    assert [text for _, _, text in held(journal)] == [b"0\n", b"1\n", b"2\n", b"3\n"]
    with journal.pin() as pin:
        assert [pin.position(pos).file for pos in range(4)] == names


async def test_a_full_journal_refuses_batches_but_takes_the_cut_that_empties_it() -> None:
    rig = Rig(settings=journal_settings(file_bytes=1 << 20, max_bytes=10_000))
    journal = rig.open()
    with pytest.raises(JournalFull):
        await fill(rig, journal, b"x" * 99 + b"\n")
    taken = journal.next_pos
    cut = await journal.record_cut(1, 0)
    journal.confirm(cut)
    journal.release(cut.end)
    await journal.synced(taken + 1)
    await asyncio.sleep(0)
    assert await put(journal, b"goes on\n", rig.next_ulid()) == taken
    await journal.close()


async def test_room_is_kept_on_the_disk_for_what_empties_the_journal() -> None:
    fs = PowerCutFileSystem(capacity_bytes=6 << 20)
    rig = Rig(fs=fs, settings=journal_settings(min_free_bytes=1 << 20))
    journal = rig.open()
    with pytest.raises(JournalFull, match="kept free"):
        await fill(rig, journal, b"x" * 999_999 + b"\n")
    await journal.record_cut(1, 0)
    fs.capacity_bytes = 1 << 30
    await put(journal, b"goes on\n", rig.next_ulid())
    await journal.close()


async def test_a_file_that_cannot_be_begun_leaves_the_one_at_hand_in_use() -> None:
    fs = PowerCutFileSystem()
    rig = Rig(fs=fs, settings=journal_settings(file_bytes=1600, max_bytes=1 << 20))
    journal = rig.open()
    for number in range(30):
        fs.fail_with(errno.ENOSPC, at=len(fs.calls) + 3, once=True)  # write, sync, then open
        await put(journal, b"%02d" % number + b"x" * 100 + b"\n", rig.next_ulid())
        fs.heal()
    assert journal.failure is None
    await put(journal, b"z" * 2000 + b"\n", rig.next_ulid())
    assert len(journal.files) > 1
    await journal.close()
    journal = rig.open()
    assert not rig.recovered.found
    assert journal.next_pos == 31
    await journal.close()


async def test_an_index_that_cannot_be_spilled_stays_in_memory() -> None:
    fs = PowerCutFileSystem()
    rig = Rig(fs=fs, settings=journal_settings(file_bytes=1500, max_bytes=1 << 20))
    journal = rig.open()
    await put(journal, b"a" * 1500 + b"\n", rig.next_ulid())
    calls = [call for call in fs.calls if ".idx" in call and call.startswith("write")]
    assert calls
    at = fs.calls.index(calls[0]) + 1
    again = Rig(fs=PowerCutFileSystem(), settings=rig.settings)
    again.fs.fail_with(errno.EIO, at=at, once=True)  # type: ignore[attr-defined]
    other = again.open()
    await put(other, b"a" * 1500 + b"\n", again.next_ulid())
    assert other.failure is None
    assert len(other.files) == 2
    assert len(held(other)) == 1
    await journal.close()
    await other.close()


async def test_names_that_do_not_fit_are_refused_before_anything_is_taken() -> None:
    rig = Rig()
    journal = rig.open()
    with pytest.raises(InvalidName):
        await put(journal, b"x\n", rig.next_ulid(), run=RunKey("x" * 70_000, "r"))
    assert await put(journal, b"x\n", rig.next_ulid()) == 0
    await journal.close()


async def test_it_works_on_a_real_disk(tmp_path_factory: pytest.TempPathFactory) -> None:
    syncer = syncer_for(asyncio.get_running_loop())
    rig = Rig(
        fs=Disk(),
        folder=f"{tmp_path_factory.mktemp('data')}/journal",
        syncer=syncer,
        settings=journal_settings(file_bytes=50_000, min_free_bytes=0),
    )
    journal = rig.open()
    lines = [b"%05d\n" % number * 20 for number in range(1000)]
    await asyncio.gather(*[put(journal, line, rig.next_ulid()) for line in lines[:500]])
    for line in lines[500:]:
        await put(journal, line, rig.next_ulid(), fast=True)
    await journal.close()
    assert len(journal.files) > 1
    journal = rig.open()
    assert [text for _, _, text in held(journal)] == lines
    assert ulids.time_ms(journal.state.last_ulid) > 0
    await journal.close()
    syncer.close()
