"""Deletes runs and pipelines: from then on no line up to T exists, wherever it is stored.

    journal ──► T in memory ──► coordination/deleted ──► manifest (T) ──► objects are removed

T is at or above now, every known ULID of the run, and an earlier T. It records the time of the
deletion (`tailrace.logstore.runs.deletions`). If a node does not answer, T covers the ids that it
may have assigned, which lie up to `deleted_ahead_ms` ahead. T moves no other run's ids.

If the journal refuses a deletion, it did not happen. Once the journal has it, failed steps are
repeated until they succeed, also by the next start. If the store falls silent, the request fails:
nodes that start meanwhile do not know of the deletion, so its client must not go on yet.

Lines above T stay, also those that another node brings into the manifest meanwhile: nobody removes
the objects that were written for them.

A request may wait in the buffers of a suspended node while its client repeats it at another node
and continues. A deletion begins only if its client still waits for the reply.

Other nodes are notified until each has acknowledged the deletion or has lost its lease. A node that
lost its lease reads the deletions from the store before it shows a line again. Until all other
nodes know of a deletion, the journal has it as unfinished, so the next start notifies them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TypeAlias

import numpy as np

from service.run_log.backlog import Acknowledgements, Deletions, RunLogPeers
from service.run_log.chunks import stored_directory
from service.run_log.contracts import FlushProgress, RunLocks, UnflushedPin
from service.run_log.flush import Trimmer
from service.run_log.openmetadata import Upstream
from service.runtime.store_deadline import StoreAnswers
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey, lowest_and_highest
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import (
    Conflict,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    TailraceError,
)
from tailrace.logstore.keys import decode
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.retry import Backoff
from tailrace.logstore.runs.deletions import Deletion, horizon_above
from tailrace.logstore.runs.manifest import Manifest, Manifests, manifest_at

_FIRST_PAUSE_SECONDS = 1.0
_MAX_PAUSE_SECONDS = 30.0
_UNKNOWN = "the register of nodes"


class DeletionNotices:
    """The deletions of one node that others must acknowledge; `done` finishes one."""

    def __init__(
        self,
        others: RunLogPeers,
        clock: Clock,
        gone: Callable[[str], Awaitable[bool]],
        done: Callable[[str, str | None, int], None],
    ) -> None:
        self._others = others
        self._clock = clock
        self._gone = gone
        self._done = done
        self._unacknowledged: dict[tuple[str, str | None], tuple[int, tuple[str, ...]]] = {}
        self._task: asyncio.Task[None] | None = None

    def silent(self, fqn: str, run: str | None) -> tuple[str, ...]:
        """Returns nodes that have not acknowledged the newest deletion of a run, or a pipeline."""
        return self._unacknowledged.get((fqn, run), (0, ()))[1]

    async def notify(self, fqn: str, run: str | None, t: int) -> None:
        """Notifies all nodes once; silent ones are notified later."""
        acknowledged = await self._notify(fqn, run, t)
        if not acknowledged.silent:
            self._heard(fqn, run, t)
            return
        self._unacknowledged[fqn, run] = (
            max(t, self._unacknowledged.get((fqn, run), (0, ()))[0]),
            acknowledged.silent,
        )
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._go_on())

    def stop(self) -> None:
        """Stops notifying; the next start continues."""
        if self._task is not None:
            self._task.cancel()

    async def _notify(self, fqn: str, run: str | None, t: int) -> Acknowledgements:
        if not self._others:
            return Acknowledgements()
        try:
            return await self._others.deleted(fqn, run, t)
        except TailraceError:
            return Acknowledgements((_UNKNOWN,))

    async def _go_on(self) -> None:
        pauses = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        while self._unacknowledged:
            await self._clock.sleep(pauses.next())
            for (fqn, run), (t, _) in list(self._unacknowledged.items()):
                acknowledged = await self._notify(fqn, run, t)
                silent = [node for node in acknowledged.silent if not await self._is_gone(node)]
                if self._unacknowledged.get((fqn, run), (0, ()))[0] != t:
                    continue  # deleted again meanwhile
                if silent:
                    self._unacknowledged[fqn, run] = (t, tuple(silent))
                else:
                    self._heard(fqn, run, t)

    async def _is_gone(self, node: str) -> bool:
        try:
            return node != _UNKNOWN and await self._gone(node)
        except TailraceError:
            return False

    def _heard(self, fqn: str, run: str | None, t: int) -> None:
        if self._unacknowledged.get((fqn, run), (0, ()))[0] <= t:
            self._unacknowledged.pop((fqn, run), None)
        self._done(fqn, run, t)


_RETRY_SECONDS = 5.0
_DELETE_COUNT = 500

Wanted: TypeAlias = Callable[[], Awaitable[bool]]
"""Returns true if the client of a deletion still waits for it."""


async def always() -> bool:
    """Returns true, for callers that do not disconnect."""
    return True


class Deleter:
    """Deletes runs and pipelines for one node."""

    def __init__(
        self,
        store: ObjectStore,
        manifests: Manifests,
        deletions: Deletions,
        locks: RunLocks,
        clock: Clock,
        upstream: Upstream,
        trimmer: Trimmer,
        *,
        node: str,
        prefix: str,
        gone: Callable[[str], Awaitable[bool]],
        pin: Callable[[], UnflushedPin],
        last_ulid: Callable[[RunKey], int],
        record_tombstone: Callable[[str, str | None, int], Awaitable[None]],
        tombstone_done: Callable[[str, str | None, int], None],
        progress: FlushProgress,
        forget: Callable[[RunKey], None],
        others: RunLogPeers,
        make_room: Callable[[], Awaitable[None]],
        remove_reports: Callable[[str, str | None], Awaitable[None]],
        answers: StoreAnswers,
        deleted_ahead_ms: int,
    ) -> None:
        self._store = store
        self._manifests = manifests
        self._deletions = deletions
        self._locks = locks
        self._clock = clock
        self._upstream = upstream
        self._trimmer = trimmer
        self._node = node
        self._gone = gone
        self._prefix = prefix
        self._pin = pin
        self._last_ulid = last_ulid
        self._record_tombstone = record_tombstone
        self._tombstone_done = tombstone_done
        self._progress = progress
        self._forget = forget
        self._others = others
        self._make_room = make_room
        self._remove_reports = remove_reports
        self._answers = answers
        self._deleted_ahead_ms = deleted_ahead_ms
        self.notices = DeletionNotices(others, clock, gone, tombstone_done)
        self._unfinished: list[tuple[str, str | None, int]] = []
        self._wake = asyncio.Event()
        self._stopping = False
        self.deleted = 0

    async def delete_run(self, key: RunKey, wanted: Wanted = always) -> None:
        """Deletes one run, if it is still `wanted` when the deletion begins.

        Raises `StoreUnavailable`, `OutcomeUnknown`, `Conflict`, and the journal's errors.
        """
        await self._make_room()
        async with self._lock(key):
            manifest = (await self._manifests.get(key)).manifest
            elsewhere = await self._highest_elsewhere(key.fqn, key.run)
            await _check(wanted)
            t = self._horizon([manifest, Manifest(key)], [elsewhere])
            await self._begin(key.fqn, key.run, t)
            with self._resumed(key.fqn, key.run, t):
                await self._record(key.fqn, key.run, t)
                await self._remove_run(key, t)
                await self._remove_reports(*key)
        await self.notices.notify(key.fqn, key.run, t)
        self.deleted += 1

    async def delete_pipeline(self, fqn: str, wanted: Wanted = always) -> list[str]:
        """Deletes all runs of a pipeline; returns their ids. Raises as `delete_run`."""
        await self._make_room()
        manifests = await self._manifests_of(fqn)
        foreign = await self._not_imported(fqn)
        unflushed = self._unflushed_runs(fqn)
        elsewhere = await self._highest_elsewhere(fqn, None)
        await _check(wanted)
        t = self._horizon(
            [*manifests, *[Manifest(key) for key in unflushed]], [elsewhere, *foreign.values()]
        )
        await self._begin(fqn, None, t)
        with self._resumed(fqn, None, t):
            await self._record(fqn, None, t)
            for manifest in manifests:
                async with self._lock(manifest.key):
                    await self._remove_run(manifest.key, t)
                self.deleted += 1
            await self._remove_not_imported(foreign, t)
            await self._remove_reports(fqn, None)
        await self.notices.notify(fqn, None, t)
        gone = {m.key.run for m in manifests if m.state != "deleted"}
        return sorted(gone | {key.run for key in [*unflushed, *foreign]})

    def highest(self, fqn: str, run: str | None) -> int:
        """Returns the highest ULID of a run, or a pipeline's runs, that is known or deleted here.

        The client of a deletion here may have got no answer and may ask another node now. This
        deletion still goes on, and would remove lines that the client writes next.
        """
        deleted = self._deletions.highest(fqn, run)
        with self._pin() as pin:
            if run is not None:
                key = RunKey(fqn, run)
                rows = pin.batches(run=key).rows
                known = lowest_and_highest(rows)[1] | ulids.LINE_MASK
                return max(self._last_ulid(key), known, deleted)
            batches = pin.batches()
            ours = [number for number, key in enumerate(batches.runs) if key.fqn == fqn]
            rows = batches.rows[np.isin(batches.rows["run"], ours)]
            return max(lowest_and_highest(rows)[1] | ulids.LINE_MASK, deleted)

    async def on_notified(self, fqn: str, run: str | None, t: int, age_ms: int | None) -> None:
        """Notes a deletion at another node, `age_ms` ago. Raises the journal's errors."""
        await self._make_room()
        moment_ms = None if age_ms is None else self._clock.now_ms() - age_ms
        await self._record_tombstone(fqn, run, t)
        self._deletions.note(fqn, run, t, moment_ms=moment_ms)
        self._tombstone_done(fqn, run, t)
        if run is not None:
            self._forget(RunKey(fqn, run))

    async def _highest_elsewhere(self, fqn: str, run: str | None) -> int:
        """Returns the highest ULID at other nodes. No id of a silent node is above the result."""
        if not self._others:
            return 0
        highest, silent = await self._others.highest(fqn, run)
        if silent:
            highest = max(highest, ulids.lowest_at(self._clock.now_ms() + self._deleted_ahead_ms))
        return highest

    async def _begin(self, fqn: str, run: str | None, t: int) -> None:
        """Records it in the journal first: a deletion that the journal refuses must not be seen."""
        moment_ms = self._clock.now_ms()
        await self._record_tombstone(fqn, run, t)
        self._deletions.note(fqn, run, t, own=True, moment_ms=moment_ms)

    @contextmanager
    def _resumed(self, fqn: str, run: str | None, t: int) -> Iterator[None]:
        """Continues a deletion in the background if a step in the block fails; raises the error."""
        try:
            yield
        except TailraceError as error:
            self.resume(fqn, run, t)
            if self._answers.silent:
                raise OutcomeUnknown(
                    f"the deletion is recorded at this node, and goes on later: {error}",
                    hint="Repeat the request until it succeeds; only then do all nodes know of it.",
                ) from error
            raise

    @asynccontextmanager
    async def _lock(self, key: RunKey) -> AsyncIterator[None]:
        """Holds the run's lock. A flush may hold it until the time-outs of a silent store."""
        async with AsyncExitStack() as held:
            await self._answers.in_turn(
                "the run's lock", lambda: held.enter_async_context(self._locks.of(key))
            )
            yield

    def resume(self, fqn: str, run: str | None, t: int) -> None:
        """Continues a deletion that the journal knows."""
        self._unfinished.append((fqn, run, t))
        self._wake.set()

    @property
    def unfinished(self) -> int:
        """Returns the number of deletions that are recorded and not finished in the store."""
        return len(self._unfinished)

    async def run(self) -> None:
        """Finishes started deletions, until stopped."""
        while not self._stopping:
            self._wake.clear()
            try:
                await self.finish_all()
            except TailraceError:
                self._unfinished.append(self._unfinished.pop(0))  # it delays no other
                await self._clock.sleep(_RETRY_SECONDS)
            else:
                await self._wake.wait()

    async def finish_all(self) -> None:
        """Does the steps after the journal for started deletions. Raises `TailraceError`."""
        while self._unfinished and not self._stopping:
            await self._make_room()
            fqn, run, t = self._unfinished[0]
            await self._record(fqn, run, t)
            found = await self._manifests_of(fqn) if run is None else [Manifest(RunKey(fqn, run))]
            for manifest in found:
                async with self._locks.of(manifest.key):
                    await self._remove_run(manifest.key, t)
            if run is None:
                await self._remove_not_imported(await self._not_imported(fqn, deleted=True), t)
            await self._remove_reports(fqn, run)
            self._unfinished.pop(0)
            await self.notices.notify(fqn, run, t)

    def stop(self) -> None:
        """Ends `run`."""
        self._stopping = True
        self.notices.stop()
        self._wake.set()

    async def _remove_run(self, key: RunKey, t: int) -> None:
        """Swaps the run's manifest, then removes its old objects; the run's lock is held."""
        newest, replaced = await self._trimmer.swap(key, t)
        if newest.manifest.generation == t:  # otherwise a later deletion, which removes them
            await self.remove_objects(newest.manifest, replaced)

    async def remove_objects(self, newest: Manifest, replaced: Manifest | None) -> None:
        """Removes the objects of a deleted run from the store; the run's lock is held.

        It removes the chunks that the manifest before `newest` named, and any other chunk with a
        deleted line: every writer leaves such lines out, so no manifest will name that chunk. Other
        chunks belong to flushes of other nodes that are about to name them. It also removes
        `partial.txt`, the objects that OpenMetadata wrote of the run, and `logs.txt` unless the run
        was closed again.
        """
        key = newest.key
        self._forget(key)
        found = await self._deleted_chunks(newest, replaced)
        logs = keys.logs(self._prefix, key)
        found += [text for text in await self._upstream.objects(key) if text != logs]
        found += await self._stale_marks(key)
        if await self._clear_logs(key, logs):
            found.append(logs)
        for start in range(0, len(found), _DELETE_COUNT):
            await self._store.delete(found[start : start + _DELETE_COUNT])

    async def _deleted_chunks(self, newest: Manifest, replaced: Manifest | None) -> list[str]:
        key = newest.key
        named = {chunk.id for chunk in newest.chunks}
        gone = set() if replaced is None else {chunk.id for chunk in replaced.chunks} - named
        prefix = keys.chunks_of(self._prefix, key)
        infos = {info.key.removeprefix(prefix): info async for info in self._store.list(prefix)}
        for name, info in infos.items():
            chunk_id, _, kind = name.partition(".")
            if kind == "idx" and chunk_id not in named | gone:
                directory = await stored_directory(self._store, info)
                if directory is not None and directory.extremes()[0] <= newest.generation:
                    gone.add(chunk_id)
        return [info.key for name, info in infos.items() if name.partition(".")[0] in gone]

    async def _clear_logs(self, key: RunKey, where: str) -> bool:
        """Empties `logs.txt`; returns true if it must be removed then.

        A removal cannot have a condition, and another node may be closing lines that came after the
        deletion. So the object is emptied under a condition. If lines came, it stays and the close
        overwrites it.
        """
        try:
            there = await self._store.head(where)
            newest = (await self._manifests.get(key)).manifest
            if newest.logs is not None or newest.closing is not None:
                return False
            if there.size:
                await self._store.put(where, b"", if_match=there.etag)
        except (NotFound, PreconditionFailed):
            return False
        return (await self._manifests.get(key)).manifest.state == "deleted"

    async def _stale_marks(self, key: RunKey) -> list[str]:
        """Returns markers of dead nodes and of OpenMetadata. Living nodes remove their own."""
        prefix = keys.active_nodes(self._prefix, key)
        marks = [info.key async for info in self._store.list(prefix)]
        return [mark for mark in marks if await self._is_stale(mark.removeprefix(prefix))]

    async def _is_stale(self, name: str) -> bool:
        node = decode(name)
        return node is None or (node != self._node and await self._gone(node))

    async def _not_imported(self, fqn: str, *, deleted: bool = False) -> dict[RunKey, int]:
        """Returns runs that OpenMetadata wrote and nobody imported, with their last change.

        With `deleted` also runs that a deletion hides already.
        """
        found: dict[RunKey, int] = {}
        async for run in self._upstream.runs(fqn):
            born = ulids.highest_at(run.modified_ms)
            if deleted or born > self._deletions.horizon(run.key):
                found[run.key] = max(found.get(run.key, 0), born)
        return found

    async def _remove_not_imported(self, foreign: Mapping[RunKey, int], t: int) -> None:
        """Removes these runs in the pipeline's own folder; T hides those that may be another's."""
        for key, born in foreign.items():
            async with self._locks.of(key):
                if born <= t and (await self._manifests.get(key)).etag is None:
                    texts = keys.run_texts(self._prefix, key)
                    await self._store.delete([f"{texts}partial.txt", f"{texts}logs.txt"])

    def _horizon(self, manifests: Sequence[Manifest], born: Iterable[int] = ()) -> int:
        """Returns T, from the facts known at this moment.

        Lines that are acknowledged between this call and `note` came during the deletion. They are
        deleted if they are not above T, as if they had come before.
        """
        now_ms = self._clock.now_ms()
        known = [ulids.lowest_at(now_ms), *born]
        with self._pin() as pin:
            for manifest in manifests:
                key = manifest.key
                known += [manifest.last | ulids.LINE_MASK if manifest.chunks else 0]
                known += [manifest.generation, self._deletions.horizon(key), self._last_ulid(key)]
                highest = lowest_and_highest(pin.batches(run=key).rows)[1]
                known.append(highest | ulids.LINE_MASK if highest else 0)
        return horizon_above(max(known), self._deletions.store_ms(now_ms))

    async def _record(self, fqn: str, run: str | None, t: int) -> None:
        version = self._manifests.fresh_id()
        await self._deletions.record(Deletion(fqn, run, t, version))

    async def _manifests_of(self, fqn: str) -> list[Manifest]:
        found = []
        async for info in self._store.list(keys.manifests_of(fqn)):
            try:
                found.append(manifest_at(info.key, (await self._store.get(info.key))[1]))
            except NotFound:
                continue
        return found

    def _unflushed_runs(self, fqn: str) -> list[RunKey]:
        """Returns runs of the pipeline with undeleted lines in the journal."""
        with self._pin() as pin:
            batches = pin.batches(start=self._progress.flushed_pos)
            numbers = np.unique(batches.rows["run"]).tolist()
            keys_ = [batches.runs[number] for number in numbers]
            return [
                key
                for key in keys_
                if key.fqn == fqn
                and lowest_and_highest(pin.batches(run=key).rows)[1] > self._deletions.horizon(key)
            ]


async def _check(wanted: Wanted) -> None:
    if not await wanted():
        raise Conflict("the client left before the deletion began, so nothing is deleted")
