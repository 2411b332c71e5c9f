"""Segments that are fetched before an appender asks for them, so that it need not wait for a store.

They are kept as they were transferred, which is a tenth of what they are decoded, and count with
what the listing said of their size. What nobody has taken for a minute is let go: its appender has
stopped. Whoever comes to a segment takes it, for whomever it was fetched; it counts for the one who
asked first. Pipelines that say nothing share what the process has for that; one that has a bound
of its own has it beside that, as long as all together stay within `most_of_all`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple

from logstore.clock import Clock
from pipelines.events import Origin
from pipelines.sources.contract import Fetched

_KEPT_SECONDS: Final = 60.0
_AT_ONCE: Final = 8


class Prefetch(NamedTuple):
    """For whom is fetched ahead, and how many bytes at most; nobody: as the process says."""

    name: str = ""
    most_bytes: int = 0


SHARED: Final = Prefetch()


class _Begun(NamedTuple):
    task: asyncio.Task[Fetched]
    size: int
    at: float
    name: str


class Ahead:
    """Fetches of one process: some at once, of at most `most_bytes` for all that share them."""

    def __init__(
        self,
        fetch: Callable[[Origin], Awaitable[Fetched]],
        clock: Clock,
        most_bytes: int,
        most_of_all: int = 0,
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._most_bytes = most_bytes
        self._most_of_all = max(most_of_all, most_bytes)
        self._begun: dict[Origin, _Begun] = {}

    def begin(self, origin: Origin, size: int, whose: Prefetch = SHARED) -> bool:
        """Fetches a segment of that size; False: it does not fit beside the others."""
        if origin in self._begun:
            return True
        now = self._clock.monotonic()
        for old in [one for one, begun in self._begun.items() if now - begun.at > _KEPT_SECONDS]:
            self._begun.pop(old).task.cancel()
        own = [one.size for one in self._begun.values() if one.name == whose.name]
        most_bytes = whose.most_bytes if whose.name else self._most_bytes
        of_all = sum(one.size for one in self._begun.values()) + size
        if len(own) >= _AT_ONCE or sum(own) + size > most_bytes or of_all > self._most_of_all:
            return False
        task = asyncio.ensure_future(self._fetch(origin))
        task.add_done_callback(_heard)
        self._begun[origin] = _Begun(task, size, now, whose.name)
        return True

    async def take(self, origin: Origin) -> Fetched:
        """The segment; fetched now, if it was not, or could not be. Raises as `fetch`."""
        begun = self._begun.pop(origin, None)
        if begun is not None:
            await asyncio.wait([begun.task])
            if not begun.task.cancelled() and begun.task.exception() is None:
                return begun.task.result()
        return await self._fetch(origin)

    async def close(self) -> None:
        """Lets everything go."""
        for begun in self._begun.values():
            begun.task.cancel()
        for begun in self._begun.values():
            with suppress(asyncio.CancelledError, Exception):
                await begun.task
        self._begun.clear()


def _heard(task: asyncio.Task[Fetched]) -> None:
    """Whoever takes it asks again, and hears of a failure then."""
    if not task.cancelled():
        task.exception()
