"""Several at once, and whose turn it is the dice say: threads of which only one runs at a time.

A race is as real as the steps between which it may change hands: calls of the store, commits,
and what a pass tells that it has reached. It takes the same course whenever the dice are the
same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

_CHANGES: Final = 0.25
"""How probable it is that another goes on at a step."""

Runner = Callable[[Callable[[], None]], None]
"""Does something, and is given what is to be called at each step of it."""


class Turns:
    """One race."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._gates: dict[int, threading.Semaphore] = {}
        self._failures: list[BaseException] = []

    def race(self, runners: Sequence[Runner]) -> None:
        """Returns when all have come to their end. Raises what the first of them raised."""
        self._gates = {number: threading.Semaphore(0) for number in range(len(runners))}
        threads = [
            threading.Thread(target=self._run, args=(number, runner))
            for number, runner in enumerate(runners)
        ]
        for thread in threads:
            thread.start()
        self._next().release()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _run(self, number: int, runner: Runner) -> None:
        self._gates[number].acquire()
        try:
            runner(lambda: self._step(number))
        except BaseException as failure:  # noqa: BLE001 - raised by `race`
            self._failures.append(failure)
        finally:
            del self._gates[number]
            if self._gates:
                self._next().release()

    def _next(self) -> threading.Semaphore:
        return self._gates[self._dice.choice(list(self._gates))]

    def _step(self, number: int) -> None:
        mine = self._gates[number]
        if self._dice.random() < _CHANGES and (other := self._next()) is not mine:
            other.release()
            mine.acquire()
