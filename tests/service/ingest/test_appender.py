"""Taking a batch: ids, duplicates, conflicts, and what is promised when."""

from __future__ import annotations

import asyncio
import errno

import pytest

from service.ingest.batch import IncomingBatch
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey, ulid_of
from tailrace.logstore.errors import (
    BatchConflict,
    BatchFromTheFuture,
    BatchTooOld,
    InvalidInput,
    JournalFull,
    RunDeleted,
)
from tests.service.ingest.gated_appender import GatedAppender, at, batch
from tests.service.journal.rig import RUN, START_MS, held, journal_settings
from tests.simulation.turns import turns

MINUTE = 60_000
DAY = 86_400_000


async def test_a_batch_without_an_id_gets_one_above_all_that_is_known() -> None:
    gated = GatedAppender()
    first = await gated.appender.append(batch())
    assert ulids.time_ms(first.ulid) == START_MS
    assert first.ulid & ulids.LINE_MASK == 0
    assert (first.records, first.last, first.duplicate) == (2, first.ulid + 1, False)
    second = await gated.appender.append(batch())
    assert second.ulid > first.last
    gated.rig.clock.ms -= 5 * MINUTE
    assert (await gated.appender.append(batch())).ulid > second.last
    assert len(gated.texts()) == 3
    await gated.journal.close()


async def test_a_minted_id_rises_above_echo_run_and_deletion() -> None:
    gated = GatedAppender()
    echo = at(5 * MINUTE) + 3
    assert (await gated.appender.append(batch(above=echo))).ulid > echo
    other = RunKey("other", "run")
    client = at(9 * MINUTE)
    await gated.appender.append(batch(ulid=client, key=other))
    assert (await gated.appender.append(batch(key=other))).ulid > client
    third = RunKey("third", "run")
    gated.deletions.note(*third, at(11 * MINUTE))
    assert (await gated.appender.append(batch(key=third))).ulid > gated.deletions.horizon(third)
    assert gated.appender.echoes_ignored == 0
    await gated.journal.close()


async def test_a_minted_id_rises_above_the_echo_of_one_that_a_deletion_raised_elsewhere() -> None:
    """Eleven minutes ahead, by a clock that is two minutes ahead of this one."""
    gated = GatedAppender()
    echo = at(13 * MINUTE)
    assert (await gated.appender.append(batch(above=echo))).ulid > echo
    assert gated.appender.echoes_ignored == 0
    await gated.journal.close()


async def test_an_echo_far_ahead_is_ignored_and_counted() -> None:
    gated = GatedAppender()
    receipt = await gated.appender.append(batch(above=at(14 * MINUTE)))
    assert ulids.time_ms(receipt.ulid) == START_MS
    assert gated.appender.echoes_ignored == 1
    await gated.journal.close()


async def test_ids_go_on_rising_after_a_restart_with_a_clock_that_stepped_back() -> None:
    gated = GatedAppender()
    before = await gated.appender.append(batch())
    gated.rig.clock.ms -= DAY
    await gated.restart()
    assert (await gated.appender.append(batch())).ulid > before.last
    await gated.journal.close()


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
    gated = GatedAppender()
    with pytest.raises(error):
        await gated.appender.append(batch(ulid=ulid))
    await gated.appender.append(batch(b"fine\n", ulid=at(9 * MINUTE)))
    await gated.appender.append(batch(b"fine\n", ulid=at(-6 * DAY)))
    assert gated.texts() == [b"fine\n", b"fine\n"]
    await gated.journal.close()


async def test_the_same_batch_again_is_stored_once() -> None:
    gated = GatedAppender()
    first = await gated.appender.append(batch(ulid=at()))
    again = await gated.appender.append(batch(ulid=at()))
    assert (again.ulid, again.records, again.last) == (first.ulid, 2, first.last)
    assert (first.duplicate, again.duplicate) == (False, True)
    # Acknowledged once, never refused later.
    gated.rig.clock.ms += 30 * DAY
    assert (await gated.appender.append(batch(ulid=at()))).duplicate
    assert len(gated.texts()) == 1
    assert gated.appender.duplicates == 2
    await gated.journal.close()


async def test_the_same_batch_at_the_same_time_is_stored_once_and_both_wait_for_the_sync() -> None:
    gated = GatedAppender()
    gated.syncer.gate.clear()
    tasks = [asyncio.create_task(gated.appender.append(batch(ulid=at()))) for _ in range(5)]
    await turns()
    assert not any(task.done() for task in tasks)
    gated.syncer.gate.set()
    receipts = await asyncio.gather(*tasks)
    assert sorted(receipt.duplicate for receipt in receipts) == [False, True, True, True, True]
    assert len(gated.texts()) == 1
    await gated.journal.close()


async def test_other_bytes_or_another_count_under_a_known_id_are_a_conflict() -> None:
    gated = GatedAppender()
    await gated.appender.append(batch(ulid=at()))
    for text in (b"one\ntwo!\n", b"one\n"):
        with pytest.raises(BatchConflict):
            await gated.appender.append(batch(text, ulid=at()))
    await gated.restart()
    with pytest.raises(BatchConflict):
        await gated.appender.append(batch(b"one\n", ulid=at()))
    # The id is the run's own: another run may use it.
    await gated.appender.append(batch(b"one\n", ulid=at(), key=RunKey("other", "run")))
    assert len(gated.texts()) == 2
    await gated.journal.close()


async def test_a_known_batch_is_found_in_the_journal_after_a_restart() -> None:
    gated = GatedAppender()
    await gated.appender.append(batch(ulid=at()))
    await gated.appender.append(batch(ulid=at(1)))
    await gated.restart()
    assert (await gated.appender.append(batch(ulid=at()))).duplicate
    assert not (await gated.appender.append(batch(ulid=at(-1)))).duplicate
    assert not (await gated.appender.append(batch(ulid=at(2)))).duplicate
    assert len(gated.texts()) == 4
    await gated.journal.close()


async def test_a_known_batch_is_found_in_the_chunks_after_the_journal_let_it_go() -> None:
    gated = GatedAppender()
    gated.stored.batches[RUN, at()] = b"one\ntwo\n"
    assert (await gated.appender.append(batch(ulid=at(), durability="bulk"))).duplicate
    with pytest.raises(BatchConflict):
        await gated.appender.append(batch(b"other\n", ulid=at()))
    # Above all that is known: certainly new, so nobody asks the store.
    await gated.appender.append(batch(b"new\n", ulid=at(1)))
    asked = gated.stored.asked
    await gated.appender.append(batch(b"newer\n", ulid=at(2)))
    assert gated.stored.asked == asked
    assert gated.texts() == [b"new\n", b"newer\n"]
    await gated.journal.close()


async def test_a_store_that_is_away_stops_no_append() -> None:
    gated = GatedAppender()
    gated.stored.away = True
    assert not (await gated.appender.append(batch(ulid=at()))).duplicate
    assert (await gated.appender.append(batch(ulid=at()))).duplicate
    await gated.journal.close()


async def test_ids_at_or_below_a_deletion_are_refused() -> None:
    gated = GatedAppender()
    await gated.appender.append(batch(ulid=at()))
    gated.deletions.note(*RUN, at(1))
    for ulid in (at(), at(1)):
        with pytest.raises(RunDeleted):
            await gated.appender.append(batch(ulid=ulid))
    assert not (await gated.appender.append(batch(ulid=at(2)))).duplicate
    await gated.journal.close()


async def test_a_refused_batch_may_be_sent_again() -> None:
    gated = GatedAppender()
    gated.fs.fail_with(errno.ENOSPC, at=len(gated.fs.calls) + 1, once=True)
    with pytest.raises(JournalFull):
        await gated.appender.append(batch(ulid=at()))
    assert not (await gated.appender.append(batch(ulid=at()))).duplicate
    assert (await gated.appender.append(batch(ulid=at()))).duplicate
    assert gated.texts() == [b"one\ntwo\n"]
    await gated.journal.close()


async def test_bulk_waits_for_a_confirmed_segment_also_when_it_is_a_duplicate() -> None:
    gated = GatedAppender()
    await gated.appender.append(batch(ulid=at(), durability="bulk"))
    await gated.appender.append(batch(ulid=at(), durability="bulk"))
    assert gated.confirmed == [2, 2]
    await gated.journal.close()


async def test_a_client_that_goes_away_leaves_its_batch_for_the_retry() -> None:
    gated = GatedAppender()
    gated.syncer.gate.clear()
    gone = asyncio.create_task(gated.appender.append(batch(ulid=at())))
    await turns()
    gone.cancel()
    await asyncio.sleep(0)
    retry = asyncio.create_task(gated.appender.append(batch(ulid=at())))
    await turns()
    assert not retry.done()
    gated.syncer.gate.set()
    assert (await retry).duplicate
    assert len(gated.texts()) == 1
    await gated.journal.close()


async def test_a_refused_batch_of_a_client_that_went_away_may_be_sent_again() -> None:
    gated = GatedAppender()
    gone = asyncio.create_task(gated.appender.append(batch(ulid=at())))
    while gated.journal.next_pos == 0:
        await asyncio.sleep(0)
    gone.cancel()
    gated.fs.fail_with(errno.ENOSPC, at=len(gated.fs.calls) + 1, once=True)
    await turns()
    assert not gated.fs.fault_pending
    assert not (await gated.appender.append(batch(ulid=at()))).duplicate
    assert gated.texts() == [b"one\ntwo\n"]
    await gated.journal.close()


async def test_a_fast_duplicate_is_not_acknowledged_before_the_first_copy_is_written() -> None:
    gated = GatedAppender()
    gated.syncer.gate.clear()
    before = asyncio.create_task(gated.appender.append(batch(b"before\n")))
    await turns()  # its sync is under way: the next ones wait for their write
    first = asyncio.create_task(gated.appender.append(batch(ulid=at())))
    again = asyncio.create_task(gated.appender.append(batch(ulid=at(), durability="fast")))
    await turns()
    assert not again.done()
    gated.syncer.gate.set()
    await asyncio.gather(before, first, again)
    await gated.journal.close()


async def test_a_durable_duplicate_of_a_fast_batch_waits_for_the_sync() -> None:
    gated = GatedAppender()
    gated.syncer.gate.clear()
    await gated.appender.append(batch(ulid=at(), durability="fast"))
    again = asyncio.create_task(gated.appender.append(batch(ulid=at())))
    await turns()
    assert not again.done()
    gated.syncer.gate.set()
    assert (await again).duplicate
    assert len(gated.texts()) == 1
    await gated.journal.close()


async def test_a_journal_that_fills_slows_its_clients_before_it_refuses_them() -> None:
    gated = GatedAppender()
    gated.rig.settings = journal_settings(max_bytes=64 << 10, min_free_bytes=0)
    await gated.restart()
    waits: list[int] = []

    async def fill() -> None:
        while True:
            before = gated.rig.clock.now_ms()
            await gated.appender.append(batch(b"x" * 1000 + b"\n"))
            waits.append(gated.rig.clock.now_ms() - before)

    with pytest.raises(JournalFull):
        await fill()
    assert waits == sorted(waits)
    assert waits[: len(waits) // 2] == [0] * (len(waits) // 2)
    assert waits[-1] > 1000
    assert gated.appender.slowed >= sum(wait > 0 for wait in waits)
    await gated.journal.close()


# --- the quick way: what it leaves to the other one, and that it is no other ---------


async def submitted(gated: GatedAppender, incoming: IncomingBatch) -> int:
    """The ULID of the last record of a batch that the quick way took, once it is safe."""
    taken = gated.appender.submit(incoming)
    assert taken is not None
    await taken.done
    return taken.last


async def test_the_quick_way_takes_no_bulk_for_durable() -> None:
    gated = GatedAppender()
    assert gated.appender.submit(batch(durability="bulk")) is None
    assert gated.journal.next_pos == 0, "what it leaves is not stored by it"
    await gated.appender.append(batch(durability="bulk"))
    assert gated.confirmed == [2]
    assert gated.texts() == [b"one\ntwo\n"]
    await gated.journal.close()


async def test_the_quick_way_leaves_what_names_its_id() -> None:
    gated = GatedAppender()
    assert gated.appender.submit(batch(ulid=at())) is None
    assert gated.journal.next_pos == 0
    await gated.journal.close()


async def test_the_quick_way_stores_no_retry_of_a_gen_1_client() -> None:
    gated = GatedAppender()
    await gated.appender.open_run(RUN, "connector")
    for _ in range(2):  # the reply to the first was lost
        assert gated.appender.submit(batch(connector="connector")) is None
        await gated.appender.append(batch(connector="connector"))
    assert gated.texts() == [b"one\ntwo\n"]
    assert gated.appender.duplicates == 1
    # Who did not open the run that way sends again what it means twice.
    for _ in range(2):
        await submitted(gated, batch(connector="other"))
    assert len(gated.texts()) == 3
    await gated.journal.close()


async def test_the_quick_way_is_not_the_way_round_a_journal_that_fills() -> None:
    gated = GatedAppender()
    gated.rig.settings = journal_settings(max_bytes=64 << 10, min_free_bytes=0)
    await gated.restart()
    taken = 0
    while (quick := gated.appender.submit(batch(b"x" * 1000 + b"\n"))) is not None:
        await quick.done
        taken += 1
        assert taken < 64
    assert 0.6 < gated.journal.fullness < 0.7
    assert len(gated.texts()) == taken
    before = gated.rig.clock.now_ms()
    await gated.appender.append(batch())
    assert gated.rig.clock.now_ms() > before, "the other way waits"
    await gated.journal.close()


async def test_ids_of_the_quick_way_rise_above_echo_run_and_deletion() -> None:
    gated = GatedAppender()
    echo = at(5 * MINUTE) + 3
    assert await submitted(gated, batch(above=echo)) > echo
    other = RunKey("other", "run")
    client = at(9 * MINUTE)
    await gated.appender.append(batch(ulid=client, key=other))
    assert await submitted(gated, batch(key=other)) > client + 1
    third = RunKey("third", "run")
    gated.deletions.note(*third, at(11 * MINUTE))
    assert await submitted(gated, batch(key=third)) > gated.deletions.horizon(third)
    assert gated.appender.echoes_ignored == 0
    await submitted(gated, batch(above=at(30 * MINUTE), key=RunKey("fourth", "run")))
    assert gated.appender.echoes_ignored == 1
    await gated.journal.close()


@pytest.mark.parametrize("quick", [True, False])
async def test_a_batch_counts_with_all_its_records(quick: bool) -> None:
    """What is told to the client, and what the run's next id must be above, is the last line's."""
    gated = GatedAppender()
    text = b"1\n2\n3\n"
    last = await submitted(gated, batch(text)) if quick else 0
    last = last or (await gated.appender.append(batch(text))).last
    with gated.journal.pin() as pin:
        row = pin.batches(run=RUN).rows[0]
    assert last == ulid_of(row) + 2
    assert gated.appender.active.last_ulid(RUN) == last
    await gated.restart()
    # Seen again in the journal it is the same.
    await gated.appender.append(batch(b"below\n", ulid=at(-MINUTE)))
    assert gated.appender.active.last_ulid(RUN) == last
    again = await gated.appender.append(batch(text, ulid=ulid_of(row)))
    assert (again.duplicate, again.last) == (True, last)
    await gated.journal.close()


async def test_both_ways_leave_the_same_in_the_journal() -> None:
    appenders = GatedAppender(), GatedAppender()
    for number in range(5):
        incoming = batch(b"%d\nx\n" % number, connector="c", durability="fast")
        assert (
            await submitted(appenders[0], incoming)
            == (await appenders[1].appender.append(incoming)).last
        )
    for gated in appenders:
        await gated.restart()
    kept = [held(gated.journal) for gated in appenders]
    assert kept[0] == kept[1]
    assert len(kept[0]) == 5
    for gated in appenders:
        assert gated.journal.state.last_ulid == kept[0][-1][1]
        await gated.journal.close()
