"""Segments that are fetched before an appender asks for them, so that it need not wait for a store.

They are kept as they were transferred, which is a tenth of what they are decoded, and count with
what the listing said of their size. What nobody has taken for a minute is let go: its appender has
stopped.
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


class _Begun(NamedTuple):
    task: asyncio.Task[Fetched]
    size: int
    at: float


class Ahead:
    """Fetches of one process: some at once, of at most `most_bytes` together."""

    def __init__(
        self, fetch: Callable[[Origin], Awaitable[Fetched]], clock: Clock, most_bytes: int
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._most_bytes = most_bytes
        self._begun: dict[Origin, _Begun] = {}

    def begin(self, origin: Origin, size: int) -> bool:
        """Fetches a segment of that size; False: it does not fit beside the others."""
        if origin in self._begun:
            return True
        now = self._clock.monotonic()
        for old in [one for one, begun in self._begun.items() if now - begun.at > _KEPT_SECONDS]:
            self._begun.pop(old).task.cancel()
        held = sum(one.size for one in self._begun.values())
        if len(self._begun) >= _AT_ONCE or held + size > self._most_bytes:
            return False
        task = asyncio.ensure_future(self._fetch(origin))
        task.add_done_callback(_heard)
        self._begun[origin] = _Begun(task, size, now)
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
