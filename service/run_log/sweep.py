"""Sweeps runs that nobody looks after, and takes over the lines of lost nodes.

Every node runs the sweeper; sweeping twice does no harm.

- It closes a run that nobody closed after `stream_timeout_seconds` without a line and without a
  status that says that it goes on; a run whose lines all came by one door after the idle time of
  that door. That includes runs that this process has never seen: it finds runs from their
  manifests, and runs that an OpenMetadata server left in progress from its active markers. It
  closes a closed run with a late batch after `reopened_seconds`. The sweeper holds the run's lease,
  and checks once more for lines at every node just before.
- It publishes a `partial.txt` that vanished again, and removes one that a closed run left.
- It removes chunks that no manifest names when they are older than `orphan_seconds`: they were
  merged, sealed, or written by a flush that was killed before its swap. It also removes logs
  that a killed deletion left.
- It deletes runs whose last line is older than their pipeline's retention, whenever it arrived;
  their manifest says deleted, and is removed after the same time again.

The takeover flushes the segments of lost nodes into the runs:

    segments above a node's watermark, and its text lease is free
        ──► the lease ──► its segments in this node's backlog ──► flushed ──► watermark ──► release

A node holds its own text lease while it lives. Lines that are only in its journal wait for it. If
it lives after all, and flushes the same lines, the writer's position in the manifest decides:
nothing is lost or doubled, the lease only saves work.

If a segment between two others is missing, the takeover waits for it and never skips it. It derives
a damaged watermark again (`service/shipping/watermarks.py`), because the lost node may never do so.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Container,
    Iterable,
    Mapping,
)
from dataclasses import replace

from service.doors.settings import DoorSettings
from service.run_log.backlog import Backlog, Deletions
from service.run_log.contracts import RunLocks, UnflushedPin
from service.run_log.flush import Flusher
from service.runtime.health import ClockSkew, Heartbeat
from service.settings import RunSettings
from service.status.reports import alive_ms
from tailrace.coordination.named_leases import (
    SWEEP,
    NamedLease,
    NamedLeases,
    sweep_lease,
    text_lease,
)
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import (
    Damaged,
    NotFound,
    OutcomeUnknown,
    TailraceError,
    Unavailable,
    UnsupportedVersion,
)
from tailrace.logstore.keys import decode, encode
from tailrace.logstore.objects.store import ObjectInfo, ObjectStore
from tailrace.logstore.runs.deletions import Deletion
from tailrace.logstore.runs.manifest import Manifest, Manifests, manifest_at
from tailrace.logstore.runs.report import RunReport, Watermark, read_watermark
from tailrace.logstore.segments.reader import read_footer

# --- Takeover -----------------------------------------------------------------------------------


_AT_ONCE = 8
_BUSY_SECONDS = 5.0


async def gone(leases: NamedLeases, node: str) -> bool:
    """Returns true if the node no longer holds its text lease. Raises `StoreUnavailable`."""
    return await leases.held_by(text_lease(node)) != node


class Takeover:
    """The lost nodes that this node looks after, `_AT_ONCE` segments of each at a time."""

    def __init__(
        self,
        node: str,
        store: ObjectStore,
        clock: Clock,
        leases: NamedLeases,
        backlog: Backlog,
        flusher: Flusher,
        *,
        watermark: Callable[[str], Awaitable[Watermark]],
        load_deletions: Callable[[], Awaitable[None]],
        taken: Callable[[], None],
        lags: Callable[[RunKey, str], Awaitable[bool]],
        interval_seconds: float,
    ) -> None:
        """`watermark` reads a node's watermark, and derives a damaged one again.

        `taken` is called each time that segments were taken over. `lags` returns true if a run may
        lack lines of a node.
        """
        self._node = node
        self._store = store
        self._leases = leases
        self._backlog = backlog
        self._flusher = flusher
        self._watermark = watermark
        self._load_deletions = load_deletions
        self._taken = taken
        self._lags = lags
        self._interval = interval_seconds
        self._held: dict[str, NamedLease] = {}
        self._own: NamedLease | None = None
        self._stopping = self._wanted = False
        self.heartbeat = Heartbeat(clock)
        self.inherited = 0
        self.last_error: str | None = None

    async def run(self) -> None:
        """Calls `look` every interval until stopped."""
        while not self._stopping:
            self._wanted = False
            try:
                await self.look()
                self.last_error = None
            except TailraceError as error:
                self.last_error = str(error)
            pause = min(self._interval, _BUSY_SECONDS) if self._held else self._interval
            await self.heartbeat.pause(pause, lambda: self._stopping or self._wanted)

    def stop(self) -> None:
        """Ends `run`."""
        self._stopping = True

    async def is_over(self, node: str, key: RunKey | None = None) -> bool:
        """Returns true if a node is lost and its segments are in their runs.

        Otherwise it will be looked after soon. If one of its segments is missing, the run `key`
        waits as long as it may lack lines of the node; nothing else does. Raises `TailraceError`.
        """
        if not await gone(self._leases, node):
            return False
        if self._backlog.lacks(node):
            return key is None or not await self._lags(key, node)
        if not await self._has_changed(node):
            return True
        self._wanted = True
        return False

    async def look(self) -> None:
        """Keeps the own lease, releases finished nodes, and takes over nodes that nobody has.

        A node that cannot be looked after delays no other. Raises the last `TailraceError` after
        trying all.
        """
        if self._own is None or not self._own.valid():
            self._own = await self._leases.acquire(text_lease(self._node))
        await self._let_go()
        failure: TailraceError | None = None
        async for node in self._others():
            self.heartbeat.turn()
            try:
                await self._look_after(node)
            except TailraceError as error:
                failure = error
        self.heartbeat.success()
        if failure is not None:
            raise failure

    async def _let_go(self) -> None:
        for node, held in list(self._held.items()):
            if not held.valid():
                self._backlog.disown(node)
            else:
                await self._watermark(node)  # otherwise a mark damaged meanwhile is never raised
                if any(s.node == node for s in self._backlog.inherited) or await self._take(node):
                    continue
            del self._held[node]
            await self._leases.release(held)

    async def _look_after(self, node: str) -> None:
        if await self._leases.held_by(text_lease(node)) is not None:
            return
        if not await self._has_changed(node):
            return
        held = await self._leases.acquire(text_lease(node))
        if held is not None:
            self._held[node] = held
            await self._take(node)

    async def _take(self, node: str) -> int:
        """Adds the node's next segments to the backlog; returns their number."""
        segments = await self._backlog.find(node, most=_AT_ONCE)
        if segments:
            # Another node may have deleted lines meanwhile, without a notification to this one.
            await self._load_deletions()
            await self._flusher.inherit(segments)
            self._taken()
        self.inherited += len(segments)
        return len(segments)

    async def _has_changed(self, node: str) -> bool:
        mark = await self._watermark(node)
        after = keys.segment(node, mark.seq)
        async for info in self._store.list(keys.segments_of(node), after=after):
            if keys.parse_segment(info.key) is not None:
                return True
        return False

    async def _others(self) -> AsyncIterator[str]:
        """Yields nodes with segments in the store that nobody here looks after."""
        async for folder in self._store.folders(keys.SEGMENTS):
            node = decode(folder)
            here = {self._node, *self._held, *[s.node for s in self._backlog.inherited]}
            if node and node not in here:
                yield node


# --- Lines that other nodes hold ----------------------------------------------------------------


Ends = Mapping[RunKey, int]
"""The runs in a segment, with one past their last position."""


class RemoteState:
    """Finds in the store lines of a run that other nodes hold and that are not in its chunks.

    It reads in the order in which lines move: the `active` objects of living nodes, then segments
    above watermarks. The manifest is read after that. The store may not show an append of the last
    moments yet; such a batch is added after a close like any late batch.

    The marker of a lost node counts only while one of its segments is missing, since the runs of
    that segment are unknown.

    `gone` returns true if a node gave up its text lease; `lacks` if a segment of it is missing.
    """

    def __init__(
        self,
        node: str,
        store: ObjectStore,
        manifests: Manifests,
        *,
        prefix: str,
        gone: Callable[[str], Awaitable[bool]],
        lacks: Callable[[str], bool],
    ) -> None:
        self._node = node
        self._store = store
        self._manifests = manifests
        self._prefix = prefix
        self._gone = gone
        self._lacks = lacks
        self._segments: dict[tuple[str, int], Ends] = {}

    async def held(
        self, key: RunKey, nodes: Collection[str] | None = None
    ) -> Callable[[Manifest], bool]:
        """Returns a test whether such lines exist, for a manifest that is read later.

        The lines are of these nodes, or of all. Raises `StoreUnavailable`, `Damaged`.
        """
        active = await self._active(key, nodes)
        ends = await self._in_segments(nodes)

        def beyond(manifest: Manifest) -> bool:
            return active or _lacks(manifest, ends)

        return beyond

    async def lags(self, key: RunKey, node: str) -> bool:
        """Returns true if the run may lack lines of the node. Raises as `held`."""
        beyond = await self.held(key, [node])
        return beyond((await self._manifests.get(key)).manifest)

    async def held_in(self, fqn: str, nodes: Collection[str]) -> Callable[[Manifest], bool]:
        """Returns the same test for all runs of a pipeline."""
        prefix, marked = keys.active_pipeline(self._prefix, fqn), set[str]()
        waited = {node for node in nodes if await self._is_waited_for(node)}
        async for info in self._store.list(prefix):
            run, _, name = info.key.removeprefix(prefix).partition("/")
            if decode(name) in waited:
                marked.add(run)
        ends = await self._in_segments(nodes)

        def beyond(manifest: Manifest) -> bool:
            return encode(manifest.key.run) in marked or _lacks(manifest, ends)

        return beyond

    async def _active(self, key: RunKey, nodes: Collection[str] | None) -> bool:
        """Returns true if another living node says that it holds lines."""
        prefix = keys.active_nodes(self._prefix, key)
        async for info in self._store.list(prefix):
            node = decode(info.key.removeprefix(prefix))
            if node is None or node == self._node or (nodes is not None and node not in nodes):
                continue
            if await self._is_waited_for(node):
                return True
        return False

    async def _is_waited_for(self, node: str) -> bool:
        return self._lacks(node) or not await self._gone(node)

    async def _in_segments(self, nodes: Collection[str] | None) -> list[tuple[str, Ends]]:
        """Returns segments above watermarks: the node of each, and where its runs end."""
        listed: dict[tuple[str, int], Ends] = {}
        for node in await self._nodes() if nodes is None else nodes:
            mark = await read_watermark(self._store, node)
            after = keys.segment(node, mark.seq)
            async for info in self._store.list(keys.segments_of(node), after=after):
                parsed = keys.parse_segment(info.key)
                if parsed is not None:
                    listed[parsed] = await self._ends(parsed, info.key)
        self._segments = listed if nodes is None else self._segments | listed
        return [(node, ends) for (node, _), ends in listed.items()]

    async def _nodes(self) -> list[str]:
        found = [decode(folder) async for folder in self._store.folders(keys.SEGMENTS)]
        return [node for node in found if node is not None]

    async def _ends(self, segment: tuple[str, int], where: str) -> Ends:
        known = self._segments.get(segment)
        if known is not None:
            return known
        try:
            footer = await read_footer(self._store, where)
        except UnsupportedVersion:
            raise
        except (NotFound, Damaged):  # consumed, or empty for every reader until it is repaired
            return {}
        return {run.key: run.last + 1 for run in footer.runs}


def _lacks(manifest: Manifest, segments: Iterable[tuple[str, Ends]]) -> bool:
    """Returns true if one of the segments has lines of the run that are not in its chunks."""
    return any(manifest.dealt_with(node) < ends.get(manifest.key, 0) for node, ends in segments)


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
        doors: DoorSettings,
        orphan_seconds: float,
        prefix: str,
        pin: Callable[[], UnflushedPin],
        leases: NamedLeases,
        remote_state: RemoteState,
        import_left: Callable[[int], Awaitable[None]],
        finalise: Callable[[RunKey, Manifest], Awaitable[bool]],
        publish: Callable[[RunKey], Awaitable[None]],
        repair: Callable[[RunKey], Awaitable[bool]],
        ended: Callable[[RunKey], None],
        remove_objects: Callable[[Manifest, Manifest | None], Awaitable[None]],
        reported: Callable[[RunKey], Awaitable[RunReport | None]],
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
        self._doors = doors
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
        """Checks every run once. Raises `StoreUnavailable`, `OutcomeUnknown`.

        A run that cannot be swept delays no other, unless it is the store that fails.
        """
        await self._deletions.load()
        self.damaged = 0
        self.last_error = None
        clean: dict[str, str] = {}
        failures = 0
        patience = round(self._settings.stream_timeout_seconds * 1000)
        try:
            await self._import_left(self._now_ms() - patience)
        except (Unavailable, OutcomeUnknown, Damaged) as error:  # a later sweep tries again
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
        """Removes objects that belong to no run: unfinished writes, leases of dead sweepers."""
        self.uploads += await self._store.sweep(before_ms)
        await self._leases.clear(SWEEP)

    async def _sweep_run(self, info: ObjectInfo, clean: dict[str, str]) -> None:
        manifest = manifest_at(info.key, (await self._store.get(info.key))[1])
        if self._has_unflushed(manifest):
            return
        if self._settings.expires(manifest.key.fqn, manifest.last_ms, self._now_ms()):
            async with self._locks.of(manifest.key):
                await self._expire(info, manifest)
        elif await self._abandoned(manifest):
            await self._finalise(manifest.key)
        elif manifest.state == "closed" and manifest.sealed:
            self._ended(manifest.key)  # maybe closed by another node; readers may wait here
        if self._clean.get(info.key) == manifest.version or await self._sweep_texts(manifest):
            clean[info.key] = manifest.version

    def _now_ms(self) -> int:
        return self._clock.now_ms() - max(self._skew.ahead_ms, 0)

    def _idle_ms(self, manifest: Manifest) -> int:
        return self._now_ms() - max(manifest.flushed_ms, manifest.last_ms)

    async def _abandoned(self, manifest: Manifest) -> bool:
        """Returns true if a run is to be closed: it is idle, and no client says that it goes on."""
        if not manifest.chunks or (manifest.state == "closed" and manifest.sealed):
            return False
        idle_ms, settings = self._idle_ms(manifest), self._settings
        if manifest.closes:
            return idle_ms >= settings.reopen_idle_seconds * 1000
        patience_ms = settings.stream_timeout_seconds * 1000
        if (idle_seconds := self._doors.idle_seconds(manifest.door)) is not None:
            patience_ms = idle_seconds * 1000
        if idle_ms < patience_ms:
            return False
        return self._now_ms() - alive_ms(await self._reported(manifest.key)) >= patience_ms

    def _has_unflushed(self, manifest: Manifest) -> bool:
        with self._pin() as pin:
            start = max(manifest.dealt_with(pin.node), pin.first_pos)
            return len(pin.batches(run=manifest.key, start=start).rows) > 0

    async def _finalise(self, key: RunKey) -> None:
        """Closes the run under its lease, unless somebody appended since the check."""
        held = await self._leases.acquire(sweep_lease(key))
        if held is None:
            return  # another node is closing it
        try:
            beyond = await self._remote_state.held(key)
            newest = (await self._manifests.get(key)).manifest
            if beyond(newest) or self._has_unflushed(newest) or not await self._abandoned(newest):
                return
            if held.valid() and await self._close(key, newest):
                self.finalised += 1
        except NotFound:  # a chunk from which it is made
            await self._repair(key)
        finally:
            await self._leases.release(held, forget=True)

    async def _sweep_texts(self, manifest: Manifest) -> bool:
        """Sweeps a run's objects; true if nothing is left to sweep until the manifest changes."""
        key = manifest.key
        found = [info async for info in self._store.list(keys.run_texts(self._prefix, key))]
        # Read after the list: objects that a newer manifest names must not go.
        newest = (await self._manifests.get(key)).manifest
        chunks = keys.chunks_of(self._prefix, key)
        named = {chunk.id for chunk in newest.chunks}
        parts = [info for info in found if info.key.startswith(chunks)]
        unnamed = [info for info in parts if _chunk_id(info.key) not in named]
        if newest.state == "deleted":  # the deletion was killed before it removed them
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
                return None  # another node was first, or a client appended since
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
