"""The moment of a deletion, by which clients tell old lines from new ones, is never too late."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import NamedTuple

import pytest

from service.run_log.backlog import Deletions
from service.runtime.health import MOST_MS, ClockSkew
from tailrace.logstore import ulid as ulids
from tailrace.logstore.objects.store import DateSample
from tailrace.logstore.runs.deletions import horizon_above
from tests.simulation.backing import open_store
from tests.simulation.clocks import ManualClock
from tests.simulation.powercut import PowerCutFileSystem

STORE_MS = 1_800_000_000_400
LATER_MS = 40_000


class Clock(NamedTuple):
    """A node's clock, and the last answer of the store that it has; None: it has none.

    The answer took `slow` ms, and the store made it after so many ms.
    """

    ahead: int
    answer: tuple[int, int] | None = (0, 0)

    @property
    def deletions(self) -> Deletions:
        """What a node with this clock knows."""
        store = open_store(PowerCutFileSystem(), ManualClock(), Random(1))
        return Deletions(store, ClockSkew(self._newest))

    def _newest(self) -> DateSample | None:
        if self.answer is None:
            return None
        slow, made = self.answer
        date = (STORE_MS + made) // 1000 * 1000
        return DateSample(date, 5.0, 5.0 + slow / 1000, STORE_MS + slow + self.ahead)


CLOCKS = [
    Clock(ahead, answer)
    for ahead, answer in product(
        (-MOST_MS // 2, 0, MOST_MS // 2), ((0, 0), (45_000, 0), (45_000, 45_000), None)
    )
]


@pytest.mark.parametrize("deleter", CLOCKS)
@pytest.mark.parametrize("acknowledged", [None, "at once", "late"])
def test_it_is_never_too_late_whatever_the_clocks_are(
    deleter: Clock, acknowledged: str | None
) -> None:
    """Also if the message that tells of it waited while the node stood still."""
    here_ms = STORE_MS + deleter.ahead
    moment_ms = deleter.deletions.store_ms(here_ms)
    t = horizon_above(ulids.lowest_at(here_ms), moment_ms)
    for reader in CLOCKS:
        known, truth_ms = reader.deletions, STORE_MS + reader.ahead
        heard_ms = {None: None, "at once": truth_ms, "late": truth_ms + LATER_MS}[acknowledged]
        known.note("shop", "1", t, moment_ms=heard_ms)
        now_ms = truth_ms + 2 * LATER_MS
        found_ms = now_ms - known.age_of("shop", "1", t, now_ms)
        unsure_ms = sum(
            2 * MOST_MS if clock.answer is None else clock.answer[0] + 1000
            for clock in (deleter, reader)
        )
        assert truth_ms - unsure_ms - 3000 <= found_ms <= truth_ms
