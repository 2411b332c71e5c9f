"""Acquiring with a spread: at the shard where the owner stands, then along its own way.

    the shard we stand at, without looking    one put, if it was ours alone
    LIST; shards that may have something      a get of each that changed, a put where it has
    nobody left, and races were lost          there once more, with patience

With nothing free and nothing changed that is the LIST alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coordination.partitions.object_store.board import AT_ONCE, Board, each
from coordination.partitions.object_store.found import Found
from coordination.partitions.object_store.operations import Take
from coordination.partitions.object_store.routes import Route, Routes
from coordination.partitions.object_store.writer import ShardWriter
from coordination.partitions.store import Acquired
from coordination.partitions.transitions import Claim
from logstore.clock import Clock
from logstore.errors import Damaged, PreconditionFailed, TailraceError

_BUSY_MS: Final = 3000
"""A shard that was written so shortly before the last one was is one that somebody is at."""


class Spread:
    """For one source."""

    def __init__(self, board: Board, clock: Clock) -> None:
        self._board = board
        self._clock = clock
        self._routes = Routes(board.source.shards)

    async def acquire(self, claim: Claim, count: int) -> Acquired:
        """As `PartitionStore.acquire`."""
        found, route = Found(claim, count), self._routes.of(claim.owner)
        here = route.here(self._clock.monotonic())
        if here is not None:
            await self._take(found, route, [self._board.writers[here]])
        if found.missing and found.error is None:
            await self._look_around(found, route, apart=here is not None)
        return found.result()

    async def _look_around(self, found: Found, route: Route, *, apart: bool) -> None:
        """`apart`: rather where nobody else seems to be. Not always, or who is there would
        keep all others from what waits beside it.
        """
        ahead = [self._board.writers[number] for number in route.ahead()]
        try:
            await self._board.refresh()
        except TailraceError as error:
            found.error = error
            return
        ahead = [writer for writer in ahead if _may_have(writer, found.claim)]
        if apart:
            newest_ms = max([writer.modified_ms for writer in ahead], default=0)
            ahead.sort(key=lambda writer: writer.modified_ms > newest_ms - _BUSY_MS)
        lost: list[ShardWriter] = []
        wave = 1
        while ahead and found.missing:
            these, ahead = ahead[:wave], ahead[wave:]
            await self._read(found, [writer for writer in these if writer.summary() is None])
            due = [writer for writer in these if _may_have(writer, found.claim)]
            lost += await self._take(found, route, due)
            wave = min(wave * 2, AT_ONCE)
        if not found.taken:
            await self._take(found, route, lost, patient=True)

    async def _read(self, found: Found, writers: Sequence[ShardWriter]) -> None:
        for result in await each(ShardWriter.look, writers):
            if isinstance(result, BaseException):
                found.error = found.error or result

    async def _take(
        self,
        found: Found,
        route: Route,
        writers: Sequence[ShardWriter],
        *,
        patient: bool = False,
    ) -> list[ShardWriter]:
        """From each of them a part of what is missing; gives those where a race was lost."""
        lost: list[ShardWriter] = []
        writers = list(writers)
        while writers and found.missing:
            few, writers = writers[: found.missing], writers[found.missing :]
            part, more = divmod(found.missing, len(few))
            asked = [(one, part + (at < more)) for at, one in enumerate(few)]

            async def take(ask: tuple[ShardWriter, int]) -> Acquired:
                return await ask[0].submit(Take(found.claim, ask[1], patient=patient))

            for (writer, share), result in zip(asked, await each(take, asked), strict=True):
                if isinstance(result, PreconditionFailed):
                    lost.append(writer)
                elif isinstance(result, BaseException):
                    found.error = found.error or result
                elif result.partitions:
                    route.arrive(writer.number, self._clock.monotonic())
                if isinstance(result, Acquired):
                    found.taken += result.partitions
                    found.failed += result.failed
                    if len(result.partitions) == share:
                        writers.append(writer)  # it may have more than its part
        return lost


def _may_have(writer: ShardWriter, claim: Claim) -> bool:
    try:
        summary = writer.summary()
    except Damaged:
        return True  # who takes from it hears why
    return summary is None or summary.due(claim) is not None
