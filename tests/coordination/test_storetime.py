"""The store's time as an interval: what answers in whole seconds tell of it."""

from __future__ import annotations

from random import Random

import pytest

from tailrace.coordination.lease import WINDOW_SECONDS, StoreTime
from tailrace.logstore.objects.store import DateSample
from tests.seeds import seeds
from tests.simulation.clocks import ManualClock

EPOCH_MS = 1_750_000_000_000


class Server:
    """A store whose clock is `ahead_ms` of the machine's running one."""

    def __init__(self) -> None:
        self.machine = ManualClock()
        self.ahead_ms = EPOCH_MS
        self.newest: DateSample | None = None
        self.time = StoreTime(self.machine, lambda: self.newest)

    @property
    def now_ms(self) -> int:
        return self.ahead_ms + round(self.machine.monotonic() * 1000)

    def answer(self, there_ms: int = 0, back_ms: int = 0) -> None:
        sent = self.machine.monotonic()
        self.machine.advance(there_ms)
        date = self.now_ms // 1000 * 1000
        self.machine.advance(back_ms)
        self.newest = DateSample(date, sent, self.machine.monotonic(), self.machine.now_ms())


def test_before_any_answer_nobody_holds_and_nobody_takes() -> None:
    server = Server()
    assert not server.time.known
    assert server.time.at_least_ms() == 0
    assert server.time.at_most_ms() > EPOCH_MS * 10


def test_slow_answers_say_nothing() -> None:
    server = Server()
    server.answer(1000, 1001)
    assert not server.time.known
    server.answer(1000, 900)
    assert server.time.known


@pytest.mark.parametrize("seed", seeds(10))
def test_the_truth_lies_within_and_many_answers_come_close(seed: int) -> None:
    server, dice = Server(), Random(seed)
    for _ in range(2000):
        server.answer(dice.randint(0, 30), dice.choice([0, 5, 30, 900, 3000]))
        server.machine.advance(dice.randint(0, 200))
        if server.time.known:
            assert server.time.at_least_ms() <= server.now_ms <= server.time.at_most_ms()
    assert server.time.at_most_ms() - server.time.at_least_ms() < 500


def test_the_next_answer_does_not_take_time_back() -> None:
    server = Server()
    server.ahead_ms += 1
    server.answer()
    server.machine.advance(998)
    before_ms = server.time.at_least_ms()
    server.answer()
    assert server.time.at_least_ms() >= before_ms


def test_answers_of_long_ago_are_not_used() -> None:
    server = Server()
    server.answer()
    server.machine.advance(round(WINDOW_SECONDS * 2000))
    server.ahead_ms -= 400  # the machine's clock ran too fast
    for _ in range(100):
        server.answer()
        server.machine.advance(77)
    assert server.time.at_least_ms() <= server.now_ms <= server.time.at_most_ms()


@pytest.mark.parametrize("step_ms", [-7000, 7000])
def test_a_store_whose_clock_was_set_is_believed_at_once(step_ms: int) -> None:
    server = Server()
    for _ in range(50):
        server.answer()
        server.machine.advance(77)
    server.ahead_ms += step_ms
    server.answer()
    assert server.time.at_least_ms() <= server.now_ms <= server.time.at_most_ms()
