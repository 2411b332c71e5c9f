"""Reports of runs in the store: written, read, listed and expired; and the outcome of a run.

A report is written by compare-and-swap and acknowledged once it is stored. Deleting a run deletes
its reports: a report whose version is at or below the run's deletion does not exist, even if its
object still does, and a new one gets a version above it.

A deletion removes a run's reports at once. The expiry of runs removes only lines, so `ReportExpiry`
removes the reports that have not changed for as long as runs are kept, and whose run does not exist
any more or never had a line.

`RunOutcomes` is the one place that decides how a run ended, for lists, pages and the command line:

| outcome | the run |
| --- | --- |
| `succeeded` | ended, and its client reports `success` or `partialSuccess` |
| `failed`, `cancelled` | ended, and its client reports `failed`, `stopped` |
| `lost` | gave no sign of life for too long: its client died. It goes on when a sign comes |
| `unknown` | was closed, and no client reported its end |
| none | goes on |

Signs of life are lines and reports. A client that reports `"heartbeat": true` repeats its report
while it lives, so it is lost after `runs.lost_minutes` of silence. Any other client may be silent
for as long as its run may stay open (`runs.stream_timeout_minutes`). After that time without a sign
of any client the sweeper closes the run, whose manifest says `abandoned`; a later report cancels
that. No node decides alone and nothing is stored: each node derives the same answer from the
manifest, the report and its clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol

from service.runtime.health import ClockSkew
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey
from tailrace.logstore.cache import ENTRY_BYTES, BoundedCache, Cache
from tailrace.logstore.cas import Document, swap, write_until_known
from tailrace.logstore.clock import Clock, Entropy
from tailrace.logstore.errors import Damaged, NotFound, UnsupportedVersion
from tailrace.logstore.objects.store import ObjectInfo, ObjectStore
from tailrace.logstore.runs.deletions import RunRetention
from tailrace.logstore.runs.report import RunReport, Said, decode_report, encode_report, make_report
from tailrace.logstore.state import advice

_READERS = 16
_DELETE_COUNT = 500
_REMEMBERED = 10_000
_CACHE_BYTES = 16 << 20
FOLDERS = (keys.STATUS, keys.PROGRESS, keys.METRICS)


class ReportHead(NamedTuple):
    """A report without its body; `info` is of its object."""

    info: ObjectInfo
    key: RunKey
    version: int
    created_ms: int
    said: Said


def _no_limit(_: int) -> None:
    """Allows everything, for a store that is not on this node's disk."""


def _never_late(_said: Said, _stored: Said) -> bool:
    """For reports whose last one counts."""
    return False


class Reports:
    """The reports of all runs; `horizon` returns the highest deleted ULID of a run.

    `check_space` is called with a size before bytes are written; it raises if the store's disk is
    full. Heads are remembered by number, bodies by their bytes.
    """

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        *,
        horizon: Callable[[RunKey], int],
        check_space: Callable[[int], None] = _no_limit,
        cache_bytes: int = _CACHE_BYTES,
    ) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._horizon = horizon
        self._check_space = check_space
        self._heads: BoundedCache[str, ReportHead] = BoundedCache(_REMEMBERED)
        self._bodies: Cache[RunReport] = Cache(cache_bytes)
        self._minter = ulids.Minter(clock, entropy)
        self._asked = 0
        self._newest: BoundedCache[str, int] = BoundedCache(_REMEMBERED)

    async def put(
        self,
        folder: str,
        key: RunKey,
        value: Mapping[str, Any],
        is_late: Callable[[Said, Said], bool] = _never_late,
    ) -> RunReport:
        """Replaces the run's report. Returns the report that is stored now.

        That is a later one if this node stored it while the store delayed this one: a client that
        gave up waiting has reported something newer. It is the old one if `is_late`, called with
        the new and the old one, says that the new one was made first. Raises `StoreUnavailable`,
        `OutcomeUnknown`, `JournalFull`.
        """
        name = keys.run_report(folder, key)
        self._asked += 1
        asked = self._asked

        async def change(found: RunReport | None) -> RunReport | None:
            there = None if found is None else self._shown(found)
            if there is not None and (self._newest.peek(name) or 0) > asked:
                return None
            report = self._fresh(key, value, None if there is None else there.created_ms)
            if there is not None and is_late(report.said, there.said):
                return None
            self._check_space(len(encode_report(report)))
            return report

        stored = await swap(Document(self._store, name, _decode_or_none, _encode), change)
        assert stored is not None
        assert stored.value is not None
        if stored.written:
            self._remember(name, asked)
        return stored.value

    async def close(self, folder: str, key: RunKey) -> None:
        """Records in the run's report, if it has one, that the run was closed after it.

        Raises `StoreUnavailable`, `OutcomeUnknown`.
        """

        async def change(found: RunReport | None) -> RunReport | None:
            there = None if found is None else self._shown(found)
            if there is None or there.closed:
                return None
            fresh = self._fresh(key, there.value, there.created_ms)
            return replace(fresh, stored_ms=there.stored_ms, closed=True)

        name = keys.run_report(folder, key)
        await swap(Document(self._store, name, _decode_or_none, _encode), change)

    def _remember(self, name: str, asked: int) -> None:
        """Remembers the request whose report is the newest stored one."""
        self._newest.put(name, max(asked, self._newest.peek(name) or 0))

    async def add(self, folder: str, key: RunKey, value: Mapping[str, Any]) -> RunReport:
        """Writes one more report of the run.

        Raises `StoreUnavailable`, `OutcomeUnknown`, `JournalFull`.
        """
        report = self._fresh(key, value, None)
        name = f"{keys.run_report(folder, key)}/{ulids.encode(report.version)}"
        encoded = encode_report(report)
        self._check_space(len(encoded))
        await write_until_known(lambda: self._store.put(name, encoded))
        return report

    async def get(self, folder: str, key: RunKey) -> RunReport | None:
        """The run's report. Raises `StoreUnavailable`, `Damaged`."""
        return await self._read(keys.run_report(folder, key))

    async def added(
        self, folder: str, key: RunKey, *, after: int, limit: int, most_bytes: int
    ) -> tuple[list[RunReport], str | None]:
        """Returns the reports added for the run above the ULID `after`, oldest first.

        Also returns the last examined ULID if more reports exist. Returns at most `limit` reports
        and about `most_bytes`, but one if any exists. Raises `StoreUnavailable`, `Damaged`.
        """
        prefix = f"{keys.run_report(folder, key)}/"
        first = prefix + ulids.encode(after)
        infos = [info async for info in self._store.list(prefix) if info.key > first]
        infos.sort(key=lambda info: info.key)
        some = _up_to(infos[:limit], most_bytes)
        found: list[RunReport] = []
        for start in range(0, len(some), _READERS):
            reading = [self._read(info.key) for info in some[start : start + _READERS]]
            found += [report for report in await asyncio.gather(*reading) if report is not None]
        return found, some[-1].key.removeprefix(prefix) if len(some) < len(infos) else None

    async def newest(self, folder: str, fqn: str, limit: int) -> list[ReportHead]:
        """The reports of a pipeline's runs that changed last, in no order."""
        prefix = keys.reports_of(folder, fqn)
        infos = [info async for info in self._store.list(prefix)]
        infos.sort(key=lambda info: (info.modified_ms, info.key), reverse=True)
        return await self._heads_of(infos[:limit])

    async def bodies(self, heads: list[ReportHead], most_bytes: int) -> tuple[list[RunReport], int]:
        """Returns the first of these reports, of about `most_bytes` but at least one.

        Also returns the number of examined ones: some may be gone. Raises `StoreUnavailable`,
        `Damaged`.
        """
        some = _up_to([head.info for head in heads], most_bytes)
        found: list[RunReport] = []
        for start in range(0, len(some), _READERS):
            reading = [self._body(info) for info in some[start : start + _READERS]]
            found += [report for report in await asyncio.gather(*reading) if report is not None]
        return found, len(some)

    async def components(self, folder: str, fqn: str) -> dict[str, ObjectInfo]:
        """The components of keys of a pipeline's runs with a report, and the reports' objects."""
        prefix = keys.reports_of(folder, fqn)
        return {info.key.removeprefix(prefix): info async for info in self._store.list(prefix)}

    async def created(self, info: ObjectInfo) -> int | None:
        """The time of the first report of a listed object's run; None if it is deleted.

        Raises `StoreUnavailable`, `Damaged`.
        """
        head = await self._head(info)
        return None if head is None else head.created_ms

    async def listed(self, info: ObjectInfo) -> RunReport | None:
        """Returns the report of a listed object. Reads it only if it is not in memory.

        Raises `StoreUnavailable`, `Damaged`.
        """
        return await self._body(info)

    async def at(self, folder: str, fqn: str, component: str) -> RunReport | None:
        """The report of the run with such a component. Raises `StoreUnavailable`, `Damaged`."""
        return await self._read(f"{keys.reports_of(folder, fqn)}{component}")

    async def pipelines(self, folder: str) -> list[str]:
        """The components of keys of all pipelines with reports. Raises `StoreUnavailable`."""
        return [
            found.removeprefix(folder).strip("/") async for found in self._store.folders(folder)
        ]

    async def pipeline(self, folder: str, component: str) -> str | None:
        """The name of such a pipeline; None if all its reports are deleted."""
        async for info in self._store.list(f"{folder}{component}/"):
            for head in await self._heads_of([info]):
                return head.key.fqn
        return None

    async def remove(self, fqn: str, run: str | None) -> None:
        """Removes the deleted reports of a run, or of a pipeline. Raises `StoreUnavailable`.

        Keeps those that came after the deletion, which may have waited for the store.
        """
        for folder in FOLDERS:
            if run is None:
                await self._remove(await self._names_below(keys.reports_of(folder, fqn)))
                continue
            one = keys.run_report(folder, RunKey(fqn, run))
            await self._remove([one, *await self._names_below(f"{one}/")])

    async def _names_below(self, prefix: str) -> list[str]:
        return [info.key async for info in self._store.list(prefix)]

    async def _remove(self, names: Sequence[str]) -> None:
        gone: list[str] = []
        for start in range(0, len(names), _READERS):
            some = names[start : start + _READERS]
            shown = await asyncio.gather(*[self._is_shown(name) for name in some])
            gone += [name for name, kept in zip(some, shown, strict=True) if not kept]
        for start in range(0, len(gone), _DELETE_COUNT):
            await self._store.delete(gone[start : start + _DELETE_COUNT])

    async def _is_shown(self, name: str) -> bool:
        try:
            return await self._read(name) is not None
        except (Damaged, UnsupportedVersion):
            return False

    def _fresh(self, key: RunKey, value: Mapping[str, Any], created_ms: int | None) -> RunReport:
        now = self._clock.now_ms()
        version = self._minter.mint()
        horizon = self._horizon(key)
        if version <= horizon:  # a deletion may be ahead of the clock
            version = horizon + 1 + self._entropy.getrandbits(ulids.STEP_BITS)
        return make_report(key, version, now if created_ms is None else created_ms, now, value)

    def _shown(self, report: RunReport) -> RunReport | None:
        return report if report.version > self._horizon(report.key) else None

    async def _read(self, name: str) -> RunReport | None:
        try:
            _, body = await self._store.get(name)
        except NotFound:
            return None
        try:
            return self._shown(decode_report(body))
        except Damaged as error:
            raise Damaged(f"{name}: {error}", hint=advice(name)) from error

    async def _heads_of(self, infos: list[ObjectInfo]) -> list[ReportHead]:
        """The heads of the shown reports. A report that has not changed is not read again."""
        found: list[ReportHead] = []
        for start in range(0, len(infos), _READERS):
            some = [self._head(info) for info in infos[start : start + _READERS]]
            found += [head for head in await asyncio.gather(*some) if head is not None]
        return found

    async def _head(self, info: ObjectInfo) -> ReportHead | None:
        # A version holds a fresh ULID, so an ETag identifies one version. The read report may be
        # newer than the list; then the next list causes another read.
        head = self._heads.peek(info.key)
        if head is None or head.info.etag != info.etag:
            report = await self._body(info)
            if report is None:
                return None
            head = ReportHead(info, report.key, report.version, report.created_ms, report.said)
            self._heads.put(info.key, head)
        return head if head.version > self._horizon(head.key) else None

    async def _body(self, info: ObjectInfo) -> RunReport | None:
        version = (info.key, info.etag)
        report = self._bodies.get(version)
        if report is None:
            report = await self._read(info.key)
            if report is not None:
                self._bodies.put(version, report, len(report.body) + ENTRY_BYTES)
        return None if report is None else self._shown(report)


def _up_to(infos: list[ObjectInfo], most_bytes: int) -> list[ObjectInfo]:
    """Returns the first objects, up to `most_bytes`."""
    size = 0
    for number, info in enumerate(infos):
        size += info.size
        if size > most_bytes and number > 0:
            return infos[:number]
    return infos


def _decode_or_none(body: bytes) -> RunReport | None:
    """Decodes a report; None if it is unreadable, so that a new one replaces it."""
    try:
        return decode_report(body)
    except UnsupportedVersion:
        raise
    except Damaged:
        return None


def _encode(report: RunReport | None) -> bytes:
    assert report is not None
    return encode_report(report)


_DAY_MS = 86_400_000


class ReportExpiry:
    """Removes expired reports. Repeating it, or running it on several nodes, does no harm."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        exists: Callable[[RunKey], Awaitable[bool]],
        skew: ClockSkew,
    ) -> None:
        """Ages are by the earlier of this machine's clock and the store's (`skew`)."""
        self._store = store
        self._clock = clock
        self._skew = skew
        self._exists = exists
        self.removed = 0

    async def sweep(self, retention: RunRetention) -> None:
        """Examines every report once. Raises `StoreUnavailable`."""
        now = self._clock.now_ms() - max(self._skew.ahead_ms, 0)
        for folder in FOLDERS:
            async for info in self._store.list(folder):
                days = (now - info.modified_ms) / _DAY_MS
                if days > retention.shortest_days and await self._goes(info.key, days, retention):
                    await self._store.delete([info.key])
                    self.removed += 1

    async def _goes(self, name: str, days: float, retention: RunRetention) -> bool:
        try:
            report = decode_report((await self._store.get(name))[1])
        except (NotFound, Damaged):
            return False  # unreadable reports are left to `tailrace verify`
        kept = retention.days_of(report.key.fqn)
        return 0 < kept < days and not await self._exists(report.key)


SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
LOST: Final = "lost"
UNKNOWN: Final = "unknown"
OUTCOMES: Final = (SUCCEEDED, FAILED, CANCELLED, LOST, UNKNOWN)
RUNNING: Final = "running"
UNREPORTED: Final = "none"

_ENDED: Final = {
    "success": SUCCEEDED,
    "partialSuccess": SUCCEEDED,
    "failed": FAILED,
    "stopped": CANCELLED,
}
TERMINAL = frozenset(_ENDED)
"""Values of `pipelineState` that end a run."""
REPORTED = TERMINAL | {"queued", "running"}
"""All values of `pipelineState`."""
FILTERS: Final = (*OUTCOMES, *sorted(REPORTED - set(OUTCOMES)), UNREPORTED)
"""Words of a filter: outcomes, `running` for none, and what a client reported."""
_HEARTBEATS: Final = 4
_NOTHING: Final = Said(None, None)


class RunState(Protocol):
    """The facts of a run's log that its outcome depends on."""

    @property
    def state(self) -> str: ...
    @property
    def last_ms(self) -> int | None: ...
    @property
    def abandoned(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class RunOutcomes:
    """Decides outcomes. `lost_seconds` is for clients with a heartbeat, `timeout_seconds` for
    others."""

    lost_seconds: float
    timeout_seconds: float

    def heartbeat_seconds(self, said: Said) -> float | None:
        """The interval for repeating such a report; None without heartbeat, or if the run ended."""
        if not said.repeated or _is_end(said):
            return None
        return self._patience(said) / _HEARTBEATS

    def _patience(self, said: Said) -> float:
        return self.lost_seconds if said.heartbeat else self.timeout_seconds

    def decide(self, run: RunState, report: RunReport | None, now_ms: int) -> str | None:
        """The outcome of a run; None if it goes on, or if the state of its log is unknown."""
        said = _NOTHING if report is None else report.said
        if said.state in _ENDED:
            return _ENDED[said.state]
        oldest_ms = now_ms - self._patience(said) * 1000
        if run.state == "closed":
            if not run.abandoned:
                return UNKNOWN
            return None if alive_ms(report) > oldest_ms else LOST
        if run.state != "open" or said.state == "queued":
            return None
        heard_ms = max(run.last_ms or 0, 0 if report is None else report.stored_ms)
        return LOST if heard_ms and heard_ms < oldest_ms else None


def alive_ms(report: RunReport | None) -> int:
    """When a client last reported that its run goes on or will begin; 0 if it did not."""
    return 0 if report is None or _is_end(report.said) else report.stored_ms


def is_late(said: Said, stored: Said) -> bool:
    """Whether a report that the run goes on was made before the stored end.

    Applies only to clients that repeat their reports, by their own times: a run that begins again
    has a start after that end.
    """
    if said.state != "running" or not said.repeated or not _is_end(stored):
        return False
    end = max(stored.ended_ms or 0, stored.moment_ms or 0, stored.started_ms or 0)
    return said.started_ms is not None and said.started_ms <= end


def _is_end(said: Said) -> bool:
    return said.state in TERMINAL or (said.state is None and said.ended_ms is not None)


def state_without_lines(report: RunReport) -> str:
    """The state of a run that has a report and no lines."""
    said = report.said
    return "closed" if report.closed or said.state in TERMINAL or said.ended_ms else "open"


def filter_words(outcome: str | None, report: RunReport | None) -> frozenset[str]:
    """The words of `FILTERS` that find such a run."""
    reported = None if report is None else report.said.state
    words = {outcome or RUNNING, reported or UNREPORTED}
    if outcome is not None or reported == "queued":
        words.discard(RUNNING)
    return frozenset(words)
