"""The live end of all searches that somebody follows on this node.

At an interval, while anybody follows, the node's journal is pinned and what was synced since is
made into records once. For each search that is followed the matches are found once, wait for
the window, and become pieces in a bounded ring; readers pull. So a reader costs no work beside
its own sending, and a slow one no memory: when the ring has moved on it reads storage, and
comes back.

Only what is synced is looked at, so nobody sees what a power cut may take back. What is pinned
between two looks is what the searches have seen, see `storage`.

Records of other nodes come in as these send them (`others`), those of a node in the order of its
positions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore import ulid
from logstore.batch import Batches
from logstore.errors import LimitReached, StoreUnavailable, TailraceError, Unavailable
from logstore.segments.carry import Carry
from logstore.segments.columns import record_batches
from service.query.engine import QueryEngine
from service.query.hot import SCHEMA
from service.query.live.cursor import StreamCursor, behind_all
from service.query.live.elsewhere import Fed, OtherNodes
from service.query.live.followed import Followed, LiveLimits
from service.query.live.matching import Matcher
from service.query.live.pins import LivePin
from service.query.live.reach import reach_of, without_copies
from service.query.live.reorder import Overflowed, Reorder
from service.query.live.storage import Moment
from service.query.request import QueryRequest
from service.query.view import Outdated, Sources

_PIECE_BYTES: Final = 8 << 20
_LOOK_BACK_BYTES: Final = 32 << 20
_SLOWEST_SECONDS: Final = 10.0
_NUDGE_SECONDS: Final = 0.05

T = TypeVar("T")


class LiveMatches:
    """All followed searches of a node.

    `pin` pins its journal, `carry` copies what lines beyond its confirmed segments begin with,
    `wake` wakes the readers. `others` are the other nodes, if there is a way to them.
    """

    def __init__(
        self,
        engine: QueryEngine,
        sources: Sources,
        *,
        pin: Callable[[], LivePin],
        carry: Callable[[], Carry],
        wake: Callable[[], None],
        limits: LiveLimits | None = None,
        others: OtherNodes | None = None,
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
        """The nodes that do not answer."""
        return () if self.others is None else tuple(self.others.silent)

    @property
    def without_store(self) -> bool:
        """Whether the store is known not to answer."""
        return self.sources.answers.silent

    @property
    def knows_who_left(self) -> bool:
        """Whether the nodes are known that are in the store alone."""
        return self.others is None or self.others.listed

    def is_known(self, node: str) -> bool:
        """Whether a node is in the register, or this one."""
        return self.others is not None and self.others.began(node) is not None

    async def moment(self, followed: Followed) -> Moment:
        """The live end, between two looks; its pin is to be released. Raises why there is none."""
        while True:
            followed.check()
            reorder = followed.reorder
            if followed.ready and reorder is not None and self._held and not self._looking:
                return Moment(self._held.again(), reorder.cursor, followed.mark)
            if self._looked is None:
                self._looked = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._looked)

    async def close(self) -> None:
        """Ends all of it, and gives back what it holds."""
        tasks = [*self._fills, *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        """Looks, as long as anybody follows."""
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
        """Whether the place up to which was looked is no place of this journal any more.

        Or so far behind that it would keep the journal from letting files go.
        """
        held = self._held
        if held is None or held.node != pin.node or held.end_pos < pin.first_pos:
            return True
        rows = pin.batches(start=held.end_pos).rows
        return int(rows["size"].sum(dtype=np.int64)) > self.limits.behind_bytes

    async def _begin_again(self, pin: LivePin) -> None:
        """Looks from the end of the pin on; all searches read storage up to there."""
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
        """Takes in what another node has sent."""
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
            # Nobody can say which of them are copies: readers read storage once it answers.
            followed.reorder = None
            return
        except TailraceError as error:
            followed.failure = error
            return
        followed.keep(reorder.add(node, found, end))

    async def _without_copies(
        self, request: QueryRequest, cursor: StreamCursor, pin: LivePin, node: str, found: pa.Table
    ) -> pa.Table:
        """What was found without late records that came from another node before."""
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
        """What the work gives, within what one search may take of all others' time."""
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
        """Lets the records wait that were there before and are not due yet."""
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
            look = reach.everything(or_held=True)
            async with await self.engine.open(request, look) as search:
                async for batch in search.batches():
                    reorder.wait(pa.Table.from_batches([batch.cast(SCHEMA)], SCHEMA))
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
        """The highest ULID that is due."""
        return ulid.lowest_at(max(self.engine.clock.now_ms() - followed.window_ms, 1)) - 1

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _records(batches: Batches, carry: Carry) -> list[pa.RecordBatch]:
    """All records of the batches; `carry` is moved on behind them."""
    found = record_batches(batches, carry, save=True)
    return [batch.select(SCHEMA.names).cast(SCHEMA) for batch in found]


def _ranges(batches: Batches, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The positions in ranges of about as many bytes of text as may be held."""
    rows = batches.rows
    numbers = np.cumsum(rows["size"].astype(np.int64)) // _PIECE_BYTES
    cuts = rows["pos"][1:][numbers[1:] != numbers[:-1]].tolist()
    edges = [start, *cuts, end]
    yield from pairwise(edges)


def _before_last(batches: Batches, size: int) -> int | None:
    """The position behind which the last so many bytes of text are; None: there are no more."""
    rows = batches.rows
    behind = np.cumsum(rows["size"][::-1].astype(np.int64))[::-1]
    enough = np.flatnonzero(behind > size)
    return int(rows["pos"][enough[-1]]) if len(enough) else None
