"""Which fault meets which request: rates by seed, faults in order, and whole outages.

Rates throw dice that depend on the seed, on the request's name and on how often it was
seen, not on the order in which requests of many tasks arrive: a seed gives the same
faults to the same requests in every run.

No request meets more than `most_in_a_row` faults by rate, one after the other: a client
that tries at least once more than that gets through, so a failure is the client's.

Methods may be called from any thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from tests.faults.kinds import HIDDEN, Kind
from tests.faults.requests import Request

Applies = Callable[[Request], bool]


def anything(_: Request) -> bool:
    """Every request."""
    return True


def evenly(rate: float, kinds: Sequence[Kind] = HIDDEN) -> dict[Kind, float]:
    """`rate` of all requests meet a fault, each of the kinds as often."""
    return dict.fromkeys(kinds, rate / len(kinds))


@dataclass
class _Planned:
    kind: Kind
    left: int
    applies: Applies


class Schedule:
    """`rates` are probabilities by kind, of requests that the kind may lawfully meet."""

    def __init__(
        self,
        seed: int | str = 0,
        rates: Mapping[Kind, float] | None = None,
        *,
        most_in_a_row: int = 2,
        delay_seconds: float = 0.05,
        stall_seconds: float = 30.0,
    ) -> None:
        self.seed = seed
        self.rates = dict(rates or {})
        self.delay_seconds = delay_seconds
        self.stall_seconds = stall_seconds
        self.injected: Counter[Kind] = Counter()
        self.requests = 0
        self._most_in_a_row = most_in_a_row
        self._outage: Kind | None = None
        self._planned: list[_Planned] = []
        self._seen: Counter[str] = Counter()
        self._in_a_row: Counter[str] = Counter()
        self._lock = threading.Lock()

    def plan(self, kind: Kind, *, times: int = 1, applies: Applies = anything) -> None:
        """The next `times` requests that `applies` accepts, and `kind` may meet, meet it."""
        with self._lock:
            self._planned.append(_Planned(kind, times, applies))

    def refuse(self, kind: Kind = Kind.SLOW_DOWN) -> None:
        """Everything that `kind` may meet meets it, until `relent`."""
        with self._lock:
            self._outage = kind

    def relent(self) -> None:
        """Ends an outage."""
        with self._lock:
            self._outage = None

    def calm(self) -> None:
        """No more faults of any sort."""
        with self._lock:
            self.rates.clear()
            self._planned.clear()
            self._outage = None

    def next(self, request: Request) -> Kind | None:
        """The fault of this request, counted."""
        with self._lock:
            self.requests += 1
            kind = self._choose(request)
            if kind is not None:
                self.injected[kind] += 1
            return kind

    def _choose(self, request: Request) -> Kind | None:
        if self._outage is not None and self._outage.lawful(request):
            return self._outage
        for planned in self._planned:
            if planned.left and planned.kind.lawful(request) and planned.applies(request):
                planned.left -= 1
                return planned.kind
        return self._by_rate(request)

    def _by_rate(self, request: Request) -> Kind | None:
        if not self.rates:
            return None
        name = request.name
        dice = Random(f"{self.seed} {name} {self._seen[name]}").random()
        self._seen[name] += 1
        kind = self._at(dice)
        if kind is None or not kind.lawful(request) or self._enough(name):
            del self._in_a_row[name]
            return None
        self._in_a_row[name] += 1
        return kind

    def _at(self, dice: float) -> Kind | None:
        for kind, rate in self.rates.items():
            dice -= rate
            if dice < 0:
                return kind
        return None

    def _enough(self, name: str) -> bool:
        return self._in_a_row[name] >= self._most_in_a_row
