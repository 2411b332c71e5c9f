"""Taking a batch: ids, duplicates, conflicts, and what is promised when."""

from __future__ import annotations

import asyncio
import errno

import pytest

from logstore import ulid as ulids
from logstore.batch import RunKey, ulid_of
from logstore.errors import (
    BatchConflict,
    BatchFromTheFuture,
    BatchTooOld,
    InvalidInput,
    JournalFull,
    RunDeleted,
)
from service.ingest.batch import IncomingBatch
from tests.service.ingest.gated_appender import Door, at, batch
from tests.service.journal.rig import RUN, START_MS, held, journal_settings
from tests.simulation.turns import turns

MINUTE = 60_000
DAY = 86_400_000


async def test_a_batch_without_an_id_gets_one_above_all_that_is_known() -> None:
    door = Door()
    first = await door.appender.append(batch())
    assert ulids.time_ms(first.ulid) == START_MS
    assert first.ulid & ulids.LINE_MASK == 0
    assert (first.records, first.last, first.duplicate) == (2, first.ulid + 1, False)
    second = await door.appender.append(batch())
    assert second.ulid > first.last
    door.rig.clock.ms -= 5 * MINUTE
    assert (await door.appender.append(batch())).ulid > second.last
    assert len(door.texts()) == 3
    await door.journal.close()


async def test_a_minted_id_rises_above_echo_run_and_deletion() -> None:
    door = Door()
    echo = at(5 * MINUTE) + 3
    assert (await door.appender.append(batch(above=echo))).ulid > echo
    other = RunKey("other", "run")
    client = at(9 * MINUTE)
    await door.appender.append(batch(ulid=client, key=other))
    assert (await door.appender.append(batch(key=other))).ulid > client
    third = RunKey("third", "run")
    door.deleted[third] = at(11 * MINUTE)
    assert (await door.appender.append(batch(key=third))).ulid > door.deleted[third]
    assert door.appender.echoes_ignored == 0
    await door.journal.close()


async def test_an_echo_far_ahead_is_ignored_and_counted() -> None:
    door = Door()
    receipt = await door.appender.append(batch(above=at(11 * MINUTE)))
    assert ulids.time_ms(receipt.ulid) == START_MS
    assert door.appender.echoes_ignored == 1
    await door.journal.close()


async def test_ids_go_on_rising_after_a_restart_with_a_clock_that_stepped_back() -> None:
    door = Door()
    before = await door.appender.append(batch())
    door.rig.clock.ms -= DAY
    await door.restart()
    assert (await door.appender.append(batch())).ulid > before.last
    await door.journal.close()


@pytest.mark.parametrize(
    ("ulid", "error"),
    [
        (at(11 * MINUTE), BatchFromTheFuture),
        (at(-31 * DAY), BatchTooOld),
        (at() + 1, InvalidInput),
        (at() | ulids.LINE_MASK, InvalidInput),
    ],
)
async def test_ids_that_are_refused_leave_nothing(ulid: int, error: type[Exception]) -> None:
    door = Door()
    with pytest.raises(error):
        await door.appender.append(batch(ulid=ulid))
    await door.appender.append(batch(b"fine\n", ulid=at(9 * MINUTE)))
    await door.appender.append(batch(b"fine\n", ulid=at(-6 * DAY)))
    assert door.texts() == [b"fine\n", b"fine\n"]
    await door.journal.close()


async def test_the_same_batch_again_is_stored_once() -> None:
    door = Door()
    first = await door.appender.append(batch(ulid=at()))
    again = await door.appender.append(batch(ulid=at()))
    assert (again.ulid, again.records, again.last) == (first.ulid, 2, first.last)
    assert (first.duplicate, again.duplicate) == (False, True)
    # Acknowledged once, never refused later.
    door.rig.clock.ms += 30 * DAY
    assert (await door.appender.append(batch(ulid=at()))).duplicate
    assert len(door.texts()) == 1
    assert door.appender.duplicates == 2
    await door.journal.close()


async def test_the_same_batch_at_the_same_time_is_stored_once_and_both_wait_for_the_sync() -> None:
    door = Door()
    door.syncer.gate.clear()
    tasks = [asyncio.create_task(door.appender.append(batch(ulid=at()))) for _ in range(5)]
    await turns()
    assert not any(task.done() for task in tasks)
    door.syncer.gate.set()
    receipts = await asyncio.gather(*tasks)
    assert sorted(receipt.duplicate for receipt in receipts) == [False, True, True, True, True]
    assert len(door.texts()) == 1
    await door.journal.close()


async def test_other_bytes_or_another_count_under_a_known_id_are_a_conflict() -> None:
    door = Door()
    await door.appender.append(batch(ulid=at()))
    for text in (b"one\ntwo!\n", b"one\n"):
        with pytest.raises(BatchConflict):
            await door.appender.append(batch(text, ulid=at()))
    await door.restart()
    with pytest.raises(BatchConflict):
        await door.appender.append(batch(b"one\n", ulid=at()))
    # The id is the run's own: another run may use it.
    await door.appender.append(batch(b"one\n", ulid=at(), key=RunKey("other", "run")))
    assert len(door.texts()) == 2
    await door.journal.close()


async def test_a_known_batch_is_found_in_the_journal_after_a_restart() -> None:
    door = Door()
    await door.appender.append(batch(ulid=at()))
    await door.appender.append(batch(ulid=at(1)))
    await door.restart()
    assert (await door.appender.append(batch(ulid=at()))).duplicate
    assert not (await door.appender.append(batch(ulid=at(-1)))).duplicate
    assert not (await door.appender.append(batch(ulid=at(2)))).duplicate
    assert len(door.texts()) == 4
    await door.journal.close()


async def test_a_known_batch_is_found_in_the_chunks_after_the_journal_let_it_go() -> None:
    door = Door()
    door.stored.batches[RUN, at()] = b"one\ntwo\n"
    assert (await door.appender.append(batch(ulid=at(), durability="bulk"))).duplicate
    with pytest.raises(BatchConflict):
        await door.appender.append(batch(b"other\n", ulid=at()))
    # Above all that is known: certainly new, so nobody asks the store.
    await door.appender.append(batch(b"new\n", ulid=at(1)))
    asked = door.stored.asked
    await door.appender.append(batch(b"newer\n", ulid=at(2)))
    assert door.stored.asked == asked
    assert door.texts() == [b"new\n", b"newer\n"]
    await door.journal.close()


async def test_a_store_that_is_away_stops_no_append() -> None:
    door = Door()
    door.stored.away = True
    assert not (await door.appender.append(batch(ulid=at()))).duplicate
    assert (await door.appender.append(batch(ulid=at()))).duplicate
    await door.journal.close()


async def test_ids_at_or_below_a_deletion_are_refused() -> None:
    door = Door()
    await door.appender.append(batch(ulid=at()))
    door.deleted[RUN] = at(1)
    for ulid in (at(), at(1)):
        with pytest.raises(RunDeleted):
            await door.appender.append(batch(ulid=ulid))
    assert not (await door.appender.append(batch(ulid=at(2)))).duplicate
    await door.journal.close()


async def test_a_refused_batch_may_be_sent_again() -> None:
    door = Door()
    door.fs.fail_with(errno.ENOSPC, at=len(door.fs.calls) + 1, once=True)
    with pytest.raises(JournalFull):
        await door.appender.append(batch(ulid=at()))
    assert not (await door.appender.append(batch(ulid=at()))).duplicate
    assert (await door.appender.append(batch(ulid=at()))).duplicate
    assert door.texts() == [b"one\ntwo\n"]
    await door.journal.close()


async def test_bulk_waits_for_a_confirmed_segment_also_when_it_is_a_duplicate() -> None:
    door = Door()
    await door.appender.append(batch(ulid=at(), durability="bulk"))
    await door.appender.append(batch(ulid=at(), durability="bulk"))
    assert door.confirmed == [2, 2]
    await door.journal.close()


async def test_a_client_that_goes_away_leaves_its_batch_for_the_retry() -> None:
    door = Door()
    door.syncer.gate.clear()
    gone = asyncio.create_task(door.appender.append(batch(ulid=at())))
    await turns()
    gone.cancel()
    await asyncio.sleep(0)
    retry = asyncio.create_task(door.appender.append(batch(ulid=at())))
    await turns()
    assert not retry.done()
    door.syncer.gate.set()
    assert (await retry).duplicate
    assert len(door.texts()) == 1
    await door.journal.close()


async def test_a_refused_batch_of_a_client_that_went_away_may_be_sent_again() -> None:
    door = Door()
    gone = asyncio.create_task(door.appender.append(batch(ulid=at())))
    while door.journal.next_pos == 0:
        await asyncio.sleep(0)
    gone.cancel()
    door.fs.fail_with(errno.ENOSPC, at=len(door.fs.calls) + 1, once=True)
    await turns()
    assert not door.fs.fault_pending
    assert not (await door.appender.append(batch(ulid=at()))).duplicate
    assert door.texts() == [b"one\ntwo\n"]
    await door.journal.close()


async def test_a_fast_duplicate_is_not_acknowledged_before_the_first_copy_is_written() -> None:
    door = Door()
    door.syncer.gate.clear()
    before = asyncio.create_task(door.appender.append(batch(b"before\n")))
    await turns()  # its sync is under way: the next ones wait for their write
    first = asyncio.create_task(door.appender.append(batch(ulid=at())))
    again = asyncio.create_task(door.appender.append(batch(ulid=at(), durability="fast")))
    await turns()
    assert not again.done()
    door.syncer.gate.set()
    await asyncio.gather(before, first, again)
    await door.journal.close()


async def test_a_durable_duplicate_of_a_fast_batch_waits_for_the_sync() -> None:
    door = Door()
    door.syncer.gate.clear()
    await door.appender.append(batch(ulid=at(), durability="fast"))
    again = asyncio.create_task(door.appender.append(batch(ulid=at())))
    await turns()
    assert not again.done()
    door.syncer.gate.set()
    assert (await again).duplicate
    assert len(door.texts()) == 1
    await door.journal.close()


async def test_a_journal_that_fills_slows_its_clients_before_it_refuses_them() -> None:
    door = Door()
    door.rig.settings = journal_settings(max_bytes=64 << 10, min_free_bytes=0)
    await door.restart()
    waits: list[int] = []

    async def fill() -> None:
        while True:
            before = door.rig.clock.now_ms()
            await door.appender.append(batch(b"x" * 1000 + b"\n"))
            waits.append(door.rig.clock.now_ms() - before)

    with pytest.raises(JournalFull):
        await fill()
    assert waits == sorted(waits)
    assert waits[: len(waits) // 2] == [0] * (len(waits) // 2)
    assert waits[-1] > 1000
    assert door.appender.slowed >= sum(wait > 0 for wait in waits)
    await door.journal.close()


# --- the quick way: what it leaves to the other one, and that it is no other ---------


async def submitted(door: Door, incoming: IncomingBatch) -> int:
    """The ULID of the last record of a batch that the quick way took, once it is safe."""
    taken = door.appender.submit(incoming)
    assert taken is not None
    await taken.done
    return taken.last


async def test_the_quick_way_takes_no_bulk_for_durable() -> None:
    door = Door()
    assert door.appender.submit(batch(durability="bulk")) is None
    assert door.journal.next_pos == 0, "what it leaves is not stored by it"
    await door.appender.append(batch(durability="bulk"))
    assert door.confirmed == [2]
    assert door.texts() == [b"one\ntwo\n"]
    await door.journal.close()


async def test_the_quick_way_leaves_what_names_its_id() -> None:
    door = Door()
    assert door.appender.submit(batch(ulid=at())) is None
    assert door.journal.next_pos == 0
    await door.journal.close()


async def test_the_quick_way_stores_no_retry_of_a_gen_1_client() -> None:
    door = Door()
    await door.appender.open_run(RUN, "connector")
    for _ in range(2):  # the reply to the first was lost
        assert door.appender.submit(batch(connector="connector")) is None
        await door.appender.append(batch(connector="connector"))
    assert door.texts() == [b"one\ntwo\n"]
    assert door.appender.duplicates == 1
    # Who did not open the run that way sends again what it means twice.
    for _ in range(2):
        await submitted(door, batch(connector="other"))
    assert len(door.texts()) == 3
    await door.journal.close()


async def test_the_quick_way_is_not_the_way_round_a_journal_that_fills() -> None:
    door = Door()
    door.rig.settings = journal_settings(max_bytes=64 << 10, min_free_bytes=0)
    await door.restart()
    taken = 0
    while (quick := door.appender.submit(batch(b"x" * 1000 + b"\n"))) is not None:
        await quick.done
        taken += 1
        assert taken < 64
    assert 0.6 < door.journal.fullness < 0.7
    assert len(door.texts()) == taken
    before = door.rig.clock.now_ms()
    await door.appender.append(batch())
    assert door.rig.clock.now_ms() > before, "the other way waits"
    await door.journal.close()


async def test_ids_of_the_quick_way_rise_above_echo_run_and_deletion() -> None:
    door = Door()
    echo = at(5 * MINUTE) + 3
    assert await submitted(door, batch(above=echo)) > echo
    other = RunKey("other", "run")
    client = at(9 * MINUTE)
    await door.appender.append(batch(ulid=client, key=other))
    assert await submitted(door, batch(key=other)) > client + 1
    third = RunKey("third", "run")
    door.deleted[third] = at(11 * MINUTE)
    assert await submitted(door, batch(key=third)) > door.deleted[third]
    assert door.appender.echoes_ignored == 0
    await submitted(door, batch(above=at(30 * MINUTE), key=RunKey("fourth", "run")))
    assert door.appender.echoes_ignored == 1
    await door.journal.close()


@pytest.mark.parametrize("quick", [True, False])
async def test_a_batch_counts_with_all_its_records(quick: bool) -> None:
    """What is told to the client, and what the run's next id must be above, is the last line's."""
    door = Door()
    text = b"1\n2\n3\n"
    last = await submitted(door, batch(text)) if quick else 0
    last = last or (await door.appender.append(batch(text))).last
    with door.journal.pin() as pin:
        row = pin.batches(run=RUN).rows[0]
    assert last == ulid_of(row) + 2
    assert door.appender.last_ulid(RUN) == last
    await door.restart()
    # Seen again in the journal it is the same.
    await door.appender.append(batch(b"below\n", ulid=at(-MINUTE)))
    assert door.appender.last_ulid(RUN) == last
    again = await door.appender.append(batch(text, ulid=ulid_of(row)))
    assert (again.duplicate, again.last) == (True, last)
    await door.journal.close()


async def test_both_ways_leave_the_same_in_the_journal() -> None:
    doors = Door(), Door()
    for number in range(5):
        incoming = batch(b"%d\nx\n" % number, connector="c", durability="fast")
        assert (
            await submitted(doors[0], incoming) == (await doors[1].appender.append(incoming)).last
        )
    for door in doors:
        await door.restart()
    kept = [held(door.journal) for door in doors]
    assert kept[0] == kept[1]
    assert len(kept[0]) == 5
    for door in doors:
        assert door.journal.state.last_ulid == kept[0][-1][1]
        await door.journal.close()
