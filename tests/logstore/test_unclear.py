"""Patience with a store that does not say what became of a write."""

from __future__ import annotations

from random import Random

import pytest

from logstore.clock import SystemClock
from logstore.errors import OutcomeUnknown
from logstore.objects.local import LocalStore, inline
from logstore.runs.watermark import raise_text_mark, read_text_mark
from tests.simulation.faulty_store import WRITES, Fault, FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem

NODE = "node-1"


def store_that_answers(*answers: Fault) -> FaultyStore:
    inner = LocalStore("/store", PowerCutFileSystem(), SystemClock(), Random(1), run=inline)
    faults = dict(enumerate(answers, 1))
    return FaultyStore(inner, Schedule(faults, applies=lambda call: call.split()[0] in WRITES))


async def test_a_few_unknown_outcomes_are_looked_into() -> None:
    store = store_that_answers(Fault.UNKNOWN_NOT_DONE, Fault.UNKNOWN_DONE)
    mark = await raise_text_mark(store, NODE, fresh_id=lambda: "v", seq=3, pos=30)
    assert (mark.seq, mark.pos) == (3, 30)
    assert (await read_text_mark(store, NODE)).seq == 3


async def test_a_store_that_never_says_is_left_alone() -> None:
    store = store_that_answers(*[Fault.UNKNOWN_NOT_DONE] * 100)
    with pytest.raises(OutcomeUnknown):
        await raise_text_mark(store, NODE, fresh_id=lambda: "v", seq=3, pos=30)
    assert store.schedule.fired == 3
