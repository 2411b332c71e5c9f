"""Metrics of passes, told as they go on: into a file, to a push gateway, or both."""

from __future__ import annotations

from typing import Protocol

from compactor.report import Report
from compactor.reporting.metrics import Samples, add, counts, gauges
from compactor.reporting.push import PushGateway
from compactor.reporting.textfile import Textfile, render, total
from logstore.clock import Clock


class Totals(Protocol):
    """Where counters add up."""

    def read(self) -> Samples:
        """All of it as it stands. Raises `Unavailable`."""
        ...

    def change(self, counted: Samples, gauges: Samples) -> Samples:
        """Adds to the counters, sets the gauges, and gives all of it. Raises `Unavailable`."""
        ...


class InMemory:
    """Of this process alone."""

    def __init__(self) -> None:
        self._samples: Samples = {}

    def read(self) -> Samples:
        return self._samples

    def change(self, counted: Samples, gauges: Samples) -> Samples:
        self._samples = total(self._samples, counted, gauges)
        return self._samples


class MetricsListener:
    """Books what is new of a report into the totals, each count once.

    What could not be written is owed, and written with the next.
    """

    every_seconds = 10.0

    def __init__(
        self, clock: Clock, file: Textfile | None, gateway: PushGateway | None = None
    ) -> None:
        self._clock = clock
        self.totals: Totals = file or InMemory()
        self._gateway = gateway
        self._owed: Samples = {}
        self._booked: Samples = {}

    async def look(self, report: Report) -> None:
        """Tells what is new. Raises `Unavailable`."""
        await self._tell(report, over=False)

    async def over(self, report: Report) -> None:
        """Tells the rest of this pass. Raises `Unavailable`."""
        try:
            await self._tell(report, over=True)
        finally:
            self._booked = {}

    async def _tell(self, report: Report, *, over: bool) -> None:
        self._book(counts(report, over=over))
        # Not in a thread: a pass that ends while a change is on its way must not make it twice.
        before = self.totals.read()
        now = gauges(report, before, over=over, now_ms=self._clock.now_ms())
        samples = self.totals.change(self._owed, now)
        self._owed = {}
        if self._gateway is not None:
            await self._gateway.push(render(samples))

    def _book(self, counted: Samples) -> None:
        add(self._owed, {key: n - self._booked.get(key, 0) for key, n in counted.items()})
        self._booked = counted
