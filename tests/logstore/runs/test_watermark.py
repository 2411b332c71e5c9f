"""Watermarks change under a condition: whoever writes at once takes nothing back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from random import Random

import pytest

from tailrace.logstore.objects.store import Body, ObjectInfo, ObjectStore
from tailrace.logstore.runs.report import Watermark, raise_watermark, read_watermark
from tests.simulation.backing import open_store
from tests.simulation.faulty_store import FaultyStore, Schedule
from tests.simulation.powercut import PowerCutFileSystem
from tests.simulation.virtual_time import VirtualClock, simulate

NODE = "node-01J00000000000000000000000"
pytestmark = pytest.mark.usefixtures("every_store")


class Raced(FaultyStore):
    """A real store at which somebody else is always in time before the first put."""

    def __init__(self, inner: ObjectStore, before: Callable[[], Awaitable[Watermark]]) -> None:
        super().__init__(inner, Schedule.none())
        self._before = before
        self._races = 1

    async def put(
        self,
        key: str,
        body: Body,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        if self._races:
            self._races -= 1
            await self._before()
        return await super().put(
            key, body, if_absent=if_absent, if_match=if_match, metadata=metadata
        )


@pytest.mark.parametrize("there", [False, True])
def test_two_who_raise_at_once_both_get_what_they_wrote(there: bool) -> None:
    async def go(clock: VirtualClock) -> None:
        store = open_store(PowerCutFileSystem(), clock, Random(1))
        ids = iter([f"{number:026d}" for number in range(10)])
        if there:
            await raise_watermark(store, NODE, fresh_id=lambda: next(ids), seq=1, pos=1, low=1)

        async def other() -> Watermark:
            return await raise_watermark(store, NODE, fresh_id=lambda: next(ids), low=7)

        raced = Raced(store, other)
        raised = await raise_watermark(raced, NODE, fresh_id=lambda: next(ids), seq=9, pos=90)
        assert (raised.seq, raised.pos, raised.low) == (9, 90, 7)
        assert await read_watermark(store, NODE) == raised

    simulate(go, start_ms=1_750_000_000_000)
