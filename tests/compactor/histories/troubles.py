"""What goes wrong in one pass, and a store that is part of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tailrace.logstore.objects.store import ObjectStore
from tests.compactor.histories.lossy import Losses
from tests.simulation.faulty_store import Crash, FaultyStore, Schedule

T = TypeVar("T")


def _nothing() -> None:
    return None


@dataclass
class Troubles:
    """At which step it is killed, what others do meanwhile, what its store and commits suffer.

    What others do is at a step by its number, or `on` one by its name.

    The driver has the nodes that it `leases` as that host, or leaves the nodes `left` alone, as
    somebody says who may be wrong. Before each step of it others may have their `turn`.
    """

    left: Collection[str] = ()
    leases: str | None = None
    store: Schedule = field(default_factory=Schedule.none)
    losses: Losses = field(default_factory=Losses)
    killed_at: int = 0
    killed_on: str | None = None
    meanwhile: dict[int, Callable[[], object]] = field(default_factory=dict)
    on: dict[str, Callable[[], object]] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    turn: Callable[[], None] = _nothing
    wake: Callable[[], None] = _nothing
    _dead: bool = False

    def reached(self, step: str) -> None:
        """A step is over."""
        self.live()
        self.steps.append(step)
        number = len(self.steps)
        if number in self.meanwhile:
            self.meanwhile[number]()
        if others := self.on.pop(step, None):
            others()
        if number == self.killed_at or step == self.killed_on:
            self.killed_on = step
            self.die(step)

    def live(self) -> None:
        """Another step begins. Raises `Crash` if it was the last one already."""
        if self.dead:
            raise Crash("it is dead already")
        self.turn()
        self.wake()

    def die(self, where: str) -> None:
        """Nothing that it still tries is heard of: a killed process gives nothing back."""
        self._dead = True
        raise Crash(where)

    @property
    def dead(self) -> bool:
        """Whether it was killed."""
        return self._dead or self.losses.dead


class MortalStore(FaultyStore):
    """The way to the store of a driver that may be killed."""

    def __init__(self, inner: ObjectStore, met: Troubles) -> None:
        super().__init__(inner, met.store)
        self._met = met

    async def _step(self, name: str, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        met = self._met
        met.live()
        try:
            return await super()._step(name, key, work)
        except Crash as crash:
            met.die(str(crash))
            raise
