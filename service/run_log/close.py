"""Closes runs on all nodes: records the close in the journal first, then finishes it in the store.

    record (synced) ──► segments confirmed through it ──► run flushed ──► noted ──┐
                    ──► every other node asked to close its lines ────────────────┴──► sealed

The state `closed` is a statement about all nodes. While a node that may hold lines has not
answered, the manifest names this node in `asking`, and the run is `closing` at every node. It is
sealed after that, because `logs.txt` has the lines of all nodes in one order.

A close that takes longer than `wait_seconds`, or whose store is unavailable, continues after the
answer, and after a restart. A batch received after the close reopens the run. A reopened run that
is idle for `reopened_seconds` is closed again.

Each node closes a run up to its own last line; the run is closed when all have. Nobody closes for a
node that lost its lease, or that an operator decommissioned: another node flushes the lines that it
brought into the store, and then they count as closed. Until all other nodes know of a close, the
journal has it as unfinished, so the next start asks them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from service.run_log.backlog import Acknowledgements, RunLogPeers
from service.run_log.chunks import Chunks, in_range
from service.run_log.contracts import RunLocks
from service.run_log.flush import Flusher
from service.run_log.merge import ChunkMerger, ChunkSorter
from service.run_log.openmetadata import WRITER
from service.run_log.seal import Sealer
from service.runtime.store_deadline import for_request
from service.settings import RunSettings
from tailrace.logstore.batch import RunKey
from tailrace.logstore.cache import BoundedCache
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import NotFound, TailraceError
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.retry import Backoff
from tailrace.logstore.runs.manifest import Manifest, Manifests

# --- Closes at other nodes ----------------------------------------------------------------------


_FIRST_PAUSE_SECONDS = 0.5
_MAX_PAUSE_SECONDS = 30.0
_UNKNOWN = "the register of nodes"


class CloseOutcome(NamedTuple):
    """The state of a close that all nodes know; `over`: no line of the run is left anywhere."""

    state: str
    over: bool


class CloseNotices:
    """The closes of one node that others must acknowledge; then it calls `acknowledged`."""

    def __init__(
        self,
        others: RunLogPeers,
        clock: Clock,
        is_over: Callable[[str, RunKey | None], Awaitable[bool]],
        acknowledged: Callable[[RunKey, int, Sequence[str]], Awaitable[CloseOutcome]],
    ) -> None:
        """`acknowledged` finishes the close; it gets the nodes that answered and do not ask others.

        `is_over` returns true for a node that is lost and whose stored lines are in the runs, or in
        the run of the key.
        """
        self._others = others
        self._clock = clock
        self._is_over = is_over
        self._acknowledged = acknowledged
        self._tasks: dict[RunKey, asyncio.Task[str]] = {}
        self._closes: dict[RunKey, int] = {}
        """The positions of the closes that are asked about."""
        self._settled: set[str] = set()
        """Nodes that were let go and have nothing that is in no run: they write no more."""
        self._ending: set[asyncio.Task[None]] = set()
        self._finishing: dict[RunKey, asyncio.Task[str]] = {}
        """Those whose own close all nodes know, and that may wait for another node's."""

    @property
    def alone(self) -> bool:
        """Returns true if this node has no way to others."""
        return not self._others

    def is_notifying(self, key: RunKey) -> bool:
        """Returns true if a node has not acknowledged the close."""
        return key in self._tasks

    def notify(self, key: RunKey, pos: int) -> asyncio.Task[str]:
        """Asks all nodes, and silent ones again; a later close replaces an earlier one.

        A task that asks already continues, so that a client that closes again and again does not
        delay it; it asks once more for the later close.
        """
        asking = self._tasks.get(key)
        if self._others:
            self._closes[key] = max(self._closes.get(key, 0), pos)
        if asking is not None:
            return asking
        earlier = self._finishing.pop(key, None)
        if earlier is not None:
            earlier.cancel()
        task = asyncio.get_running_loop().create_task(self._notify(key))
        if self._others:
            self._tasks[key] = task
        return task

    def ended(self, key: RunKey) -> None:
        """Notifies the others, after this call, that the run is closed as a whole."""
        if self._others:
            task = asyncio.get_running_loop().create_task(self._others.ended(key))
            self._ending.add(task)
            task.add_done_callback(self._said)

    def stop(self) -> None:
        """Stops asking; the next start continues."""
        for task in (*self._tasks.values(), *self._ending, *self._finishing.values()):
            task.cancel()

    async def nobody_holds(self, key: RunKey, manifest: Manifest) -> bool:
        """Returns true if no other node has lines of the run that its manifest lacks.

        Returns false as well while a node does not answer and is not lost. Raises `Unavailable`.
        """
        found = await self._others.lines(key)
        for source in found.sources:
            if len(in_range(source, key, manifest.dealt_with(source.node))):
                return False
        return not [node for node in found.silent if not await self._is_lost(node, key)]

    def _said(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()  # nodes that were not notified check the manifest themselves

    async def _notify(self, key: RunKey) -> str:
        if not self._others:
            return "closed"
        pos = -1
        idle: tuple[str, ...] = ()
        while pos < self._closes[key]:
            pos = self._closes[key]
            idle = await self._ask_all(key)
        del self._closes[key]
        task = self._finishing[key] = self._tasks.pop(key)
        pauses = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        try:
            while (outcome := await self._acknowledged(key, pos, idle)).state != "closed":
                # Another node closes it as well, and still asks; all are asked again, since some
                # may have got lines between the two closes.
                await self._clock.sleep(pauses.next())
                idle = await self._ask_all(key)
        except TailraceError:
            return "closing"  # the manifest could not be read: streams read it themselves
        finally:
            if self._finishing.get(key) is task:
                del self._finishing[key]
        if outcome.over:
            self.ended(key)
        return outcome.state

    async def _ask_all(self, key: RunKey) -> tuple[str, ...]:
        """Returns once each node has closed the run for its lines, or is lost.

        Returns the nodes that answered and do not ask others themselves.
        """
        pauses = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        while True:
            try:
                acknowledged = await self._others.close(key)
            except TailraceError:
                acknowledged = Acknowledgements((_UNKNOWN,))
            waiting = [node for node in acknowledged.silent if not await self._is_lost(node, key)]
            if (
                not waiting
                and not acknowledged.working
                and await self._all_settled(acknowledged.let_go)
            ):
                return acknowledged.idle
            await self._clock.sleep(pauses.next())

    async def _all_settled(self, let_go: Sequence[str]) -> bool:
        self._settled.intersection_update(let_go)  # a node that is back may write again
        for node in let_go:
            if node not in self._settled and await self._is_lost(node):
                self._settled.add(node)
        return self._settled.issuperset(let_go)

    async def _is_lost(self, node: str, key: RunKey | None = None) -> bool:
        try:
            return node != _UNKNOWN and await self._is_over(node, key)
        except TailraceError:
            return False


_LOOK_SECONDS = 5.0
_REMEMBERED_RUNS = 10_000


class Closer:
    """Closes the runs of one node."""

    def __init__(
        self,
        node: str,
        parents: Sequence[str],
        store: ObjectStore,
        manifests: Manifests,
        chunks: Chunks,
        merger: ChunkMerger,
        sorter: ChunkSorter,
        flusher: Flusher,
        locks: RunLocks,
        clock: Clock,
        settings: RunSettings,
        *,
        prefix: str,
        record_close: Callable[[RunKey], Awaitable[int]],
        flushed_through: Callable[[int], Awaitable[None]],
        close_done: Callable[[RunKey, int], None],
        gone: Callable[[str], Awaitable[bool]],
        is_over: Callable[[str, RunKey | None], Awaitable[bool]],
        repair: Callable[[RunKey], Awaitable[bool]],
        on_ended: Callable[[RunKey], None],
        others: RunLogPeers,
        has_partial: Callable[[RunKey], bool],
        close_report: Callable[[RunKey], Awaitable[None]],
    ) -> None:
        """`close_report` notes the close of a run that has no lines, and so no manifest."""
        self._node = node
        self._parents = parents
        self._flusher = flusher
        self._locks = locks
        self._clock = clock
        self._settings = settings
        self._record_close = record_close
        self._flushed_through = flushed_through
        self._close_done = close_done
        self._gone = gone
        self._repair = repair
        self._manifests = manifests
        self._on_ended = on_ended
        self._close_report = close_report
        self._notices = CloseNotices(others, clock, is_over, self._acknowledged)
        self._sealer = Sealer(
            store, manifests, chunks, merger, sorter, prefix=prefix, has_partial=has_partial
        )
        self._wanted: dict[RunKey, int] = {}
        self._tasks: dict[RunKey, asyncio.Task[str]] = {}
        self._answering = RunLocks()
        self._askers: dict[RunKey, set[str]] = {}
        """Nodes that asked this one to close a run, as long as it is at it."""
        self._agreed: dict[RunKey, frozenset[str]] = {}
        """Runs that all other nodes have closed, which this node has yet to write down.

        With them the nodes that do not ask others themselves, whatever the manifest says."""
        self._closed: BoundedCache[RunKey, None] = BoundedCache(_REMEMBERED_RUNS)
        self._reopened: dict[RunKey, float] = {}
        self._stopping = False
        self.closes = 0
        self.reopened = 0
        self.failures = 0
        self.last_error: str | None = None

    @property
    def unfinished(self) -> int:
        """Returns the number of closes that are recorded and not finished."""
        return len(self._wanted)

    async def close(self, key: RunKey) -> str:
        """Closes a run on all nodes: `closed`, or `closing` if it continues later.

        A node that stops, or continues under another name meanwhile, answers once the close is
        recorded. Raises the errors of recording it.
        """
        pos = await self._record_close(key)
        if self._stopping:  # nothing here finishes it: the next start, or a fork, does
            return "closing"
        state = await self._wait([self.resume(key, pos), self._notices.notify(key, pos)])
        if state != "closed":
            with suppress(TailraceError), for_request():  # readers get the state of the manifest
                manifest = (await self._manifests.get(key)).manifest
                whole = manifest.state == "closed" and manifest.sealed
                state = "closed" if whole and not self._flusher.holds(key) else state
        return state

    async def close_here(self, key: RunKey, asker: str = "") -> str:
        """Closes a run for the lines of this node, because the node `asker` asks for it.

        Returns `none` if all lines of this node were closed before. Raises as `close`.
        """
        # One after another: an answer says that no earlier request writes anything any more.
        async with self._answering.of(key):
            manifest = (await self._manifests.get(key)).manifest
            written = manifest.dealt_with(self._node) > manifest.closes.get(self._node, 0)
            if not written and not self._flusher.holds(key):
                task = self._tasks.get(key)
                return "none" if task is None else await self._wait([task])
            pos = await self._record_close(key)
            if self._stopping:
                return "closing"
            if asker:
                self._askers.setdefault(key, set()).add(asker)
            return await self._wait([self.resume(key, pos)])

    async def _wait(self, tasks: Sequence[asyncio.Task[str]]) -> str:
        await asyncio.wait(tasks, timeout=self._settings.close_wait_seconds)
        for task in tasks:
            if not task.done() or task.cancelled() or task.exception() is not None:
                return "closing"
        states = {task.result() for task in tasks}
        return "closed" if states == {"closed"} else "closing"

    def resume_everywhere(self, key: RunKey, pos: int) -> None:
        """Continues a close that an earlier process recorded."""
        self.resume(key, pos)
        self._notices.notify(key, pos)

    def is_closing(self, key: RunKey) -> bool:
        """Returns true if a close of the run is recorded here and not finished."""
        return key in self._wanted

    def is_asking(self, key: RunKey) -> bool:
        """Returns true if this node closes the run and not all others are known to have done so."""
        return self._notices.is_notifying(key) or key in self._agreed

    async def _acknowledged(self, key: RunKey, pos: int, idle: Collection[str]) -> CloseOutcome:
        """Finishes the close, because all other nodes have closed the run for their lines.

        `idle` are nodes that answered, and that do not ask others themselves.
        """
        self._agreed[key] = frozenset(idle)
        try:
            if self._wanted.get(key) is None and await self._stop_asking(key, pos):
                self._close_done(key, pos)
            else:
                await self.resume(key, pos)
        finally:
            self._agreed.pop(key, None)
        manifest = (await self._manifests.recent(key)).manifest
        if manifest.state != "closed":  # others may have changed it since this node wrote it
            manifest = (await self._manifests.get(key)).manifest
        over = _is_over(manifest) and not self._flusher.holds(key)
        if over:
            self._on_ended(key)
        return CloseOutcome("closing" if manifest.asking else "closed", over=over)

    def resume(self, key: RunKey, pos: int) -> asyncio.Task[str]:
        """Continues a close that is recorded."""
        self._wanted[key] = max(self._wanted.get(key, 0), pos)
        self._flusher.hold_at(key, pos)
        task = self._tasks.get(key)
        if task is None or task.done():
            task = asyncio.get_running_loop().create_task(self._finish(key))
            self._tasks[key] = task
            task.add_done_callback(lambda ended: self._ended(key, ended))
        return task

    def _ended(self, key: RunKey, task: asyncio.Task[str]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled() and task.exception() is not None:
            self.last_error = f"{key.fqn}/{key.run}: {task.exception()}"

    async def _finish(self, key: RunKey) -> str:
        """Tries until the close is done, or the run was deleted."""
        pauses = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        while (pos := self._wanted.get(key)) is not None:
            try:
                manifest = await self._finish_or_repair(key, pos)
                again = (
                    manifest is not None
                    and not self._notices.is_notifying(key)
                    and (
                        self._lags(manifest)
                        or _unsealed(manifest)
                        or await self._lacks_lost(manifest)
                    )
                )
            except TailraceError as error:
                self.failures += 1
                self.last_error = f"{key.fqn}/{key.run}: {error}"
                await self._clock.sleep(pauses.next())
                continue
            if manifest is not None and not again and self._wanted.get(key) == pos:
                self._finished(key, pos, manifest)
        return "closed"

    async def _stop_asking(self, key: RunKey, pos: int) -> bool:
        """Notes that all nodes have closed; false if lines must be closed or sealed first.

        Tries until the store answers.
        """
        pauses = Backoff(_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS)
        while True:
            try:
                manifest = (await self._manifests.get(key)).manifest
                # Otherwise a deletion dropped the close, and the run may have begun again.
                ours = manifest.closes.get(self._node, 0) >= pos
                if ours and (_lacks_logs(manifest) or await self._lacks_lost(manifest)):
                    return False
                stop = partial(self._without_asking, key, await self._lost_askers(manifest))
                await self._manifests.update(key, stop)
            except TailraceError:
                await self._clock.sleep(pauses.next())
            else:
                return True

    def _without_asking(
        self, key: RunKey, lost: Collection[str], newest: Manifest
    ) -> Manifest | None:
        changed = replace(newest, asking=self._asking(key, lost, newest))
        changed = replace(changed, state=changed.state_of_close())
        return None if changed.asking == newest.asking else changed

    def _lags(self, manifest: Manifest) -> bool:
        """Returns true if the manifest does not say yet that all nodes have closed the run."""
        return self._node in manifest.asking and manifest.key in self._agreed

    async def _lost_askers(self, manifest: Manifest) -> list[str]:
        """Returns asking nodes that are lost; an answer of all nodes includes theirs."""
        others = [node for node in manifest.asking if node != self._node]
        return [node for node in others if await self._gone(node)]

    async def _lacks_lost(self, manifest: Manifest) -> bool:
        """Returns true if lines of a lost node came into the run after the closed ones."""
        closes = manifest.closes
        lost = await self._gone_writers(manifest)
        return any(closes.get(writer, 0) < manifest.dealt_with(writer) for writer in lost)

    async def _finish_or_repair(self, key: RunKey, pos: int) -> Manifest | None:
        def wanted() -> bool:
            # An earlier close than the wanted one would do no harm, but seal the run twice.
            return self._wanted.get(key) == pos

        try:
            return await self.finish(key, pos, wanted)
        except NotFound:  # a chunk from which it is made
            if not await self._repair(key):
                raise
            return await self.finish(key, pos, wanted)

    async def finish(
        self, key: RunKey, pos: int, wanted: Callable[[], bool] = lambda: True
    ) -> Manifest | None:
        """Does all steps after the record, once; returns the resulting manifest.

        Returns None, and leaves the run unchanged, if the close was abandoned before its turn.
        Raises `TailraceError`; may be called again.
        """
        await self._flushed_through(pos)

        async def seal(first: Manifest) -> Manifest:
            closes = partial(_before, self._node, pos, self._parents)
            asking = partial(self._asking, key, ())
            return await self._sealer.seal_first(first, closes, asking) if wanted() else first

        flushed = await self._flusher.flush(key, end=pos, seal=seal)
        manifest = flushed or (await self._manifests.get(key)).manifest
        if await self._sealer.named(manifest):
            return manifest
        ended = [*self._parents, WRITER, *await self._gone_writers(manifest)]
        asking = partial(self._asking, key, await self._lost_askers(manifest))
        async with self._locks.of(key):
            if not wanted():
                return None
            closes = partial(_before, self._node, pos, ended)
            manifest = await self._sealer.seal(key, closes, asking)
        if not manifest.chunks:
            await self._close_report(key)
        return manifest

    def _asking(self, key: RunKey, lost: Collection[str], newest: Manifest) -> tuple[str, ...]:
        """Returns the nodes that still ask others to close the run; `lost` ones ask no more."""
        if newest.state == "closed":  # all nodes closed it before, and no line came since
            return ()
        asking = {*newest.asking, *self._askers.get(key, ())}
        if self._notices.is_notifying(key):
            asking.add(self._node)
        elif self._notices.alone or key in self._agreed:
            asking -= {self._node, *lost, *self._agreed.get(key, ())}
        return tuple(sorted(asking))

    def abandon(self, fqn: str, run: str | None) -> None:
        """Drops closes from before a deletion of the run, or of all runs of the pipeline.

        Such a close would close the run that begins again.
        """
        for key in [key for key in self._wanted if key.fqn == fqn and run in (None, key.run)]:
            del self._wanted[key]
            self._askers.pop(key, None)
            self._flusher.let_go(key)

    async def _gone_writers(self, manifest: Manifest) -> list[str]:
        """Returns writers of the run that do not look after it themselves."""
        others = [w for w in manifest.writers if w not in (self._node, WRITER, *self._parents)]
        return [writer for writer in others if await self._gone(writer)]

    async def finalise(self, key: RunKey, seen: Manifest) -> bool:
        """Closes a run for all its writers, if nothing was flushed since `seen`.

        Nothing is recorded: the next sweep finds an unfinished close. Returns true if the run is
        closed now. It is not while another node holds lines of it, or does not answer and is not
        lost. Raises `TailraceError`.
        """
        if not await self._notices.nobody_holds(key, seen):
            return False

        def all_before(newest: Manifest) -> Mapping[str, int] | None:
            same = (newest.flushed_ms, newest.writers) == (seen.flushed_ms, seen.writers)
            return newest.writers if same else None

        async with self._locks.of(key):
            manifest = await self._sealer.seal(
                key, all_before, lambda _: (), abandoned=not seen.door
            )
            if manifest.state != "closed" or not manifest.sealed:
                return False
            self._remember(key)
        self._on_ended(key)
        self._notices.ended(key)
        return True

    def _finished(self, key: RunKey, pos: int, manifest: Manifest) -> None:
        """Notifies readers of the end, unless lines follow it: then the run is open again."""
        del self._wanted[key]
        self._flusher.let_go(key)
        reopened = manifest.state == "open" and bool(manifest.chunks)
        lasting = manifest.asking and not self._notices.is_notifying(key)
        if reopened or lasting:  # a node that asks may be lost before it knows the end
            self._reopened[key] = self._clock.monotonic()
        else:
            self._remember(key)
        self._askers.pop(key, None)
        self.closes += 1
        if self._notices.is_notifying(key):
            return
        self._close_done(key, pos)
        if _is_over(manifest) and not self._flusher.follows(key, pos):
            self._on_ended(key)
            if key not in self._agreed:  # otherwise `_acknowledged` does it
                self._notices.ended(key)

    def _remember(self, key: RunKey) -> None:
        self._reopened.pop(key, None)
        self._closed.put(key, None)

    # --- reopened runs -------------------------------------------------------------

    def noticed(self) -> None:
        """Call it when segments were confirmed: a closed run may have new lines."""
        if not self._closed:
            return
        for key in self._flusher.pending.waiting():
            if key in self._closed:
                self._closed.pop(key)
                self.reopened += 1
                self._reopened[key] = self._clock.monotonic()
            elif key in self._reopened:
                self._reopened[key] = self._clock.monotonic()

    def flushed(self, manifest: Manifest) -> None:
        """Notes a manifest after a flush."""
        key = manifest.key
        if key in self._wanted or not manifest.closes:
            return
        if manifest.settled() and not manifest.sealed:
            self.resume(key, manifest.closes.get(self._node, 0))
        elif manifest.state == "open":
            self._reopened[key] = self._clock.monotonic()

    def forget(self, key: RunKey) -> None:
        """Drops the state of a deleted run."""
        self._reopened.pop(key, None)
        self._closed.pop(key)
        self._sealer.forget(key)

    async def run(self) -> None:
        """Closes reopened runs that are idle, until stopped."""
        while not self._stopping:
            await self.close_idle()
            await self._clock.sleep(_LOOK_SECONDS)

    async def close_idle(self) -> None:
        """Closes the reopened runs that had no new line for long enough."""
        now = self._clock.monotonic()
        for key, since in list(self._reopened.items()):
            if self._reopened.get(key) != since:
                continue  # swept, deleted or written to, while another was closed
            if now - since >= self._settings.reopen_idle_seconds:
                del self._reopened[key]
                try:
                    await self._close_again(key)
                except TailraceError as error:
                    self.last_error = f"{key.fqn}/{key.run}: {error}"
                    self._reopened.setdefault(key, since)

    async def _close_again(self, key: RunKey) -> None:
        manifest = (await self._manifests.get(key)).manifest
        if manifest.asking:
            await self.close(key)
        elif manifest.state != "closed" or not manifest.sealed or self._flusher.holds(key):
            # For the lines of this node alone: other nodes may still write theirs.
            await self._wait([self.resume(key, await self._record_close(key))])

    def stop(self) -> None:
        """Ends running work; the journal knows which closes are unfinished."""
        self._stopping = True
        self._notices.stop()
        for task in list(self._tasks.values()):
            task.cancel()


def _is_over(manifest: Manifest) -> bool:
    """Returns true if all nodes have closed the run, or no node had a line of it."""
    return manifest.state == "closed" or not (manifest.chunks or manifest.asking)


def _lacks_logs(manifest: Manifest) -> bool:
    """Returns true if closed lines are not in `logs.txt` yet."""
    return bool(manifest.chunks) and manifest.settled() and not manifest.sealed


def _unsealed(manifest: Manifest) -> bool:
    """Returns true if closed lines are not in `logs.txt` although no node asks others any more."""
    return not manifest.asking and _lacks_logs(manifest)


def _before(node: str, pos: int, ended: Sequence[str], manifest: Manifest) -> Mapping[str, int]:
    """Returns for each writer the position up to which its lines came before this close.

    For this node that is `pos`. All lines of writers that no longer write came before it: of
    parents, of lost nodes, of OpenMetadata. Otherwise a run that they began would stay open for
    ever, because nobody closes for them any more.
    """
    dealt = {who: manifest.dealt_with(who) for who in ended if manifest.dealt_with(who)}
    return {**dealt, node: pos}
