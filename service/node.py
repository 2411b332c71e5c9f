"""A node: all parts that accept, move and read lines, with one start and one stop.

    append ──► writer: journal ──► tail (after the sync)
                         └──► segments ──► run logs: chunks, partial, logs

A node with a `Writer` accepts lines. Start order: lock the folder, read the identity, recover the
journal, register, then accept batches. Stop order: accept no more batches, sync, cut and ship the
remaining lines, bring them into the runs, release the folder. If a node finds that its folder is a
copy, or that the store lacks its segments (`Forked`), it starts again as a new incarnation with a
new writer; batches wait.

A node without one only reads (`serve --role query`). It has no journal and no lines of its own, and
refuses batches and changes. It shows the lines that the store and the other nodes hold. In the
register it is a reader: others notify it of deletions and of runs that end, and no node waits for
it or misses it. It uses only the lock of its data folder, the scratch space of searches, and their
copies and cache of table files. `EmptyJournal` is the journal of its run logs.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from service.erasure import LocalPlaces
from service.ingest.batch import AppendReceipt, IncomingBatch, Submitted
from service.journal.journal import Appended, Journal
from service.journal.reader import JournalPin
from service.peers.membership import Membership
from service.peers.register import active_runs
from service.peers.shedding import open_shedding
from service.run_log.delete import Wanted, always
from service.run_log.read_records import Details
from service.run_log.repair import Records
from service.run_log.run_logs import RunLogDependencies, RunLogs, open_run_logs
from service.runtime.environment import Environment
from service.runtime.free_disk import Purpose
from service.runtime.health import ClockSkew, HealthProblem
from service.runtime.identity import DataFolder, NodeIdentity, TakenOver, register, register_again
from service.settings import Settings, Tuning
from service.shipping.missing import MOST_RUNS, MissingSegments
from service.shipping.watermarks import LOOK_SECONDS, Confirmations, Forked, Watermarks, forked_in
from service.status.status import open_status
from service.tail import Tail
from service.writer import Writer, recovered_journal, state_of
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import (
    Conflict,
    JournalFailed,
    NodeNotReady,
    OutcomeUnknown,
    TailraceError,
    Unavailable,
    with_hint,
)
from tailrace.logstore.position import Position
from tailrace.logstore.retry import retry_until_available
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import EncodedSegment

log = logging.getLogger(__name__)

ONLY_READS: Final = "this node accepts no lines (server.role is query)"
ELSEWHERE: Final = "Send it to a node of another role."

_START_SECONDS = 10.0  # the longest wait of a request for a node that is starting
_RELEASE_SECONDS = 5.0
_READ_DELETIONS_SECONDS = 30.0
_ANOTHER = "Send it to another node, or try again later."
_CLOSE_AGAIN = (
    "Close the run again after the time in Retry-After, here or at another node. "
    "A second close does no harm."
)


class Node:
    """A node that is not started. Its role decides whether it gets a writer.

    Without a configured name, the folder keeps its name and a new folder gets `default_name`.
    `failed` is done if the node cannot go on and the process should end.
    """

    _folder: DataFolder
    identity: NodeIdentity
    run_logs: RunLogs
    tail: Tail

    def __init__(
        self,
        environment: Environment,
        settings: Settings,
        *,
        default_name: str,
        table_mark: Callable[[str], int],
        tuning: Tuning | None = None,
    ) -> None:
        self.environment = environment
        self.store = environment.store
        self.clock_skew = ClockSkew(environment.newest_date)
        self.only_reads = settings.server.role == "query"
        self._settings = settings
        self._tuning = tuning or Tuning()
        self._default_name = default_name
        self._data = os.path.abspath(settings.data)
        self._journal = f"{self._data}/journal"
        self._writer: Writer | None = None
        self.marks = Watermarks(
            environment.store,
            environment.clock,
            environment.entropy,
            environment.offload,
            table_mark,
        )
        self.status = open_status(self, environment, settings)
        self.records: Records | None = None
        self.details: Details | None = None
        self.copied: Callable[[], Iterable[str]] = lambda: ()
        """Gives the paths of table files of which this process has copies."""
        self.stored: Callable[[str, EncodedSegment], None] = lambda *_: None
        """Is told of each segment of this node that is in the store, and its key."""
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.members = Membership(environment, settings)
        self.status.unfinished.report = self.members.report_unfinished
        self.confirmations = Confirmations()
        # A node that only reads never sheds: its load is not measured.
        self.shedding = open_shedding(
            lambda: self.writer.journal.fullness,
            lambda: self.writer.shipper.unshipped.seconds,
            self.members,
            environment,
            settings.nodes,
        )
        self.forks = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._started = asyncio.Event()
        self._stopping = False
        self._waiting: str | None = None

    @property
    def writer(self) -> Writer:
        """The parts that accept lines. Raises `NodeNotReady` if this node only reads."""
        self._refuse_as_reader()
        assert self._writer is not None, "start() opens it"
        return self._writer

    @property
    def cut_off_from(self) -> tuple[str, ...]:
        """The nodes with lines that do not answer this one now."""
        return self.members.cut_off_from

    async def start(self) -> None:
        """Opens the folder and the journal. Raises `HasJournal` and their errors.

        Returns when reads work. The node accepts batches once it is registered; that continues in
        the background while the store is away.
        """
        environment = self.environment
        if self.only_reads:
            _refuse_journals(self._data)
        else:
            await self._make_room("start")
        self._folder = DataFolder(
            environment.fs, self._data, environment.clock, environment.entropy
        )
        if not self.only_reads:
            await self._open()
            return
        self.identity = self._folder.identify(self._settings.node_id, self._default_name, None)
        self._compose(None)
        self._begin(self._read(), "query node")

    async def _make_room(self, purpose: Purpose = "deletion") -> None:
        """Releases the reserve of a full disk. A hanging folder delays its caller only briefly."""
        environment = self.environment
        with suppress(TimeoutError):
            async with asyncio.timeout(environment.answers.seconds):
                await environment.offload(partial(environment.reserve.give_up_if_full, purpose))

    async def _open(self, before: Writer | None = None) -> None:
        """Opens a writer over the recovered journal; `before` is that of the parent of a fork."""
        recovered = await recovered_journal(self.environment, self._journal, before)
        name = self._settings.node_id
        self.identity = self._folder.identify(name, self._default_name, recovered.state)
        writer = self._writer = Writer(
            self.environment,
            self._settings,
            self._journal,
            recovered,
            state_of(recovered, self.identity),
            self._synced,
            marks=self.marks,
            confirmations=self.confirmations,
        )
        self._compose(writer)
        writer.accept_for(self.run_logs)
        writer.shipper.on_stored(lambda key, segment: self.stored(key, segment))
        self._begin(self._write(), "node")

    def _compose(self, writer: Writer | None) -> None:
        """Makes the live readers and the run logs, over the writer's journal if there is one."""
        environment, settings, node = self.environment, self._settings, self.identity.node
        members = self.members
        self.tail = Tail(node, settings.sse, lambda: members.asks if writer else members.shared)
        self.run_logs = open_run_logs(
            node,
            self.identity.parents if writer else (),
            environment.store,
            environment.clock,
            environment.entropy,
            settings,
            self._tuning,
            RunLogDependencies(
                writer.journal if writer else EmptyJournal(node),
                environment.offload,
                confirmed_through=writer.shipper.confirmed_through if writer else _nothing_waits,
                last_ulid=writer.active.last_ulid if writer else lambda _: 0,
                watermark=self.marks.watermark,
                ended=self.tail.ended,
                newest_date=environment.newest_date,
                records=lambda: self.records,
                details=lambda: self.details,
                answers=environment.answers,
                remove_reports=lambda fqn, run: self.status.remove(fqn, run),
                close_report=lambda key: self.status.close(key),
                reported=lambda key: self.status.get(key),
                make_room=self._make_room,
                others=partial(members.others, node, settings.runs.close_wait_seconds),
            ),
        )
        self.run_logs.events.on_inherited(self.tail.missed_all)

    async def _write(self) -> None:
        """Registers, accepts batches, then runs the parts until the node stops."""
        writer = self.writer
        await self._retry(self._register, "not registered yet")
        self._started.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(writer.shipper.cut_forever())
            group.create_task(writer.eraser.run())
            # Batches are accepted already.
            await self._retry(self._start_text, "waiting for the object store")
            group.create_task(self._keep_registration())
            group.create_task(writer.shipper.ship_forever())
            group.create_task(self.run_logs.run())
            group.create_task(self.status.run())
            group.create_task(self._release_forever())
            group.create_task(self.members.stay(self.tail))
            group.create_task(self.shedding.run())

    async def _read(self) -> None:
        """Joins as a reader, then follows the others until the node stops."""
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
            await self.environment.clock.sleep(_READ_DELETIONS_SECONDS)
            with suppress(TailraceError):
                await self.run_logs.deletions.load()

    async def _retry(self, step: Callable[[], Awaitable[None]], waiting: str) -> None:
        """Repeats the step until it succeeds; meanwhile the node's problems give the reason."""

        def report(error: Exception | None) -> None:
            self._waiting = None if error is None else HealthProblem.from_error(waiting, error)

        await retry_until_available(step, self.environment.clock, report)

    async def _keep_registration(self) -> None:
        """Repairs the registration once. Then checks whether missing segments were given up."""
        while True:
            with suppress(TailraceError):  # repeated later, or by the next start
                missing = await register_again(self.store, self.identity, self.environment.clock)
                if missing != self.identity.missing:
                    self.identity = replace(self.identity, missing=missing)
                    self._folder.save(self.identity)
            if not self.identity.missing:
                return
            await self.environment.clock.sleep(LOOK_SECONDS)

    async def _release_forever(self) -> None:
        while True:
            if not self.run_logs.deleter.unfinished:
                await self.environment.offload(self.environment.reserve.restore)
            await self.environment.clock.sleep(_RELEASE_SECONDS)
            self._release()

    def _release(self) -> None:
        self.writer.release(self.run_logs.flushed_pos)

    async def _register(self) -> None:
        if not self.identity.files:  # also if an earlier version has registered it
            files = _taken_over(self.identity, self.writer.journal)
            self.identity = replace(self.identity, files=files)
        if not self.identity.registered:
            identity = await register(self.store, self.identity, self.environment.clock)
            self._folder.save(identity)
            self.identity = identity
        await self.members.try_to_join(self.identity, self.writer.journal, self.run_logs.deletions)

    async def _start_text(self) -> None:
        await self.writer.lineage.look_if_due()
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
        forked = None if self.only_reads else forked_in(error)
        if forked is not None:
            if not self._stopping:  # otherwise the next start finds it out again
                self._begin(self._fork(forked), "fork")
        elif not self.failed.done() and error is not None:
            self.failed.set_result(error)

    async def _fork(self, why: Forked) -> None:
        """Continues as a new incarnation: this one is taken, or its segments are missing."""
        self.forks += 1
        self._started.clear()
        before, node = self.writer, self.identity
        files, confirmed = before.journal.files, before.journal.state.confirmed
        self.tail.stop()
        await self._let_go()
        shared = [file.ulid for file in files if file.ulid in why.files]
        base, seq, missing = confirmed.end, confirmed.seq, why.missing
        if missing is not None:
            kept = max(node.base, min([file.first_pos for file in files], default=base))
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
        """Whether the node accepts batches now; without a writer, whether it answers requests."""
        if self._writer is None:
            return self._started.is_set() and not self._stopping
        return self._takes_batches and self._writer.journal.space.shortage() is None

    @property
    def _takes_batches(self) -> bool:
        return (
            self._started.is_set()
            and not self._stopping
            and self._writer is not None
            and self._writer.journal.failure is None
            and self.clock_skew.problem is None
        )

    def problems(self) -> list[str]:
        """Reasons why the node is not ready, and other problems, as sentences."""
        going_on = self._stopping or not self._started.is_set()
        doing = f"the node is {'stopping' if self._stopping else 'starting'}"
        return [*self.lasting_problems(), *[doing] * going_on]

    def lasting_problems(self) -> list[str]:
        """Problems as sentences, without a start or a stop that is in progress."""
        found = [] if self._waiting is None else [self._waiting]
        if self._writer is not None:
            if self.clock_skew.problem is not None:
                found.append(self.clock_skew.problem)
            found += self._writer.problems(self.identity)
            found += [*self.run_logs.problems(), *self.marks.problems()]
        return [*found, *self.members.problems(), *self.environment.problems()]

    def submit(self, batch: IncomingBatch) -> Submitted | None:
        """Accepts a batch as `Appender.submit` does; None while the node accepts no batches."""
        return self.writer.appender.submit(batch) if self._takes_batches else None

    async def append(self, batch: IncomingBatch) -> AppendReceipt:
        """Stores a batch as `Appender.append` does, after a start. Raises `NodeNotReady`."""
        if not self._takes_batches:
            await self._ready_writer()
            if self.clock_skew.problem is not None:
                raise NodeNotReady(self.clock_skew.problem, hint=_ANOTHER)
        return await self.writer.appender.append(batch)

    async def find_repeat(self, batch: IncomingBatch, since_ms: int) -> AppendReceipt | None:
        """Finds an equal batch as `Appender.find_repeat` does, after a start."""
        writer = await self._ready_writer()
        return await writer.appender.find_repeat(batch, since_ms)

    async def open_run(self, key: RunKey, connector: str) -> int:
        """Begins a run as `Appender.open_run` does, after a start. Raises `NodeNotReady`."""
        writer = await self._ready_writer()
        return await writer.appender.open_run(key, connector)

    async def close_run(self, key: RunKey) -> str:
        """Finalises a run: `closed`, or `closing` if that takes longer. Raises `NodeNotReady`."""
        self._refuse_as_reader()
        try:
            await self._until_ready()
            return await self.run_logs.close_run(key)
        except NodeNotReady as error:
            message = f"the run is not closed, and its close is not recorded: {error}"
            raise NodeNotReady(message, hint=_CLOSE_AGAIN) from error

    async def delete_run(self, key: RunKey, wanted: Wanted = always) -> None:
        """Deletes a run for good, if it is still `wanted`. Raises `Unavailable`, `Conflict`."""
        self._refuse_as_reader()
        await self.all_synced()  # accepted lines are visible then, and are deleted
        await self.run_logs.delete_run(key, wanted)
        self.status.forget(*key)
        self.tail.ended(key)

    async def delete_pipeline(self, fqn: str, wanted: Wanted = always) -> list[str]:
        """Deletes all runs of a pipeline. Returns their ids. Raises as `delete_run`."""
        self._refuse_as_reader()
        await self.all_synced()
        runs = await self.run_logs.delete_pipeline(fqn, wanted)
        self.status.forget(fqn, None)
        for run in runs:
            self.tail.ended(RunKey(fqn, run))
        return runs

    def unacknowledged(self, fqn: str, run: str | None) -> Sequence[str]:
        """The nodes that do not know the newest deletion yet."""
        return self.run_logs.deleter.notices.silent(fqn, run)

    async def all_synced(self) -> None:
        """Waits until requests are answered and accepted lines are synced. Raises `Unavailable`."""
        await self._until_ready()
        if self._writer is not None:
            await self._writer.journal.synced(self._writer.journal.next_pos)

    async def _ready_writer(self) -> Writer:
        """The writer that accepts batches after a start. Raises `NodeNotReady`."""
        self._refuse_as_reader()
        await self._until_ready()
        return self.writer  # a fork may have opened another one meanwhile

    def _refuse_as_reader(self) -> None:
        if self.only_reads:
            raise NodeNotReady(ONLY_READS, hint=ELSEWHERE)

    async def _until_ready(self) -> None:
        if self._takes_batches:
            return
        if self._writer is not None and self._writer.journal.failure is not None:
            raise self._writer.journal.failure
        if self._stopping:
            raise NodeNotReady("the node is stopping", hint=_ANOTHER)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._started.wait()
        except TimeoutError as error:
            why = self._waiting or "the node is starting"
            raise NodeNotReady(why, hint="Try again in a moment.") from error

    @property
    def carry(self) -> Carry:
        """The times and levels that are carried into the next lines of runs."""
        return Carry() if self._writer is None else self._writer.shipper.carry

    def pin(self) -> JournalPin:
        """Pins the unflushed part as it is now; an empty one without a writer."""
        if self._writer is None:
            return EmptyJournal(self.identity.node).pin()
        return self._writer.journal.pin()

    @property
    def places(self) -> LocalPlaces:
        """The places on this node's disk that may have deleted lines."""
        return LocalPlaces(
            self.pin,
            self.environment.fs,
            self._journal,
            self._writer.eraser.is_due if self._writer else lambda *_: False,
            self.run_logs.deletions.highest,
            self.copied,
        )

    def _synced(self, batches: Sequence[Appended]) -> None:
        writer = self.writer
        writer.shipper.added()
        for batch in batches:
            self.run_logs.appended(batch.key, batch.pos + batch.records)
        if not (watched := self.tail.watched):
            return
        file = writer.journal.files[-1].ulid
        for batch in batches:
            if batch.key in watched:
                last = Position(file, batch.pos + batch.records - 1)
                self.tail.publish(batch.key, batch, last)

    async def stop(self) -> None:
        """Refuses batches, brings lines into the store if it can, and ends the parts."""
        self._stopping = True
        self.tail.stop()
        stored = True
        if self._writer is not None:
            await self._drain(self._writer)
            stored = self.run_logs.flushed_pos >= self._writer.journal.next_pos
        await self.members.leave(stored=stored)
        self.confirmations.stop()
        await self._let_go()
        self._folder.release()

    async def _drain(self, writer: Writer) -> None:
        try:
            async with asyncio.timeout(self._settings.server.stop_seconds):
                if self._started.is_set() and writer.journal.failure is None:
                    await writer.shipper.confirmed_through(writer.journal.next_pos)
                    await self.run_logs.drain()
                    self._release()
        except (TimeoutError, JournalFailed, Unavailable, OutcomeUnknown):
            pass  # the journal has all lines
        except TailraceError as error:
            # The journal has all lines, and the other parts stop as well.
            log.warning("not all lines came into the logs of their runs: %s", with_hint(error))

    async def _let_go(self) -> None:
        if self._writer is not None:
            self._writer.stop()
        await self.run_logs.stop()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._writer is not None:
            await self._writer.close()


def _taken_over(identity: NodeIdentity, journal: Journal) -> TakenOver:
    """Journal files with lines that a fork took over under the name of its parent."""
    if not identity.parents:
        return ()
    files = journal.files[:-1]  # the newest one was begun under the new name
    return tuple([(f.ulid, f.first_pos, f.end_pos) for f in files if f.end_pos > identity.base])


class Nothing(NamedTuple):
    """A state without pending closes and deletions."""

    closes: Mapping[RunKey, int]
    tombstones: Mapping[tuple[str, str | None], int]


class EmptyJournal:
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


class HasJournal(Conflict):
    """The data folder of a node that only reads holds a journal."""

    hint = (
        "Give it a data folder of its own. To store the lines of this one, start it with --role"
        " all."
    )


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
