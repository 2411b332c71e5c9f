"""Lists the runs of a pipeline, and the pipelines, including runs that are only in the journal.

A pipeline's runs include those that OpenMetadata wrote and nobody has imported. Such runs alone do
not make a pipeline: their folder does not give its name back, and the caller may not be allowed to
see a name that nobody used.

If the store does not answer, lists have the runs with lines in journals, without the reports of
their clients, and without a place where another page begins.

Pages of runs have the run that began last first, and are filtered. A run begins with its first line
or its first status, whichever came earlier. Nothing that happens to a run later changes that, so a
place in the list is a begin and a name: runs may change between two pages, and each is still listed
once. Runs that begin after the first page are on none.

No store knows when a run began without reading it, but it knows when the run changed last, and no
run begins after its last change. So runs are read in the order of their last changes until all
unread runs must have begun before those on the page. The begin of a run is cached as long as its
record does not change.

Listed and read data is kept for the pages that follow. If it is not kept any more, or another node
is asked, names are listed and runs are read again, and the pages are the same.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

import numpy as np

from service.run_log.backlog import Backlog, Deletions, RunLogPeers, RunsElsewhere
from service.run_log.contracts import FlushProgress, UnflushedPin
from service.run_log.openmetadata import Upstream
from service.run_log.snapshot import RunSnapshot, Snapshots
from service.status.reports import RunOutcomes, filter_words, state_without_lines
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import RunKey, lowest_and_highest, newest_of_runs
from tailrace.logstore.cache import BoundedCache, Cache
from tailrace.logstore.errors import (
    Damaged,
    InvalidCursor,
    NodeNotReady,
    NotFound,
    StoreUnavailable,
)
from tailrace.logstore.keys import decode, encode
from tailrace.logstore.objects.store import ObjectInfo, ObjectStore
from tailrace.logstore.patterns import TextTest
from tailrace.logstore.position import decode_cursor, encode_cursor
from tailrace.logstore.runs.manifest import Manifest, manifest_at
from tailrace.logstore.runs.report import RunReport

# --- Pages of runs ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in a list; times in milliseconds since the epoch, of its first and last batch.

    `lines` is None while they are not counted: OpenMetadata wrote the run, nobody imported it.
    """

    run: str
    state: str
    lines: int | None
    bytes: int
    first_ms: int | None
    last_ms: int | None
    abandoned: bool = False
    """Whether the sweeper closed it, because nobody else did."""
    reported_ms: int | None = None
    """When a run without lines began, as its client reported."""
    created_ms: int | None = None
    """When its first status came, if it has one."""

    @property
    def began_ms(self) -> int:
        """Returns the time that orders runs: of the first line or status, the earlier one."""
        return min([time for time in (self.first_ms, self.created_ms) if time], default=0)


_READERS = 16
# Of a page: runs that are read, or more if that is not enough to know the next one.
_READ = 1000
_KEPT_RUNS = 200_000
_BEGIN_BYTES = 32 << 20
_BYTES_OF_BEGIN = 300
# How far ids may be ahead of the clock, and the clocks of nodes and store apart.
_AHEAD_MS = 15 * 60_000
_NEVER: Final = -(1 << 62)
_PREFIX: Final = "l2."


class TimeSpan(NamedTuple):
    """A time span in milliseconds, both ends inclusive; None: open at that end."""

    low_ms: int | None = None
    high_ms: int | None = None

    def has(self, time_ms: int | None) -> bool:
        """Returns true if the span contains the time; a span with an end does not contain None."""
        if time_ms is None:
            return self == EVER
        return (self.low_ms is None or time_ms >= self.low_ms) and (
            self.high_ms is None or time_ms <= self.high_ms
        )


EVER: Final = TimeSpan()


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs are wanted; an empty set means all. Times are milliseconds, inclusive.

    A run is between `low_ms` and `high_ms` if any of its lines may be. `began` and `last` bound its
    begin and its last line. `name` tests its id. Outcomes are words of `outcomes.FILTERS`.
    """

    states: frozenset[str] = frozenset()
    outcomes: frozenset[str] = frozenset()
    low_ms: int | None = None
    high_ms: int | None = None
    began: TimeSpan = EVER
    last: TimeSpan = EVER
    name: TextTest | None = None

    @property
    def changed_from_ms(self) -> int:
        """Returns the time at or after which a wanted run must have changed."""
        lows = [self.low_ms, self.began.low_ms, self.last.low_ms]
        return max([low for low in lows if low is not None], default=_NEVER) - _AHEAD_MS

    def admits(self, run: RunSummary) -> bool:
        """Returns true if the run is wanted, as far as its log says."""
        if self.states and run.state not in self.states:
            return False
        if self.name is not None and not self.name(run.run):
            return False
        if not (self.began.has(run.began_ms) and self.last.has(run.last_ms)):
            return False
        first, last = run.first_ms or run.reported_ms, run.last_ms or run.reported_ms
        if self.low_ms is not None and (last is None or last < self.low_ms):
            return False
        return self.high_ms is None or (first is not None and first <= self.high_ms)


class ListedRun(NamedTuple):
    """A run, its client's last status, and how it ended; None while it goes on."""

    run: RunSummary
    report: RunReport | None
    outcome: str | None


class ReportedRuns(Protocol):
    """The reports of clients about runs, also about runs without a line."""

    async def components(self, fqn: str) -> Mapping[str, ObjectInfo]:
        """Returns the components of keys of runs with a status, and the statuses' objects."""
        ...

    async def created(self, info: ObjectInfo) -> int | None:
        """Returns when the first status of a listed run came; None if it is deleted."""
        ...

    async def at(self, fqn: str, component: str) -> RunReport | None:
        """Returns the newest status of the run with this component of keys."""
        ...

    async def listed(self, info: ObjectInfo) -> RunReport | None:
        """Returns the status that was just listed, or a newer one; None if it is deleted."""
        ...

    async def pipelines(self) -> Sequence[str]:
        """Returns the components of keys of pipelines with a status."""
        ...

    async def pipeline(self, component: str) -> str | None:
        """Returns the name of such a pipeline; None if its statuses are deleted."""
        ...


class Newest(NamedTuple):
    """The run of a pipeline that began last and its status; None without any.

    `silent` nodes did not answer which runs they have lines of. `damaged` runs cannot be read and
    may have begun later.
    """

    run: RunSummary | None
    silent: tuple[str, ...] = ()
    report: RunReport | None = None
    damaged: tuple[str, ...] = ()


class NamePage(NamedTuple):
    """Names of pipelines, in order, and the place of the next page; None at the end.

    `silent` nodes did not answer which pipelines they have lines of. `held`: the store did not
    answer, and these are the pipelines of which nodes hold lines.
    """

    names: list[str]
    after: str | None
    silent: tuple[str, ...] = ()
    held: bool = False


@dataclass(frozen=True, slots=True)
class RunPage:
    """Some runs, and where the next ones begin; None at the end.

    `silent` nodes did not answer, for the first page, which runs they have lines of. `held`: the
    store did not answer, and these are runs of which nodes hold lines. `damaged` are runs whose
    record or status cannot be read; runs with an unreadable record are not in the list.
    """

    runs: list[ListedRun]
    after: str | None
    silent: tuple[str, ...] = ()
    held: bool = False
    damaged: tuple[str, ...] = ()


class RunEntry(NamedTuple):
    """A run in a list: its last change, in milliseconds, and its component of keys.

    `stamp` differs if the run may have another begin; it is "" if that is unknown.
    """

    moment: int
    key: str
    stamp: str = ""


def nothing_late(_manifest: Manifest) -> bool:
    """Returns false: no node is silent."""
    return False


@dataclass(frozen=True, slots=True)
class RunNames:
    """All runs of a pipeline with their last change; unflushed and not imported runs.

    `late` returns true if a silent node says in the store that it holds lines of a run.
    """

    fqn: str
    entries: list[RunEntry]
    unflushed: Mapping[str, RunKey] = field(default_factory=dict)
    upstream: Mapping[str, RunSummary] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    reported: Mapping[str, ObjectInfo] = field(default_factory=dict)
    """Components of runs with a status, and its object."""
    late: Callable[[Manifest], bool] = nothing_late
    begun: Mapping[str, int] = field(default_factory=dict)
    """When runs began that are known only by lines in this node's journal."""


class _RunBegin(NamedTuple):
    """A place in the list: when a run began, and its component of keys."""

    ms: int
    key: str


class _ListPlace(NamedTuple):
    """The run after which a page begins; None: before all. `since`: the time of the first page."""

    since: int
    begin: _RunBegin | None


@dataclass(slots=True)
class _Order:
    """Runs by their last changes, the latest first, and read runs by their begins.

    The begins are in ascending order. `unread`: all entries before it were read.
    """

    entries: list[RunEntry]
    names: RunNames
    begins: list[_RunBegin] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    unread: int = 0

    def add(self, key: str, began_ms: int | None) -> None:
        """Notes when a run began; None: it is gone."""
        if key not in self.known:
            self.known.add(key)
            if began_ms is not None:
                insort(self.begins, _RunBegin(began_ms, key))

    def to_read(self, wanted: RunFilter, start: int) -> list[int]:
        """Returns the next few entries from `start` on that may be wanted and have no known begin.

        They are numbers of entries.
        """
        while self.unread < len(self.entries) and self.entries[self.unread].key in self.known:
            self.unread += 1
        found: list[int] = []
        low = wanted.changed_from_ms
        for number in range(max(self.unread, start), len(self.entries)):
            entry = self.entries[number]
            if entry.moment < low or len(found) == _READERS:
                break
            if entry.key not in self.known and may_match(entry.key, wanted.name):
                found.append(number)
        return found

    def behind(self, begin: _RunBegin | None, wanted: RunFilter, least_ms: int) -> list[_RunBegin]:
        """Returns the next few runs after a place that began after a time, the latest first."""
        at = len(self.begins) if begin is None else bisect_left(self.begins, begin)
        found: list[_RunBegin] = []
        while at > 0 and len(found) < _READERS:
            at -= 1
            one = self.begins[at]
            if one.ms <= least_ms:
                break
            if may_match(one.key, wanted.name):
                found.append(one)
        return found


@dataclass(slots=True)
class _ListRequest:
    """A request for a page, and the data that it has read so far.

    `first`: it is the first page, so its names were listed just now.
    """

    first: bool
    wanted: RunFilter
    now_ms: int
    reported: ReportedRuns
    fresh: dict[str, RunSummary | None] = field(default_factory=dict)
    damaged: dict[str, None] = field(default_factory=dict)
    reads: int = 0
    start: int = 0
    """Entries before it are not wanted, or their begins are known."""

    async def status(self, names: RunNames, component: str) -> RunReport | None:
        """Returns the newest status of a run. Raises `StoreUnavailable`, `Damaged`."""
        if not self.first:
            return await self.reported.at(names.fqn, component)
        info = names.reported.get(component)
        return None if info is None else await self.reported.listed(info)


class RunPages:
    """The pages of one node.

    `names` lists a pipeline's runs; `summary` reads one, and returns None if it has no lines.
    """

    def __init__(
        self,
        names: Callable[[str, ReportedRuns], Awaitable[RunNames]],
        summary: Callable[[RunNames, str], Awaitable[RunSummary | None]],
        outcomes: RunOutcomes,
    ) -> None:
        self._outcomes = outcomes
        self._names = names
        self._summary = summary
        self._kept: BoundedCache[tuple[str, int], _Order] = BoundedCache(
            _KEPT_RUNS, lambda order: len(order.entries)
        )
        self._begins: Cache[int] = Cache(_BEGIN_BYTES)

    async def page(
        self,
        fqn: str,
        wanted: RunFilter,
        limit: int,
        after: str | None,
        *,
        now_ms: int,
        reported: ReportedRuns,
    ) -> RunPage:
        """Returns at most `limit` runs. Raises `InvalidCursor`, `StoreUnavailable`."""
        place = _ListPlace(now_ms, None) if after is None else _decode(after)
        order = await self._order(fqn, place.since, reported, again=after is not None)
        asked = _ListRequest(after is None, wanted, now_ms, reported)
        begin, found = place.begin, list[ListedRun]()
        if begin is None and wanted.began.high_ms is not None:
            begin = _RunBegin(wanted.began.high_ms + 1, "")
        passed = 0
        while len(found) < limit and (not passed or asked.reads < _READ):
            some = await self._next(order, begin, asked)
            if not some:
                return RunPage(found, None, order.names.silent, damaged=tuple(asked.damaged))
            listing = [self._listed(order.names, one.key, asked) for one in some]
            for one, run in zip(some, await asyncio.gather(*listing), strict=True):
                begin, passed = one, passed + 1
                if run is not None:
                    found.append(run)
                if len(found) == limit:
                    break
        more = await self._next(order, begin, asked)
        behind = _encode(_ListPlace(place.since, begin)) if more else None
        return RunPage(found, behind, order.names.silent, damaged=tuple(asked.damaged))

    async def _next(
        self, order: _Order, begin: _RunBegin | None, asked: _ListRequest
    ) -> list[_RunBegin]:
        """Returns the next few runs after a place, in order; none at the end."""
        while True:
            unread = order.to_read(asked.wanted, asked.start)
            asked.start = unread[0] if unread else len(order.entries)
            least_ms = order.entries[asked.start].moment + _AHEAD_MS if unread else _NEVER
            found = order.behind(begin, asked.wanted, least_ms)
            if found or not unread:
                low = asked.wanted.began.low_ms
                return [one for one in found if low is None or one.ms >= low]
            entries = [order.entries[number] for number in unread]
            begins = [self._begin(order.names, entry, asked) for entry in entries]
            for entry, ms in zip(entries, await asyncio.gather(*begins), strict=True):
                order.add(entry.key, ms)

    async def _begin(self, names: RunNames, entry: RunEntry, asked: _ListRequest) -> int | None:
        """Returns when a run began; None if it is gone, or cannot be read."""
        if entry.key in names.begun:
            return names.begun[entry.key]
        name = (names.fqn, entry.key, entry.stamp)
        known = self._begins.get(name) if entry.stamp else None
        if known is not None:
            return known
        run = await self._look(names, entry.key, asked)
        asked.fresh[entry.key] = run
        if run is None:
            return None
        if entry.stamp:
            self._begins.put(name, run.began_ms, _BYTES_OF_BEGIN)
        return run.began_ms

    async def _look(
        self, names: RunNames, component: str, asked: _ListRequest
    ) -> RunSummary | None:
        """Returns a run as it is now; None if it is gone, or cannot be read."""
        asked.reads += 1
        try:
            return await self._read(names, component, asked)
        except Damaged:
            asked.damaged[decode(component) or component] = None
            return None

    async def _listed(
        self, names: RunNames, component: str, asked: _ListRequest
    ) -> ListedRun | None:
        if component in asked.fresh:
            run = asked.fresh.pop(component)
        else:
            run = await self._look(names, component, asked)
        if run is None or not asked.wanted.admits(run):
            return None
        try:
            said = await asked.status(names, component)
        except Damaged:
            asked.damaged[run.run] = said = None
        if run.reported_ms is not None and said is None:
            return None  # it was deleted meanwhile
        outcome = self._outcomes.decide(run, said, asked.now_ms)
        if asked.wanted.outcomes and not asked.wanted.outcomes & filter_words(outcome, said):
            return None
        return ListedRun(run, said, outcome)

    async def _read(
        self, names: RunNames, component: str, asked: _ListRequest
    ) -> RunSummary | None:
        """Reads a run as it is now, also one without lines that its client reported."""
        run = await self._summary(names, component)
        info = names.reported.get(component)
        if info is None:
            return run
        if run is not None:
            try:
                return replace(run, created_ms=await asked.reported.created(info))
            except Damaged:  # `_listed` names it
                return run
        report = await asked.status(names, component)
        if report is None:
            return None
        state, created = state_without_lines(report), report.created_ms
        began = report.said.started_ms or created
        run_id = report.key.run
        return RunSummary(run_id, state, 0, 0, None, None, reported_ms=began, created_ms=created)

    async def _order(self, fqn: str, since: int, reported: ReportedRuns, *, again: bool) -> _Order:
        if again and (kept := self._kept.get((fqn, since))) is not None:
            return kept
        names = await self._names(fqn, reported)
        order = _Order(sorted(names.entries, reverse=True), names)
        self._kept.put((fqn, since), order)
        return order


def may_match(component: str, name: TextTest | None) -> bool:
    """Returns false only if the component of keys contains the name, and it is not wanted."""
    if name is None:
        return True
    run = decode(component)
    return run is None or name(run)


def _encode(place: _ListPlace) -> str:
    return encode_cursor(_PREFIX, [place.since, *(place.begin or ())])


def _decode(text: str) -> _ListPlace:
    try:
        since, ms, key = decode_cursor(_PREFIX, text)
        return _ListPlace(int(since), _RunBegin(int(ms), str(key)))
    except (ValueError, TypeError) as error:
        raise InvalidCursor(
            f"not a place in a list of runs: {text[:80]!r}",
            field="after",
            hint="Begin the list again, without `after`.",
        ) from error


_HELD_RUNS = 64  # runs among which the one that began last is looked for
_READ_PIPELINES = 10_000  # for one page
_AFTER_NAME = "n1."


class _UnflushedRuns(NamedTuple):
    """Runs with lines in journals, and the nodes that did not answer."""

    keys: list[RunKey]
    silent: tuple[str, ...]


class Listing:
    """The lists of runs and pipelines, as one node sees them."""

    def __init__(
        self,
        store: ObjectStore,
        progress: FlushProgress,
        pin: Callable[[], UnflushedPin],
        backlog: Backlog,
        deletions: Deletions,
        snapshots: Snapshots,
        upstream: Upstream,
        others: RunLogPeers,
        outcomes: RunOutcomes,
        held_in: Callable[[str, Collection[str]], Awaitable[Callable[[Manifest], bool]]],
    ) -> None:
        """`held_in`: see `RemoteState.held_in`."""
        self._held_in = held_in
        self._store = store
        self._progress = progress
        self._pin = pin
        self._backlog = backlog
        self._deletions = deletions
        self._snapshots = snapshots
        self._upstream = upstream
        self._others = others
        self._list = RunPages(self._names, self._summary, outcomes)

    async def run_page(
        self,
        fqn: str,
        wanted: RunFilter,
        limit: int,
        after: str | None,
        *,
        now_ms: int,
        reported: ReportedRuns,
    ) -> RunPage:
        """Returns a page of a pipeline's runs, as `RunPages.page`."""
        try:
            return await self._list.page(
                fqn, wanted, limit, after, now_ms=now_ms, reported=reported
            )
        except (StoreUnavailable, NodeNotReady):
            if after is not None:  # the next try continues there
                return RunPage([], after, held=True)
            return await self._held_page(fqn, wanted, limit)

    async def _held_page(self, fqn: str, wanted: RunFilter, limit: int) -> RunPage:
        """Returns runs of which nodes hold lines, without their states and outcomes."""
        wanted = replace(wanted, states=frozenset())
        unflushed = await self._held(fqn)
        found = [] if wanted.outcomes else await self._held_runs(unflushed, wanted, limit)
        return RunPage(
            [ListedRun(run, None, None) for run in found], None, unflushed.silent, held=True
        )

    async def _held_runs(
        self, unflushed: _UnflushedRuns, wanted: RunFilter, limit: int
    ) -> list[RunSummary]:
        """Returns at most `limit` of them, newest first."""
        found: list[RunSummary] = []
        for key in unflushed.keys:
            if wanted.name is not None and not wanted.name(key.run):
                continue
            async with self._snapshots.held(key) as snapshot:
                summary = await _of_snapshot(snapshot)
            if summary is not None and wanted.admits(summary):
                found.append(summary)
            if len(found) == limit:
                break
        return sorted(found, key=lambda s: (s.began_ms, encode(s.run)), reverse=True)

    async def newest_held(self, fqn: str) -> Newest:
        """Returns the run that began last among those of which nodes hold lines."""
        unflushed = await self._held(fqn)
        found = await self._held_runs(unflushed, RunFilter(), _HELD_RUNS)
        return Newest(found[0] if found else None, unflushed.silent)

    async def newest(self, fqn: str, reported: ReportedRuns) -> Newest:
        """Returns the first run of a pipeline's list. Raises `StoreUnavailable`.

        Raises `Damaged` if runs exist and none can be read.
        """
        page = await self._list.page(fqn, RunFilter(), 1, None, now_ms=0, reported=reported)
        if page.damaged and not page.runs:
            raise Damaged(f"of {fqn}, {', '.join(page.damaged)} cannot be read")
        if not page.runs:
            return Newest(None, page.silent)
        run, report, _ = page.runs[0]
        return Newest(run, page.silent, report, tuple([n for n in page.damaged if n != run.run]))

    async def _names(self, fqn: str, reported: ReportedRuns) -> RunNames:
        """Lists all runs of a pipeline, without reading any."""
        begun, unflushed = self._unflushed_times(fqn)
        elsewhere = await self._elsewhere(fqn)
        late = await self._late(fqn, elsewhere.silent)
        for key, ulid in [*elsewhere.runs, *self._inherited(fqn)]:
            begun.pop(key, None)
            unflushed[key] = max(unflushed.get(key, 0), ulid >> 80)
        prefix = keys.manifests_of(fqn)
        found: dict[str, RunEntry] = {}
        async for info in self._store.list(prefix):
            name = info.key.removeprefix(prefix).removesuffix(".json")
            found[name] = RunEntry(info.modified_ms, name, info.etag)
        upstream = await self._not_imported(fqn, {f"{prefix}{name}.json" for name in found})
        others = {encode(run): summary for run, summary in upstream.items()}
        found |= {name: RunEntry(summary.last_ms or 0, name) for name, summary in others.items()}
        said = await reported.components(fqn)
        names = {encode(key.run): key for key in unflushed}
        own = {encode(key.run): first for key, first in begun.items()}
        own = {name: first for name, first in own.items() if name not in found and name not in said}
        for name, key in names.items():
            moment = max(unflushed[key], found[name].moment if name in found else 0)
            found[name] = RunEntry(moment, name)
        for name, info in said.items():
            there = found.get(name, RunEntry(info.modified_ms, name, info.etag))
            found[name] = there._replace(stamp=there.stamp and f"{there.stamp} reported")
        return RunNames(fqn, [*found.values()], names, others, elsewhere.silent, said, late, own)

    async def _summary(self, names: RunNames, component: str) -> RunSummary | None:
        """Returns a run as it is now; None if it is gone."""
        if component in names.unflushed:
            return await self._snapshots.with_one(names.unflushed[component], _of_snapshot)
        manifest = await self._manifest(f"{keys.manifests_of(names.fqn)}{component}.json")
        if manifest is None:
            return names.upstream.get(component)
        late = names.late(manifest)
        return _of_manifest(manifest, late=late) if self._shown(manifest) else None

    async def _late(self, fqn: str, silent: Collection[str]) -> Callable[[Manifest], bool]:
        """Returns a test whether the store says that a silent node holds lines of a run."""
        return await self._held_in(fqn, silent) if silent else nothing_late

    def _unflushed_times(self, fqn: str) -> tuple[dict[RunKey, int], dict[RunKey, int]]:
        """Returns times of the oldest and newest ids of runs with unflushed lines in the journal.

        The oldest do not include runs that were ever deleted.
        """
        with self._pin() as pin:
            batches = pin.batches(start=self._progress.flushed_pos)
            rows = batches.rows
            oldest = np.full(len(batches.runs), np.iinfo(np.int64).max)
            newest = np.zeros(len(batches.runs), np.int64)
            times = (rows["ulid_hi"] >> np.uint64(16)).astype(np.int64)
            np.minimum.at(oldest, rows["run"], times)
            np.maximum.at(newest, rows["run"], times)
            found = {
                key: number
                for number, key in enumerate(batches.runs)
                if key.fqn == fqn and newest[number]
            }
            begun = {key: int(oldest[n]) for key, n in found.items() if not self._deleted(key)}
            return begun, {key: int(newest[n]) for key, n in found.items()}

    async def pipelines(self) -> list[str]:
        """Returns the names of all pipelines that have runs, in order."""
        found = {key.fqn for key in (await self._unflushed()).keys}
        async for folder in self._store.folders(keys.RUNS):
            name = await self._pipeline(folder)
            if name is not None:
                found.add(name)
        return sorted(found)

    async def pipeline_page(
        self, wanted: TextTest | None, limit: int, after: str | None, *, reported: ReportedRuns
    ) -> NamePage:
        """Returns at most `limit` names of pipelines that have runs, in the order of their keys.

        It returns fewer if many folders of pipelines have none.
        """
        try:
            return await self._pipeline_page(wanted, limit, after, reported)
        except (StoreUnavailable, NodeNotReady):
            if after is not None:  # the next try continues there
                return NamePage([], after, held=True)
            unflushed = await self._held(None)
            names = sorted({key.fqn for key in unflushed.keys})
            names = [name for name in names if wanted is None or wanted(name)]
            return NamePage(names[:limit], None, unflushed.silent, held=True)

    async def _pipeline_page(
        self, wanted: TextTest | None, limit: int, after: str | None, reported: ReportedRuns
    ) -> NamePage:
        known = await self._unflushed()
        unflushed = {encode(key.fqn): key.fqn for key in known.keys}
        behind = _behind_name(after)
        found = set(unflushed)
        async for folder in self._store.folders(keys.RUNS):
            found.add(folder.removeprefix(keys.RUNS).strip("/"))
        said = set(await reported.pipelines())
        found |= said
        names: list[str] = []
        left = [c for c in sorted(found) if c > behind and may_match(c, wanted)]
        for number, component in enumerate(left):
            if len(names) == limit or number == _READ_PIPELINES:
                return NamePage(names, _AFTER_NAME + left[number - 1], known.silent)
            name = unflushed.get(component) or await self._pipeline(f"{keys.RUNS}{component}/")
            if name is None and component in said:
                name = await reported.pipeline(component)
            if name is not None and (wanted is None or wanted(name)):
                names.append(name)
        return NamePage(names, None, known.silent)

    async def exists(self, key: RunKey) -> bool:
        """Returns true if the run has lines."""

        async def look(snapshot: RunSnapshot) -> bool:
            return snapshot.exists

        return await self._snapshots.with_one(key, look)

    async def _not_imported(self, fqn: str, manifests: AbstractSet[str]) -> dict[str, RunSummary]:
        """Returns runs that OpenMetadata wrote and that have no manifest."""
        found: dict[str, RunSummary] = {}
        async for run in self._upstream.runs(fqn, manifests):
            born = ulids.highest_at(run.modified_ms)
            if keys.run_manifest(run.key) in manifests or born <= self._deleted(run.key):
                continue
            other = found.get(run.key.run)
            if other is None or other.bytes < run.bytes:
                state = "closed" if run.closed else "open"
                time = run.modified_ms
                found[run.key.run] = RunSummary(run.key.run, state, None, run.bytes, time, time)
        return found

    async def _pipeline(self, folder: str) -> str | None:
        """Returns the name of a pipeline that has a run that is not deleted."""
        component = folder.removeprefix(keys.RUNS).strip("/")
        async for info in self._store.list(f"{keys.RUNS}{component}/"):
            try:
                manifest = await self._manifest(info.key)
            except Damaged:  # it is unknown whether that run is deleted
                if (name := decode(component)) is not None:
                    return name
                continue
            if manifest is not None and self._shown(manifest):
                return decode(component) or manifest.key.fqn
        return None

    async def _manifest(self, key: str) -> Manifest | None:
        try:
            return manifest_at(key, (await self._store.get(key))[1])
        except NotFound:
            return None

    def _shown(self, manifest: Manifest) -> bool:
        return bool(manifest.chunks) and manifest.last > self._deleted(manifest.key)

    def _deleted(self, key: RunKey) -> int:
        return self._deletions.horizon(key)

    async def _unflushed(self, fqn: str | None = None) -> _UnflushedRuns:
        """Returns runs with undeleted lines in any node's journal, of a pipeline or of all."""
        elsewhere = await self._elsewhere(fqn)
        own = self._own(self._progress.flushed_pos)
        theirs = [key for key, _ in [*elsewhere.runs, *self._inherited(fqn)]]
        return _UnflushedRuns(list(dict.fromkeys([*own, *theirs])), elsewhere.silent)

    async def _held(self, fqn: str | None) -> _UnflushedRuns:
        """Does as `_hot`, without the store: the newest lines first, also of flushed runs."""
        elsewhere = await self._elsewhere(fqn, held=True)
        newest = dict(elsewhere.runs)
        for key, ulid in self._own(0).items():
            if fqn in (None, key.fqn):
                newest[key] = max(ulid, newest.get(key, 0))
        return _UnflushedRuns(
            sorted(newest, key=lambda key: newest[key], reverse=True), elsewhere.silent
        )

    def _own(self, start: int) -> dict[RunKey, int]:
        """Returns runs with undeleted lines in the journal from a position on; their newest ids."""
        with self._pin() as pin:
            found = newest_of_runs(pin.batches(start=start))
        return {key: newest for key, newest in found.items() if newest > self._deleted(key)}

    def _inherited(self, fqn: str | None) -> list[tuple[RunKey, int]]:
        """Returns runs with undeleted lines of lost nodes that this node brings into chunks."""
        found = self._backlog.waiting_runs().items()
        own = [(key, ulid) for key, ulid in found if fqn in (None, key.fqn)]
        return [(key, ulid) for key, ulid in own if ulid > self._deleted(key)]

    async def _elsewhere(self, fqn: str | None, *, held: bool = False) -> RunsElsewhere:
        """Returns runs with undeleted lines at other nodes, and their newest ids."""
        found = await self._others.runs(fqn, held=held)
        left = [(key, ulid) for key, ulid in found.runs if ulid > self._deleted(key)]
        return RunsElsewhere(left, found.silent)


def _behind_name(after: str | None) -> str:
    """Returns the component of keys after which a page of names begins."""
    if after is not None and not after.startswith(_AFTER_NAME):
        raise InvalidCursor(f"not a place in a list of pipelines: {after[:80]!r}", field="after")
    return "" if after is None else after.removeprefix(_AFTER_NAME)


def _of_manifest(manifest: Manifest, *, late: bool) -> RunSummary:
    """`late`: the store says that a silent node holds lines of the run."""
    return RunSummary(
        manifest.key.run,
        "open" if late and manifest.state == "closed" else manifest.state,
        manifest.lines,
        manifest.bytes,
        manifest.first_ms or None,
        manifest.last_ms or None,
        manifest.abandoned,
    )


async def _of_snapshot(snapshot: RunSnapshot) -> RunSummary | None:
    if not snapshot.exists:
        return None
    manifest = snapshot.manifest
    times = [time for time in (manifest.first_ms, manifest.last_ms) if time]
    for stretch in snapshot.stretches:
        times += [ulid >> 80 for ulid in lowest_and_highest(stretch.rows)]
    return RunSummary(
        manifest.key.run,
        snapshot.state,
        snapshot.lines,
        snapshot.size,
        min(times, default=None),
        max(times, default=None),
        manifest.abandoned,
    )
