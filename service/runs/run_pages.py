"""Pages of a pipeline's runs, those first that changed last, filtered.

A store knows the time of a change by the second. So runs that changed in the minute before the
first page come in the order of their first lines, newest first, as far as a page needs it.

A first page lists the names of all runs; a run's manifest, or its hot lines, are read only for
those that may be on the page, at most `_READ`. A page may therefore be short, even empty,
and still have a cursor.

What was listed is kept for the pages that follow, so a run that stays is on one of them once, and
new ones are on none. If it is not kept any more, or another node is asked, names are listed again:
a run that was written to since the first page is then given at the end, maybe a second time.
"""

from __future__ import annotations

import asyncio
import base64
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, Protocol

import orjson

from logstore.batch import RunKey
from logstore.errors import Damaged, InvalidCursor
from logstore.names import decode
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
    """Of a run without lines: when its client reported it first."""

    @property
    def began_ms(self) -> int:
        """The time by which runs are in order."""
        return self.first_ms or self.reported_ms or 0


_READERS = 16
# Of a page: runs that are read, and names that are looked at.
_READ = 1000
_NAMES = 20_000
_KEPT_RUNS = 200_000
# Between clocks of node and store; and how far ids may lie ahead.
_SKEW_MS = 60_000
_AHEAD_MS = 15 * 60_000
_PREFIX: Final = "l1."


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs are wanted; an empty set means all. Times are milliseconds, inclusive.

    A run is within a time if any of its lines may be; `name` is asked about its id.
    Outcomes are words of `outcomes.FILTERS`.
    """

    states: frozenset[str] = frozenset()
    outcomes: frozenset[str] = frozenset()
    low_ms: int | None = None
    high_ms: int | None = None
    name: TextTest | None = None

    def admits(self, run: RunSummary) -> bool:
        """Whether the run is wanted, as far as its log says."""
        if self.states and run.state not in self.states:
            return False
        if self.name is not None and not self.name(run.run):
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

    async def get(self, key: RunKey) -> Report | None:
        """The newest status of a run."""
        ...

    async def components(self, fqn: str) -> Mapping[str, int]:
        """The components of keys of a pipeline's runs with a status, and when each changed."""
        ...

    async def at(self, fqn: str, component: str) -> Report | None:
        """The newest status of the run with such a component."""
        ...

    async def pipelines(self) -> Sequence[str]:
        """The components of keys of pipelines with a status."""
        ...

    async def pipeline(self, component: str) -> str | None:
        """The name of such a pipeline; None if its statuses are deleted."""
        ...


class Newest(NamedTuple):
    """The run of a pipeline that began last, None without any.

    `silent` are nodes that did not say which runs they have lines of.
    """

    run: RunSummary | None
    silent: tuple[str, ...] = ()


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
    """A run in a list: when it changed last, in milliseconds, and its component of keys."""

    moment: int
    key: str


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
    reported: Container[str] = frozenset()
    """Components of runs with a status."""
    late: Callable[[Manifest], bool] = nothing_late


class _Place(NamedTuple):
    """Behind which entry a page begins; `since` is the time of the first page.

    `again` says that it is among those that changed since, which are in order of their keys.
    """

    since: int
    again: bool
    entry: RunEntry


class _Order(NamedTuple):
    """Entries in the order of pages: the first `settled` by moment, the others by key.

    Of what is kept since the first page, those that had just changed are by their first line.
    """

    entries: list[RunEntry]
    settled: int
    names: RunNames


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
        place = None if after is None else _decode(after)
        since = now_ms if place is None else place.since
        order = await self._order(fqn, since, place, reported)
        if place is None:
            await self._rank(order, limit + _READERS, since, reported)
        at = 0 if place is None else _behind(order, place)
        found: list[ListedRun] = []
        damaged: dict[str, None] = {}
        read, most = 0, at + _NAMES
        while at < min(len(order.entries), most) and len(found) < limit and read < _READ:
            some = _next(order, at, min(len(order.entries), most), wanted)
            look = partial(self._listed, fqn, order, wanted, since, now_ms, reported, damaged)
            listing = [look(number) for number in some]
            read += len(some)
            if not some:
                at = min(len(order.entries), most)
                break
            for number, run in zip(some, await asyncio.gather(*listing), strict=True):
                at = number + 1
                if run is not None:
                    found.append(run)
                if len(found) == limit:
                    break
        if at >= len(order.entries):
            return RunPage(found, None, order.names.silent, damaged=tuple(damaged))
        last = order.entries[at - 1]
        behind = _encode(_Place(since, at > order.settled, last))
        return RunPage(found, behind, order.names.silent, damaged=tuple(damaged))

    async def _listed(
        self,
        fqn: str,
        order: _Order,
        wanted: RunFilter,
        since: int,
        now_ms: int,
        reported: ReportedRuns,
        damaged: dict[str, None],
        number: int,
    ) -> ListedRun | None:
        component = order.entries[number].key
        try:
            run = await self._read(order.names, component, reported)
        except Damaged:
            damaged[decode(component) or component] = None
            return None
        if run is None or not wanted.admits(run):
            return None
        if number >= order.settled and run.began_ms > since:
            return None  # it is younger than the first page
        try:
            said = await reported.get(RunKey(fqn, run.run))
        except Damaged:
            damaged[run.run] = said = None
        if run.reported_ms is not None and said is None:
            return None  # it was deleted meanwhile
        outcome = self._outcomes.decide(run, said, now_ms)
        if wanted.outcomes and not wanted.outcomes & filter_words(outcome, said):
            return None
        return ListedRun(run, said, outcome)

    async def _read(
        self, names: RunNames, component: str, reported: ReportedRuns
    ) -> RunSummary | None:
        """A run as it is now, also one without lines that its client reported."""
        run = await self._summary(names, component)
        if run is not None or component not in names.reported:
            return run
        report = await reported.at(names.fqn, component)
        if report is None:
            return None
        state = state_without_lines(report)
        began = report.said.started_ms or report.created_ms
        return RunSummary(report.key.run, state, 0, 0, None, None, reported_ms=began)

    async def _order(
        self, fqn: str, since: int, place: _Place | None, reported: ReportedRuns
    ) -> _Order:
        kept = self._kept.get((fqn, since))
        if kept is not None and place is not None:
            self._kept.move_to_end((fqn, since))
            return kept
        names = await self._names(fqn, reported)
        if place is None:
            entries = sorted([RunEntry(min(e.moment, since), e.key) for e in names.entries])
            order = _Order(entries[::-1], len(entries), names)
            self._keep((fqn, since), order)
            return order
        settled = sorted([e for e in names.entries if e.moment <= since - _SKEW_MS], reverse=True)
        others = sorted([e for e in names.entries if e.moment > since - _SKEW_MS], key=_by_key)
        return _Order([*settled, *others], len(settled), names)

    async def _rank(self, order: _Order, most: int, since: int, reported: ReportedRuns) -> None:
        """Puts those that just changed, at most so many, into the order of their first lines."""
        young = [e for e in order.entries[:most] if e.moment > since - _SKEW_MS]
        newest: list[tuple[int, RunEntry]] = []
        for start in range(0, len(young), _READERS):
            some = young[start : start + _READERS]
            read = await asyncio.gather(
                *[self._read(order.names, entry.key, reported) for entry in some],
                return_exceptions=True,
            )
            for one in read:
                if isinstance(one, BaseException) and not isinstance(one, Damaged):
                    raise one
            first = [run.began_ms if isinstance(run, RunSummary) else 0 for run in read]
            newest += zip(first, some, strict=True)
        order.entries[: len(young)] = [e for _, e in sorted(newest, reverse=True)]

    def _keep(self, name: tuple[str, int], order: _Order) -> None:
        self._kept[name] = order
        while sum([len(kept.entries) for kept in self._kept.values()]) > _KEPT_RUNS:
            self._kept.popitem(last=False)


def _by_key(entry: RunEntry) -> str:
    return entry.key


def _behind(order: _Order, place: _Place) -> int:
    """The number of the first entry behind the place."""
    if place.entry in order.entries[: order.settled]:
        return order.entries.index(place.entry) + 1
    if place.again:
        others = order.entries[order.settled :]
        return order.settled + bisect_right(others, place.entry.key, key=_by_key)
    return sum([entry >= place.entry for entry in order.entries[: order.settled]])


def _next(order: _Order, at: int, end: int, wanted: RunFilter) -> list[int]:
    """The next few entries that may be wanted, by their numbers."""
    found: list[int] = []
    low = None if wanted.low_ms is None else wanted.low_ms - _AHEAD_MS
    while at < end and len(found) < _READERS:
        entry = order.entries[at]
        if low is not None and entry.moment < low and at < order.settled:
            at = order.settled  # what follows changed earlier still
            continue
        if may_match(entry.key, wanted.name):
            found.append(at)
        at += 1
    return found


def may_match(component: str, name: TextTest | None) -> bool:
    """False only if the component of keys says the run's name, and it is not wanted."""
    if name is None:
        return True
    run = decode(component)
    return run is None or name(run)


def _encode(place: _Place) -> str:
    value = [place.since, place.again, place.entry.moment, place.entry.key]
    return _PREFIX + base64.urlsafe_b64encode(orjson.dumps(value)).decode().rstrip("=")


def _decode(text: str) -> _Place:
    try:
        if not text.startswith(_PREFIX):
            raise ValueError(text)
        body = text[len(_PREFIX) :]
        value = orjson.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        since, again, moment, key = value
        return _Place(int(since), bool(again), RunEntry(int(moment), str(key)))
    except (ValueError, TypeError) as error:
        raise InvalidCursor(
            f"not a place in a list of runs: {text[:80]!r}", field="after"
        ) from error
