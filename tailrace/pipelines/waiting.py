"""Bounds of a process of pipelines: waits that a stop ends, own threads, memory, and turns."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import pyarrow as pa

from tailrace.logstore.clock import Clock


async def wait_or_stop(clock: Clock, seconds: float, stopping: asyncio.Event) -> None:
    """Returns after `seconds`, or once `stopping` is set."""
    stopped = asyncio.ensure_future(stopping.wait())
    sleeping = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({stopped, sleeping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        sleeping.cancel()


# A thread for each appender, so that one that hangs holds up only itself.
#
# The thread is a daemon: a process that is stopped ends although an appender hangs. The events that
# the appender had not synced come again, as after a crash.


T = TypeVar("T")


class OwnThread:
    """Makes blocking calls one after another."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(self, call: Callable[..., T], *arguments: Any) -> T:
        """Returns the result of the call; raises its exceptions."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def resolve(done: Callable[[], None]) -> None:
            if not outcome.done():  # the caller may have been cancelled
                done()

        def work() -> None:
            try:
                result = call(*arguments)
            except BaseException as error:  # noqa: BLE001 -- it is raised where it is waited for
                failure = error
                loop.call_soon_threadsafe(resolve, lambda: outcome.set_exception(failure))
            else:
                loop.call_soon_threadsafe(resolve, lambda: outcome.set_result(result))

        self._calls.put(work)
        return await outcome

    def close(self) -> None:
        """Ends the thread after the calls that were made."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except RuntimeError:  # the loop is closed: nobody waits any more
                return


# The memory of a process: shares of its buffers, and pieces of the events that are given.
#
# Of `pipelines.memory_bytes` the code and its libraries need `_CODE_BYTES`, and the segments that
# are kept decoded a part. Of the rest one part is for waiting events, and the remainder for the
# turns of `TurnLimiter`.


BUFFER_BYTES: Final = 64 << 20
_CODE_BYTES: Final = 160 << 20
CACHED_BYTES: Final = 64 << 20
_PIECE_BYTES: Final = 4 << 20


def for_events(memory_bytes: int) -> int:
    """The bytes for events: the memory without the code and the segments kept decoded."""
    return max(memory_bytes - _CODE_BYTES - cached(memory_bytes), memory_bytes // 4)


def share(memory_bytes: int, ratio: float, own: int, sizes: Sequence[int]) -> int:
    """The bytes of events that may wait for one part, which asks for `own`; 0: an equal share.

    `sizes` are the requests of all parts of the process. If they exceed the memory for events, the
    largest requests are cut to the same size: no pipeline's file makes a process need more than it
    may, or takes the share of another one.
    """
    left = int(for_events(memory_bytes) * ratio)
    equal = max(left // max(len(sizes), 1), 1)
    for number, size in enumerate(sorted(size or equal for size in sizes)):
        level = left // (len(sizes) - number)
        if size > level:
            return max(min(own or equal, level), 1)
        left -= size
    return own or equal


def cached(memory_bytes: int) -> int:
    """The bytes of decoded segments that are kept for whoever asks next."""
    return min(CACHED_BYTES, memory_bytes // 8)


def pieces(events: pa.Table) -> Iterator[pa.Table]:
    """The events in pieces of some megabytes: an appender makes lines of one at a time."""
    rows = max(events.num_rows * _PIECE_BYTES // max(events.nbytes, 1), 1)
    for start in range(0, events.num_rows, rows):
        yield events.slice(start, rows)


# Turns: only some workers of a process read and give at once, which bounds their memory.
#
# A turn of a worker needs some copies of the events that it reads and gives. If all took turns at
# once, a process of many pipelines would need that many times as much, for nothing: it has few
# processors. A turn counts for `seconds`, since an appender that is slow or hangs must hold up no
# other. While the process computes, a turn counts for several times that: on a machine with other
# work each turn takes longer, and none of them hangs.


TURNS: Final = 2
_SECONDS: Final = 0.5
_LONGEST: Final = 4  # times `seconds`
_COMPUTING: Final = 0.1  # of a processor: what an overloaded machine leaves


class TurnLimiter:
    """Lets `turns` through at once, each for `seconds`, or some times that while it computes.

    `spent` gives the seconds of processors that the process has used.
    """

    def __init__(
        self,
        turns: int = TURNS,
        *,
        seconds: float = _SECONDS,
        spent: Callable[[], float] = time.process_time,
    ) -> None:
        self.free = turns
        self._turns = asyncio.Semaphore(turns)
        self._seconds = seconds
        self._spent = spent

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for a turn, which ends with the block or after its time."""
        await self._turns.acquire()
        self.free -= 1
        turn = _Turn(self._end, self._seconds, self._spent)
        try:
            yield
        finally:
            turn.end()

    def _end(self) -> None:
        self.free += 1
        self._turns.release()


class _Turn:
    """One turn; calls `ended` once."""

    def __init__(
        self, ended: Callable[[], None], seconds: float, spent: Callable[[], float]
    ) -> None:
        self._ended: Callable[[], None] | None = ended
        self._seconds = seconds
        self._spent = spent
        self._before = spent()
        self._looks = 0
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def end(self) -> None:
        """With its block, if its time was not over before."""
        self._timer.cancel()
        if self._ended is not None:
            self._ended()
            self._ended = None

    def _look(self) -> None:
        self._looks += 1
        before, self._before = self._before, self._spent()
        computes = self._before - before >= _COMPUTING * self._seconds
        if computes and self._looks < _LONGEST:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._look)
        else:
            self.end()
