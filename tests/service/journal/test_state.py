"""What leaves the journal's state: closes and deletions that are finished."""

from __future__ import annotations

import errno

import pytest

from service.journal.state import MOST, decode_state
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tests.service.journal.rig import RUN, START_MS, Rig, journal_settings, put
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.turns import turns

OTHER = RunKey("service.pipeline", "run-2")
T = ulids.highest_at(START_MS + 60_000)


async def test_what_is_finished_leaves_the_state_and_does_not_come_back() -> None:
    rig = Rig()
    journal = rig.open()
    await put(journal, b"1\n", rig.next_ulid())
    for key in (RUN, OTHER):
        await journal.record_close(key)
    await journal.record_tombstone("a", None, T)
    await journal.record_tombstone("a", "r", T)
    journal.finish_close(OTHER, 1)
    journal.finish_deletion("a", "r", T)
    await journal.synced(journal.next_pos + 1)
    for _ in range(3):
        state = journal.state
        assert state.closes == {RUN: 1}
        assert state.tombstones == {("a", None): T}
        assert state.deleted.all() == {("a", "r"): T}
        assert state.last_ulid < T, "other runs' ids do not go by it"
        await journal.close()
        journal = rig.open()
    await journal.close()


async def test_a_later_close_or_deletion_is_not_finished_with_the_one_before() -> None:
    rig = Rig()
    journal = rig.open()
    await journal.record_close(RUN)
    await journal.record_tombstone("a", None, T)
    await put(journal, b"1\n", rig.next_ulid())
    await journal.record_close(RUN)
    await journal.record_tombstone("a", None, T + 1)
    journal.finish_close(RUN, 0)
    journal.finish_deletion("a", None, T)
    await journal.close()
    journal = rig.open()
    assert journal.state.closes == {RUN: 1}
    assert journal.state.tombstones == {("a", None): T + 1}
    await journal.close()


@pytest.mark.parametrize("run", [RUN.run, None])
async def test_a_deletion_takes_the_closes_before_it_along_and_none_behind_it(
    run: str | None,
) -> None:
    rig = Rig()
    journal = rig.open()
    others = [OTHER, RunKey("another", RUN.run)]
    for key in (RUN, *others):
        await journal.record_close(key)
    await journal.record_tombstone(RUN.fqn, run, T)
    await put(journal, b"1\n", rig.next_ulid())
    left = {key: 0 for key in others if run is not None or key.fqn != RUN.fqn}
    for closed in ({}, {RUN: 1}):
        if closed:
            await journal.record_close(RUN)
        for _ in range(2):
            assert journal.state.closes == left | closed
            await journal.close()
            journal = rig.open()
    await journal.close()


async def test_what_is_finished_waits_for_the_sync_of_something_else() -> None:
    rig = Rig(settings=journal_settings(fast_sync_seconds=3600))
    journal = rig.open()
    await journal.record_close(RUN)
    syncs = journal.syncs
    journal.finish_close(RUN, 0)
    await turns()
    assert journal.syncs == syncs
    assert journal.state.closes == {RUN: 0}, "nothing counts before its entry is synced"
    await put(journal, b"1\n", rig.next_ulid())
    assert journal.syncs == syncs + 1
    assert journal.state.closes == {}
    await journal.close()


async def test_the_state_stays_small_however_many_runs_were_deleted() -> None:
    rig = Rig(settings=journal_settings(fast_sync_seconds=3600))
    journal = rig.open()
    for number in range(3 * MOST):
        await journal.record_tombstone("service.pipeline", f"run-{number:05d}", T + number)
        journal.finish_deletion("service.pipeline", f"run-{number:05d}", T + number)
    await journal.close()
    journal = rig.open()
    state = journal.state
    assert state.tombstones == {}
    known = state.deleted.all()
    assert list(known) == [("service.pipeline", f"run-{n:05d}") for n in range(2 * MOST, 3 * MOST)]
    assert state.last_ulid == T + 2 * MOST - 1, "ids are above all that is not remembered"
    assert journal.files[-1].size < 100_000
    await journal.close()


async def test_names_that_are_too_long_are_not_kept() -> None:
    rig = Rig()
    journal = rig.open()
    await journal.record_tombstone("x" * 1000, None, T)
    journal.finish_deletion("x" * 1000, None, T)
    await journal.close()
    journal = rig.open()
    assert journal.state.tombstones == {}
    assert journal.state.deleted.all() == {}
    assert journal.state.last_ulid == T
    await journal.close()


async def test_on_a_full_disk_it_stays_to_be_done_and_nothing_fails() -> None:
    fs = PowerCutFileSystem()
    rig = Rig(fs=fs)
    journal = rig.open()
    await journal.record_close(RUN)
    fs.fail_with(errno.ENOSPC, at=len(fs.calls) + 1, once=True)
    journal.finish_close(RUN, 0)
    await turns()
    assert journal.failure is None
    assert journal.state.closes == {RUN: 0}
    await put(journal, b"1\n", rig.next_ulid())
    await journal.close()
    assert rig.open().state.closes == {RUN: 0}


def test_a_state_of_before_there_were_any_is_read() -> None:
    value = {
        "node": "n",
        "base": 0,
        "ulid": ulids.encode(5),
        "confirmed": [0, 0, 0],
        "cuts": [],
        "closes": [["f", "r", 3]],
        "tombstones": [["f", None, ulids.encode(7)]],
        "files": [],
    }
    state = decode_state(value)
    assert state.tombstones == {("f", None): 7}
    assert state.deleted.all() == {}
    assert state.closes == {RunKey("f", "r"): 3}
