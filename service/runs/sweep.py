"""The sweeper does what nobody else did. Every node runs it; sweeping twice does no harm.

- It closes a run that nobody closed after `stream_timeout_seconds` without a line and without a
  status that says that it goes on, also one that this process has never seen: it finds runs from
  their manifests, and those that an OpenMetadata server left in progress from its active markers.
  It closes a closed run with a late batch after `reopened_seconds`. The sweeper holds the run's
  lease, and looks once more for lines at every node just before.
- It publishes a `partial.txt` that vanished again, and removes one that a closed run left.
- It removes chunks that no manifest names when they are older than `orphan_seconds`: they were
  merged, sealed, or written by a flush that was killed before its swap. It also removes logs
  that a killed deletion left.
- It deletes runs whose last line is older than their pipeline's retention, whenever it arrived;
  their manifest says deleted, and is removed after the same time again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container
from dataclasses import replace

from coordination.named.leases import NamedLeases
from coordination.named.record import SWEEP, sweep_lease
from logstore import keys
from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.clock import Clock
from logstore.errors import Damaged, NotFound, OutcomeUnknown, TailraceError, Unavailable
from logstore.objects.store import ObjectInfo, ObjectStore
from logstore.runs.deletions import Deletion
from logstore.runs.manifest import Manifest, manifest_at
from logstore.runs.manifests import Manifests
from logstore.runs.report import Report
from service.runs.deletions import Deletions
from service.runs.locks import RunLocks
from service.runs.outcomes import alive_ms
from service.runs.pin import Pin
from service.runs.remote_state import RemoteState
from service.runs.settings import RunSettings
from service.runtime.clock_skew import ClockSkew
from service.runtime.heartbeat import Heartbeat

_FAILURES = 3


class Sweeper:
    """The sweeper of one node."""

    def __init__(
        self,
        store: ObjectStore,
        manifests: Manifests,
        deletions: Deletions,
        clock: Clock,
        settings: RunSettings,
        locks: RunLocks,
        *,
        orphan_seconds: float,
        prefix: str,
        pin: Callable[[], Pin],
        leases: NamedLeases,
        remote_state: RemoteState,
        import_left: Callable[[int], Awaitable[None]],
        finalise: Callable[[RunKey, Manifest], Awaitable[bool]],
        publish: Callable[[RunKey], Awaitable[None]],
        repair: Callable[[RunKey], Awaitable[bool]],
        ended: Callable[[RunKey], None],
        remove_objects: Callable[[Manifest, Manifest | None], Awaitable[None]],
        reported: Callable[[RunKey], Awaitable[Report | None]],
        skew: ClockSkew,
    ) -> None:
        """Ages are by the earlier of this machine's clock and the store's (`skew`)."""
        self._reported = reported
        self._skew = skew
        self._store = store
        self._manifests = manifests
        self._deletions = deletions
        self._clock = clock
        self._settings = settings
        self._orphan_seconds = orphan_seconds
        self._locks = locks
        self._prefix = prefix
        self._pin = pin
        self._leases = leases
        self._remote_state = remote_state
        self._import_left = import_left
        self._close = finalise
        self._publish = publish
        self._repair = repair
        self._ended = ended
        self._remove_objects = remove_objects
        self._clean: dict[str, str] = {}
        self._stopping = False
        self.heartbeat = Heartbeat(clock)
        self.finalised = 0
        self.orphans = 0
        self.expired = 0
        self.uploads = 0
        self.damaged = 0
        self.last_error: str | None = None

    async def run(self) -> None:
        """Sweeps at once, then every interval, until stopped."""
        while not self._stopping:
            try:
                await self.sweep()
            except TailraceError as error:
                self.last_error = str(error)
            await self.heartbeat.pause(
                self._settings.cleanup_interval_seconds, lambda: self._stopping
            )

    def stop(self) -> None:
        """Ends `run`."""
        self._stopping = True

    async def sweep(self) -> None:
        """Looks at every run once. Raises `StoreUnavailable`, `OutcomeUnknown`.

        A run that cannot be swept holds back no other, unless it is the store that fails.
        """
        await self._deletions.load()
        self.damaged = 0
        self.last_error = None
        clean: dict[str, str] = {}
        failures = 0
        patience = round(self._settings.stream_timeout_seconds * 1000)
        try:
            await self._import_left(self._now_ms() - patience)
        except (Unavailable, OutcomeUnknown, Damaged) as error:  # a later sweep looks again
            failures += 1
            self.last_error = f"what OpenMetadata left: {error}"
        async for info in self._store.list(keys.RUNS):
            self.heartbeat.turn()
            try:
                await self._sweep_run(info, clean)
            except NotFound:
                continue
            except Damaged as error:  # this run waits for `verify`
                self.damaged += 1
                self.last_error = f"{info.key}: {error}"
            except (Unavailable, OutcomeUnknown) as error:
                failures += 1
                self.last_error = f"{info.key}: {error}"
                if failures == _FAILURES:
                    raise
        self._clean = clean
        await self._sweep_store(self._now_ms() - round(self._orphan_seconds * 1000))
        self.heartbeat.success()

    async def _sweep_store(self, before_ms: int) -> None:
        """Removes what belongs to no run: unfinished writes, leases of sweepers that died."""
        self.uploads += await self._store.sweep(before_ms)
        await self._leases.clear(SWEEP)

    async def _sweep_run(self, info: ObjectInfo, clean: dict[str, str]) -> None:
        manifest = manifest_at(info.key, (await self._store.get(info.key))[1])
        if self._has_hot(manifest):
            return
        if self._settings.expires(manifest.key.fqn, manifest.last_ms, self._now_ms()):
            async with self._locks.of(manifest.key):
                await self._expire(info, manifest)
        elif await self._abandoned(manifest):
            await self._finalise(manifest.key)
        elif manifest.state == "closed" and manifest.sealed:
            self._ended(manifest.key)  # by another node, perhaps; somebody may be watching here
        if self._clean.get(info.key) == manifest.version or await self._sweep_texts(manifest):
            clean[info.key] = manifest.version

    def _now_ms(self) -> int:
        return self._clock.now_ms() - max(self._skew.ahead_ms, 0)

    def _idle_ms(self, manifest: Manifest) -> int:
        return self._now_ms() - max(manifest.flushed_ms, manifest.last_ms)

    async def _abandoned(self, manifest: Manifest) -> bool:
        """Whether a run is to be closed: it is idle, and no client says that it goes on."""
        if not manifest.chunks or (manifest.state == "closed" and manifest.sealed):
            return False
        idle_ms, settings = self._idle_ms(manifest), self._settings
        if manifest.closes:
            return idle_ms >= settings.reopen_idle_seconds * 1000
        patience_ms = settings.stream_timeout_seconds * 1000
        if idle_ms < patience_ms:
            return False
        return self._now_ms() - alive_ms(await self._reported(manifest.key)) >= patience_ms

    def _has_hot(self, manifest: Manifest) -> bool:
        with self._pin() as pin:
            start = max(manifest.dealt_with(pin.node), pin.first_pos)
            return len(pin.batches(run=manifest.key, start=start).rows) > 0

    async def _finalise(self, key: RunKey) -> None:
        """Closes the run under its lease, unless somebody appended since the look."""
        held = await self._leases.acquire(sweep_lease(key))
        if held is None:
            return  # another node is about it
        try:
            beyond = await self._remote_state.held(key)
            newest = (await self._manifests.get(key)).manifest
            if beyond(newest) or self._has_hot(newest) or not await self._abandoned(newest):
                return
            if held.valid() and await self._close(key, newest):
                self.finalised += 1
        except NotFound:  # a chunk that it is made of
            await self._repair(key)
        finally:
            await self._leases.release(held, forget=True)

    async def _sweep_texts(self, manifest: Manifest) -> bool:
        """Sweeps a run's objects; whether nothing is left to sweep until the manifest changes."""
        key = manifest.key
        found = [info async for info in self._store.list(keys.run_texts(self._prefix, key))]
        # Read after the list: what a newer manifest names must not go.
        newest = (await self._manifests.get(key)).manifest
        chunks = keys.chunks_of(self._prefix, key)
        named = {chunk.id for chunk in newest.chunks}
        parts = [info for info in found if info.key.startswith(chunks)]
        unnamed = [info for info in parts if _chunk_id(info.key) not in named]
        if newest.state == "deleted":  # by somebody who was killed before he removed them
            texts = keys.partial(self._prefix, key), keys.logs(self._prefix, key)
            unnamed += [info for info in found if info.key in texts]
        limit = self._now_ms() - self._orphan_seconds * 1000
        old = [info.key for info in unnamed if info.modified_ms < limit]
        if old:
            await self._store.delete(old)
            self.orphans += len(old)
        there = {info.key: info.size for info in found}
        indexed = [chunk for chunk in newest.chunks if chunk.index is None]
        wanted = {f"{chunks}{chunk.id}.idx": chunk.index_bytes for chunk in indexed}
        wanted |= {f"{chunks}{c.id}.txt": c.bytes for c in indexed if c.kind == "chunk"}
        logs = keys.logs(self._prefix, key)
        lost = newest.logs is not None and logs not in there
        if lost or any(there.get(name) != size for name, size in wanted.items()):
            await self._repair(key)  # it looks for itself: this one may be newer than the list
        await self._sweep_partial(newest, keys.partial(self._prefix, key), there)
        return len(old) == len(unnamed) and newest.state != "open"

    async def _sweep_partial(self, manifest: Manifest, where: str, there: Container[str]) -> None:
        if manifest.state == "open" and manifest.chunks and where not in there:
            await self._publish(manifest.key)
        elif manifest.state == "closed" and manifest.sealed and where in there:
            await self._store.delete([where])

    async def _expire(self, info: ObjectInfo, manifest: Manifest) -> None:
        """Deletes an expired run, unless somebody appended since; its lock is held."""
        key = manifest.key
        if manifest.state == "deleted":
            await self._record(manifest)
            if self._settings.expires(key.fqn, info.modified_ms, self._now_ms()):
                await self._forget(info, manifest)
            return
        top = manifest.last | ulids.LINE_MASK
        replaced: Manifest | None = None

        def change(newest: Manifest) -> Manifest | None:
            nonlocal replaced
            if newest.state == "deleted" or newest.flushed_ms != manifest.flushed_ms:
                return None  # somebody was first, or appended since
            replaced = newest
            return replace(
                newest,
                state="deleted",
                generation=top,
                chunks=(),
                closes={},
                asking=(),
                closing=None,
            )

        swapped = (await self._manifests.update(key, change)).manifest
        if swapped.state == "deleted":
            await self._record(swapped)
            await self._remove_objects(swapped, replaced)
            self.expired += 1

    async def _forget(self, info: ObjectInfo, manifest: Manifest) -> None:
        """Removes the manifest of a run that was deleted long ago, if it has not changed."""
        newest = (await self._manifests.get(manifest.key)).manifest
        if newest.version == manifest.version:
            await self._store.delete([info.key])

    async def _record(self, manifest: Manifest) -> None:
        """Records the deletion for searches and the compactor, which do not read manifests."""
        key, t = manifest.key, manifest.generation
        if self._deletions.horizon(key) < t:
            self._deletions.note(key.fqn, key.run, t, own=True)
            await self._deletions.record(Deletion(key.fqn, key.run, t, self._manifests.fresh_id()))


def _chunk_id(key: str) -> str:
    return key.rsplit("/", 1)[-1].split(".", 1)[0]
