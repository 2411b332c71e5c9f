"""A store that gives no answer for as long as its gate is closed, to the calls that it is told.

Not a refusal: whoever asks hears nothing at all, as of a host that drops packets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tailrace.logstore.objects.store import ObjectStore
from tests.simulation.faulty_store import FaultyStore, Schedule

T = TypeVar("T")


class HangingStore(FaultyStore):
    """`ObjectStore` over `inner`; calls that `hangs` accepts wait until `gate` is set."""

    def __init__(self, inner: ObjectStore, hangs: Callable[[str], bool] = lambda _: True) -> None:
        super().__init__(inner, Schedule.none())
        self._hangs = hangs
        self.gate = asyncio.Event()
        self.gate.set()

    async def _step(self, name: str, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._hangs(f"{name} {key}"):
            await self.gate.wait()
        return await super()._step(name, key, work)
