"""The texts of a node's runs, as one thing: flushing, closing, deleting, reading.

The node wires it to its journal with functions; nothing here knows the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from coordination.named.leases import NamedLeases
from coordination.storetime import StoreTime
from logstore import keys
from logstore.batch import RunKey
from logstore.clock import Clock
from logstore.entropy import Entropy
from logstore.errors import NotFound, StoreUnavailable
from logstore.objects.remote import DateSample
from logstore.objects.store import ObjectStore
from logstore.runs.manifest import Manifest
from logstore.runs.manifests import Manifests
from logstore.runs.watermark import Watermark
from service.runs.backlog import Backlog
from service.runs.chunk_writer import ChunkWriter
from service.runs.chunks import Chunks, Moved
from service.runs.close import Closer
from service.runs.delete import Deleter
from service.runs.deletions import Deletions
from service.runs.flush import RunFlush
from service.runs.flusher import TextFlusher
from service.runs.listing import Listing
from service.runs.locks import RunLocks
from service.runs.merge import Folder
from service.runs.openmetadata.importer import WRITER, AdoptingManifests, Adoption
from service.runs.openmetadata.layout import Upstream
from service.runs.partial import PartialPublisher
from service.runs.pin import Pin
from service.runs.read import TextReader
from service.runs.remote_state import RemoteState
from service.runs.repair.chunks import Mender
from service.runs.repair.rebuild import Records, Remaker, Traces
from service.runs.snapshot import Snapshots
from service.runs.sweep import Sweeper
from service.runs.takeover import LostNodes
from service.runs.trim import Trimmer
from service.runs.tuning import Tuning
from service.runs.unflushed import ActiveMarkers
from service.runtime.threads import Offload
from service.settings import Settings

_LET_GO_SECONDS = 2.0
_TRIES = 8


class Text(TextReader, Listing):
    """Of one node. `start` before anything else; `run` until `stop`."""

    def __init__(
        self,
        node: str,
        parents: Sequence[str],
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        settings: Settings,
        *,
        tuning: Tuning,
        pin: Callable[[], Pin],
        offload: Offload,
        record_close: Callable[[RunKey], Awaitable[int]],
        record_tombstone: Callable[[str, str | None, int], Awaitable[None]],
        flushed_through: Callable[[int], Awaitable[None]],
        last_ulid: Callable[[RunKey], int],
        closes: Mapping[RunKey, int],
        tombstones: Mapping[tuple[str, str | None], int],
        close_done: Callable[[RunKey, int], None],
        tombstone_done: Callable[[str, str | None, int], None],
        on_ended: Callable[[RunKey], None],
        watermark: Callable[[str], Awaitable[Watermark]],
        newest_date: Callable[[], DateSample | None] | None = None,
        records: Callable[[], Records | None] = lambda: None,
    ) -> None:
        self._store = store
        self._node = node
        self._parents = list(parents)
        runs, prefix = settings.runs, settings.runs.prefix
        interval_seconds = runs.partial_flush_interval_seconds
        self._prefix = prefix
        self.alert_after_failures = runs.pending_flush_alert_after_failures
        self._manifests = Manifests(store, clock, entropy)
        self._chunks = Chunks(store, prefix)
        self.deletions = Deletions(store)
        upstream = Upstream(store, prefix)
        self.adoption = Adoption(
            store,
            upstream,
            self._manifests,
            self._chunks,
            self.deletions,
            clock,
            prefix=prefix,
            remake=lambda key: self.remaker.without_manifest(key),
        )
        adopting = AdoptingManifests(store, clock, entropy, self.adoption)
        locks = self._locks = RunLocks()
        backlog = Backlog(store, node, offload)
        writer = ChunkWriter(store, self._chunks, offload)
        self.mender = Mender(store, self._manifests, self._chunks, writer, clock, records=records)
        trimmer = Trimmer(store, self._manifests, self._chunks)
        run_flush = RunFlush(
            adopting,
            self._chunks,
            writer,
            backlog,
            self.deletions,
            trimmer,
            clock,
            owner=node,
            chunk_bytes=tuning.chunk_bytes,
            mend=self.mender.mend,
        )
        self.folder = Folder(store, self._manifests, self._chunks, locks, tuning)
        self.partials = PartialPublisher(
            store,
            self._chunks,
            prefix,
            clock,
            seconds=interval_seconds if tuning.partial_seconds is None else tuning.partial_seconds,
        )
        self.flusher = TextFlusher(
            node,
            list(parents),
            store,
            clock,
            runs,
            parallel=settings.flush.parallel,
            watermark_seconds=tuning.watermark_seconds,
            pin=pin,
            backlog=backlog,
            run_flush=run_flush,
            locks=locks,
            fresh_id=self._manifests.fresh_id,
            after_flush=self._after_flush,
        )
        self.leases = NamedLeases(
            store,
            clock,
            entropy,
            StoreTime(clock, newest_date),
            node=node,
            timeout_seconds=settings.coordination.lease_seconds,
        )
        self.lost = LostNodes(
            node,
            store,
            clock,
            self.leases,
            backlog,
            self.flusher,
            watermark=watermark,
            load_deletions=self.deletions.load,
            interval_seconds=tuning.takeover_seconds,
        )
        remote_state = RemoteState(node, store, prefix=prefix, gone=self.lost.gone)
        self.remaker = Remaker(
            self._manifests,
            writer,
            self.deletions,
            self.folder,
            clock,
            held=remote_state.held,
            records=records,
            had_manifest=Traces(
                store, node, prefix=prefix, flushed=lambda: self.flushed_pos, foreign=WRITER
            ).tell,
            chunk_bytes=tuning.chunk_bytes,
        )
        self.active = ActiveMarkers(
            node,
            store,
            clock,
            prefix=prefix,
            linger_seconds=2 * interval_seconds,
            held=self.flusher.lacks,
        )
        self._ended = on_ended
        self.run_flush = run_flush
        self.backlog = backlog
        self.closer = Closer(
            node,
            parents,
            store,
            adopting,
            self._chunks,
            self.folder,
            self.flusher,
            locks,
            clock,
            runs,
            prefix=prefix,
            record_close=record_close,
            flushed_through=flushed_through,
            close_done=close_done,
            gone=self.lost.gone,
            mend=self.mender.mend,
            on_ended=self._on_ended,
        )
        self.deleter = Deleter(
            store,
            self._manifests,
            self.deletions,
            locks,
            clock,
            upstream,
            trimmer,
            node=node,
            prefix=prefix,
            gone=self.lost.gone,
            pin=pin,
            last_ulid=last_ulid,
            record_tombstone=record_tombstone,
            tombstone_done=tombstone_done,
            flushed=lambda: self.flushed_pos,
            forget=self._forget,
        )
        self.sweeper = Sweeper(
            store,
            self._manifests,
            self.deletions,
            clock,
            runs,
            locks,
            orphan_seconds=tuning.orphan_seconds,
            prefix=prefix,
            pin=pin,
            leases=self.leases,
            remote_state=remote_state,
            take_left=self.adoption.take_left,
            finalise=self.closer.finalise,
            publish=self._publish,
            mend=self.mender.mend,
            ended=self._on_ended,
            remove_objects=self.deleter.remove_objects,
        )
        self._closes = closes
        self._tombstones = tombstones
        for (fqn, run), t in tombstones.items():
            self.deletions.note(fqn, run, t)
        snapshots = Snapshots(
            pin,
            backlog,
            adopting,
            self._chunks,
            self.deletions,
            trimmer,
            self.flusher,
            self.remaker,
            self.mender.mend,
        )
        TextReader.__init__(self, snapshots)
        Listing.__init__(self, store, self.flusher, pin, self.deletions, snapshots, upstream)

    async def start(self) -> None:
        """Finds out what waits. Raises `StoreUnavailable`: try again later."""
        await self.deletions.load()
        await self.flusher.start()
        await self.active.find([self._node, *self._parents])
        for key, end in self.flusher.lacking():
            self.active.appended(key, end)
        for key, pos in self._closes.items():
            self.closer.resume(key, pos)
        for (fqn, run), t in self._tombstones.items():
            self.deleter.resume(fqn, run, t)

    async def run(self) -> None:
        """Flushes, closes, folds, publishes and sweeps until stopped."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.flusher.run())
            group.create_task(self.closer.run())
            group.create_task(self.deleter.run())
            group.create_task(self.sweeper.run())
            group.create_task(self.leases.run())
            group.create_task(self.lost.run())
            group.create_task(self.active.run())

    async def drain(self) -> None:
        """Brings all that is confirmed into the runs. Raises `TailraceError`."""
        await self.flusher.drain()
        await self.active.clear()

    async def stop(self) -> None:
        """Ends what is under way; all of it is done again after the next start."""
        self.adoption.stop()
        self.remaker.stop()
        self.mender.stop()
        self.closer.stop()
        self.deleter.stop()
        self.sweeper.stop()
        self.lost.stop()
        self.active.stop()
        await self.flusher.stop()
        with suppress(TimeoutError):  # leases that are not let go run out
            async with asyncio.timeout(_LET_GO_SECONDS):
                await self.leases.stop()

    # --- what the node tells and asks ----------------------------------------------

    def confirmed(self, seq: int, first: int, end: int) -> None:
        """A segment of this node is in the store."""
        self.flusher.confirmed(seq, first, end)
        self.closer.noticed()

    @property
    def flushed_pos(self) -> int:
        """All lines of this node below are in chunks, or left out for good."""
        return self.flusher.flushed_pos

    async def find_batch(self, key: RunKey, ulid: int) -> tuple[int, int] | None:
        """Digest and records of a batch in the run's chunks.

        Raises `StoreUnavailable`, `ChunkLost`.
        """
        tries = 0
        while True:
            manifest = (await self._manifests.get(key)).manifest
            try:
                return await self._chunks.find(manifest, ulid)
            except Moved:
                tries += 1
            if tries > 1 and not await self.mender.mend(key) and tries > _TRIES:
                raise StoreUnavailable(f"the chunks of {key.fqn}/{key.run} move all the time")

    async def last_ulid(self, key: RunKey) -> int:
        """The highest batch ULID in the run's chunks, 0 if there is none."""
        return (await self._manifests.get(key)).manifest.last

    async def close_run(self, key: RunKey) -> str:
        """`closed`, or `closing` if that takes longer. Raises what recording it raises."""
        return await self.closer.close(key)

    async def delete_run(self, key: RunKey) -> None:
        """Deletes a run. Raises `StoreUnavailable`, `OutcomeUnknown`."""
        await self.deleter.delete_run(key)

    async def delete_pipeline(self, fqn: str) -> list[str]:
        """Deletes all runs of a pipeline, giving their ids."""
        return await self.deleter.delete_pipeline(fqn)

    def problems(self) -> list[str]:
        """What worries it, as sentences."""
        found = []
        worst = self.flusher.pending.worst
        if worst >= self.alert_after_failures:
            found.append(
                f"{self.flusher.pending.failing} runs cannot be flushed, one for {worst} times: "
                f"{self.flusher.last_error}"
            )
        if self.backlog.unreadable:
            count = self.backlog.unreadable
            found.append(f"{count} segments cannot be read; see `tailrace verify`")
        found += self.mender.problems()
        found += [
            f"segment {seq} of {node} is missing, and what is behind it waits"
            for node, seq in self.backlog.gaps.items()
        ]
        return found

    def appended(self, key: RunKey, end: int) -> None:
        """Lines of the run below position `end` are synced."""
        self.active.appended(key, end)

    def _on_ended(self, key: RunKey) -> None:
        self.active.closed(key)
        self._ended(key)

    def _forget(self, key: RunKey) -> None:
        self.active.closed(key)
        self.closer.forget(key)
        self.partials.forget(key)

    async def _after_flush(self, manifest: Manifest) -> None:
        self.closer.flushed(manifest)
        try:
            manifest = await self.folder.fold(manifest)
        except NotFound:  # a chunk is gone or cut; the next flush folds
            await self.mender.mend(manifest.key)
        if self.partials.due(manifest):
            await self._publish(manifest.key, due=True)

    async def _publish(self, key: RunKey, *, due: bool = False) -> None:
        # Under the lock, so that it cannot come after the close that removes it.
        async with self._locks.of(key):
            manifest = (await self._manifests.get(key)).manifest
            if manifest.state != "open" or (due and not self.partials.due(manifest)):
                return
            await self.partials.publish(manifest)
            # Another node may have closed it meanwhile, and removed the one before.
            if (await self._manifests.get(key)).manifest.state != "open":
                await self._store.delete([keys.partial(self._prefix, key)])
