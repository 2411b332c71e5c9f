"""Runs the live end of all searches that somebody follows on this node, and their readers.

While anybody follows a search, the node's journal is pinned at an interval, and the records that
were synced since are decoded once. For each followed search the matches are found once, wait for
the window, and become pieces in a bounded ring; readers pull. So a reader costs only its own
sending, and a slow reader costs no memory: when the ring has moved on, the reader reads storage and
comes back.

Only synced records are examined, so nobody sees records that a power cut may take back. The pin of
two passes holds the records that the searches have seen (see `service.query.live_sources`).

Records of other nodes arrive as these send them (`others`), those of one node in the order of its
positions.

A reader's cursor alone decides which records it still gets: storage up to a moment, then the live
end from that moment on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from service.query.engine import DatabasePool, QueryEngine
from service.query.live_cursor import MatchedRecords, Overflowed, Reorder, StreamCursor, behind_all
from service.query.live_sources import (
    Fed,
    Followed,
    Gap,
    LiveEnd,
    LiveLimits,
    LivePeers,
    LivePin,
    missed,
    reach_of,
    without_copies,
)
from service.query.request import QueryRequest, UlidRange
from service.query.sources import Outdated, SearchSources
from service.query.sql import Scans, Statement
from tailrace.logstore import ulid
from tailrace.logstore.batch import Batches
from tailrace.logstore.errors import (
    InvalidCursor,
    LimitReached,
    StoreUnavailable,
    TailraceError,
    Unavailable,
)
from tailrace.logstore.search.conditions import patterns
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import record_batches
from tailrace.logstore.table.schema import RECORD_SCHEMA

if TYPE_CHECKING:
    from service.query.duckdb import Database


# --- Matches of new records ---------------------------------------------------------------------


_ALL: Final = UlidRange(0, (1 << 128) - 1)


class Matcher:
    """Finds matches for one search at a time, in a database of the pool.

    DuckDB evaluates the expression, as it does for stored records. Without an expression no
    database is needed. All calls block; only `interrupt` may come from another thread.
    """

    def __init__(self, databases: DatabasePool) -> None:
        self._databases = databases
        self._database: Database | None = None
        self._stopped: TailraceError | None = None

    def matches(self, request: QueryRequest, records: Sequence[pa.RecordBatch]) -> pa.Table:
        """Returns the records that match, whatever their time. Raises the errors of a search."""
        table = _named(request, pa.Table.from_batches(records, RECORD_SCHEMA))
        if request.condition is None or table.num_rows == 0:
            return table
        self._stopped = None
        self._database = self._databases.take(
            separate=bool(patterns(request.condition)), check=self._check
        )
        try:
            return _selected(self._database, request, table)
        finally:
            self._database.close()
            self._database = None

    def interrupt(self, reason: TailraceError) -> None:
        """Ends the present work with `reason`; call it until that work has ended."""
        self._stopped = reason
        database = self._database
        if database is not None:
            database.interrupt(reason)

    def _check(self) -> None:
        if self._stopped is not None:
            raise self._stopped


def _named(request: QueryRequest, table: pa.Table) -> pa.Table:
    """Returns the records of the requested runs and levels."""
    if request.fqn is not None:
        table = table.filter(pc.equal(table.column("fqn"), request.fqn))
    if request.run is not None:
        table = table.filter(pc.equal(table.column("run_id"), request.run))
    if request.levels:
        table = table.filter(pc.is_in(table.column("level"), pa.array(request.levels)))
    return table


def _selected(database: Database, request: QueryRequest, table: pa.Table) -> pa.Table:
    statement = Statement(request)
    scans = Scans({"journal": []})
    database.feed("journal", RECORD_SCHEMA, iter(table.to_batches()))
    found = database.run(statement.records(scans, None, None), statement.parameters(_ALL, None))
    return pa.Table.from_batches([batch.cast(RECORD_SCHEMA) for batch in found], RECORD_SCHEMA)


_PIECE_BYTES: Final = 8 << 20
_LOOK_BACK_BYTES: Final = 32 << 20
_SLOWEST_SECONDS: Final = 10.0
_NUDGE_SECONDS: Final = 0.05

T = TypeVar("T")


class LiveMatches:
    """All followed searches of a node.

    `pin` pins its journal; `carry` copies the line context (time and level) after its confirmed
    segments; `wake` wakes the readers. `others` are the other nodes, if they can be reached.
    """

    def __init__(
        self,
        engine: QueryEngine,
        sources: SearchSources,
        *,
        pin: Callable[[], LivePin],
        carry: Callable[[], Carry],
        wake: Callable[[], None],
        limits: LiveLimits | None = None,
        others: LivePeers | None = None,
    ) -> None:
        self.engine = engine
        self.others = others
        self._ends: dict[str, int] = {}
        self.sources = sources
        self.limits = limits or LiveLimits()
        self._pin = pin
        self._carry_now = carry
        self._wake = wake
        self._followed: dict[tuple[QueryRequest, int], Followed] = {}
        self._carry = Carry()
        self._held: LivePin | None = None
        self._looking = False
        self._looked: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._fills: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="live")
        self._matcher = Matcher(engine.databases)

    def follow(self, request: QueryRequest, window_ms: int) -> Followed:
        """Begins to follow; must be followed by `leave`. Raises `Unavailable`: too many."""
        followed = self._followed.get((request, window_ms))
        if followed is None or followed.failure is not None:
            if len(self._followed) >= self.limits.most_searches:
                raise Unavailable(
                    f"{len(self._followed)} different searches are followed",
                    hint="Try again later, or follow a search that others follow, too.",
                )
            followed = Followed(request, window_ms, self.limits)
            self._followed[request, window_ms] = followed
        followed.readers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
        return followed

    def leave(self, followed: Followed) -> None:
        """Ends it for one reader."""
        followed.readers -= 1
        key = followed.request, followed.window_ms
        if followed.readers == 0 and self._followed.get(key) is followed:
            del self._followed[key]

    @property
    def silent(self) -> tuple[str, ...]:
        """Returns the nodes that do not answer."""
        return () if self.others is None else tuple(self.others.silent)

    @property
    def without_store(self) -> bool:
        """Returns true if the store is known not to answer."""
        return self.sources.answers.silent

    @property
    def knows_who_left(self) -> bool:
        """Returns true if the nodes that only the store names are known."""
        return self.others is None or self.others.listed

    def is_known(self, node: str) -> bool:
        """Returns true for this node and for nodes in the register."""
        return self.others is not None and self.others.began(node) is not None

    async def moment(self, followed: Followed) -> LiveEnd:
        """Returns the live end between two passes; the caller releases its pin.

        Raises the reason if it has none.
        """
        while True:
            followed.check()
            reorder = followed.reorder
            if followed.ready and reorder is not None and self._held and not self._looking:
                return LiveEnd(self._held.again(), reorder.cursor, followed.mark)
            if self._looked is None:
                self._looked = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._looked)

    async def close(self) -> None:
        """Ends all searches and gives back all resources."""
        tasks = [*self._fills, *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        """Makes passes as long as anybody follows a search."""
        self._ends.clear()
        if self.others is not None:
            self.others.start()
        try:
            while self._followed:
                self._looking = True
                try:
                    await self._look()
                except TailraceError as error:
                    self._fail(error)
                finally:
                    self._looking = False
                self._has_looked()
                await self.engine.clock.sleep(self.limits.look_seconds)
        except BaseException:
            self._fail(Unavailable("the live end of searches has ended", hint="Connect again."))
            self._has_looked()
            raise
        finally:
            self._hold(None)
            if self.others is not None:
                self.others.stop()
            self.engine.databases.watch()

    def _fail(self, error: TailraceError) -> None:
        for followed in self._followed.values():
            followed.failure = error

    def _has_looked(self) -> None:
        looked, self._looked = self._looked, None
        if looked is not None and not looked.done():
            looked.set_result(None)
        self._wake()

    def _hold(self, pin: LivePin | None) -> None:
        held, self._held = self._held, pin
        if held is not None:
            held.release()

    async def _look(self) -> None:
        pin = self._pin()
        try:
            if self._is_lost(pin):
                await self._begin_again(pin)
            else:
                await self._take_in(pin)
            for fed in [] if self.others is None else self.others.take():
                await self._feed(fed, pin)
        except BaseException:
            pin.release()
            raise
        self._hold(pin)
        met = self.others is None or self.others.met
        for followed in list(self._followed.values()):
            if followed.reorder is None and met:
                self._begin(followed, pin)
            elif followed.ready:
                self._release(followed)

    def _is_lost(self, pin: LivePin) -> bool:
        """Returns true if the last position of the passes is no place of this journal any more.

        Also true if it is so old that it would keep the journal from releasing files.
        """
        held = self._held
        if held is None or held.node != pin.node or held.end_pos < pin.first_pos:
            return True
        rows = pin.batches(start=held.end_pos).rows
        return int(rows["size"].sum(dtype=np.int64)) > self.limits.behind_bytes

    async def _begin_again(self, pin: LivePin) -> None:
        """Continues from the end of the pin; all searches read storage up to there."""
        self._carry = self._carry_now()
        for followed in self._followed.values():
            followed.reorder = None
        batches = pin.batches(start=pin.confirmed_pos)
        below = _before_last(batches, _LOOK_BACK_BYTES)
        recent = pin.batches(start=below) if below is not None else batches
        await self._in_thread(lambda: _records(recent, self._carry))

    async def _take_in(self, pin: LivePin) -> None:
        assert self._held is not None
        start = self._held.end_pos
        if start == pin.end_pos:
            return
        whole = pin.batches(start=start)
        for first, end in _ranges(whole, start, pin.end_pos):
            batches = pin.batches(start=first, end=end)
            records = await self._in_thread(partial(_records, batches, self._carry))
            for followed in list(self._followed.values()):
                if followed.reorder is not None and followed.failure is None:
                    await self._find(followed, followed.reorder, pin, pin.node, records, end)

    async def _feed(self, fed: Fed, pin: LivePin) -> None:
        """Processes records that another node has sent."""
        self._ends[fed.node] = fed.end
        for followed in list(self._followed.values()):
            if fed.records is None:
                followed.reorder = None
            elif followed.reorder is not None and followed.failure is None:
                records = fed.records.to_batches()
                await self._find(followed, followed.reorder, pin, fed.node, records, fed.end)

    async def _find(
        self,
        followed: Followed,
        reorder: Reorder,
        pin: LivePin,
        node: str,
        records: list[pa.RecordBatch],
        end: int,
    ) -> None:
        request = followed.request
        work = asyncio.ensure_future(
            self._in_thread(lambda: self._matcher.matches(request, records))
        )
        try:
            found = await self._in_time(work)
            found = await self._without_copies(request, reorder.cursor, pin, node, found)
        except StoreUnavailable:
            # It is unknown which of them are copies: readers read storage once it answers.
            followed.reorder = None
            return
        except TailraceError as error:
            followed.failure = error
            return
        followed.keep(reorder.add(node, found, end))

    async def _without_copies(
        self, request: QueryRequest, cursor: StreamCursor, pin: LivePin, node: str, found: pa.Table
    ) -> pa.Table:
        """Returns the matches without late records that came from another node before."""
        is_late = pc.less_equal(found.column("ulid"), cursor.last.ulid)
        late = found.filter(is_late)
        if self.others is None or len(cursor.seen) == 1 or late.num_rows == 0:
            return found
        edges = pc.min_max(late.column("ulid")).as_py()
        low, high = ulid.decode(edges["min"]), ulid.decode(edges["max"])
        asked = replace(request, low=low, high=high)
        reach = await reach_of(self.others, self.sources, asked, pin, cursor.seen, strict=False)
        late = await without_copies(self.engine, self.sources, request, reach, cursor, node, late)
        return pa.concat_tables([found.filter(pc.invert(is_late)), late])

    async def _in_time(self, work: asyncio.Future[pa.Table]) -> pa.Table:
        """Awaits the work within the time that one search may take from all others."""
        done, _ = await asyncio.wait({work}, timeout=_SLOWEST_SECONDS)
        reason = LimitReached(
            f"the search takes more than {_SLOWEST_SECONDS:g} s for what just arrived",
            hint="Write a simpler regular expression, or name an fqn or a run.",
        )
        while not done:
            self._matcher.interrupt(reason)
            done, _ = await asyncio.wait({work}, timeout=_NUDGE_SECONDS)
        return work.result()

    def _begin(self, followed: Followed, pin: LivePin) -> None:
        last = behind_all(self._until(followed))
        followed.begin(StreamCursor({**self._ends, pin.node: pin.end_pos}, last))
        task = asyncio.ensure_future(self._fill(followed, followed.reorder, pin.again()))
        self._fills.add(task)
        task.add_done_callback(self._fills.discard)

    async def _fill(self, followed: Followed, reorder: Reorder | None, pin: LivePin) -> None:
        """Lets the earlier records wait that are not due yet."""
        assert reorder is not None
        request = replace(
            followed.request,
            low=ulid.decode(reorder.cursor.last.ulid) + 1,
            descending=False,
        )
        try:
            seen = reorder.cursor.seen
            reach = await reach_of(self.others, self.sources, request, pin, seen, or_held=True)
            # Records that are not due yet are of the last seconds: journals have them all.
            opening = reach.everything(or_held=True)
            async with await self.engine.open(request, opening) as search:
                async for batch in search.batches():
                    reorder.wait(pa.Table.from_batches([batch.cast(RECORD_SCHEMA)], RECORD_SCHEMA))
        except Outdated:
            if followed.reorder is reorder:
                followed.reorder = None
        except TailraceError as error:
            followed.failure = error
        else:
            followed.ready = followed.reorder is reorder or followed.ready
        finally:
            pin.release()

    def _release(self, followed: Followed) -> None:
        assert followed.reorder is not None
        try:
            followed.keep(followed.reorder.release(self._until(followed)))
        except Overflowed:
            followed.reorder = None
            followed.ready = False

    def _until(self, followed: Followed) -> int:
        """Returns the highest ULID that is due."""
        return ulid.lowest_at(max(self.engine.clock.now_ms() - followed.window_ms, 1)) - 1

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _records(batches: Batches, carry: Carry) -> list[pa.RecordBatch]:
    """Returns all records of the batches; moves `carry` past them."""
    found = record_batches(batches, carry, save=True)
    return [batch.select(RECORD_SCHEMA.names).cast(RECORD_SCHEMA) for batch in found]


def _ranges(batches: Batches, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the positions in ranges of about as many bytes of text as may be held."""
    rows = batches.rows
    numbers = np.cumsum(rows["size"].astype(np.int64)) // _PIECE_BYTES
    cuts = rows["pos"][1:][numbers[1:] != numbers[:-1]].tolist()
    edges = [start, *cuts, end]
    yield from pairwise(edges)


def _before_last(batches: Batches, size: int) -> int | None:
    """Returns the position after which the last `size` bytes of text are; None: text is shorter."""
    rows = batches.rows
    behind = np.cumsum(rows["size"][::-1].astype(np.int64))[::-1]
    enough = np.flatnonzero(behind > size)
    return int(rows["pos"][enough[-1]]) if len(enough) else None


# --- One reader ---------------------------------------------------------------------------------


_HOUR_MS: Final = 3_600_000
_PIN_SECONDS: Final = 60.0
_SILENT_SECONDS: Final = 1.0

Wait = Callable[[], Awaitable[Literal["news", "heartbeat", "gone"]]]
"""Returns when new records may exist, when a heartbeat is due, or at the end."""


@dataclass(frozen=True, slots=True)
class SearchStart:
    """The place where a reader begins: after a cursor, at a ULID, or `tail` matches before now.

    With none of them it begins now.
    """

    after: StreamCursor | None = None
    low: int | None = None
    tail: int | None = None


@dataclass(frozen=True, slots=True)
class Silent:
    """These nodes do not answer; their newest records come once they do. Without nodes, all answer.

    `store`: the object store does not answer either; records that need it come once it does.
    """

    nodes: tuple[str, ...]
    cursor: StreamCursor
    store: bool = False


class LiveReader:
    """A reader; `open` it, `follow` it, `close` it.

    If it cannot keep up, it waits in its own sending. When the live end has moved on without it, it
    reads storage again.
    """

    def __init__(
        self, live: LiveMatches, request: QueryRequest, window_ms: int, start: SearchStart
    ) -> None:
        self._live = live
        self._start = start
        self._followed: Followed = live.follow(request, window_ms)
        self.cursor = start.after
        self._level = False
        self._mark: int | None = None
        self._gone = False
        self._silent: tuple[tuple[str, ...], bool] = (), False
        self._behind = False
        self._unlisted = False

    def close(self) -> None:
        """Ends it. Call it once."""
        self._live.leave(self._followed)

    async def open(self) -> StreamCursor:
        """Returns the place where it begins. Raises `InvalidCursor` and the errors of a search."""
        self._refuse_future()
        while True:
            moment = await self._live.moment(self._followed)
            try:
                if self.cursor is None:
                    self.cursor = await self._first(moment)
                if self.cursor == moment.cursor:
                    self._mark = moment.mark  # nothing is missed: storage need not be read
            except Outdated:
                await self._live.engine.clock.sleep(self._live.limits.look_seconds)
            else:
                return self.cursor
            finally:
                moment.pin.release()

    async def follow(self, wait: Wait) -> AsyncGenerator[MatchedRecords | Gap | Silent | None]:
        """Yields matches until the client is gone; None when a heartbeat is due.

        Raises the errors of a search.
        """
        while not self._gone:
            if (silent := self._who_is_silent()) is not None:
                yield silent
            try:
                if self._mark is None:
                    async with aclosing(self._storage()) as stored:
                        async for piece in stored:
                            yield piece
            except StoreUnavailable:
                yield self._who_is_silent(without_store=True)  # or a heartbeat
                await self._live.engine.clock.sleep(_SILENT_SECONDS)
                continue
            if self._mark is None:
                clock, limits = self._live.engine.clock, self._live.limits
                if self._behind:  # a node is silent, and the live end knows more of its records
                    yield None
                await clock.sleep(_SILENT_SECONDS if self._behind else limits.look_seconds)
                continue
            async with aclosing(self._live_end(wait)) as live:
                async for event in live:
                    yield event

    async def _storage(self) -> AsyncGenerator[MatchedRecords | Gap]:
        """Yields the missed records up to a moment; sets the mark if those are all."""
        moment = await self._live.moment(self._followed)
        # A reader that stands still must not keep the journal's files.
        loop = asyncio.get_running_loop()
        timer = loop.call_later(_PIN_SECONDS, moment.pin.release)
        try:
            async with aclosing(self._missed(moment)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            timer.cancel()
            moment.pin.release()
        known = self._cursor.given or self._cursor.seen != moment.cursor.seen
        self._behind = self._level and bool(known)
        if self._level and not known and self._cursor.last <= moment.cursor.last:
            self.cursor, self._mark = moment.cursor, moment.mark
        # Otherwise it was outdated, or its window was shorter before and it waits for the live end.

    def _who_is_silent(self, *, without_store: bool = False) -> Silent | None:
        """Returns the silent nodes if they differ from those of the last report."""
        store = without_store or self._live.without_store
        silent = self._live.silent, store
        if silent == self._silent:
            return None
        self._silent = silent
        return Silent(silent[0], self._cursor, store)

    async def _live_end(self, wait: Wait) -> AsyncGenerator[MatchedRecords | Silent | None]:
        """Yields pieces as they come; ends when the client is gone, or too far behind."""
        while self._mark is not None:
            taken = self._followed.take(self._mark)
            self._mark = None if taken.behind else taken.next_piece
            for piece in taken.pieces:
                yield piece
                self.cursor = piece.after
            if taken.pieces or taken.behind:
                continue
            self._pass_silence()
            self._followed.check()
            if (silent := self._who_is_silent()) is not None:
                yield silent
            woken = await wait()
            if woken == "heartbeat":
                yield None
            elif woken == "gone":
                self._gone, self._mark = True, None

    async def _missed(self, moment: LiveEnd) -> AsyncGenerator[MatchedRecords | Gap]:
        live, request = self._live, self._followed.request
        self._add_who_left(moment)
        before, self._level = self._cursor, False
        try:
            async with aclosing(
                missed(live.engine, live.sources, request, moment, before, live.others)
            ) as pieces:
                async for piece in pieces:
                    if isinstance(piece, StreamCursor):
                        self.cursor = piece
                        continue
                    yield piece
                    self.cursor = piece.after if isinstance(piece, MatchedRecords) else piece.cursor
            self._level = True
        except Outdated:
            pass  # a later moment will do
        except LimitReached:
            if self._cursor == before:
                raise  # another moment would fail in the same way

    def _add_who_left(self, moment: LiveEnd) -> None:
        """Adds to the cursor the nodes that had left when it was made without the store.

        All their records existed before, so none of them is late. Raises `StoreUnavailable` if
        records must be read and the store has not named these nodes yet.
        """
        live, cursor = self._live, self._cursor
        if cursor == moment.cursor:
            return
        if not live.knows_who_left:
            raise live.sources.answers.error("the nodes that have left")
        if self._unlisted:
            self._unlisted = False
            left = {
                node: pos for node, pos in moment.cursor.seen.items() if not live.is_known(node)
            }
            self.cursor = replace(cursor, seen={**left, **cursor.seen})

    def _pass_silence(self) -> None:
        """Moves the cursor past records that do not match, after all matches were yielded."""
        reorder = self._followed.reorder
        if reorder is not None:
            self.cursor = reorder.cursor

    async def _first(self, moment: LiveEnd) -> StreamCursor:
        low, now = self._start.low, moment.cursor
        self._unlisted = not self._live.knows_who_left
        if self._start.tail is not None:
            low = await self._tail(moment, self._start.tail)
        return now if low is None else replace(now, last=behind_all(max(low, 1) - 1))

    async def _tail(self, moment: LiveEnd, count: int) -> int | None:
        """Returns the ULID of the match that is followed by `count` matches."""
        high = ulid.decode(moment.cursor.last.ulid)
        low = self._start.low or 0
        request = replace(self._followed.request, low=low, high=high, limit=count, descending=True)
        found: str | None = None
        live = self._live
        reach = await reach_of(live.others, live.sources, request, moment.pin, moment.cursor.seen)
        async with await live.engine.open(request, reach.everything()) as search:
            async for batch in search.batches():
                found = batch.column("ulid")[-1].as_py()
        return None if found is None else ulid.decode(found)

    def _refuse_future(self) -> None:
        if self.cursor is None:
            return
        ahead = ulid.time_ms(ulid.decode(self.cursor.last.ulid)) - self._live.engine.clock.now_ms()
        if ahead > _HOUR_MS:
            raise InvalidCursor("the cursor is of a time to come", field="after")

    @property
    def _cursor(self) -> StreamCursor:
        assert self.cursor is not None, "open() comes first"
        return self.cursor
