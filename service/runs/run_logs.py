"""The run logs of a node as one object: flushing, closing, deleting, reading.

`service/runs/wiring.py` composes it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from coordination.named.leases import NamedLeases
from logstore.batch import RunKey
from logstore.errors import NotFound, StoreUnavailable
from logstore.runs.manifest import Manifest
from logstore.runs.manifests import Manifests
from service.runs.backlog import Backlog
from service.runs.chunks import Chunks, Moved
from service.runs.close import Closer
from service.runs.delete import Deleter, Wanted, always
from service.runs.deletions import Deletions, TakenBack
from service.runs.events import RunEvents
from service.runs.flush import RunFlush
from service.runs.flusher import Flusher
from service.runs.held import HeldLines
from service.runs.listing import Listing
from service.runs.locks import RunLocks
from service.runs.merge import ChunkMerger
from service.runs.openmetadata.importer import Importer
from service.runs.partial import PartialPublisher
from service.runs.pending import FlushProgress
from service.runs.pin import Recorded
from service.runs.read import RunLogReader
from service.runs.records import RecordReader
from service.runs.repair.chunks import ChunkRepairer
from service.runs.repair.rebuild import RunRebuilder
from service.runs.sweep import Sweeper
from service.runs.takeover import Takeover
from service.runs.unflushed import ActiveMarkers
from service.runtime.problem import Problem

_LET_GO_SECONDS = 2.0
_TRIES = 8


@dataclass(frozen=True)
class RunLogs:
    """The run logs of one node and its `parents`. Call `start` first; `run` works until `stop`.

    `recorded` are closes and deletions that an earlier process left unfinished.
    """

    node: str
    parents: list[str]
    recorded: Recorded
    alert_after_failures: int
    events: RunEvents
    progress: FlushProgress
    locks: RunLocks
    manifests: Manifests
    chunks: Chunks
    deletions: Deletions
    taken_back: TakenBack
    backlog: Backlog
    held: HeldLines
    leases: NamedLeases
    reader: RunLogReader
    records: RecordReader
    listing: Listing
    run_flush: RunFlush
    flusher: Flusher
    merger: ChunkMerger
    partials: PartialPublisher
    active: ActiveMarkers
    takeover: Takeover
    closer: Closer
    deleter: Deleter
    sweeper: Sweeper
    importer: Importer
    chunk_repairer: ChunkRepairer
    rebuilder: RunRebuilder

    def __post_init__(self) -> None:
        self.events.on_flushed(self._after_flush)

    async def start(self) -> None:
        """Finds out which lines wait. Raises `StoreUnavailable`: try again later."""
        await self.deletions.load()
        await self.flusher.start()
        await self.active.find([self.node, *self.parents])
        for key, end in self.flusher.lacking():
            self.active.appended(key, end)
        for key, pos in self.recorded.closes.items():
            self.closer.resume_everywhere(key, pos)
        for (fqn, run), t in self.recorded.tombstones.items():
            self.deleter.resume(fqn, run, t)

    async def start_reading(self) -> None:
        """Reads the deletions; of a node without lines that is all. Raises `StoreUnavailable`."""
        await self.deletions.load()
        self.progress.started()

    async def run(self) -> None:
        """Flushes, closes, merges, publishes and sweeps until stopped."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.flusher.run())
            group.create_task(self.closer.run())
            group.create_task(self.deleter.run())
            group.create_task(self.sweeper.run())
            group.create_task(self.leases.run())
            group.create_task(self.takeover.run())
            group.create_task(self.active.run())

    async def drain(self) -> None:
        """Flushes all confirmed lines into their runs. Raises `TailraceError`."""
        await self.flusher.drain()
        await self.active.clear()

    async def stop(self) -> None:
        """Ends running work; the next start repeats it."""
        self.held.stop()
        self.importer.stop()
        self.rebuilder.stop()
        self.chunk_repairer.stop()
        self.closer.stop()
        self.deleter.stop()
        self.sweeper.stop()
        self.takeover.stop()
        self.active.stop()
        await self.flusher.stop()
        with suppress(TimeoutError):  # leases that are not let go run out
            async with asyncio.timeout(_LET_GO_SECONDS):
                await self.leases.stop()

    # --- what the node tells and asks ----------------------------------------------

    def confirmed(self, seq: int, first: int, end: int) -> None:
        """Records that a segment of this node is in the store."""
        self.flusher.confirmed(seq, first, end)
        self.closer.noticed()

    @property
    def flushed_pos(self) -> int:
        """All lines of this node below are in chunks, or left out for good."""
        return self.progress.flushed_pos

    async def find_batch(self, key: RunKey, ulid: int) -> tuple[int, int] | None:
        """Digest and records of a batch in the run's chunks.

        Raises `StoreUnavailable`, `ChunkLost`.
        """
        tries = 0
        while True:
            manifest = (await self.manifests.get(key)).manifest
            try:
                return await self.chunks.find(manifest, ulid)
            except Moved:
                tries += 1
            if tries > 1 and not await self.chunk_repairer.repair(key) and tries > _TRIES:
                raise StoreUnavailable(f"the chunks of {key.fqn}/{key.run} move all the time")

    async def last_ulid(self, key: RunKey) -> int:
        """The highest batch ULID in the run's chunks, 0 if there is none."""
        return (await self.manifests.get(key)).manifest.last

    async def close_run(self, key: RunKey) -> str:
        """Closes a run on all nodes: `closed`, or `closing` if it takes longer.

        Raises what recording raises.
        """
        return await self.closer.close(key)

    async def delete_run(self, key: RunKey, wanted: Wanted = always) -> None:
        """Deletes a run. Raises `StoreUnavailable`, `OutcomeUnknown`, `Conflict`."""
        await self.deleter.delete_run(key, wanted)

    async def delete_pipeline(self, fqn: str, wanted: Wanted = always) -> list[str]:
        """Deletes all runs of a pipeline, giving their ids."""
        return await self.deleter.delete_pipeline(fqn, wanted)

    def problems(self) -> list[str]:
        """Present problems, as sentences."""
        found = self.flusher.ongoing.problems()
        worst = self.flusher.pending.worst
        if worst >= self.alert_after_failures:
            what = (
                f"{self.flusher.pending.failing} runs cannot be flushed, one for {worst} times: "
                f"{self.flusher.last_error}"
            )
            found.append(Problem("runs cannot be flushed", what))
        if self.backlog.unreadable:
            count = self.backlog.unreadable
            what = f"{count} segments cannot be read; see `tailrace verify`"
            found.append(Problem("segments cannot be read", what))
        found += self.chunk_repairer.problems()
        found += [
            f"segment {seq} of {node} is missing, and what is behind it waits"
            for node, seq in self.backlog.gaps.items()
        ]
        return found

    def appended(self, key: RunKey, end: int) -> None:
        """Records that lines of the run below position `end` are synced."""
        self.active.appended(key, end)
        self.held.arrived(key)

    async def _after_flush(self, manifest: Manifest) -> None:
        self.closer.flushed(manifest)
        try:
            manifest = await self.merger.merge(manifest)
        except NotFound:  # a chunk is gone or cut; the next flush merges
            await self.chunk_repairer.repair(manifest.key)
        if not self.closer.is_closing(manifest.key) and self.partials.due(manifest):
            await self.partials.publish(manifest.key, due=True)
