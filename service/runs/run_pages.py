"""Pages of a pipeline's runs, those first that began last, filtered.

A run begins with its first line or its first status, whichever came earlier. Nothing that
happens to a run later changes that, so a place in the list is a begin and a name: runs may change
between two pages, and each is still given once. Runs that begin after the first page are on none.

No store knows when a run began without reading it, but it knows when the run changed last, and
no run begins after its last change. So runs are read in the order of their last changes until
all that are left must have begun before those on the page. When a run began is remembered
for as long as its record does not change.

What was listed and read is kept for the pages that follow. If it is not kept any more, or another
node is asked, names are listed and runs are read again, and the pages are the same.
"""

from __future__ import annotations

import asyncio
import base64
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

import orjson

from logstore.batch import RunKey
from logstore.cache import Cache
from logstore.errors import Damaged, InvalidCursor
from logstore.names import decode
from logstore.objects.store import ObjectInfo
from logstore.patterns import TextTest
from logstore.runs.manifest import Manifest
from logstore.runs.report import Report
from service.runs.outcomes import RunOutcomes, filter_words, state_without_lines


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
    """Of a run without lines: when it began, as its client says."""
    created_ms: int | None = None
    """When its first status came, if it has one."""

    @property
    def began_ms(self) -> int:
        """The time by which runs are in order: of its first line or status, the earlier one."""
        return min([time for time in (self.first_ms, self.created_ms) if time], default=0)


_READERS = 16
# Of a page: runs that are read, or more if that is not enough to know which one is next.
_READ = 1000
_KEPT_RUNS = 200_000
_BEGIN_BYTES = 32 << 20
_BYTES_OF_BEGIN = 300
# How far ids may lie ahead of the clock, and the clocks of nodes and store apart.
_AHEAD_MS = 15 * 60_000
_NEVER: Final = -(1 << 62)
_PREFIX: Final = "l2."


class TimeSpan(NamedTuple):
    """A time from one millisecond to another, both inclusive; None: without an end there."""

    low_ms: int | None = None
    high_ms: int | None = None

    def has(self, time_ms: int | None) -> bool:
        """Whether the time lies in it; no time lies in any span with an end."""
        if time_ms is None:
            return self == EVER
        return (self.low_ms is None or time_ms >= self.low_ms) and (
            self.high_ms is None or time_ms <= self.high_ms
        )


EVER: Final = TimeSpan()


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs are wanted; an empty set means all. Times are milliseconds, inclusive.

    A run is between `low_ms` and `high_ms` if any of its lines may be; `began` and `last` are of
    its begin and of its last line. `name` is asked about its id. Outcomes are words of
    `outcomes.FILTERS`.
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
        """A run that did not change at or after this time is not wanted."""
        lows = [self.low_ms, self.began.low_ms, self.last.low_ms]
        return max([low for low in lows if low is not None], default=_NEVER) - _AHEAD_MS

    def admits(self, run: RunSummary) -> bool:
        """Whether the run is wanted, as far as its log says."""
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
    """A run, what its client said of it last, and how it ended; None while it goes on."""

    run: RunSummary
    report: Report | None
    outcome: str | None


class ReportedRuns(Protocol):
    """What clients reported of runs, also of those that have no line yet."""

    async def components(self, fqn: str) -> Mapping[str, ObjectInfo]:
        """The components of keys of a pipeline's runs with a status, and the statuses' objects."""
        ...

    async def created(self, info: ObjectInfo) -> int | None:
        """When the first status of a listed run came; None if it is deleted."""
        ...

    async def at(self, fqn: str, component: str) -> Report | None:
        """The newest status of the run with such a component."""
        ...

    async def listed(self, info: ObjectInfo) -> Report | None:
        """The status that was just listed, or a newer one; None if it is deleted."""
        ...

    async def pipelines(self) -> Sequence[str]:
        """The components of keys of pipelines with a status."""
        ...

    async def pipeline(self, component: str) -> str | None:
        """The name of such a pipeline; None if its statuses are deleted."""
        ...


class Newest(NamedTuple):
    """The run of a pipeline that began last and its status; None without any.

    `silent` are nodes that did not say which runs they have lines of. `damaged` are runs that
    cannot be read, and that may have begun later.
    """

    run: RunSummary | None
    silent: tuple[str, ...] = ()
    report: Report | None = None
    damaged: tuple[str, ...] = ()


class NamePage(NamedTuple):
    """Names of pipelines, in order, and what to go on behind; None at the end.

    `silent` are nodes that did not say which pipelines they have lines of. `held`: the store did
    not answer, and these are the pipelines of which nodes hold lines.
    """

    names: list[str]
    after: str | None
    silent: tuple[str, ...] = ()
    held: bool = False


@dataclass(frozen=True, slots=True)
class RunPage:
    """Some runs, and where the next ones begin; None at the end.

    `silent` are nodes that did not say, for the first page, which runs they have lines of. `held`:
    the store did not answer, and these are runs of which nodes hold lines. `damaged` are runs whose
    record or status cannot be read; the former are not in the list.
    """

    runs: list[ListedRun]
    after: str | None
    silent: tuple[str, ...] = ()
    held: bool = False
    damaged: tuple[str, ...] = ()


class RunEntry(NamedTuple):
    """A run in a list: when it changed last, in milliseconds, and its component of keys.

    `stamp` differs if the run may have another begin, "" if nothing says so.
    """

    moment: int
    key: str
    stamp: str = ""


def nothing_late(_manifest: Manifest) -> bool:
    """No node is silent."""
    return False


@dataclass(frozen=True, slots=True)
class RunNames:
    """All runs of a pipeline: what changed when; those that are hot or that nobody imported.

    `late`: whether a silent node says in the store that it holds lines of a run.
    """

    fqn: str
    entries: list[RunEntry]
    hot: Mapping[str, RunKey] = field(default_factory=dict)
    upstream: Mapping[str, RunSummary] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    reported: Mapping[str, ObjectInfo] = field(default_factory=dict)
    """Components of runs with a status, and its object."""
    late: Callable[[Manifest], bool] = nothing_late
    begun: Mapping[str, int] = field(default_factory=dict)
    """When runs began of which nothing is known but the lines in this node's journal."""


class _Begin(NamedTuple):
    """A place in the list: when a run began, and its component of keys."""

    ms: int
    key: str


class _Place(NamedTuple):
    """Behind which run a page begins; None: before all. `since` is the time of the first page."""

    since: int
    begin: _Begin | None


@dataclass(slots=True)
class _Order:
    """Runs by their last changes, the latest first, and by their begins those that were read.

    The begins rise. `unread`: all entries before it were read.
    """

    entries: list[RunEntry]
    names: RunNames
    begins: list[_Begin] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    unread: int = 0

    def add(self, key: str, began_ms: int | None) -> None:
        """Takes note of when a run began; None: it is gone."""
        if key not in self.known:
            self.known.add(key)
            if began_ms is not None:
                insort(self.begins, _Begin(began_ms, key))

    def to_read(self, wanted: RunFilter, start: int) -> list[int]:
        """The next few from `start` on that may be wanted, and of which no begin is known.

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

    def behind(self, begin: _Begin | None, wanted: RunFilter, least_ms: int) -> list[_Begin]:
        """The next few behind a place that began after a time, the latest first."""
        at = len(self.begins) if begin is None else bisect_left(self.begins, begin)
        found: list[_Begin] = []
        while at > 0 and len(found) < _READERS:
            at -= 1
            one = self.begins[at]
            if one.ms <= least_ms:
                break
            if may_match(one.key, wanted.name):
                found.append(one)
        return found


@dataclass(slots=True)
class _Asked:
    """What one request for a page asks, and what it has read so far.

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

    async def status(self, names: RunNames, component: str) -> Report | None:
        """The newest status of a run. Raises `StoreUnavailable`, `Damaged`."""
        if not self.first:
            return await self.reported.at(names.fqn, component)
        info = names.reported.get(component)
        return None if info is None else await self.reported.listed(info)


class RunPages:
    """The pages of one node.

    `names` lists a pipeline's runs; `summary` reads one, and gives None if it has no lines.
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
        self._kept: OrderedDict[tuple[str, int], _Order] = OrderedDict()
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
        """At most `limit` runs. Raises `InvalidCursor`, `StoreUnavailable`."""
        place = _Place(now_ms, None) if after is None else _decode(after)
        order = await self._order(fqn, place.since, reported, again=after is not None)
        asked = _Asked(after is None, wanted, now_ms, reported)
        begin, found = place.begin, list[ListedRun]()
        if begin is None and wanted.began.high_ms is not None:
            begin = _Begin(wanted.began.high_ms + 1, "")
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
        behind = _encode(_Place(place.since, begin)) if more else None
        return RunPage(found, behind, order.names.silent, damaged=tuple(asked.damaged))

    async def _next(self, order: _Order, begin: _Begin | None, asked: _Asked) -> list[_Begin]:
        """The next few runs behind a place, in order; none at the end."""
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

    async def _begin(self, names: RunNames, entry: RunEntry, asked: _Asked) -> int | None:
        """When a run began; None if it is gone, or cannot be read."""
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

    async def _look(self, names: RunNames, component: str, asked: _Asked) -> RunSummary | None:
        """A run as it is now; None if it is gone, or cannot be read."""
        asked.reads += 1
        try:
            return await self._read(names, component, asked)
        except Damaged:
            asked.damaged[decode(component) or component] = None
            return None

    async def _listed(self, names: RunNames, component: str, asked: _Asked) -> ListedRun | None:
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

    async def _read(self, names: RunNames, component: str, asked: _Asked) -> RunSummary | None:
        """A run as it is now, also one without lines that its client reported."""
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
        kept = self._kept.get((fqn, since))
        if kept is not None and again:
            self._kept.move_to_end((fqn, since))
            return kept
        names = await self._names(fqn, reported)
        order = _Order(sorted(names.entries, reverse=True), names)
        self._keep((fqn, since), order)
        return order

    def _keep(self, name: tuple[str, int], order: _Order) -> None:
        self._kept[name] = order
        while sum([len(kept.entries) for kept in self._kept.values()]) > _KEPT_RUNS:
            self._kept.popitem(last=False)


def may_match(component: str, name: TextTest | None) -> bool:
    """False only if the component of keys says the run's name, and it is not wanted."""
    if name is None:
        return True
    run = decode(component)
    return run is None or name(run)


def _encode(place: _Place) -> str:
    value = [place.since, *(place.begin or ())]
    return _PREFIX + base64.urlsafe_b64encode(orjson.dumps(value)).decode().rstrip("=")


def _decode(text: str) -> _Place:
    try:
        if not text.startswith(_PREFIX):
            raise ValueError(text)
        body = text[len(_PREFIX) :]
        value = orjson.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        since, ms, key = value
        return _Place(int(since), _Begin(int(ms), str(key)))
    except (ValueError, TypeError) as error:
        raise InvalidCursor(
            f"not a place in a list of runs: {text[:80]!r}",
            field="after",
            hint="Begin the list again, without `after`.",
        ) from error
