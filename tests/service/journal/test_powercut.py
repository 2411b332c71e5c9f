"""The power goes, or the disk fails, at call n, for n = 1, 2, 3… until a run gets through.

A scenario of appends, cuts, closes, rolls, releases and restarts is run again for each n.
What is asked of the disk afterwards: every line that was acknowledged as durable, once and
in order; nothing twice; the state at least as it was acknowledged; and a journal that goes on.
"""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field

import pytest

from service.journal.journal import Journal
from service.journal.state import Cut
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import JournalFailed, JournalFull
from tests.seeds import some
from tests.service.journal.rig import RUN, START_MS, Rig, held, journal_settings, put
from tests.simulation.powercut import PowerCut, PowerCutFileSystem

DONE = RunKey("service.pipeline", "done")
CALLS = range(1, 1_000)
SETTINGS = journal_settings(file_bytes=1200, max_bytes=1 << 20, fast_sync_seconds=3600)


@dataclass
class Promises:
    """What the journal acknowledged, as its users see it."""

    durable: dict[int, bytes] = field(default_factory=dict)  # ULID to text
    tried: dict[int, bytes] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)
    cuts: list[Cut] = field(default_factory=list)
    confirmed: int = 0
    closes: int = 0
    tombstones: int = 0


class Simulation:
    """Does much in few calls."""

    def __init__(self, fs: PowerCutFileSystem) -> None:
        self.rig = Rig(fs=fs, settings=SETTINGS)
        self.promises = Promises()
        self.number = 0

    async def run(self) -> None:
        journal = self.rig.open()
        await self._append(journal, 3)
        await self._cut(journal)
        await journal.close()
        journal = self.rig.open()
        await self._append(journal, 4)
        await journal.record_close(RUN)
        self.promises.closes = 1
        await self._fast(journal)
        await self._cut(journal)
        await self._append(journal, 6)
        await journal.record_tombstone("a", None, 5)
        self.promises.tombstones = 5
        pos = await journal.record_close(DONE)
        journal.finish_close(DONE, pos)
        self._confirm(journal)
        await self._append(journal, 2)
        self._confirm(journal)
        await self._append(journal, 2)
        await journal.close()
        if journal.failure is not None:
            raise journal.failure

    async def _append(self, journal: Journal, count: int) -> None:
        await asyncio.gather(*[self._one(journal) for _ in range(count)])

    async def _one(self, journal: Journal) -> None:
        self.number += 1
        ulid = ulids.lowest_at(START_MS + self.number)
        text = b"line %03d %s\n" % (self.number, b"." * 90)
        self.promises.tried[ulid] = text
        self.promises.positions[ulid] = await put(journal, text, ulid)
        self.promises.durable[ulid] = text

    async def _fast(self, journal: Journal) -> None:
        self.number += 1
        ulid = ulids.lowest_at(START_MS + self.number)
        self.promises.tried[ulid] = b"fast\n"
        await put(journal, b"fast\n", ulid, fast=True)

    async def _cut(self, journal: Journal) -> None:
        last = journal.state.last_cut()
        self.promises.cuts.append(await journal.record_cut(last.seq + 1, last.end))

    def _confirm(self, journal: Journal) -> None:
        cut = journal.state.cuts[0]
        self.promises.confirmed = cut.end
        journal.confirm(cut)
        journal.release(cut.end)


def check(journal: Journal, promises: Promises) -> None:
    """What is held now keeps every promise."""
    found = held(journal)
    pairs = [(ulid, text) for _, ulid, text in found]
    assert len(set(pairs)) == len(pairs), "a batch is there twice"
    assert all(promises.tried[ulid] == text for ulid, text in pairs), "a batch was invented"
    present = {ulid: pos for pos, ulid, _ in found}
    for ulid in promises.durable:
        pos = promises.positions[ulid]
        assert present.get(ulid, pos) == pos
        assert ulid in present or pos < promises.confirmed, "an acknowledged batch is gone"
    positions = [pos for pos, _, _ in found]
    assert positions == sorted(set(positions))
    state = journal.state
    known = [*state.cuts, state.confirmed]
    for cut in promises.cuts:
        assert cut in known or cut.seq < state.confirmed.seq, "an acknowledged cut is gone"
    # Files that hold lines of an unconfirmed cut are held.
    assert all(cut.first >= journal.files[0].first_pos for cut in state.cuts)
    assert RUN in state.closes or not promises.closes
    assert set(state.closes) <= {RUN, DONE}
    assert max(state.tombstones.values(), default=0) >= promises.tombstones
    assert journal.next_pos > max(promises.positions.values(), default=-1)


async def check_after_restart(fs: PowerCutFileSystem, scenario: Simulation) -> None:
    promises = deepcopy(scenario.promises)
    rig = Rig(fs=fs, settings=SETTINGS)
    journal = rig.open()
    assert not rig.recovered.found
    check(journal, promises)
    ulid = ulids.lowest_at(START_MS + 999)
    promises.tried[ulid] = b"afterwards\n"
    promises.positions[ulid] = await put(journal, b"afterwards\n", ulid)
    promises.durable[ulid] = b"afterwards\n"
    check(journal, promises)
    await journal.close()
    journal = rig.open()
    check(journal, promises)
    await journal.close()


def run_through(scenario: Simulation) -> None:
    """Runs it; whoever still waits when the power goes is let go quietly."""

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        await scenario.run()

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_at_every_call(seed: int) -> None:
    for call in some(CALLS, 3, seed):
        fs = PowerCutFileSystem(fail_at=call)
        scenario = Simulation(fs)
        try:
            run_through(scenario)
        except (PowerCut, JournalFailed):
            assert fs.dead
        asyncio.run(check_after_restart(fs.reboot(seed), scenario))
        if not fs.calls[call - 1 :]:
            break
    assert 60 < call < CALLS[-3]


def test_a_power_cut_at_every_call_of_a_recovery() -> None:
    """However often recovery is interrupted, it does the same in the end."""
    plain = PowerCutFileSystem()
    run_through(Simulation(plain))
    for first in some(range(20, len(plain.calls), 7), 3, "recovery"):
        fs = PowerCutFileSystem(fail_at=first)
        scenario = Simulation(fs)
        with pytest.raises((PowerCut, JournalFailed)):
            run_through(scenario)
        call = 0
        while True:
            call += 1
            again = fs.reboot(first)
            again.fail_at = call
            rig = Rig(fs=again, settings=SETTINGS)
            try:
                asyncio.run(_open_and_close(rig))
            except (PowerCut, JournalFailed):
                asyncio.run(check_after_restart(again.reboot(call), scenario))
                continue
            break


async def _open_and_close(rig: Rig) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    journal = rig.open()
    await journal.close()


def test_a_disk_that_is_full_at_every_call_refuses_and_goes_on() -> None:
    for call in some(CALLS, 3, "full"):
        fs = PowerCutFileSystem()
        fs.fail_with(errno.ENOSPC, at=call, once=True)
        scenario = Simulation(fs)
        with suppress(JournalFull):  # the scenario ends with it; a client would try again
            run_through(scenario)
        done = fs.fault_pending
        fs.heal()
        asyncio.run(check_after_restart(fs, scenario))
        if done:
            break
    assert 60 < call < CALLS[-3]


def test_a_batch_that_a_full_disk_refused_leaves_no_trace() -> None:
    async def main(fs: PowerCutFileSystem, at: int) -> int:
        rig = Rig(fs=fs, settings=SETTINGS)
        journal = rig.open()
        taken: list[bytes] = []
        refused = 0
        fs.fail_with(errno.ENOSPC, at=len(fs.calls) + at, once=True)
        for number in range(12):
            text = b"%02d %s\n" % (number, b"x" * 150)
            try:
                assert await put(journal, text, rig.next_ulid(), fast=number % 3 == 0) == len(taken)
                taken.append(text)
            except JournalFull:
                refused += 1
                assert journal.next_pos == len(taken)
        await journal.synced(journal.next_pos)
        assert [text for _, _, text in held(journal)] == taken
        await journal.close()
        journal = rig.open()
        assert [text for _, _, text in held(journal)] == taken
        await journal.close()
        return refused

    assert sum(asyncio.run(main(PowerCutFileSystem(), at)) for at in range(1, 40)) > 5


def test_a_failed_sync_is_never_acknowledged_nor_tried_again() -> None:
    async def main(fs: PowerCutFileSystem, scenario: Simulation) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        await scenario.run()

    plain = PowerCutFileSystem()
    asyncio.run(main(plain, Simulation(plain)))
    syncs = [at for at, call in enumerate(plain.calls, 1) if call.startswith("sync ")]
    assert len(syncs) > 10
    for at in syncs:
        fs = PowerCutFileSystem()
        fs.fail_with(errno.EIO, at=at, once=True)
        scenario = Simulation(fs)
        with pytest.raises(JournalFailed):
            asyncio.run(main(fs, scenario))
        for seed in range(3):
            asyncio.run(check_after_restart(fs.reboot(seed), scenario))


def test_what_a_killed_process_left_unsynced_is_synced_before_it_is_shown() -> None:
    async def main(fs: PowerCutFileSystem) -> list[tuple[int, int, bytes]]:
        rig = Rig(fs=fs, settings=SETTINGS)
        killed = rig.open()
        await put(killed, b"written, not synced\n", 1 << 90, fast=True)
        journal = rig.open()  # as after kill -9: the page cache is still there
        return held(journal)

    for seed in range(5):
        fs = PowerCutFileSystem()
        shown = asyncio.run(main(fs))
        assert [text for _, _, text in shown] == [b"written, not synced\n"]
        rig = Rig(fs=fs.reboot(seed), settings=SETTINGS)
        assert asyncio.run(_held_after(rig)) == shown


async def _held_after(rig: Rig) -> list[tuple[int, int, bytes]]:
    journal = rig.open()
    found = held(journal)
    await journal.close()
    return found
