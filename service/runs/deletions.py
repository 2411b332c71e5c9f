"""The deletions that this node knows, in memory; loaded from the store at the start.

Loading means listing, see `logstore.runs.deletions`.
"""

from __future__ import annotations

from logstore import keys
from logstore.batch import RunKey
from logstore.errors import NotFound
from logstore.objects.store import ObjectStore
from logstore.runs.deletions import Deletion, StoredDeletions, decode_deletion, encode_deletion
from logstore.swap import Document, swap


class Deletions:
    """Horizons: the highest ULID of a run, or of a pipeline's runs, that is deleted."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._runs: dict[RunKey, int] = {}
        self._pipelines: dict[str, int] = {}
        self._stored = StoredDeletions()

    def horizon(self, key: RunKey) -> int:
        """ULIDs of the run at or below it do not exist; 0 if nothing was deleted."""
        return max(self._runs.get(key, 0), self._pipelines.get(key.fqn, 0))

    def highest(self, fqn: str, run: str | None) -> int:
        """The highest horizon of a run, or of a pipeline and its runs."""
        if run is not None:
            return self.horizon(RunKey(fqn, run))
        of_runs = [t for key, t in self._runs.items() if key.fqn == fqn]
        return max([self._pipelines.get(fqn, 0), *of_runs])

    def note(self, fqn: str, run: str | None, t: int) -> None:
        """Raises a horizon at once, in memory."""
        if run is None:
            self._pipelines[fqn] = max(self._pipelines.get(fqn, 0), t)
        else:
            key = RunKey(fqn, run)
            self._runs[key] = max(self._runs.get(key, 0), t)

    def all(self) -> list[tuple[str, str | None, int]]:
        """Every deletion that is known, as (fqn, run or None, T)."""
        runs: list[tuple[str, str | None, int]] = [(*key, t) for key, t in self._runs.items()]
        return runs + [(fqn, None, t) for fqn, t in self._pipelines.items()]

    async def load(self) -> None:
        """Reads what the store knows. Raises `StoreUnavailable`, `Damaged`."""
        await self._note_below(keys.DELETED)

    async def refresh(self, key: RunKey) -> None:
        """Reads what the store knows of one run. Raises `StoreUnavailable`, `Damaged`."""
        await self._note_below(keys.deletions_of(key))
        pipeline = await self._read(keys.deleted_pipeline(key.fqn))
        if pipeline is not None:
            self._note(pipeline)

    async def _note_below(self, prefix: str) -> None:
        async for one in self._stored.each(self._store, prefix):
            self._note(one.deletion)

    def _note(self, deletion: Deletion) -> None:
        self.note(deletion.fqn, deletion.run, deletion.t)

    async def _read(self, key: str) -> Deletion | None:
        try:
            return decode_deletion((await self._store.get(key))[1])
        except NotFound:
            return None

    async def record(self, deletion: Deletion) -> None:
        """Makes sure that the store's entry is at least `deletion.t`.

        Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
        """

        async def change(found: Deletion | None) -> Deletion | None:
            return None if found is not None and found.t >= deletion.t else deletion

        await swap(Document(self._store, deletion.key, decode_deletion, encode_deletion), change)
