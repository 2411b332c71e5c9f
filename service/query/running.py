"""One search under way: its steps in a thread, its time limit, its pauses, its end.

While a batch is encoded and sent, the next one is looked for. If the search is to pause meanwhile,
what was not found yet is given up, and looked for again once it goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

import pyarrow as pa

from logstore import ulid
from logstore.errors import LimitReached, TailraceError
from logstore.search.conditions import patterns
from service.query.request import QueryRequest
from service.query.search import Search
from service.query.table_search import TableSearch
from service.query.view import STORE, View

if TYPE_CHECKING:
    from service.query.database import Database
    from service.query.engine import QueryEngine
    from service.query.process import Check

_NUDGE_SECONDS: Final = 0.05
# A client that takes nothing for so long makes room for others.
_UNREAD_SECONDS: Final = 0.1
_SHOWN: Final = 20

T = TypeVar("T")


class _StandsAside(TailraceError):
    """The search pauses before it has found the next batch."""


class _Step(NamedTuple):
    """What a step found: a batch, or None if there is no other; whether it is the last one."""

    batch: pa.RecordBatch | None
    last: bool


class RunningSearch:
    """A search under way. Not for several tasks at once.

    Once it has `ended` there is nothing but what `batches` gave.
    """

    def __init__(
        self,
        engine: QueryEngine,
        request: QueryRequest,
        view: View,
        database: Callable[[Check], Database],
        *,
        details: bool = False,
    ) -> None:
        """`details`: it has no slot of searches, but a place among readers of records."""
        self._details = details
        self.request = request
        self.report = view.report
        self.ended = False
        self._engine = engine
        self._view = view
        self._make_database = database
        self._database: Database | None = None
        prefilter = engine.prefilter(request, self._check)
        table = TableSearch(request, view, engine.indexes, engine.nearer, prefilter)
        self._search = Search(request, view, table, self._working, engine.tile_sizes, engine.checks)
        self._records: Generator[pa.RecordBatch] | None = None
        self._work: asyncio.Future[Any] | None = None
        self._following: asyncio.Future[_Step] | None = None  # the step after the batch just given
        self._left_seconds = engine.settings.time_limit_seconds
        self._closing: asyncio.Task[None] | None = None
        self._stopped: TailraceError | None = None
        self._entered = True
        self._moving: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Checks what only a database can check. Raises `InvalidInput`."""
        if patterns(self.request.condition):
            await self._step(self._search.check)

    @property
    def moving(self) -> bool:
        """Whether it is paused, and has not given back everything yet."""
        return self._moving is not None and not self._moving.done()

    async def batches(self) -> AsyncGenerator[pa.RecordBatch]:
        """The matches in order. Raises `LimitReached`, `Damaged`, `StoreUnavailable`."""
        while (batch := await self._next()) is not None:
            waiting = asyncio.ensure_future(self._wait_for_client())
            try:
                yield batch
            finally:
                waiting.cancel()
                self._engine.read(self)
        # There is nothing more to find: what is left is the client's, who may take his time.
        await asyncio.shield(self.pause())

    async def _next(self) -> pa.RecordBatch | None:
        if self.ended:
            return None
        if self._stopped is not None:
            raise self._stopped
        following, self._following = self._following, None
        try:
            found = await (following or self._found())
        except _StandsAside:
            found = await self._found()
        self.ended = found.last
        if not self.ended and self._moving is None:
            # In its thread at once: whoever takes this batch may not wait before it is encoded.
            work = self._begin(self._taken)
            self._following = asyncio.ensure_future(self._ended(work))
        return found.batch

    async def _found(self) -> _Step:
        if self._moving is not None:
            await self._return()
        return await self._step(self._taken)

    def _taken(self) -> _Step:
        """The next batch; if it is known to be the last one, the search comes to its end as well.

        So neither the end nor what the client gets with it takes a turn through the thread.
        """
        if self._records is None:
            self._records = self._search.batches()
        batch = next(self._records, None)
        last = batch is None or self._search.finished
        if last:
            # A pause may meet the search here. It keeps what was found: nobody finds it again.
            with suppress(_StandsAside):
                following = next(self._records, None)
                assert following is None, "something follows the last batch"
            self._records = None
        return _Step(batch, last)

    def pause(self) -> asyncio.Future[None]:
        """Gives back slot and database, between two batches; the next one is waited for.

        May be repeated: at its end a search may be pausing already.
        """
        if self._moving is None:
            self._moving = asyncio.ensure_future(self._pause())
        return self._moving

    async def _pause(self) -> None:
        try:
            if self._following is not None and self._work is not None:
                await self._interrupt(self._work, _StandsAside("the search pauses"))
            await self._give_back()
        finally:
            self._leave()

    async def _return(self) -> None:
        """A slot and a database again, where it was."""
        if self._moving is not None:
            await asyncio.shield(self._moving)
        if self._stopped is not None:
            raise self._stopped
        await self._engine.enter(details=self._details)
        self._entered, self._moving = True, None

    def _leave(self) -> None:
        if self._entered:
            self._entered = False
            self._engine.leave(details=self._details)

    async def count(self) -> int:
        """How many records match, whatever the limit. Raises as `batches`."""
        return await self.totals(Search.count)

    async def totals(self, work: Callable[[Search], T]) -> T:
        """What `work` makes of all matches, in the search's thread. Raises as `batches`."""
        found = await self._step(lambda: work(self._search))
        await asyncio.shield(self.pause())
        return found

    def stats(self) -> dict[str, Any]:
        """What was searched and found so far; authoritative once all was taken."""
        report, search = self.report, self._search
        return {
            "complete": report.complete,
            **({"store": "silent"} if STORE in report.missing else {}),
            "matches": search.matches,
            "next": search.next,
            **report.counts(),
            "bytes": search.bytes,
            "set_aside": report.quarantined[:_SHOWN],
            "missing": report.missing[:_SHOWN],
            "unreadable": list(report.unreadable)[:_SHOWN],
            "by": self.request.time,
            "from": ulid.encode(self.request.low),
            "to": ulid.encode(self.request.high),
        }

    async def close(self) -> None:
        """Stops it if need be, and gives back all that it holds. May be repeated."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _working(self) -> Database:
        """The database that it works in. Called in its thread."""
        self._check()
        if self._database is None:
            self._database = self._make_database(self._check)
        return self._database

    def _check(self) -> None:
        if self._stopped is not None:
            raise self._stopped
        if self._moving is not None:
            raise _StandsAside("the search pauses")

    async def _give_back(self) -> None:
        """Ends what it does, and lets the database go, if it has one."""
        if self._records is not None or self._database is not None:
            await self._engine.in_thread(self._clear, details=self._details)

    def _clear(self) -> None:
        records, self._records = self._records, None
        if records is not None:
            records.close()
        database, self._database = self._database, None
        if database is not None:
            database.close()

    async def _step(self, call: Callable[[], T]) -> T:
        """One piece of work in a thread, within what is left of the time."""
        return await self._ended(self._begin(call))

    def _begin(self, call: Callable[[], T]) -> asyncio.Future[T]:
        if self._stopped is not None:
            raise self._stopped
        self._work = work = self._engine.in_thread(call, details=self._details)
        return work

    async def _ended(self, work: asyncio.Future[T]) -> T:
        clock = self._engine.clock
        began = clock.monotonic()
        alarm = asyncio.ensure_future(self._time_out(work))
        try:
            return await asyncio.shield(work)
        finally:
            alarm.cancel()
            self._left_seconds -= clock.monotonic() - began

    async def _time_out(self, work: asyncio.Future[Any]) -> None:
        seconds = self._engine.settings.time_limit_seconds
        await self._engine.clock.sleep(self._left_seconds)
        self._stopped = self._stopped or LimitReached(
            f"the search was stopped after {seconds:g} s of work",
            hint="Narrow the time, name an fqn or run, or set a limit.",
        )
        self._engine.stopped += 1
        await self._interrupt(work, self._stopped)

    async def _wait_for_client(self) -> None:
        seconds, clock = self._engine.settings.stall_seconds, self._engine.clock
        end = clock.monotonic() + seconds
        await clock.sleep(min(_UNREAD_SECONDS, seconds))
        if not self._details:
            self._engine.unread(self)
        if (left := end - clock.monotonic()) > 0:
            await clock.sleep(left)
        self.let_go()

    def let_go(self) -> None:
        """Ends a search whose client takes nothing: it holds journal files, and maybe a slot."""
        seconds = self._engine.settings.stall_seconds
        self._stopped = LimitReached(
            f"nothing was taken of the result for up to {seconds:g} s",
            hint="Read on without pauses, or ask for less with `limit` and go on with `after`.",
        )
        self._closing = self._closing or asyncio.ensure_future(self._close())

    async def _interrupt(self, work: asyncio.Future[Any], reason: TailraceError) -> None:
        """Interrupts until the thread has come to rest."""
        while not work.done():
            if self._database is not None:
                self._database.interrupt(reason)
            await asyncio.wait({work}, timeout=_NUDGE_SECONDS)

    async def _close(self) -> None:
        self._stopped = self._stopped or LimitReached("the search is closed")
        if self._moving is not None:
            await asyncio.wait({self._moving})
        if self._work is not None and not self._work.done():
            self._engine.stopped += self._following is None  # else nobody waited for it
            await self._interrupt(self._work, self._stopped)
        for ended in filter(None, (self._work, self._following)):
            await asyncio.wait({ended})
            ended.cancelled() or ended.exception()  # looked at, so that asyncio does not warn
        try:
            await self._give_back()
        finally:
            self._view.release()
            self._leave()
            self._engine.read(self)
