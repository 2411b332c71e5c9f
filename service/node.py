"""A node: the journal and everything that moves lines out of it, as one thing to start and stop.

    append ──► journal ──► tail (after the sync)
                  └──► shipper: segments, in order ──► run logs: chunks, partial, logs
                                                   └──► journal files go

Start order: lock the folder, know who we are, recover the journal, register, then take batches.
Stop order: take no more, sync, cut and ship what is left, bring it into the runs, let go. A node
that finds that its folder is a copy, or that the store lacks its segments (`Forked`), starts again
as a new incarnation; batches wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.errors import JournalFailed, NodeNotReady, OutcomeUnknown, TailraceError, Unavailable
from logstore.position import Position
from logstore.segments.carry import Carry
from service.erasure import LocalPlaces
from service.ingest.active_runs import ActiveRuns
from service.ingest.appender import Appender
from service.ingest.batch import IncomingBatch, Receipt, Submitted
from service.journal.erasure import JournalEraser
from service.journal.file import back_from
from service.journal.journal import Journal
from service.journal.recovery import Recovered, recover
from service.journal.state import JournalState
from service.journal.view import JournalPin
from service.journal.writer import Appended
from service.node_base import NodeBase
from service.node_problems import problems_of
from service.peers.forgotten import active_runs
from service.peers.shedding import open_shedding
from service.runs.delete import Wanted, always
from service.runs.settings import Tuning
from service.runs.wiring import Surroundings, open_run_logs
from service.runtime.disk_reserve import Purpose
from service.runtime.identity import DataFolder, Identity, TakenOver, register, register_again
from service.runtime.seams import Seams
from service.settings import Settings
from service.shipping.lineage import LOOK_SECONDS, Forked, Lineage, forked_in
from service.shipping.missing import MOST_RUNS, MissingSegments
from service.shipping.shipper import SegmentShipper
from service.tail import Tail

log = logging.getLogger(__name__)

_START_SECONDS = 10.0  # a batch waits so long for a node that is starting again
_RELEASE_SECONDS = 5.0
_ELSEWHERE = "Send it to another node, or later."


class Node(NodeBase):
    """One node that takes lines."""

    def __init__(
        self,
        seams: Seams,
        settings: Settings,
        *,
        default_name: str,
        table_mark: Callable[[str], int],
        tuning: Tuning | None = None,
    ) -> None:
        super().__init__(
            seams, settings, default_name=default_name, table_mark=table_mark, tuning=tuning
        )
        self._tasks: list[asyncio.Task[None]] = []
        self.forks = 0
        self.shedding = open_shedding(self, self.members, seams, settings.nodes)
        self.recovered: Recovered
        self.journal: Journal
        self.lineage: Lineage
        self.shipper: SegmentShipper
        self.appender: Appender

    async def start(self) -> None:
        """Opens the folder and the journal; raises what makes that impossible.

        Returns when reads work. Batches are taken once the node is registered, which
        goes on behind this as long as the store is away.
        """
        seams = self.seams
        await self._make_room("start")
        self._folder = DataFolder(seams.fs, self._data, seams.clock, seams.entropy)
        await self._open()

    async def _make_room(self, purpose: Purpose = "deletion") -> None:
        """Gives up a reserve on full disks. A folder that hangs holds up nothing for long."""
        seams = self.seams
        with suppress(TimeoutError):
            async with asyncio.timeout(seams.answers.seconds):
                await seams.offload(partial(seams.reserve.give_up_if_full, purpose))

    async def _open(self, before: Journal | None = None) -> None:
        seams, settings = self.seams, self._settings
        recovered = await seams.offload(lambda: recover(seams.fs, f"{self._data}/journal"))
        if before is not None:
            before.succession.hand_over(before.files, recovered.files)
            recovered.keep(self.recovered)
        self.recovered = recovered
        self.identity = self._folder.identify(settings.node_id, self._default_name, recovered.state)
        state = recovered.state or JournalState(self.identity.node)
        if state.node != self.identity.node:
            files = [file.first_pos for file in recovered.files]
            state.reincarnate(self.identity.node, self.identity.base, files)
            if self.identity.missing:
                state.delete_again()
        self._syncer = seams.syncer()
        try:
            self.journal = Journal(
                seams.fs,
                f"{self._data}/journal",
                self._syncer,
                seams.clock,
                seams.entropy,
                settings.journal,
                recovered,
                state,
                self._synced,
                offload=seams.offload,
            )
        except TailraceError:
            self._syncer.close()
            raise
        self.tail = Tail(self.identity.node, settings.sse, lambda: self.members.asks)
        self.lineage = Lineage(self.journal, seams.store, seams.clock, self.marks)
        self.shipper = SegmentShipper(
            self.journal,
            seams.store,
            seams.clock,
            settings.flush,
            offload=seams.offload,
            lineage=self.lineage,
            confirmations=self.confirmations,
            encode=seams.encode,
        )
        active = ActiveRuns(settings.runs.max_concurrent_streams)
        self.run_logs = open_run_logs(
            self.identity.node,
            self.identity.parents,
            seams.store,
            seams.clock,
            seams.entropy,
            settings,
            self._tuning,
            Surroundings(
                self.journal,
                seams.offload,
                confirmed_through=self.shipper.confirmed_through,
                last_ulid=active.last_ulid,
                watermark=self.marks.watermark,
                ended=self.tail.ended,
                newest_date=seams.newest_date,
                records=lambda: self.records,
                details=lambda: self.details,
                silent=lambda: seams.answers.silent,
                close_report=lambda key: self.status.close(key),
                reported=lambda key: self.status.get(key),
                make_room=self._make_room,
                others=partial(
                    self.members.others, self.identity.node, settings.runs.close_wait_seconds
                ),
            ),
        )
        self.shipper.on_confirmed(self.run_logs.confirmed)
        self.shipper.on_stored(lambda key, segment: self.stored(key, segment))
        self.run_logs.events.on_inherited(self.tail.missed_all)
        self._eraser = JournalEraser(self.journal, seams.clock, settings.journal.erase_seconds)
        self.run_logs.deletions.on_raised = self._eraser.note
        for (fqn, run), t in state.deleted.all().items():
            self.run_logs.deletions.note(fqn, run, t, own=True)
        minter = ulids.Minter(seams.clock, seams.entropy, last=state.last_ulid)
        self.appender = Appender(
            self.journal,
            self.run_logs,
            seams.clock,
            minter,
            settings.ingest,
            active=active,
            deletions=self.run_logs.deletions,
            confirmed_through=self.shipper.confirmed_through,
        )
        self._begin(self._serve(), "node")

    async def _serve(self) -> None:
        """Registers, takes batches, then runs the parts until the node stops."""
        await self._insist(self._register, "not registered yet")
        self._started.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.shipper.cut_forever())
            group.create_task(self._eraser.run())
            # Batches are taken already.
            await self._insist(self._start_text, "waiting for the object store")
            group.create_task(self._keep_registration())
            group.create_task(self.shipper.ship_forever())
            group.create_task(self.run_logs.run())
            group.create_task(self.status.run())
            group.create_task(self._release_forever())
            group.create_task(self.members.stay(self.tail))
            group.create_task(self.shedding.run())

    async def _keep_registration(self) -> None:
        """Repairs it once; while segments are missing, looks whether somebody gave them up."""
        while True:
            with suppress(TailraceError):  # later, or by the next start
                missing = await register_again(self.store, self.identity, self.seams.clock)
                if missing != self.identity.missing:
                    self.identity = replace(self.identity, missing=missing)
                    self._folder.save(self.identity)
            if not self.identity.missing:
                return
            await self.seams.clock.sleep(LOOK_SECONDS)

    async def _release_forever(self) -> None:
        while True:
            if not self.run_logs.deleter.unfinished:
                await self.seams.offload(self.seams.reserve.restore)
            await self.seams.clock.sleep(_RELEASE_SECONDS)
            self._release()

    async def _register(self) -> None:
        if not self.identity.files:  # also of one that an earlier version has registered
            files = _taken_over(self.identity, self.journal)
            self.identity = replace(self.identity, files=files)
        if not self.identity.registered:
            identity = await register(self.store, self.identity, self.seams.clock)
            self._folder.save(identity)
            self.identity = identity
        await self.members.try_to_join(self.identity, self.journal, self.run_logs.deletions)

    async def _start_text(self) -> None:
        await self.lineage.look_if_due()
        await self.marks.check(self.identity.parents)
        await self.run_logs.start()

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks = [other for other in self._tasks if not other.done()]
        self._tasks.append(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            return
        error = task.exception()
        forked = forked_in(error)
        if forked is not None:
            if not self._stopping:  # else the next start finds it out again
                self._begin(self._fork(forked), "fork")
        elif not self.failed.done() and error is not None:
            self.failed.set_result(error)

    async def _fork(self, why: Forked) -> None:
        """Continues as a new incarnation, since this one is taken, or its segments are missing."""
        self.forks += 1
        self._started.clear()
        before, node, confirmed = self.journal, self.identity, self.journal.state.confirmed
        self.tail.stop()
        await self._let_go()
        shared = [file.ulid for file in before.files if file.ulid in why.files]
        base, seq, missing = confirmed.end, confirmed.seq, why.missing
        if missing is not None:
            kept = max(node.base, min([file.first_pos for file in before.files], default=base))
            missing = missing.holding(kept)
            base, seq = missing.kept, missing.first - 1

        async def fork() -> None:
            found = [] if missing is None else [await self._with_runs(missing)]
            made = self._folder.forked(
                node, name=node.name, base=base, seq=seq, shared=shared, missing=found
            )
            for segments in found:
                log.error("%s. %s", segments.sentence(), segments.advice(made.node))

        await self._insist(fork, "the node cannot go on as a fork yet")
        await self._insist(partial(self._open, before), "the node cannot go on as a fork yet")

    async def _with_runs(self, missing: MissingSegments) -> MissingSegments:
        runs = await active_runs(self.store, self._settings.runs.prefix, missing.node)
        return replace(missing, runs=tuple(runs[:MOST_RUNS]))

    # --- the HTTP API --------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether batches are taken now."""
        return self._takes_batches and self.journal.space.shortage() is None

    @property
    def _takes_batches(self) -> bool:
        return (
            self._started.is_set()
            and not self._stopping
            and self.journal.failure is None
            and self.clock_skew.problem is None
        )

    def problems(self) -> list[str]:
        """Reasons why the node is not ready, and other problems, as sentences."""
        going_on = self._stopping or not self._started.is_set()
        doing = f"the node is {'stopping' if self._stopping else 'starting'}"
        return [*self.lasting_problems(), *[doing] * going_on]

    def lasting_problems(self) -> list[str]:
        """Problems as sentences, without a start or a stop that is in progress."""
        return problems_of(self, self._waiting)

    def submit(self, batch: IncomingBatch) -> Submitted | None:
        """Takes a batch as `Appender.submit` does; None while the node takes no batches."""
        return self.appender.submit(batch) if self._takes_batches else None

    async def append(self, batch: IncomingBatch) -> Receipt:
        """Stores a batch as `Appender.append` does, after a start. Raises `NodeNotReady`."""
        if not self._takes_batches:
            await self._until_ready()
            if self.clock_skew.problem is not None:
                raise NodeNotReady(self.clock_skew.problem, hint=_ELSEWHERE)
        return await self.appender.append(batch)

    async def open_run(self, key: RunKey, connector: str) -> int:
        """Begins a run as `Appender.open_run` does, after a start. Raises `NodeNotReady`."""
        await self._until_ready()
        return await self.appender.open_run(key, connector)

    async def close_run(self, key: RunKey) -> str:
        """Finalises a run: `closed`, or `closing` if that takes longer. Raises `NodeNotReady`."""
        await self._until_ready()
        return await self.run_logs.close_run(key)

    async def delete_run(self, key: RunKey, wanted: Wanted = always) -> None:
        """Deletes a run for good, if it is still `wanted`. Raises `Unavailable`, `Conflict`."""
        await self.all_synced()  # what was taken is seen, and goes
        await self.run_logs.delete_run(key, wanted)
        await self.status.remove(*key)
        self.tail.ended(key)

    async def delete_pipeline(self, fqn: str, wanted: Wanted = always) -> list[str]:
        """Deletes all runs of a pipeline, giving their ids. Raises as `delete_run`."""
        await self.all_synced()
        runs = await self.run_logs.delete_pipeline(fqn, wanted)
        await self.status.remove(fqn, None)
        for run in runs:
            self.tail.ended(RunKey(fqn, run))
        return runs

    def untold(self, fqn: str, run: str | None) -> Sequence[str]:
        """The nodes that have not heard of the newest deletion."""
        return self.run_logs.deleter.news.silent(fqn, run)

    async def all_synced(self) -> None:
        """Returns when requests are taken, and what was taken is synced. Raises `Unavailable`."""
        await self._until_ready()
        await self.journal.synced(self.journal.next_pos)

    async def _until_ready(self) -> None:
        if self._takes_batches:
            return
        if self.journal.failure is not None:
            raise self.journal.failure
        if self._stopping:
            raise NodeNotReady("the node is stopping", hint=_ELSEWHERE)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._started.wait()
        except TimeoutError as error:
            why = self._waiting or "the node is starting"
            raise NodeNotReady(why, hint="Try again in a moment.") from error

    @property
    def carry(self) -> Carry:
        """What the next lines of runs begin with."""
        return self.shipper.carry

    def pin(self) -> JournalPin:
        """Pins the hot part as it is now."""
        return self.journal.pin()

    @property
    def places(self) -> LocalPlaces:
        """Where on this node's disk deleted lines may be."""
        return LocalPlaces(
            self.pin,
            self.seams.fs,
            f"{self._data}/journal",
            self._eraser.is_due,
            self.run_logs.deletions.highest,
            self.copied,
        )

    def _synced(self, batches: Sequence[Appended]) -> None:
        self.shipper.added()
        for batch in batches:
            self.run_logs.appended(batch.key, batch.pos + batch.records)
        if not (watched := self.tail.watched):
            return
        file = self.journal.files[-1].ulid
        for batch in batches:
            if batch.key in watched:
                last = Position(file, batch.pos + batch.records - 1)
                self.tail.publish(batch.key, batch, last)

    def _release(self) -> None:
        """Releases journal files that neither the segments nor the run logs need."""
        confirmed, flushed = self.journal.state.confirmed.end, self.run_logs.flushed_pos
        most = self._settings.journal.max_bytes
        if self.journal.bytes > most // 2:
            # Run logs can be made from segments, with more work; room for new batches cannot.
            flushed = max(flushed, back_from(confirmed, most // 16, self.journal.files))
        self.journal.release(min(confirmed, flushed))

    async def stop(self) -> None:
        """Refuses batches, brings what it can into the store, keeps the rest, ends the parts."""
        self._stopping = True
        self.tail.stop()
        try:
            async with asyncio.timeout(self._settings.server.stop_seconds):
                if self._started.is_set() and self.journal.failure is None:
                    await self.shipper.confirmed_through(self.journal.next_pos)
                    await self.run_logs.drain()
                    self._release()
        except (TimeoutError, JournalFailed, Unavailable, OutcomeUnknown):
            pass  # the journal has it all
        await self.members.leave(stored=self.run_logs.flushed_pos >= self.journal.next_pos)
        self.confirmations.stop()
        await self._let_go()
        self._folder.release()

    async def _let_go(self) -> None:
        self.shipper.stop()
        self.appender.stop()
        await self.run_logs.stop()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.journal.close()
        self._syncer.close()


def _taken_over(identity: Identity, journal: Journal) -> TakenOver:
    """Journal files with lines that a fork took over under the name of its parent."""
    if not identity.parents:
        return ()
    files = journal.files[:-1]  # the newest one was begun under the new name
    return tuple([(f.ulid, f.first_pos, f.end_pos) for f in files if f.end_pos > identity.base])
