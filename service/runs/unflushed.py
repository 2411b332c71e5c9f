"""Active markers: objects that say which runs have lines on this node that are not in chunks yet.

`{prefix}/.active/{fqn}/{run}/{node}` is empty and has OpenMetadata's user metadata: `server-id`
(the node), `timestamp` (milliseconds since the epoch), `pipeline` (the fqn as in keys, because
metadata is ASCII). They are for people, and for sweepers of other nodes. They are written after
the acknowledgement and cost it nothing:

    appended ──► noted in memory ──every few seconds──► put, once per run
    flushed or closed, and nothing came for a while ──► deleted, many at a time

A busy run therefore costs one put, not one per append or per flush. One round makes at most
`_PUTS`; the others wait. The next start finds the markers that a killed process left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from logstore import keys
from logstore.batch import RunKey
from logstore.clock import Clock
from logstore.errors import TailraceError
from logstore.names import encode
from logstore.objects.store import ObjectStore
from service.runtime.heartbeat import Heartbeat

_INTERVAL_SECONDS = 5.0
_PUTS = 50
_PARALLEL = 4
_DELETES = 500


@dataclass(slots=True)
class _Run:
    """One past its last position here and its time; whether its object may or does exist."""

    end: int
    at: float
    maybe: bool = False
    there: bool = False


class ActiveMarkers:
    """The markers of one node. `held`: whether chunks lack lines of a run below a position."""

    def __init__(
        self,
        node: str,
        store: ObjectStore,
        clock: Clock,
        *,
        prefix: str,
        linger_seconds: float,
        held: Callable[[RunKey, int], bool],
    ) -> None:
        self._node = node
        self._store = store
        self._clock = clock
        self._prefix = prefix
        self._linger = linger_seconds
        self._held = held
        self._runs: dict[RunKey, _Run] = {}
        self._stale: list[str] = []
        self._stopping = False
        self.heartbeat = Heartbeat(clock)
        self.puts = 0
        self.last_error: str | None = None

    def __len__(self) -> int:
        return len(self._runs)

    def appended(self, key: RunKey, end: int) -> None:
        """Takes note that lines of the run, below position `end`, are synced here."""
        run = self._runs.get(key)
        if run is None:
            self._runs[key] = _Run(end, self._clock.monotonic())
        else:
            run.end, run.at = end, self._clock.monotonic()

    def closed(self, key: RunKey) -> None:
        """Records that the run was closed or deleted: the next round removes its object."""
        run = self._runs.get(key)
        if run is not None:
            run.at = float("-inf")

    async def find(self, nodes: Iterable[str]) -> None:
        """Finds markers that earlier lives of these nodes left. Raises `StoreUnavailable`.

        Runs that it finds and that get lines meanwhile keep their marker.
        """
        names = {encode(node) for node in nodes}
        prefix = keys.all_active(self._prefix)
        self._stale = [
            info.key
            async for info in self._store.list(prefix)
            if info.key.rpartition("/")[2] in names
        ]

    async def run(self) -> None:
        """Updates the markers in the store every interval, until stopped."""
        while not self._stopping:
            self.heartbeat.turn()
            await self._clock.sleep(_INTERVAL_SECONDS)
            try:
                await self.round()
                self.last_error = None
            except TailraceError as error:
                self.last_error = str(error)

    def stop(self) -> None:
        """Ends `run`."""
        self._stopping = True

    async def round(self) -> None:
        """Puts new markers, deletes old ones. Raises `StoreUnavailable`, `OutcomeUnknown`."""
        await self._delete(self._over(self._linger))
        new = [k for k, run in self._runs.items() if not run.there and self._held(k, run.end)]
        waiting = iter(new[:_PUTS])
        failures: list[TailraceError] = []

        async def work() -> None:
            for key in waiting:
                if not failures:
                    await self._put(key, failures)

        await asyncio.gather(*[work() for _ in range(_PARALLEL)])
        if failures:
            raise failures[0]
        self.heartbeat.success()

    async def clear(self) -> None:
        """Deletes the markers of all runs whose lines are in chunks. Raises as `round`."""
        await self._delete(self._over(0.0))

    def _over(self, linger: float) -> list[RunKey]:
        before = self._clock.monotonic() - linger
        return [k for k, r in self._runs.items() if r.at <= before and not self._held(k, r.end)]

    async def _delete(self, over: list[RunKey]) -> None:
        kept = {self._key(key) for key in self._runs.keys() - set(over)}
        names = [self._key(key) for key in over if self._runs[key].maybe]
        names += [name for name in self._stale if name not in kept]
        for start in range(0, len(names), _DELETES):
            await self._store.delete(names[start : start + _DELETES])
        self._stale = []
        for key in over:
            run = self._runs.get(key)
            if run is not None and self._held(key, run.end):
                run.maybe = run.there = False  # something came while it was deleted
            elif run is not None:
                del self._runs[key]

    async def _put(self, key: RunKey, failures: list[TailraceError]) -> None:
        run = self._runs.get(key)
        if run is None:
            return
        metadata = {
            "server-id": encode(self._node),
            "timestamp": str(self._clock.now_ms()),
            "pipeline": encode(key.fqn),
        }
        run.maybe = True
        try:
            await self._store.put(self._key(key), b"", metadata=metadata)
        except TailraceError as error:
            failures.append(error)
        else:
            run.there = True
            self.puts += 1

    def _key(self, key: RunKey) -> str:
        return keys.active(self._prefix, key, self._node)
