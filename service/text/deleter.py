"""Deleting runs and pipelines: from then on nothing up to T exists, wherever it stands.

    T in memory ──► journal ──► manifest (deleted, T) ──► coordination/deleted ──► objects go

T is the highest of now, every ULID of the run that is known, and an earlier T. Killed
after the journal knows, it is finished by the next start; before, it did not happen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import numpy as np

from logstore import keys
from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.clock import Clock
from logstore.errors import Damaged, NotFound, TailraceError
from logstore.objects.store import ObjectStore
from logstore.runs.deletion import Deletion
from logstore.runs.manifest import Manifest, decode_manifest
from logstore.runs.manifests import Manifests
from service.text.chunks import extremes
from service.text.deletions import Deletions
from service.text.locks import RunLocks
from service.text.pin import Pin
from service.text.restore.upstream import Upstream

_RETRY_SECONDS = 5.0
_DELETE_COUNT = 500


class Deleter:
    """Of one node."""

    def __init__(
        self,
        store: ObjectStore,
        manifests: Manifests,
        deletions: Deletions,
        locks: RunLocks,
        clock: Clock,
        upstream: Upstream,
        *,
        prefix: str,
        pin: Callable[[], Pin],
        last_ulid: Callable[[RunKey], int],
        record_tombstone: Callable[[str, str | None, int], Awaitable[None]],
        tombstone_done: Callable[[str, str | None, int], None],
        flushed: Callable[[], int],
        forget: Callable[[RunKey], None],
    ) -> None:
        self._store = store
        self._manifests = manifests
        self._deletions = deletions
        self._locks = locks
        self._clock = clock
        self._upstream = upstream
        self._prefix = prefix
        self._pin = pin
        self._last_ulid = last_ulid
        self._record_tombstone = record_tombstone
        self._tombstone_done = tombstone_done
        self._flushed = flushed
        self._forget = forget
        self._unfinished: list[tuple[str, str | None, int]] = []
        self._stopping = False
        self.deleted = 0

    async def delete_run(self, key: RunKey) -> None:
        """Deletes one run. Raises `StoreUnavailable`, `OutcomeUnknown`, and as the journal."""
        async with self._locks.of(key):
            manifest = (await self._manifests.get(key)).manifest
            t = self._horizon([manifest, Manifest(key)])
            self._deletions.note(key.fqn, key.run, t)
            await self._record_tombstone(key.fqn, key.run, t)
            await self._swap(key, t)
            await self._record(key.fqn, key.run, t)
            await self.remove_objects(key)
        self._tombstone_done(key.fqn, key.run, t)
        self.deleted += 1

    async def delete_pipeline(self, fqn: str) -> list[str]:
        """Deletes all runs of a pipeline, giving their ids. Raises as `delete_run`."""
        manifests = await self._manifests_of(fqn)
        untaken = await self._untaken(fqn)
        hot = self._hot_runs(fqn)
        t = self._horizon([*manifests, *[Manifest(key) for key in hot]], untaken.values())
        self._deletions.note(fqn, None, t)
        await self._record_tombstone(fqn, None, t)
        await self._record(fqn, None, t)
        for manifest in manifests:
            async with self._locks.of(manifest.key):
                await self._swap(manifest.key, t)
                await self.remove_objects(manifest.key)
            self.deleted += 1
        await self._remove_untaken(untaken, t)
        self._tombstone_done(fqn, None, t)
        gone = {m.key.run for m in manifests if m.state != "deleted"}
        return sorted(gone | {key.run for key in [*hot, *untaken]})

    def resume(self, fqn: str, run: str | None, t: int) -> None:
        """Takes up a deletion that the journal knows."""
        self._unfinished.append((fqn, run, t))

    async def run(self) -> None:
        """Finishes what was taken up, until it is done or stopped."""
        while self._unfinished and not self._stopping:
            try:
                await self.finish_all()
            except TailraceError:
                await self._clock.sleep(_RETRY_SECONDS)

    async def finish_all(self) -> None:
        """Does the steps after the journal for what was taken up. Raises `TailraceError`."""
        while self._unfinished:
            fqn, run, t = self._unfinished[0]
            await self._record(fqn, run, t)
            found = await self._manifests_of(fqn) if run is None else [Manifest(RunKey(fqn, run))]
            for manifest in found:
                async with self._locks.of(manifest.key):
                    if (await self._manifests.get(manifest.key)).manifest.generation < t:
                        await self._swap(manifest.key, t)
                        await self.remove_objects(manifest.key)
            if run is None:
                await self._remove_untaken(await self._untaken(fqn, deleted=True), t)
            self._unfinished.pop(0)
            self._tombstone_done(fqn, run, t)

    def stop(self) -> None:
        """Ends `run`."""
        self._stopping = True

    async def remove_objects(self, key: RunKey) -> None:
        """Texts, chunks and marks of a run that no manifest names; its lock is held.

        Of what OpenMetadata wrote under another key, the run's own two objects.
        """
        self._forget(key)
        found = await self._upstream.objects(key)
        for prefix in (
            keys.run_texts(self._prefix, key),
            keys.active_nodes(self._prefix, key),
        ):
            found += [info.key async for info in self._store.list(prefix)]
        for start in range(0, len(found), _DELETE_COUNT):
            await self._store.delete(found[start : start + _DELETE_COUNT])

    async def _untaken(self, fqn: str, *, deleted: bool = False) -> dict[RunKey, int]:
        """Runs that OpenMetadata wrote and nobody touched, and when their last text was written.

        Those that a deletion hides already only if `deleted`.
        """
        found: dict[RunKey, int] = {}
        async for run in self._upstream.runs(fqn):
            born = ulids.highest_at(run.modified_ms)
            if deleted or born > self._deletions.horizon(run.key):
                found[run.key] = max(found.get(run.key, 0), born)
        return found

    async def _remove_untaken(self, untaken: Mapping[RunKey, int], t: int) -> None:
        """Removes those in our own folder. Another's may be another pipeline's: T hides them."""
        for key, born in untaken.items():
            async with self._locks.of(key):
                if born <= t and (await self._manifests.get(key)).etag is None:
                    texts = keys.run_texts(self._prefix, key)
                    await self._store.delete([f"{texts}partial.txt", f"{texts}logs.txt"])

    def _horizon(self, manifests: Sequence[Manifest], born: Iterable[int] = ()) -> int:
        """T, from what is known at this very moment: nothing is awaited from here to `note`."""
        known = [ulids.highest_at(self._clock.now_ms()), *born]
        with self._pin() as pin:
            for manifest in manifests:
                key = manifest.key
                known += [manifest.last | ulids.LINE_MASK if manifest.chunks else 0]
                known += [manifest.generation, self._deletions.horizon(key), self._last_ulid(key)]
                highest = extremes(pin.batches(run=key).rows)[1]
                known.append(highest | ulids.LINE_MASK if highest else 0)
        return max(known)

    async def _swap(self, key: RunKey, t: int) -> None:
        def change(manifest: Manifest) -> Manifest | None:
            return None if manifest.generation >= t else manifest.deleted_through(t)

        await self._manifests.update(key, change)

    async def _record(self, fqn: str, run: str | None, t: int) -> None:
        version = self._manifests.fresh_id()
        await self._deletions.record(Deletion(fqn, run, t, version))

    async def _manifests_of(self, fqn: str) -> list[Manifest]:
        found = []
        async for info in self._store.list(keys.manifests_of(fqn)):
            try:
                found.append(decode_manifest((await self._store.get(info.key))[1]))
            except NotFound:
                continue
            except Damaged as error:
                raise Damaged(f"{info.key}: {error}") from error
        return found

    def _hot_runs(self, fqn: str) -> list[RunKey]:
        """Runs of the pipeline with undeleted lines in the journal."""
        with self._pin() as pin:
            batches = pin.batches(start=self._flushed())
            numbers = np.unique(batches.rows["run"]).tolist()
            keys_ = [batches.runs[number] for number in numbers]
            return [
                key
                for key in keys_
                if key.fqn == fqn
                and extremes(pin.batches(run=key).rows)[1] > self._deletions.horizon(key)
            ]
