"""Lines of a run that this node holds and that are in no chunk yet, for other nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from logstore.batch import Indexes, RunKey
from logstore.runs.manifest import Manifest
from service.runs.backlog import Backlog
from service.runs.pending import FlushProgress
from service.runs.pin import Pin
from service.runs.selection import Source, in_range


class Held(NamedTuple):
    """A source, its rows of the run, and the journal files they stand in with first positions."""

    source: Source
    indexes: Indexes
    files: Sequence[tuple[str, int]]


class HeldLines:
    """What one node holds. Its own lines are below its journal's pin, others in its backlog."""

    def __init__(
        self, node: str, pin: Callable[[], Pin], backlog: Backlog, progress: FlushProgress
    ) -> None:
        self._node = node
        self._pin = pin
        self._backlog = backlog
        self._progress = progress

    @asynccontextmanager
    async def of(self, key: RunKey) -> AsyncIterator[list[Held]]:
        """All batches of the run that some manifest may lack, as long as the block runs.

        Raises `NodeNotReady`, `StoreUnavailable`.
        """
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
        if source.node != self._node:
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
