"""The runs that are being written: what appends must remember of each.

A run's state is small and can be rebuilt from the journal and the store. It is therefore
kept for the runs used last and dropped for others.
"""

from __future__ import annotations

from collections import OrderedDict

from logstore.batch import RunKey
from service.ingest.batch import KnownBatch

_KNOWN_BATCHES = 512


class ActiveRun:
    """`last` is the highest ULID of a line that is known; `complete` says that it covers
    the journal and the store, so that a higher id is certainly new."""

    __slots__ = ("batches", "complete", "last")

    def __init__(self, last: int = 0) -> None:
        self.last = last
        self.complete = False
        self.batches: OrderedDict[int, KnownBatch] = OrderedDict()

    def known(self, ulid: int) -> KnownBatch | None:
        """A client's batch that is stored or being stored; refused ones are dropped."""
        batch = self.batches.get(ulid)
        if batch is not None and batch.refused:
            del self.batches[ulid]
            return None
        return batch

    def remember(self, ulid: int, batch: KnownBatch) -> None:
        """Keeps a client's batch for the retries that may follow it."""
        self.batches[ulid] = batch
        if len(self.batches) > _KNOWN_BATCHES:
            # Older ones are found in the journal and the chunks; `complete` stays true,
            # because `last` is not forgotten.
            self.batches.popitem(last=False)


class ActiveRuns:
    """The runs used last, at most `limit` of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._runs: OrderedDict[RunKey, ActiveRun] = OrderedDict()

    def get(self, key: RunKey) -> ActiveRun:
        """The run's state, a new one if it is not in memory."""
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = ActiveRun()
            if len(self._runs) > self._limit:
                self._runs.popitem(last=False)
        else:
            self._runs.move_to_end(key)
        return run

    def peek(self, key: RunKey) -> ActiveRun | None:
        """The run's state, if it is in memory."""
        return self._runs.get(key)

    def __len__(self) -> int:
        return len(self._runs)
