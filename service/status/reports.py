"""Reports in the store: written by compare-and-swap, read one by one or by pipeline.

A report is acknowledged once it is stored. Whoever deletes a run deletes its reports: a
report whose version is at or below the run's deletion does not exist, whether its object
is gone yet or not, and a new one is given a version above it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from logstore import keys
from logstore import ulid as ulids
from logstore.batch import RunKey
from logstore.clock import Clock
from logstore.entropy import Entropy
from logstore.errors import (
    Damaged,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    UnsupportedVersion,
)
from logstore.objects.store import ObjectInfo, ObjectStore
from logstore.objects.unclear import Unclear
from logstore.runs.report import Report, decode_report, encode_report

_READERS = 16
_DELETE_COUNT = 500
_REMEMBERED = 10_000
FOLDERS = (keys.STATUS, keys.PROGRESS, keys.METRICS)


class Reports:
    """Of all runs; `horizon` gives the highest deleted ULID of a run."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        *,
        horizon: Callable[[RunKey], int],
    ) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._horizon = horizon
        self._seen: OrderedDict[str, tuple[str, Report]] = OrderedDict()

    async def put(self, folder: str, key: RunKey, value: Mapping[str, Any]) -> Report:
        """Replaces the run's report. Raises `StoreUnavailable`, `OutcomeUnknown`."""
        unclear = Unclear()
        mine = 0
        while True:
            found, etag = await self._look(keys.run_report(folder, key))
            if found is not None and found.version == mine:
                return found  # the answer was lost, the write was not
            report = self._fresh(key, value, None if found is None else found.created_ms)
            mine = report.version
            try:
                await self._store.put(
                    keys.run_report(folder, key),
                    encode_report(report),
                    if_absent=etag is None,
                    if_match=etag,
                )
            except PreconditionFailed:
                continue
            except OutcomeUnknown as error:
                unclear.bear(error)
                continue
            return report

    async def add(self, folder: str, key: RunKey, value: Mapping[str, Any]) -> Report:
        """Writes one more report of the run. Raises `StoreUnavailable`, `OutcomeUnknown`."""
        report = self._fresh(key, value, None)
        name = f"{keys.run_report(folder, key)}/{ulids.encode(report.version)}"
        unclear = Unclear()
        while True:
            try:
                await self._store.put(name, encode_report(report))
            except OutcomeUnknown as error:
                unclear.bear(error)  # the same bytes again do no harm
                continue
            return report

    async def get(self, folder: str, key: RunKey) -> Report | None:
        """The run's report. Raises `StoreUnavailable`, `Damaged`."""
        return await self._read(keys.run_report(folder, key))

    async def added(self, folder: str, key: RunKey) -> list[Report]:
        """All that was added for the run, oldest first. Raises `StoreUnavailable`, `Damaged`."""
        prefix = f"{keys.run_report(folder, key)}/"
        return await self._read_all([info async for info in self._store.list(prefix)])

    async def newest(self, folder: str, fqn: str, limit: int) -> list[Report]:
        """The reports of a pipeline's runs that changed last, in no order."""
        prefix = keys.reports_of(folder, fqn)
        infos = [info async for info in self._store.list(prefix)]
        infos.sort(key=lambda info: (info.modified_ms, info.key), reverse=True)
        return await self._read_all(infos[:limit])

    async def any(self, folder: str, fqn: str) -> bool:
        """Whether any run of the pipeline has a report. Raises `StoreUnavailable`."""
        async for info in self._store.list(keys.reports_of(folder, fqn)):
            if await self._read_all([info]):
                return True
        return False

    async def remove(self, fqn: str, run: str | None) -> None:
        """All reports of a run, or of a pipeline. Raises `StoreUnavailable`."""
        for folder in FOLDERS:
            if run is None:
                await self._delete_below(keys.reports_of(folder, fqn))
                continue
            one = keys.run_report(folder, RunKey(fqn, run))
            await self._store.delete([one])
            await self._delete_below(f"{one}/")

    async def _delete_below(self, prefix: str) -> None:
        found = [info.key async for info in self._store.list(prefix)]
        for start in range(0, len(found), _DELETE_COUNT):
            await self._store.delete(found[start : start + _DELETE_COUNT])

    def _fresh(self, key: RunKey, value: Mapping[str, Any], created_ms: int | None) -> Report:
        now = self._clock.now_ms()
        version = ulids.fresh(self._clock, self._entropy)
        horizon = self._horizon(key)
        if version <= horizon:  # a deletion may lead the clock
            version = horizon + 1 + self._entropy.getrandbits(ulids.STEP_BITS)
        return Report(key, version, now if created_ms is None else created_ms, now, value)

    async def _look(self, name: str) -> tuple[Report | None, str | None]:
        """What stands there, unless it is deleted or cannot be read, and its ETag."""
        try:
            info, body = await self._store.get(name)
        except NotFound:
            return None, None
        try:
            report = decode_report(body)
        except UnsupportedVersion:
            raise
        except Damaged:
            return None, info.etag  # a new report heals it
        return self._shown(report), info.etag

    def _shown(self, report: Report) -> Report | None:
        return report if report.version > self._horizon(report.key) else None

    async def _read(self, name: str) -> Report | None:
        try:
            _, body = await self._store.get(name)
        except NotFound:
            return None
        try:
            return self._shown(decode_report(body))
        except Damaged as error:
            raise Damaged(f"{name}: {error}") from error

    async def _read_all(self, infos: list[ObjectInfo]) -> list[Report]:
        """Those that are shown. What has not changed since it was read is not read again."""
        found: list[Report] = []
        for start in range(0, len(infos), _READERS):
            some = [self._read_once(info) for info in infos[start : start + _READERS]]
            found += [report for report in await asyncio.gather(*some) if report is not None]
        return found

    async def _read_once(self, info: ObjectInfo) -> Report | None:
        # A version holds a fresh ULID, so an ETag stands for one version only. What is read
        # may be newer than the list; then it is read once more with the next.
        etag, report = self._seen.get(info.key, ("", None))
        if report is None or etag != info.etag:
            report = await self._read(info.key)
            if report is None:
                return None
            self._seen[info.key] = (info.etag, report)
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        return self._shown(report)
