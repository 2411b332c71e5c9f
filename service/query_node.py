"""A node that only reads (`serve --role query`): no journal, no batches, no lines of its own.

It shows what the store and the other nodes hold. In the register it is a reader: others tell it of
deletions and of runs that end, and nobody waits for it or misses it. Of its data folder it uses the
lock, the scratch of searches and their copies and cache of table files.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

from logstore.batch import RunKey
from logstore.errors import Conflict, NodeNotReady, TailraceError
from logstore.segments.carry import Carry
from service.erasure import LocalPlaces
from service.ingest.batch import IncomingBatch, Receipt, Submitted
from service.journal.nothing import ELSEWHERE, ONLY_READS, NoJournal
from service.journal.view import JournalPin
from service.node_base import NodeBase
from service.runs.delete import Wanted, always
from service.runs.run_logs import RunLogs
from service.runs.wiring import Surroundings, open_run_logs
from service.runtime.identity import DataFolder
from service.tail import Tail

_START_SECONDS = 10.0
_READ_DELETIONS_SECONDS = 30.0


class HasJournal(Conflict):
    """The data folder of a node that shall only read holds a journal."""

    hint = (
        "Give it a data folder of its own. The lines of this one are brought into the store by a"
        " start with --role all."
    )


class NoShedding:
    """Who takes nothing has no load to shed."""

    active = False
    load = 0.0


class QueryNode(NodeBase):
    """A node without a journal."""

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
        await self._insist(self.run_logs.start_reading, "waiting for the object store")
        self._started.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.members.stay(self.tail))
            group.create_task(self._keep_up())

    async def _keep_up(self) -> None:
        """Reads the deletions again and again: nobody waits for a reader that he cannot reach."""
        while True:
            await self.seams.clock.sleep(_READ_DELETIONS_SECONDS)
            with suppress(TailraceError):
                await self.run_logs.deletions.load()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self.failed.done():
            self.failed.set_result(error)

    async def stop(self) -> None:
        """Ends live streams and leaves the register: nothing is to be brought away."""
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
        """Whether it answers."""
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
        """Nothing is carried on here."""
        return Carry()

    @property
    def places(self) -> LocalPlaces:
        """Where on this machine deleted lines may be: it has no journal."""
        highest = self.run_logs.deletions.highest
        journal = f"{self._data}/journal"
        return LocalPlaces(self.pin, self.seams.fs, journal, lambda *_: False, highest, self.copied)

    def pin(self) -> JournalPin:
        """The hot part: nothing."""
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
        """Takes nothing."""
        return None

    async def append(self, batch: IncomingBatch) -> Receipt:  # noqa: ARG002
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
        """It deletes nothing."""
        return ()


def refuse() -> NoReturn:
    """Raises the error for whoever wants to change something here."""
    raise NodeNotReady(ONLY_READS, hint=ELSEWHERE)


async def _nothing_waits(pos: int) -> None:
    """All lines of a node without lines are in segments."""


def _refuse_journals(data: str) -> None:
    """Raises `HasJournal`: its lines would be seen by nobody, and brought away by nobody."""
    folders = [data]
    workers = os.path.join(data, "workers")
    with suppress(FileNotFoundError):
        folders += [os.path.join(workers, name) for name in os.listdir(workers)]
    for folder in folders:
        if os.path.isdir(os.path.join(folder, "journal")):
            raise HasJournal(f"{folder} holds the journal of a node that takes batches")
