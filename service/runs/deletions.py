"""The deletions that this node knows, in memory; loaded from the store at the start.

Loading means listing, see `logstore.runs.deletions`. If one bit of a record has changed, the node
uses the record as it was; the damage is a problem of the node (`service/runtime/state_watch.py`).
Of any other damaged record nobody knows the T. The node then goes on with the deletions that it
knows, and `all` raises, so that no search shows lines that may be deleted.
"""

from __future__ import annotations

from logstore import keys
from logstore.batch import RunKey
from logstore.checked import without_flip
from logstore.errors import Damaged
from logstore.objects.store import ObjectStore
from logstore.runs.deletions import Deletion, StoredDeletions, decode_deletion, encode_deletion
from logstore.swap import Document, swap


class Deletions:
    """Horizons: the highest ULID of a run, or of a pipeline's runs, that is deleted."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._runs: dict[RunKey, int] = {}
        self._pipelines: dict[str, int] = {}
        self._stored = StoredDeletions(damaged=_before_a_flip)

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
        """Every deletion, as (fqn, run or None, T). Raises `Damaged` if one could not be read."""
        for error in self._stored.unreadable.values():
            raise error
        runs: list[tuple[str, str | None, int]] = [(*key, t) for key, t in self._runs.items()]
        return runs + [(fqn, None, t) for fqn, t in self._pipelines.items()]

    async def load(self) -> None:
        """Reads what the store knows. Raises `StoreUnavailable`."""
        await self._note_below(keys.DELETED)

    async def refresh(self, key: RunKey) -> None:
        """Reads what the store knows of one run. Raises `StoreUnavailable`, `Damaged`."""
        of_run, of_pipeline = keys.deletions_of(key), keys.deleted_pipeline(key.fqn)
        await self._note_below(of_run)
        pipeline = await self._stored.read(self._store, of_pipeline)
        if pipeline is not None:
            self._note(pipeline)
        for name, error in self._stored.unreadable.items():
            if name == of_pipeline or name.startswith(of_run):
                raise error

    async def _note_below(self, prefix: str) -> None:
        async for one in self._stored.each(self._store, prefix):
            self._note(one.deletion)

    def _note(self, deletion: Deletion) -> None:
        self.note(deletion.fqn, deletion.run, deletion.t)

    async def record(self, deletion: Deletion) -> None:
        """Makes sure that the store's entry is at least `deletion.t`.

        Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
        """

        async def change(found: Deletion | None) -> Deletion | None:
            return None if found is not None and found.t >= deletion.t else deletion

        await swap(Document(self._store, deletion.key, _decode_or_none, _encode), change)


def _decode_or_none(body: bytes) -> Deletion | None:
    """None is a damaged record. The new one takes its place, as its T is above now."""
    try:
        return decode_deletion(body)
    except Damaged as error:
        return _before_a_flip("", body, error)


def _encode(deletion: Deletion | None) -> bytes:
    assert deletion is not None
    return encode_deletion(deletion)


def _before_a_flip(_key: str, body: bytes, _error: Damaged) -> Deletion | None:
    """The record before one of its bits changed; None if no single bit explains the damage."""
    before = without_flip(body, decode_deletion)
    return None if before is None else decode_deletion(before)
