"""A node: the journal and all parts that move lines out of it, with one start and one stop.

    append ──► journal ──► tail (after the sync)
                  └──► shipper: segments, in order ──► run logs: chunks, partial, logs
                                                   └──► journal files are released

`Node` accepts lines. Start order: lock the folder, read the identity, recover the journal,
register, then accept batches. Stop order: accept no more batches, sync, cut and ship the remaining
lines, bring them into the runs, release the folder. If a node finds that its folder is a copy, or
that the store lacks its segments (`Forked`), it starts again as a new incarnation; batches wait.
`problems_of` collects the problems of its parts as sentences for `/health/ready` and the log.

`QueryNode` only reads (`serve --role query`). It has no journal and no lines of its own and accepts
no batches. It shows the lines that the store and the other nodes hold. In the register it is a
reader: others notify it of deletions and of runs that end, and no node waits for it or misses it.
It uses only the lock of its data folder, the scratch space of searches, and their copies and cache
of table files. `NoJournal` is its journal, which is always empty.

Both extend `NodeBase`, which has the dependencies of a node and its membership in the register.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

from service.erasure import JournalEraser, LocalPlaces
from service.ingest.appender import ActiveRuns, Appender
from service.ingest.batch import AppendReceipt, IncomingBatch, Submitted
from service.journal.file import back_from
from service.journal.journal import Appended, Journal
from service.journal.reader import JournalPin
from service.journal.recovery import Recovered, recover
from service.journal.state import JournalState
from service.peers.membership import Membership
from service.peers.register import active_runs
from service.peers.shedding import open_shedding
from service.run_log.delete import Wanted, always
from service.run_log.read_records import Details
from service.run_log.repair import Records
from service.run_log.run_logs import RunLogs, Surroundings, open_run_logs
from service.runtime.environment import Seams
from service.runtime.free_disk import Purpose
from service.runtime.health import ClockSkew, HealthProblem
from service.runtime.identity import DataFolder, NodeIdentity, TakenOver, register, register_again
from service.settings import Settings, Tuning
from service.shipping.missing import MOST_RUNS, MissingSegments
from service.shipping.shipper import SegmentShipper
from service.shipping.watermarks import (
    LOOK_SECONDS,
    Confirmations,
    Forked,
    Lineage,
    Watermarks,
    forked_in,
)
from service.status.status import open_status
from service.tail import Tail
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import (
    Conflict,
    JournalFailed,
    NodeNotReady,
    OutcomeUnknown,
    TailraceError,
    Unavailable,
)
from tailrace.logstore.position import Position
from tailrace.logstore.retry import retry_until_available
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import EncodedSegment


class NodeBase:
    """A node that is not started. `failed` is done if it cannot go on and the process should end.

    Without a configured name, the folder keeps its name and a new folder gets `default_name`.
    """

    _folder: DataFolder
    identity: NodeIdentity
    run_logs: RunLogs
    tail: Tail

    def __init__(
        self,
        seams: Seams,
        settings: Settings,
        *,
        default_name: str,
        table_mark: Callable[[str], int],
        tuning: Tuning | None = None,
    ) -> None:
        self.seams = seams
        self.store = seams.store
        self.clock_skew = ClockSkew(seams.newest_date)
        self._settings = settings
        self._tuning = tuning or Tuning()
        self._default_name = default_name
        self._data = os.path.abspath(settings.data)
        self.marks = Watermarks(seams.store, seams.clock, seams.entropy, seams.offload, table_mark)
        self.status = open_status(self, seams, settings)
        self.records: Records | None = None
        self.details: Details | None = None
        self.copied: Callable[[], Iterable[str]] = lambda: ()
        """Gives the paths of table files of which this process has copies."""
        self.stored: Callable[[str, EncodedSegment], None] = lambda *_: None
        """Is told of each segment of this node that is in the store, and its key."""
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.members = Membership(seams, settings)
        self.status.unfinished.tell = self.members.tell_unfinished
        self.confirmations = Confirmations()
        self._started = asyncio.Event()
        self._stopping = False
        self._waiting: str | None = None

    @property
    def cut_off_from(self) -> tuple[str, ...]:
        """The nodes with lines that do not answer this one now."""
        return self.members.cut_off_from

    async def _retry(self, step: Callable[[], Awaitable[None]], waiting: str) -> None:
        """Repeats the step until it succeeds; meanwhile the node's problems give the reason."""

        def report(error: Exception | None) -> None:
            self._waiting = None if error is None else HealthProblem.from_error(waiting, error)

        await retry_until_available(step, self.seams.clock, report)


def problems_of(node: Node, waiting: str | None) -> list[str]:
    """The problems of all parts, and the reason why a start is `waiting`."""
    found = [] if waiting is None else [waiting]
    if node.clock_skew.problem is not None:
        found.append(node.clock_skew.problem)
    if node.shipper.last_error is not None:
        wait = "segments wait in the journal"
        found.append(HealthProblem(wait, f"{wait}: {node.shipper.last_error}"))
    identity = node.identity
    found += [
        f"{missing.sentence()}. {missing.advice(identity.node)}"
        for missing in identity.missing
        if missing.lost != 0
    ]
    found += node.shipper.ongoing.problems()
    found += [*node.journal.problems(), *node.recovered.problems(), *node.run_logs.problems()]
    return [*found, *node.marks.problems(), *node.members.problems(), *node.seams.problems()]


log = logging.getLogger(__name__)

_START_SECONDS = 10.0  # the longest wait of a batch for a node that is starting again
_RELEASE_SECONDS = 5.0
_ELSEWHERE = "Send it to another node, or try again later."
_CLOSE_AGAIN = (
    "Close the run again after the time in Retry-After, here or at another node. "
    "A second close does no harm."
)


class Node(NodeBase):
    """A node that accepts lines."""

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
        """Opens the folder and the journal. Raises their errors.

        Returns when reads work. The node accepts batches once it is registered; that continues in
        the background while the store is away.
        """
        seams = self.seams
        await self._make_room("start")
        self._folder = DataFolder(seams.fs, self._data, seams.clock, seams.entropy)
        await self._open()

    async def _make_room(self, purpose: Purpose = "deletion") -> None:
        """Releases the reserve of a full disk. A hanging folder delays its caller only briefly."""
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
        """Registers, accepts batches, then runs the parts until the node stops."""
        await self._retry(self._register, "not registered yet")
        self._started.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.shipper.cut_forever())
            group.create_task(self._eraser.run())
            # Batches are accepted already.
            await self._retry(self._start_text, "waiting for the object store")
            group.create_task(self._keep_registration())
            group.create_task(self.shipper.ship_forever())
            group.create_task(self.run_logs.run())
            group.create_task(self.status.run())
            group.create_task(self._release_forever())
            group.create_task(self.members.stay(self.tail))
            group.create_task(self.shedding.run())

    async def _keep_registration(self) -> None:
        """Repairs the registration once. Then checks whether missing segments were given up."""
        while True:
            with suppress(TailraceError):  # repeated later, or by the next start
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
        if not self.identity.files:  # also if an earlier version has registered it
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
            if not self._stopping:  # otherwise the next start finds it out again
                self._begin(self._fork(forked), "fork")
        elif not self.failed.done() and error is not None:
            self.failed.set_result(error)

    async def _fork(self, why: Forked) -> None:
        """Continues as a new incarnation: this one is taken, or its segments are missing."""
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

        await self._retry(fork, "the node cannot go on as a fork yet")
        await self._retry(partial(self._open, before), "the node cannot go on as a fork yet")

    async def _with_runs(self, missing: MissingSegments) -> MissingSegments:
        runs = await active_runs(self.store, self._settings.runs.prefix, missing.node)
        return replace(missing, runs=tuple(runs[:MOST_RUNS]))

    # --- the HTTP API --------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the node accepts batches now."""
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
        """Accepts a batch as `Appender.submit` does; None while the node accepts no batches."""
        return self.appender.submit(batch) if self._takes_batches else None

    async def append(self, batch: IncomingBatch) -> AppendReceipt:
        """Stores a batch as `Appender.append` does, after a start. Raises `NodeNotReady`."""
        if not self._takes_batches:
            await self._until_ready()
            if self.clock_skew.problem is not None:
                raise NodeNotReady(self.clock_skew.problem, hint=_ELSEWHERE)
        return await self.appender.append(batch)

    async def find_repeat(self, batch: IncomingBatch, since_ms: int) -> AppendReceipt | None:
        """Finds an equal batch as `Appender.find_repeat` does, after a start."""
        await self._until_ready()
        return await self.appender.find_repeat(batch, since_ms)

    async def open_run(self, key: RunKey, connector: str) -> int:
        """Begins a run as `Appender.open_run` does, after a start. Raises `NodeNotReady`."""
        await self._until_ready()
        return await self.appender.open_run(key, connector)

    async def close_run(self, key: RunKey) -> str:
        """Finalises a run: `closed`, or `closing` if that takes longer. Raises `NodeNotReady`."""
        try:
            await self._until_ready()
            return await self.run_logs.close_run(key)
        except NodeNotReady as error:
            message = f"the run is not closed, and its close is not recorded: {error}"
            raise NodeNotReady(message, hint=_CLOSE_AGAIN) from error

    async def delete_run(self, key: RunKey, wanted: Wanted = always) -> None:
        """Deletes a run for good, if it is still `wanted`. Raises `Unavailable`, `Conflict`."""
        await self.all_synced()  # accepted lines are visible then, and are deleted
        await self.run_logs.delete_run(key, wanted)
        await self.status.remove(*key)
        self.tail.ended(key)

    async def delete_pipeline(self, fqn: str, wanted: Wanted = always) -> list[str]:
        """Deletes all runs of a pipeline. Returns their ids. Raises as `delete_run`."""
        await self.all_synced()
        runs = await self.run_logs.delete_pipeline(fqn, wanted)
        await self.status.remove(fqn, None)
        for run in runs:
            self.tail.ended(RunKey(fqn, run))
        return runs

    def untold(self, fqn: str, run: str | None) -> Sequence[str]:
        """The nodes that do not know the newest deletion yet."""
        return self.run_logs.deleter.news.silent(fqn, run)

    async def all_synced(self) -> None:
        """Waits until requests are accepted and accepted lines are synced. Raises `Unavailable`."""
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
        """The times and levels that are carried into the next lines of runs."""
        return self.shipper.carry

    def pin(self) -> JournalPin:
        """Pins the unflushed part as it is now."""
        return self.journal.pin()

    @property
    def places(self) -> LocalPlaces:
        """The places on this node's disk that may have deleted lines."""
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
            # Run logs can be rebuilt from segments, with more work; space for batches cannot.
            flushed = max(flushed, back_from(confirmed, most // 16, self.journal.files))
        self.journal.release(min(confirmed, flushed))

    async def stop(self) -> None:
        """Refuses batches, brings lines into the store if it can, and ends the parts."""
        self._stopping = True
        self.tail.stop()
        try:
            async with asyncio.timeout(self._settings.server.stop_seconds):
                if self._started.is_set() and self.journal.failure is None:
                    await self.shipper.confirmed_through(self.journal.next_pos)
                    await self.run_logs.drain()
                    self._release()
        except (TimeoutError, JournalFailed, Unavailable, OutcomeUnknown):
            pass  # the journal has all lines
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


def _taken_over(identity: NodeIdentity, journal: Journal) -> TakenOver:
    """Journal files with lines that a fork took over under the name of its parent."""
    if not identity.parents:
        return ()
    files = journal.files[:-1]  # the newest one was begun under the new name
    return tuple([(f.ulid, f.first_pos, f.end_pos) for f in files if f.end_pos > identity.base])


ONLY_READS: Final = "this node accepts no lines (server.role is query)"
ELSEWHERE: Final = "Send it to a node of another role."


class Nothing(NamedTuple):
    """A state without pending closes and deletions."""

    closes: Mapping[RunKey, int]
    tombstones: Mapping[tuple[str, str | None], int]


class NoJournal:
    """An empty journal for run logs. `node` is the name under which it is asked for lines."""

    def __init__(self, node: str) -> None:
        self._node = node

    @property
    def state(self) -> Nothing:
        """The pending requests: none."""
        return Nothing({}, {})

    def pin(self) -> JournalPin:
        """An empty pin."""
        return JournalPin(self._node, (), first_pos=0, confirmed_pos=0, confirmed_seq=0, end_pos=0)

    async def record_close(self, key: RunKey) -> int:
        """Raises `NodeNotReady`."""
        raise NodeNotReady(f"{ONLY_READS}: it cannot close {key.run!r}", hint=ELSEWHERE)

    def finish_close(self, key: RunKey, pos: int) -> None:
        """Does nothing."""

    async def record_tombstone(self, fqn: str, run: str | None, t: int) -> None:
        """Does nothing: the next start reads all deletions from the store."""

    def finish_deletion(self, fqn: str, run: str | None, t: int) -> None:
        """Does nothing."""


_READ_DELETIONS_SECONDS = 30.0


class HasJournal(Conflict):
    """The data folder of a node that only reads holds a journal."""

    hint = (
        "Give it a data folder of its own. To store the lines of this one, start it with --role"
        " all."
    )


class NoShedding:
    """Load shedding of a node that accepts no batches: never active."""

    active = False
    load = 0.0


class QueryNode(NodeBase):
    """A node that only reads and has no journal."""

    shedding = NoShedding()
    _task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Locks the folder and begins to read. Raises `FolderLocked`, `HasJournal`."""
        seams, settings = self.seams, self._settings
        _refuse_journals(self._data)
        self._folder = DataFolder(seams.fs, self._data, seams.clock, seams.entropy)
        self.identity = self._folder.identify(settings.node_id, self._default_name, None)
        self._journal = NoJournal(self.identity.node)
        self.tail = Tail(self.identity.node, settings.sse, lambda: self.members.shared)
        self.run_logs = self._open_run_logs()
        self._task = asyncio.get_running_loop().create_task(self._serve(), name="query node")
        self._task.add_done_callback(self._ended)

    def _open_run_logs(self) -> RunLogs:
        seams, settings, node = self.seams, self._settings, self.identity.node
        seconds = settings.runs.close_wait_seconds
        around = Surroundings(
            self._journal,
            seams.offload,
            confirmed_through=_nothing_waits,
            last_ulid=lambda _: 0,
            watermark=self.marks.watermark,
            ended=self.tail.ended,
            newest_date=seams.newest_date,
            records=lambda: self.records,
            details=lambda: self.details,
            silent=lambda: seams.answers.silent,
            others=partial(self.members.others, node, seconds),
        )
        world = seams.store, seams.clock, seams.entropy
        return open_run_logs(node, (), *world, settings, self._tuning, around)

    async def _serve(self) -> None:
        """Joins, then follows the others until the node stops."""
        deletions = self.run_logs.deletions
        await self.members.try_to_join_as_reader(self.identity.node, deletions)
        await self._retry(self.run_logs.start_reading, "waiting for the object store")
        self._started.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.members.stay(self.tail))
            group.create_task(self._keep_up())

    async def _keep_up(self) -> None:
        """Reads the deletions regularly: no node waits for a reader that it cannot reach."""
        while True:
            await self.seams.clock.sleep(_READ_DELETIONS_SECONDS)
            with suppress(TailraceError):
                await self.run_logs.deletions.load()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            self.failed.set_result(error)

    async def stop(self) -> None:
        """Ends live streams and leaves the register; it has no lines to bring into the store."""
        self._stopping = True
        self.tail.stop()
        await self.members.leave(stored=True)
        self.confirmations.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.run_logs.stop()
        self._folder.release()

    # --- the HTTP API --------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether it answers requests."""
        return self._started.is_set() and not self._stopping

    def problems(self) -> list[str]:
        """Reasons why the node is not ready, and other problems, as sentences."""
        doing = f"the node is {'stopping' if self._stopping else 'starting'}"
        return [*self.lasting_problems(), *([] if self.ready else [doing])]

    def lasting_problems(self) -> list[str]:
        """Problems as sentences, without a start or a stop that is in progress."""
        found = [] if self._waiting is None else [self._waiting]
        return [*found, *self.members.problems(), *self.seams.problems()]

    @property
    def carry(self) -> Carry:
        """An empty `Carry`."""
        return Carry()

    @property
    def places(self) -> LocalPlaces:
        """The places on this machine that may have deleted lines; it has no journal."""
        highest = self.run_logs.deletions.highest
        journal = f"{self._data}/journal"
        return LocalPlaces(self.pin, self.seams.fs, journal, lambda *_: False, highest, self.copied)

    def pin(self) -> JournalPin:
        """An empty pin."""
        return self._journal.pin()

    async def all_synced(self) -> None:
        """Returns when requests are answered. Raises `NodeNotReady`."""
        if self._stopping:
            raise NodeNotReady("the node is stopping", hint="Ask another node.")
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._started.wait()
        except TimeoutError as error:
            raise NodeNotReady(self._waiting or "the node is starting") from error

    def submit(self, batch: IncomingBatch) -> Submitted | None:  # noqa: ARG002
        """Accepts no batch."""
        return None

    async def append(self, batch: IncomingBatch) -> AppendReceipt:  # noqa: ARG002
        """Raises `NodeNotReady`."""
        refuse()

    async def find_repeat(
        self,
        batch: IncomingBatch,  # noqa: ARG002
        since_ms: int,  # noqa: ARG002
    ) -> AppendReceipt | None:
        """Raises `NodeNotReady`."""
        refuse()

    async def open_run(self, key: RunKey, connector: str) -> int:  # noqa: ARG002
        """Raises `NodeNotReady`."""
        refuse()

    async def close_run(self, key: RunKey) -> str:  # noqa: ARG002
        """Raises `NodeNotReady`."""
        refuse()

    async def delete_run(self, key: RunKey, wanted: Wanted = always) -> None:  # noqa: ARG002
        """Raises `NodeNotReady`."""
        refuse()

    async def delete_pipeline(
        self,
        fqn: str,  # noqa: ARG002
        wanted: Wanted = always,  # noqa: ARG002
    ) -> list[str]:
        """Raises `NodeNotReady`."""
        refuse()

    def untold(self, fqn: str, run: str | None) -> Sequence[str]:  # noqa: ARG002
        """No nodes: this one deletes nothing."""
        return ()


def refuse() -> NoReturn:
    """Raises the error of all changes on a node that only reads."""
    raise NodeNotReady(ONLY_READS, hint=ELSEWHERE)


async def _nothing_waits(pos: int) -> None:
    """Returns at once: a node without lines has none to ship."""


def _refuse_journals(data: str) -> None:
    """Raises `HasJournal` if the folder has a journal, whose lines would be invisible and stuck."""
    folders = [data]
    workers = os.path.join(data, "workers")
    with suppress(FileNotFoundError):
        folders += [os.path.join(workers, name) for name in os.listdir(workers)]
    for folder in folders:
        if os.path.isdir(os.path.join(folder, "journal")):
            raise HasJournal(f"{folder} holds the journal of a node that takes batches")
