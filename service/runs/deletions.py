"""What is deleted, as this node knows it: held in memory, loaded from the store at start.

Loading is listing: the key of a run's record says all of it, and others are read again only
where they changed. There may be as many as runs that expire in some weeks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from logstore import keys
from logstore.batch import RunKey
from logstore.errors import NotFound, OutcomeUnknown, PreconditionFailed
from logstore.objects.ambiguous import Unclear
from logstore.objects.store import ObjectInfo, ObjectStore
from logstore.runs.deletion import Deletion, decode_deletion, deletion_at, encode_deletion

_LOADERS = 8


class Deletions:
    """Horizons: the highest ULID of a run, or of a pipeline's runs, that is deleted."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._runs: dict[RunKey, int] = {}
        self._pipelines: dict[str, int] = {}
        self._read_of: dict[str, str] = {}

    def horizon(self, key: RunKey) -> int:
        """ULIDs of the run at or below it do not exist; 0 if nothing was deleted."""
        return max(self._runs.get(key, 0), self._pipelines.get(key.fqn, 0))

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
        self._note_all([await self._read(keys.deleted_pipeline(key.fqn))])

    async def _note_below(self, prefix: str) -> None:
        changed: list[ObjectInfo] = []
        async for info in self._store.list(prefix):
            said = deletion_at(info.key)
            if said is not None:
                self.note(said.fqn, said.run, said.t)
            elif self._read_of.get(info.key) != info.etag:
                changed.append(info)
        for start in range(0, len(changed), _LOADERS):
            some = changed[start : start + _LOADERS]
            self._note_all(await asyncio.gather(*[self._read(info.key) for info in some]))
            self._read_of |= {info.key: info.etag for info in some}

    def _note_all(self, deletions: Iterable[Deletion | None]) -> None:
        for deletion in deletions:
            if deletion is not None:
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
        unclear = Unclear()
        while True:
            try:
                info, body = await self._store.get(deletion.key)
            except NotFound:
                etag = None
            else:
                if decode_deletion(body).t >= deletion.t:
                    return
                etag = info.etag
            try:
                await self._store.put(
                    deletion.key,
                    encode_deletion(deletion),
                    if_absent=etag is None,
                    if_match=etag,
                )
            except PreconditionFailed:
                continue
            except OutcomeUnknown as error:
                unclear.bear(error)
                continue  # the next look says what is there
            return
