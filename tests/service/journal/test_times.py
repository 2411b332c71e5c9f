"""Batches of a time are found whatever the order in which they came, in files old and new."""

from __future__ import annotations

import random

import numpy as np

from service.journal.file import BLOCK_ROWS
from service.journal.reader import JournalPin
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey, ulid_of
from tests.service.journal.rig import RUN, START_MS, Rig, journal_settings, put

OTHER = RunKey("service.other", "run-2")
_MS = 12


def found(pin: JournalPin, run: RunKey | None, times: tuple[int, int] | None) -> list[int]:
    """The ULIDs of what the pin gives, after a look at the run of each."""
    batches = pin.batches(run=run, times=times)
    for row in batches.rows:
        assert run in (None, batches.runs[row["run"]])
    return [ulid_of(row) for row in batches.rows]


def expected(sent: list[tuple[RunKey, int]], run: RunKey | None, low: int, high: int) -> list[int]:
    bounds = range(ulids.lowest_at(low), ulids.highest_at(high) + 1)
    return [ulid for key, ulid in sent if run in (None, key) and ulid in bounds]


async def test_they_are_those_of_all_batches_that_lie_between_the_times() -> None:
    dice = random.Random(5)
    rig = Rig(settings=journal_settings(file_bytes=1_000))
    journal = rig.open()
    sent: list[tuple[RunKey, int]] = []
    for number in range(60):
        # A file's batches are of few of these times, so that some files have none that is asked.
        time = START_MS + min(number // 6, _MS - 3) + dice.randrange(3)
        run, ulid = dice.choice([RUN, OTHER]), ulids.lowest_at(time) + number
        await put(journal, b"x\n" * dice.randrange(1, 4), ulid, run=run)
        sent.append((run, ulid))
    assert len(journal.files) > 3
    for _ in range(2):
        with journal.pin() as pin:
            for low in range(START_MS - 1, START_MS + _MS + 1):
                for high in range(low - 1, START_MS + _MS + 1):
                    for one in (None, RUN, OTHER):
                        assert found(pin, one, (low, high)) == expected(sent, one, low, high)
            assert found(pin, None, None) == [ulid for _, ulid in sent]
        await journal.close()
        journal = rig.open()
    await journal.close()


async def test_what_comes_after_a_pin_is_not_in_it_however_early_its_time() -> None:
    rig = Rig()
    journal = rig.open()
    await put(journal, b"a\n", ulids.lowest_at(START_MS + 5))
    with journal.pin() as pin:
        await put(journal, b"b\n", ulids.lowest_at(START_MS))
        assert found(pin, None, (START_MS, START_MS + 9)) == [ulids.lowest_at(START_MS + 5)]
        assert found(pin, None, (START_MS, START_MS)) == []
    await journal.close()


async def test_they_are_found_in_frozen_blocks_and_in_the_rows_behind_them() -> None:
    rig = Rig()
    journal = rig.open()
    waiting = [
        journal.append(RUN, ulids.lowest_at(START_MS + n), b"x\n", records=1, lines=1, digest=0)[1]
        for n in range(BLOCK_ROWS + 10)
    ]
    for done in waiting:
        await done
    with journal.pin() as pin:
        edge = START_MS + BLOCK_ROWS
        rows = pin.batches(times=(edge - 3, edge + 3)).rows
        assert np.array_equal(rows["pos"], np.arange(BLOCK_ROWS - 3, BLOCK_ROWS + 4))
    await journal.close()
