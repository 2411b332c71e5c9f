"""Lines of a run that this node holds and that are in no chunk yet, for other nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import numpy as np

from logstore.batch import Indexes, RunKey, lowest_and_highest
from logstore.errors import Conflict
from logstore.runs.manifest import Manifest
from service.runs.backlog import Backlog
from service.runs.pending import FlushProgress
from service.runs.pin import Pin
from service.runs.selection import Source, in_range

_GATHER_SECONDS = 0.004


class Held(NamedTuple):
    """A source, its rows of the run, and the journal files they stand in with first positions.

    `flushed`: its lines of the run below this position are in chunks, or left out for good; 0 if
    nobody says.
    """

    source: Source
    indexes: Indexes
    files: Sequence[tuple[str, int]]
    flushed: int = 0


class News(NamedTuple):
    """The numbers of the runs that have new lines, and one past the last line looked at.

    `taken` counts how often lines of lost nodes were taken over here.
    """

    runs: list[int]
    end: int
    taken: int


class HeldLines:
    """What one node holds. Its own lines are below its journal's pin, others in its backlog."""

    def __init__(
        self, node: str, pin: Callable[[], Pin], backlog: Backlog, progress: FlushProgress
    ) -> None:
        self._node = node
        self._pin = pin
        self._backlog = backlog
        self._progress = progress
        self._waiting: dict[RunKey, set[asyncio.Future[None]]] = {}
        self.stopped = False
        self._taken = 0

    def arrived(self, key: RunKey) -> None:
        """Takes note that lines of the run were synced."""
        for waiting in self._waiting.get(key, ()):
            if not waiting.done():
                waiting.set_result(None)

    def inherited(self) -> None:
        """Takes note that lines of a lost node are read here now; nobody knows of which runs."""
        self._taken += 1
        for key in list(self._waiting):
            self.arrived(key)

    async def news(
        self, since: Sequence[tuple[RunKey, int]], seconds: float, taken: int | None = None
    ) -> News:
        """The runs with lines at or above a position each, as soon as there are any.

        All of them, if lines of lost nodes were taken over since an answer with `taken`.
        None after `seconds`. The positions are those of an earlier answer's `end`, or -1.
        Raises `Conflict` once the node has stopped.
        """
        found = self._since(since, taken)
        if found.runs:
            return found
        waiting = asyncio.get_running_loop().create_future()
        for key, _ in since:
            self._waiting.setdefault(key, set()).add(waiting)
        try:
            async with asyncio.timeout(seconds):
                await waiting
            await asyncio.sleep(_GATHER_SECONDS)
        except TimeoutError:
            pass
        finally:
            for key, _ in since:
                others = self._waiting[key]
                others.discard(waiting)
                if not others:
                    del self._waiting[key]
        return self._since(since, taken)

    def stop(self) -> None:
        """Ends all waiting, which a stop of the node would wait for."""
        self.stopped = True
        for key in list(self._waiting):
            self.arrived(key)

    def _since(self, since: Sequence[tuple[RunKey, int]], taken: int | None) -> News:
        if self.stopped:
            raise Conflict("the node has stopped", hint="What it held is in the store.")
        with self._pin() as pin:
            runs = [
                number
                for number, (key, start) in enumerate(since)
                if taken not in (None, self._taken)
                or 0 <= start < pin.first_pos
                or len(pin.batches(run=key, start=max(start, 0)).rows)
            ]
            return News(runs, pin.end_pos, self._taken)

    def runs(self, fqn: str | None) -> list[tuple[RunKey, int]]:
        """Runs, of a pipeline or of all, with lines that are in no chunk yet; their newest ids.

        A run of which only deleted lines are left is among them.
        """
        inherited = self._backlog.waiting_runs().items()
        found = {key: high for key, high in inherited if fqn in (None, key.fqn)}
        with self._pin() as pin:
            batches = pin.batches(start=self._progress.flushed_pos)
            rows = batches.rows
            for number in np.unique(rows["run"]).tolist():
                key = batches.runs[number]
                if fqn in (None, key.fqn):
                    high = lowest_and_highest(rows[rows["run"] == number])[1]
                    found[key] = max(found.get(key, 0), high)
        return list(found.items())

    @asynccontextmanager
    async def of(self, key: RunKey, *, journal_only: bool = False) -> AsyncIterator[list[Held]]:
        """All batches of the run that some manifest may lack, as long as the block runs.

        `journal_only`: those in the journal, without the store. Else it raises `NodeNotReady`,
        `StoreUnavailable`.
        """
        if journal_only:
            with self._pin() as pin:
                source = Source(pin.batches(run=key), pin.end_pos)
                indexes = in_range(source, key, 0)
                flushed = self._progress.first_unflushed(key)
                held = Held(source, indexes, self._files(pin, source, indexes), flushed)
                yield [held] if len(indexes) else []
            return
        await self._progress.until_started()
        with self._pin() as pin:
            segments, low = self._backlog.now(), self._progress.first_unflushed(key)
            manifest = Manifest(key)
            sources = await self._backlog.sources(key, pin, segments, manifest, low, pin.end_pos)
            found = []
            for source in sources:
                indexes = in_range(source, key, 0)
                if len(indexes):
                    found.append(Held(source, indexes, self._files(pin, source, indexes)))
            yield found

    def _files(self, pin: Pin, source: Source, indexes: Indexes) -> list[tuple[str, int]]:
        if source.node != self._node or not len(indexes):
            return []
        files: dict[str, int] = {}
        for pos in source.batches.rows["pos"][indexes[[0, -1]]].tolist():
            place = pin.position(pos)
            files.setdefault(place.file, pos)
        if len(files) > 1:  # those between
            files.clear()
            for pos in source.batches.rows["pos"][indexes].tolist():
                files.setdefault(pin.position(pos).file, pos)
        return list(files.items())
