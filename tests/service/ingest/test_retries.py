"""Retries of batches that are still on their way, that memory has forgotten, that nobody named.

All through the real appender and journal; where the store matters, through a whole node.
"""

from __future__ import annotations

import asyncio
import errno
from random import Random

import pytest

from service.ingest.batch import Durability, IncomingBatch
from service.journal.format import encode_attributes, encode_meta
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RecordMeta, RunKey
from tailrace.logstore.errors import BatchConflict, JournalFull, RunDeleted
from tests.service.client_model import downloaded
from tests.service.ingest.gated_appender import GatedAppender, at, batch
from tests.service.journal.rig import RUN
from tests.service.simulated_node import START_MS, Life
from tests.simulation.backing import open_store
from tests.simulation.hanging_store import HangingStore
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.turns import turns
from tests.simulation.virtual_time import VirtualClock, simulate

OTHERS = [RunKey("other", str(number)) for number in range(5)]
FEW = 2


def few() -> GatedAppender:
    """An appender that has two runs in memory."""
    return GatedAppender(active_runs=FEW)


async def crowd_out(gated: GatedAppender) -> list[asyncio.Task[object]]:
    """As many other runs as make memory forget the ones before; their batches are on their way."""
    tasks: list[asyncio.Task[object]] = [
        asyncio.create_task(gated.appender.append(batch(key=key))) for key in OTHERS
    ]
    await turns()
    return tasks


# --- attributes that all lines of a batch have --------------------------------------


async def _known(gated: GatedAppender, where: str) -> None:
    """Makes memory, or the process, forget what it knows."""
    if where == "forgotten":
        await asyncio.gather(*await crowd_out(gated))
    elif where == "restarted":
        await gated.restart()


@pytest.mark.parametrize("where", ["in memory", "forgotten", "restarted"])
async def test_the_attributes_of_a_batch_belong_to_what_its_id_names(where: str) -> None:
    gated = few()
    shared = encode_attributes({"a": "1", "b": "2"})
    await gated.appender.append(batch(ulid=at(), meta=shared))
    await _known(gated, where)
    again = await gated.appender.append(batch(ulid=at(), meta=shared))
    assert again.duplicate
    other_order = encode_attributes({"b": "2", "a": "1"})
    assert (await gated.appender.append(batch(ulid=at(), meta=other_order))).duplicate
    for other in (b"", encode_attributes({"a": "1"}), encode_attributes({"a": "1", "b": "3"})):
        with pytest.raises(BatchConflict, match="attributes"):
            await gated.appender.append(batch(ulid=at(), meta=other))
    await gated.journal.close()


@pytest.mark.parametrize("where", ["in memory", "forgotten", "restarted"])
async def test_records_and_lines_are_compared_by_their_text(where: str) -> None:
    """A sender that learns to send attributes once may meet its own batch of records."""
    gated = few()
    records = encode_meta(RecordMeta([4, 8], [None] * 2, [None] * 2, [{"a": "1"}] * 2))
    await gated.appender.append(batch(ulid=at(), meta=records))
    await _known(gated, where)
    shared = encode_attributes({"a": "1"})
    assert (await gated.appender.append(batch(ulid=at(), meta=shared))).duplicate
    await gated.journal.close()


async def test_where_only_the_runs_log_knows_a_batch_its_text_counts() -> None:
    gated = few()
    gated.stored.batches[RUN, at()] = b"one\ntwo\n"
    again = await gated.appender.append(batch(ulid=at(), meta=encode_attributes({"a": "1"})))
    assert again.duplicate
    await gated.journal.close()


# --- batches without an id ----------------------------------------------------------


@pytest.mark.parametrize("durability", ["fast", "durable"])
async def test_other_bytes_under_an_id_that_the_node_gave_are_a_conflict_before_the_sync(
    durability: Durability,
) -> None:
    gated = GatedAppender()
    submitted = gated.appender.submit(batch(b"mine\nours\n", durability="fast"))
    assert submitted is not None
    await submitted.done
    assert gated.journal.synced_pos == 0, "it is written and not synced"
    ulid = ulids.batch_of(submitted.last)
    with pytest.raises(BatchConflict):
        await gated.appender.append(batch(b"his!\nyours\n", ulid=ulid, durability=durability))
    assert gated.texts() == [b"mine\nours\n"]
    await gated.journal.close()


@pytest.mark.parametrize("quick", [True, False])
async def test_the_same_bytes_under_an_id_that_the_node_gave_are_a_duplicate(quick: bool) -> None:
    gated = GatedAppender()
    if quick:
        submitted = gated.appender.submit(batch(durability="fast"))
        assert submitted is not None
        last = submitted.last
    else:
        last = (await gated.appender.append(batch(durability="fast"))).last
    again = await gated.appender.append(batch(ulid=ulids.batch_of(last)))
    assert again.duplicate
    assert again.last == last
    assert gated.journal.synced_pos == 2, (
        "what asks for more than the first copy waits for its sync"
    )
    assert gated.texts() == [b"one\ntwo\n"]
    await gated.journal.close()


async def test_an_id_that_the_node_gave_is_known_also_when_all_below_it_are() -> None:
    """The quick way raises the run's last id: a higher one counts as new without a look."""
    gated = GatedAppender()
    await gated.appender.append(batch(ulid=at(-1)))  # from here on the run is complete in memory
    submitted = gated.appender.submit(batch(b"mine\nours\n"))
    assert submitted is not None
    await submitted.done
    with pytest.raises(BatchConflict):
        await gated.appender.append(batch(b"his!\nyours\n", ulid=ulids.batch_of(submitted.last)))
    assert gated.texts() == [b"one\ntwo\n", b"mine\nours\n"]
    await gated.journal.close()


async def test_a_batch_that_its_client_gave_up_and_the_disk_refused_is_new() -> None:
    """Its own future says nothing any more: the journal does."""
    gated = GatedAppender()
    minted: list[int] = []
    mint = asyncio.create_task(gated.appender.append(batch(b"lost\nlost\n")))
    while gated.journal.next_pos == 0:
        await asyncio.sleep(0)
    mint.cancel()
    minted += [item.ulid for item in gated.journal.unsynced(batch().key)]
    gated.fs.fail_with(errno.ENOSPC, at=len(gated.fs.calls) + 1, once=True)
    retry = gated.appender.append(batch(ulid=minted[0]))
    # The sync that was to decide meets the same disk: its client is told to try again.
    with pytest.raises(JournalFull):
        await retry
    assert not (await gated.appender.append(batch(ulid=minted[0]))).duplicate
    assert gated.texts() == [b"one\ntwo\n"]
    await gated.journal.close()


async def test_a_batch_that_its_client_gave_up_is_stored_all_the_same_and_known() -> None:
    gated = GatedAppender()
    gated.syncer.gate.clear()
    given_up = asyncio.create_task(gated.appender.append(batch()))
    await turns()
    ulid = gated.journal.unsynced(batch().key)[0].ulid
    given_up.cancel()
    await turns()
    retry = asyncio.create_task(gated.appender.append(batch(ulid=ulid)))
    await turns()
    assert not retry.done()
    gated.syncer.gate.set()
    assert (await retry).duplicate
    assert gated.texts() == [b"one\ntwo\n"]
    await gated.journal.close()


# --- more runs than memory holds ----------------------------------------------------


async def test_a_retry_whose_first_copy_is_on_its_way_is_known_past_the_runs_in_memory() -> None:
    gated = few()
    gated.syncer.gate.clear()
    tasks = [asyncio.create_task(gated.appender.append(batch(ulid=at())))]
    await turns()
    tasks += await crowd_out(gated)  # type: ignore[arg-type]
    assert gated.appender.active.peek(batch().key) is None
    again = asyncio.create_task(gated.appender.append(batch(ulid=at())))
    other = asyncio.create_task(gated.appender.append(batch(b"1\n2\n", ulid=at())))
    await turns()
    assert not again.done()
    gated.syncer.gate.set()
    assert (await again).duplicate
    with pytest.raises(BatchConflict):
        await other
    await asyncio.gather(*tasks)
    assert sorted(gated.texts()) == [b"one\ntwo\n"] * (1 + len(OTHERS))
    await gated.journal.close()


async def test_what_is_on_its_way_counts_for_which_ids_are_new_past_the_runs_in_memory() -> None:
    """A lower id, sent meanwhile, must not make memory believe that it is the run's last."""
    gated = few()
    gated.syncer.gate.clear()
    tasks = [asyncio.create_task(gated.appender.append(batch(ulid=at(5))))]
    await turns()
    tasks += await crowd_out(gated)  # type: ignore[arg-type]
    tasks.append(asyncio.create_task(gated.appender.append(batch(ulid=at(1)))))
    await turns()
    again = asyncio.create_task(gated.appender.append(batch(ulid=at(5))))
    await turns()
    gated.syncer.gate.set()
    assert (await again).duplicate
    await asyncio.gather(*tasks)
    assert len(gated.texts()) == 2 + len(OTHERS)
    await gated.journal.close()


async def test_a_run_forgotten_while_the_store_was_asked_is_not_stored_twice() -> None:
    """Two requests with one id, each waiting for the store with another memory of the run."""
    gated = few()
    gated.stored.gate = asyncio.Event()
    tasks = [asyncio.create_task(gated.appender.append(batch(ulid=at())))]
    await turns()
    tasks += await crowd_out(gated)  # type: ignore[arg-type]
    tasks.append(asyncio.create_task(gated.appender.append(batch(ulid=at()))))
    await turns()
    gated.stored.gate.set()
    receipts = await asyncio.gather(*tasks)
    assert sorted(receipts[i].duplicate for i in (0, -1)) == [False, True]
    assert (await gated.appender.append(batch(ulid=at()))).duplicate
    assert len(gated.texts()) == 1 + len(OTHERS)
    await gated.journal.close()


async def test_a_run_deleted_while_the_store_was_asked_takes_no_deleted_id() -> None:
    gated = GatedAppender()
    gated.stored.gate = asyncio.Event()
    late = asyncio.create_task(gated.appender.append(batch(ulid=at())))
    await turns()
    gated.deletions.note(*batch().key, at(1))
    gated.stored.gate.set()
    with pytest.raises(RunDeleted):
        await late
    assert gated.texts() == []
    await gated.journal.close()


# --- a store that gives no answer ---------------------------------------------------


def sent(key: RunKey, number: int) -> IncomingBatch:
    """Batch `number` of the run, one line."""
    return IncomingBatch(key, b"%d\n" % number, 1, 1, ulids.lowest_at(START_MS + number))


def test_with_a_hanging_store_one_batch_waits_and_not_each() -> None:
    async def scenario(clock: VirtualClock) -> None:
        fs = PowerCutFileSystem()
        store = HangingStore(open_store(fs, clock, Random(1)), lambda call: "runs/" in call)
        node = Life(fs, clock, store=store).node
        await node.start()
        await node.append(sent(OTHERS[0], 1))
        await node.close_run(OTHERS[0])
        await node.stop()

        again = Life(fs, clock, seed=1, store=store).node
        await again.start()
        store.gate.clear()
        waits: list[float] = []
        for number in range(40):
            if number == 20:
                await clock.sleep(20.0)  # the question is as good as forgotten, and unanswered
            for key in OTHERS:
                before = clock.monotonic()
                receipt = await again.append(sent(key, 100 + number))
                assert not receipt.duplicate
                waits.append(clock.monotonic() - before)
        assert waits[0] == 2.0
        assert sum(waits) == 2.0, "nobody else waits while that question is overdue"
        # Its patience for the question ends, and the next batch asks the store anew.
        await clock.sleep(61.0)
        await again.append(sent(OTHERS[1], 1000))
        store.gate.set()
        await clock.sleep(11.0)
        # The answers are there again: what only the store knows is known.
        assert (await again.append(sent(OTHERS[0], 1))).duplicate
        assert again.writer.appender.duplicates == 1
        text = b"".join(b"%d\n" % number for number in range(100, 140))
        assert await downloaded(again, OTHERS[2]) == text
        await again.stop()

    simulate(scenario, start_ms=START_MS)


def test_an_answer_that_comes_late_still_counts() -> None:
    async def scenario(clock: VirtualClock) -> None:
        fs = PowerCutFileSystem()
        store = HangingStore(open_store(fs, clock, Random(1)), lambda call: "runs/" in call)
        node = Life(fs, clock, store=store).node
        await node.start()
        store.gate.clear()
        await node.append(sent(OTHERS[0], 1))
        run = node.writer.appender.active.peek(OTHERS[0])
        assert run is not None
        known = [run.complete]
        store.gate.set()
        await clock.sleep(0.1)
        known.append(run.complete)
        assert known == [False, True]
        assert (await node.append(sent(OTHERS[0], 1))).duplicate
        await node.stop()

    simulate(scenario, start_ms=START_MS)


def test_other_bytes_that_nobody_could_compare_are_no_copy_and_stay() -> None:
    """They were acknowledged while the store hung: only the same bytes are left out as a copy."""

    async def scenario(clock: VirtualClock) -> None:
        fs = PowerCutFileSystem()
        store = HangingStore(open_store(fs, clock, Random(1)), lambda call: "runs/" in call)
        node = Life(fs, clock, store=store).node
        await node.start()
        await node.append(sent(OTHERS[0], 1))
        await node.close_run(OTHERS[0])
        await node.stop()

        again = Life(fs, clock, seed=1, store=store).node
        await again.start()
        await clock.sleep(10.0)
        assert again.writer.journal.files[0].first_pos == 1, "the journal has let go of it"
        store.gate.clear()
        ulid = sent(OTHERS[0], 1).ulid
        other = IncomingBatch(OTHERS[0], b"other\n", 1, 1, ulid)
        assert not (await again.append(other)).duplicate
        store.gate.set()
        for _ in range(2):
            await clock.sleep(30.0)
            assert await downloaded(again, OTHERS[0]) == b"1\nother\n"
        await again.stop()

    simulate(scenario, start_ms=START_MS)
