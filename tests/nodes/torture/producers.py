"""Producers that send each batch to a node of their choice, until one has acknowledged it.

A batch keeps its id over all tries. Each producer waits for the answer to a batch before it sends
the next one, so its lines have the order of their ids, whichever nodes took them.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Final

from logstore.batch import RunKey
from tailrace_client import Run, Unavailable
from tailrace_client.ids import BatchIds

_TIMEOUT_SECONDS: Final = 4.0
_PAUSE_SECONDS: Final = 0.05
_SENT_TWICE: Final = 0.1
_MODES: Final = ("fast", "durable", "durable", "bulk")


@dataclass
class Written:
    """The lines of a run that are acknowledged: each producer's, in its order."""

    key: RunKey
    by_producer: dict[str, list[str]] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        """All of them."""
        return [line for lines in self.by_producer.values() for line in lines]


class Producer:
    """One of a run."""

    def __init__(self, name: str, urls: list[str], written: Written, dice: random.Random) -> None:
        self._name = name
        self._dice = dice
        self._lines = written.by_producer.setdefault(name, [])
        self._ids = BatchIds()
        self._nodes = [
            Run(
                url,
                *written.key,
                retry_seconds=0,
                timeout_seconds=_TIMEOUT_SECONDS,
                ids=self._ids,
            )
            for url in urls
        ]
        self._key = written.key
        self.retries = 0

    async def write(self, batches: int, pause: float) -> None:
        """Returns when all is acknowledged."""
        for _ in range(batches):
            lines = self._next_lines()
            batch = self._ids.mint()
            await self._deliver(lines, batch)
            if self._dice.random() < _SENT_TWICE:  # as if its answer had been lost
                await self._deliver(lines, batch)
            self._lines += lines
            await asyncio.sleep(self._dice.expovariate(1 / pause))

    async def _deliver(self, lines: list[str], batch: str) -> None:
        mode = self._dice.choice(_MODES)
        while True:
            node = self._dice.choice(self._nodes)
            try:
                await asyncio.to_thread(node.append, lines=lines, batch=batch, durability=mode)
            except Unavailable:
                self.retries += 1
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                return

    def _next_lines(self) -> list[str]:
        first = len(self._lines)
        return [
            f"{self._key.run} {self._name} {first + number:06d} {'x' * self._dice.randrange(100)}"
            for number in range(self._dice.randint(1, 20))
        ]

    def close(self) -> None:
        """Lets go of its connections."""
        for node in self._nodes:
            node.service.close()
