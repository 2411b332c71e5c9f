"""`maxConcurrentStreams` bounds memory, not runs: none is refused, and nothing is forgotten."""

from __future__ import annotations

import asyncio

import pytest

from service.ingest.appender import ActiveRuns, Appender
from service.settings import IngestSettings
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import BatchConflict
from tests.service.ingest.gated_appender import GatedAppender, at, batch

LIMIT = 3
RUNS = [RunKey("p", str(number)) for number in range(40)]


def bounded(gated: GatedAppender) -> Appender:
    return Appender(
        gated.journal,
        gated.stored,
        gated.rig.clock,
        ulids.Minter(gated.rig.clock, gated.rig.dice),
        IngestSettings(),
        active=ActiveRuns(LIMIT),
        deletions=gated.deletions,
        confirmed_through=lambda _: asyncio.sleep(0),
    )


async def test_more_runs_than_the_bound_are_all_taken_and_their_retries_known() -> None:
    gated = GatedAppender()
    appender = bounded(gated)
    for turn in range(3):
        for number, key in enumerate(RUNS):
            taken = await appender.append(batch(b"%d\n" % turn, ulid=at(turn * 1000), key=key))
            assert not taken.duplicate
            assert len(appender.active) == min(number + 1 + turn * len(RUNS), LIMIT)
    for turn in range(3):
        for key in RUNS:
            again = await appender.append(batch(b"%d\n" % turn, ulid=at(turn * 1000), key=key))
            assert again.duplicate, "the journal knows what memory has forgotten"
    with pytest.raises(BatchConflict):
        await appender.append(batch(b"other bytes\n", ulid=at(0), key=RUNS[0]))
    assert len(gated.texts()) == 3 * len(RUNS)
    assert len(appender.active) == LIMIT
    await gated.journal.close()


async def test_all_of_them_at_once() -> None:
    gated = GatedAppender()
    appender = bounded(gated)
    receipts = await asyncio.gather(*[appender.append(batch(key=key)) for key in RUNS])
    assert len({receipt.ulid for receipt in receipts}) == len(RUNS)
    assert len(appender.active) == LIMIT
    assert len(gated.texts()) == len(RUNS)
    await gated.journal.close()


async def test_a_thousand_batches_of_one_run_are_not_all_remembered() -> None:
    gated = GatedAppender()
    appender = bounded(gated)
    for number in range(1000):
        await appender.append(batch(b"x\n", ulid=at(number), key=RUNS[0]))
    run = appender.active.peek(RUNS[0])
    assert run is not None
    assert len(run.batches) == 512
    assert (await appender.append(batch(b"x\n", ulid=at(0), key=RUNS[0]))).duplicate
    await gated.journal.close()
