"""Days in a second: a world whose clock is moved by hand and whose files are dated by it.

delta-rs dates its log and reckons ages by the machine's clock, and so does its vacuum. The
scenario therefore lies in the past (`AHEAD_MS`), files are dated by its clock, and ages that
delta-rs is asked about are lengthened by what lies between. What a version's time was is kept
here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tailrace.logstore.clock import SystemClock
from tailrace.logstore.filesystem import Disk, DiskFile, Mode

T = TypeVar("T")
HOUR_MS: Final = 3_600_000
AHEAD_MS: Final = 400 * 24 * HOUR_MS
"""How long ago a scenario begins."""


class MovedClock:
    """Stands still until `advance`; whoever sleeps is woken at once."""

    def __init__(self, ms: int | None = None) -> None:
        start = SystemClock().now_ms() - AHEAD_MS
        # A whole hour, so that a scenario is the same whenever it runs.
        self.ms = start - start % HOUR_MS if ms is None else ms

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)

    def advance(self, ms: int) -> None:
        """So many milliseconds pass."""
        self.ms += ms


class _DatedFile(DiskFile):
    __slots__ = ("_clock", "_dated")

    def __init__(self, path: str, mode: Mode, clock: MovedClock) -> None:
        super().__init__(path, mode)
        self._clock = clock
        self._dated = "/_delta_log/" not in path

    def sync(self) -> None:
        # A power cut is another test's: nothing is synced, only dated.
        if self._dated:
            moment = self._clock.ms * 1_000_000
            os.utime(self.fileno(), ns=(moment, moment))


@dataclass
class DatedDisk(Disk):
    """A disk that writes the scenario's time upon its files."""

    clock: MovedClock

    def __post_init__(self) -> None:
        super().__init__()

    def open(self, path: str, mode: Mode) -> DiskFile:
        return _DatedFile(path, mode, self.clock)

    def sync_folder(self, path: str) -> None:
        """As `_DatedFile.sync`: nothing to date."""


class _InPlace(ThreadPoolExecutor):
    """Work that would go to a thread is done where it is asked for."""

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(work(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - a crash is one, too
            done.set_exception(error)
        return done


def play(work: Coroutine[Any, Any, T]) -> T:
    """What the coroutine gives, in a loop that takes the same course in every run."""

    def loop() -> asyncio.AbstractEventLoop:
        made = asyncio.new_event_loop()
        made.set_default_executor(_InPlace())
        return made

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(work)
