"""A folder with a clock of its own, as a server's: for machines whose clock is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tailrace.logstore.clock import system_entropy
from tailrace.logstore.filesystem import Disk
from tailrace.logstore.objects.local import LocalStore
from tailrace.logstore.objects.store import DateSample, Requesting
from tests.compactor.lake import Lake


class NoRequests:
    """Nothing is asked for."""

    made: Mapping[str, int] = MappingProxyType({})


class DatedStore(LocalStore):
    """The lake's store, by whose own clock it is `now_ms`."""

    requests: Requesting = NoRequests()

    def __init__(self, lake: Lake, now_ms: int) -> None:
        super().__init__(lake.settings.store_folder, Disk(), lake.clock, system_entropy())
        self.newest_date: DateSample | None = DateSample(now_ms, 0.0, 0.0, now_ms)

    async def check(self) -> None:
        raise NotImplementedError

    async def expire(self, prefix: str, days: int) -> bool:
        raise NotImplementedError
