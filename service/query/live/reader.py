"""One reader of a live search: storage up to a moment, then the live end from there on.

The reader's cursor alone decides what is still to be given. A reader that cannot keep up waits
in its own sending; when the live end has moved on without it, it reads storage again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, Literal

from logstore import ulid
from logstore.errors import InvalidCursor, LimitReached, StoreUnavailable
from service.query.live.cursor import StreamCursor, behind_all
from service.query.live.followed import Followed
from service.query.live.matches import LiveMatches
from service.query.live.reach import reach_of
from service.query.live.reorder import Matches
from service.query.live.storage import Gap, Moment, missed
from service.query.request import QueryRequest
from service.query.view import Outdated

_HOUR_MS: Final = 3_600_000
_PIN_SECONDS: Final = 60.0
_SILENT_SECONDS: Final = 1.0

Wait = Callable[[], Awaitable[Literal["news", "heartbeat", "gone"]]]
"""Returns when there may be something new, when a heartbeat is due, or at the end."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a reader begins: behind a cursor, at a ULID, or `tail` matches before now.

    With none of them it begins now.
    """

    after: StreamCursor | None = None
    low: int | None = None
    tail: int | None = None


@dataclass(frozen=True, slots=True)
class Silent:
    """These nodes do not answer: their newest records come once they do. With none: all do.

    `store`: the object store does not answer either, and what needs it comes once it does.
    """

    nodes: tuple[str, ...]
    cursor: StreamCursor
    store: bool = False


class LiveReader:
    """A reader; `open` it, `follow` it, `close` it."""

    def __init__(
        self, live: LiveMatches, request: QueryRequest, window_ms: int, start: Start
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
        """Ends it. Once."""
        self._live.leave(self._followed)

    async def open(self) -> None:
        """Finds the place where it begins. Raises `InvalidCursor`, and as a search does."""
        self._refuse_future()
        while True:
            moment = await self._live.moment(self._followed)
            try:
                if self.cursor is None:
                    self.cursor = await self._first(moment)
            except Outdated:
                await self._live.engine.clock.sleep(self._live.limits.look_seconds)
            else:
                return
            finally:
                moment.pin.release()

    async def follow(self, wait: Wait) -> AsyncGenerator[Matches | Gap | Silent | None]:
        """What matches, until it is gone; None when a heartbeat is due. Raises as a search does."""
        while not self._gone:
            if (silent := self._who_is_silent()) is not None:
                yield silent
            try:
                async with aclosing(self._storage()) as stored:
                    async for piece in stored:
                        yield piece
            except StoreUnavailable:
                yield self._who_is_silent(without_store=True)  # or a heartbeat
                await self._live.engine.clock.sleep(_SILENT_SECONDS)
                continue
            if self._mark is None:
                clock, limits = self._live.engine.clock, self._live.limits
                if self._behind:  # a node is silent, of which the live end knows more
                    yield None
                await clock.sleep(_SILENT_SECONDS if self._behind else limits.look_seconds)
                continue
            async with aclosing(self._live_end(wait)) as live:
                async for news in live:
                    yield news

    async def _storage(self) -> AsyncGenerator[Matches | Gap]:
        """What was missed up to a moment; sets the mark if that is all."""
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
        # Else it was outdated, or its window was shorter before and it waits for the live end.

    def _who_is_silent(self, *, without_store: bool = False) -> Silent | None:
        """Who is, if others are than was said last."""
        store = without_store or self._live.without_store
        silent = self._live.silent, store
        if silent == self._silent:
            return None
        self._silent = silent
        return Silent(silent[0], self._cursor, store)

    async def _live_end(self, wait: Wait) -> AsyncGenerator[Matches | Silent | None]:
        """Pieces as they come; ends when it is gone, or too far behind."""
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

    async def _missed(self, moment: Moment) -> AsyncGenerator[Matches | Gap]:
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
                    self.cursor = piece.after if isinstance(piece, Matches) else piece.cursor
            self._level = True
        except Outdated:
            pass  # there will be another moment
        except LimitReached:
            if self._cursor == before:
                raise  # it would be the same again

    def _add_who_left(self, moment: Moment) -> None:
        """Names in the cursor the nodes that had left when it was made without the store.

        All that they have was there before, so none of it is late. Raises `StoreUnavailable` if
        something is to be read, and the store has not named these nodes yet.
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
        """Moves the cursor past records that do not match, after all others were given."""
        reorder = self._followed.reorder
        if reorder is not None:
            self.cursor = reorder.cursor

    async def _first(self, moment: Moment) -> StreamCursor:
        low, now = self._start.low, moment.cursor
        self._unlisted = not self._live.knows_who_left
        if self._start.tail is not None:
            low = await self._tail(moment, self._start.tail)
        return now if low is None else replace(now, last=behind_all(max(low, 1) - 1))

    async def _tail(self, moment: Moment, count: int) -> int | None:
        """The ULID of the last match but so many."""
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
