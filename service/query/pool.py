"""Databases that are open already: a search takes one and gives it back.

Opening and locking one takes 12 ms, and one in a process of its own 170 ms. They are kept as
long as they are used: at most as many as searches may run at once, and fewer of those with a
process, which take 90 MB each. One that nobody has used for a while is closed.

It is kept only if it is as it was: every statement came to its end, nothing stopped it, and
its spill folder is empty. It is given out only with the keys of the store that it was opened
with. Of several the one used last comes first, so that those that are too many grow old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Final

from logstore.clock import Clock
from logstore.errors import Unavailable

if TYPE_CHECKING:
    from service.query.database import Database
    from service.query.locked import LockedDatabase
    from service.query.process import Check

_MOST_PROCESSES: Final = 2


@dataclass(frozen=True, slots=True)
class _Idle:
    locked: LockedDatabase
    key: Hashable
    since: float


class DatabasePool:
    """Databases by whether they have a process of their own.

    `open_database` is given that, and what is asked while it waits; `key` says with which keys it
    would open one now.
    """

    def __init__(
        self,
        open_database: Callable[[bool, Check | None], LockedDatabase],
        key: Callable[[], Hashable],
        clock: Clock,
        *,
        most: int,
        idle_seconds: float,
    ) -> None:
        self._open_database = open_database
        self._key = key
        self._clock = clock
        self._most = {False: most, True: min(most, _MOST_PROCESSES)}
        self._idle_seconds = idle_seconds
        self._idle: dict[bool, list[_Idle]] = {False: [], True: []}
        self._changing = Lock()
        self._closed = False
        self._watching: asyncio.Task[None] | None = None

    def take(self, *, separate: bool, check: Check | None = None) -> Database:
        """One for a search, to be closed; `separate` is one with a process. Blocks.

        `check` is asked while a process is waited for: what it raises ends the process. Raises
        `Unavailable`, `StoreUnavailable`, and as `check`.
        """
        # Here, in the search's thread: a node that nobody searches does without DuckDB.
        from service.query.database import Database
        from service.query.process import ProcessEnded

        key = self._key()

        def give_back(locked: LockedDatabase, clean: bool) -> None:
            self._give_back(locked, key, separate=separate, keep=clean and not locked.spilled)

        while (idle := self._taken(separate)) is not None:
            if idle.key == key:
                try:
                    return Database(idle.locked, give_back, check)
                except ProcessEnded:  # the kernel took it, or somebody killed it
                    pass
                except BaseException:
                    idle.locked.close()
                    raise
            idle.locked.close()
        try:
            locked = self._open_database(separate, check)
            try:
                return Database(locked, give_back, check)
            except BaseException:
                locked.close()
                raise
        except ProcessEnded as error:
            raise Unavailable(
                f"the process of a search could not be used: {error}", hint="Try it again."
            ) from error

    def open_one(self) -> None:
        """Sees to it that one without a process is idle. Blocks, and raises as `take`.

        One that is idle stays where it is, where closing the pool finds it.
        """
        if self._closed:
            return
        key = self._key()
        with self._changing:
            there = any(one.key == key for one in self._idle[False])
        if not there:
            self.take(separate=False).close()

    def watch(self) -> None:
        """Sees to it that what is idle is closed in time. To be called when one was given back."""
        if self._any_idle() and (self._watching is None or self._watching.done()):
            self._watching = asyncio.ensure_future(self._watch())

    def close(self) -> None:
        """Closes all that are idle, and from now on each that is given back."""
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
        self._close_idle(before=float("inf"))

    async def _watch(self) -> None:
        while self._any_idle():
            await self._clock.sleep(self._idle_seconds)
            before = self._clock.monotonic() - self._idle_seconds
            await asyncio.to_thread(self._close_idle, before)

    def _any_idle(self) -> bool:
        return any(self._idle.values())

    def _taken(self, separate: bool) -> _Idle | None:
        with self._changing:
            idle = self._idle[separate]
            return idle.pop() if idle else None

    def _give_back(
        self, locked: LockedDatabase, key: Hashable, *, separate: bool, keep: bool
    ) -> None:
        with self._changing:
            idle = self._idle[separate]
            keep = keep and not self._closed and len(idle) < self._most[separate]
            if keep and self._idle_seconds > 0:
                idle.append(_Idle(locked, key, self._clock.monotonic()))
                return
        locked.close()

    def _close_idle(self, before: float) -> None:
        with self._changing:
            old = [one for idle in self._idle.values() for one in idle if one.since <= before]
            for idle in self._idle.values():
                idle[:] = [one for one in idle if one.since > before]
        for one in old:
            one.locked.close()
