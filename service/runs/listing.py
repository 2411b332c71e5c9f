"""Lists the runs of a pipeline, and the pipelines, with runs that are only in the journal.

A pipeline's runs include those that OpenMetadata wrote and nobody has imported. Such runs alone
do not make a pipeline: their folder does not give its name back, and the caller may not be
allowed to see a name that nobody used.

If the store does not answer, lists have what the nodes hold: runs with lines in journals, without
what their clients reported, and without a place where another page begins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from logstore import keys
from logstore import ulid as ulids
from logstore.batch import RunKey, lowest_and_highest, newest_of_runs
from logstore.errors import Damaged, InvalidCursor, NodeNotReady, NotFound, StoreUnavailable
from logstore.names import decode, encode
from logstore.objects.store import ObjectStore
from logstore.patterns import TextTest
from logstore.runs.manifest import Manifest, manifest_at
from service.runs.backlog import Backlog
from service.runs.deletions import Deletions
from service.runs.elsewhere import OtherNodes, RunsElsewhere
from service.runs.openmetadata.layout import Upstream
from service.runs.outcomes import RunOutcomes
from service.runs.pending import FlushProgress
from service.runs.pin import Pin
from service.runs.run_pages import (
    ListedRun,
    NamePage,
    Newest,
    ReportedRuns,
    RunEntry,
    RunFilter,
    RunNames,
    RunPage,
    RunPages,
    RunSummary,
    may_match,
    nothing_late,
)
from service.runs.snapshot import Snapshot, Snapshots

_READERS = 16
_HELD_RUNS = 64  # of which the one that began last is looked for
_READ_PIPELINES = 10_000  # for one page
_AFTER_NAME = "n1."


class _Hot(NamedTuple):
    """Runs with lines in journals, and the nodes that did not say of which they have some."""

    keys: list[RunKey]
    silent: tuple[str, ...]


class Listing:
    """The lists of runs and pipelines, as one node sees them."""

    def __init__(
        self,
        store: ObjectStore,
        progress: FlushProgress,
        pin: Callable[[], Pin],
        backlog: Backlog,
        deletions: Deletions,
        snapshots: Snapshots,
        upstream: Upstream,
        others: OtherNodes,
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
        """Gives a page of a pipeline's runs, as `RunPages.page`."""
        try:
            return await self._list.page(
                fqn, wanted, limit, after, now_ms=now_ms, reported=reported
            )
        except (StoreUnavailable, NodeNotReady):
            if after is not None:  # the next try goes on there
                return RunPage([], after, held=True)
            return await self._held_page(fqn, wanted, limit)

    async def _held_page(self, fqn: str, wanted: RunFilter, limit: int) -> RunPage:
        """Runs of which nodes hold lines; their states are not known, nor their outcomes."""
        wanted = replace(wanted, states=frozenset())
        hot = await self._held(fqn)
        found = [] if wanted.outcomes else await self._held_runs(hot, wanted, limit)
        return RunPage([ListedRun(run, None, None) for run in found], None, hot.silent, held=True)

    async def _held_runs(self, hot: _Hot, wanted: RunFilter, limit: int) -> list[RunSummary]:
        """At most `limit` of them, newest first."""
        found: list[RunSummary] = []
        for key in hot.keys:
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
        """The run that began last of those of which nodes hold lines, without the store."""
        hot = await self._held(fqn)
        found = await self._held_runs(hot, RunFilter(), _HELD_RUNS)
        return Newest(found[0] if found else None, hot.silent)

    async def newest(self, fqn: str, reported: ReportedRuns) -> Newest:
        """The first run of a pipeline's list. Raises `StoreUnavailable`.

        `Damaged` if no run can be read, and there are some.
        """
        page = await self._list.page(fqn, RunFilter(), 1, None, now_ms=0, reported=reported)
        if page.damaged and not page.runs:
            raise Damaged(f"of {fqn}, {', '.join(page.damaged)} cannot be read")
        if not page.runs:
            return Newest(None, page.silent)
        run, report, _ = page.runs[0]
        return Newest(run, page.silent, report, tuple([n for n in page.damaged if n != run.run]))

    async def _names(self, fqn: str, reported: ReportedRuns) -> RunNames:
        """All runs of a pipeline, none of them read."""
        begun, hot = self._hot_times(fqn)
        elsewhere = await self._elsewhere(fqn)
        late = await self._late(fqn, elsewhere.silent)
        for key, ulid in [*elsewhere.runs, *self._inherited(fqn)]:
            begun.pop(key, None)
            hot[key] = max(hot.get(key, 0), ulid >> 80)
        prefix = keys.manifests_of(fqn)
        found: dict[str, RunEntry] = {}
        async for info in self._store.list(prefix):
            name = info.key.removeprefix(prefix).removesuffix(".json")
            found[name] = RunEntry(info.modified_ms, name, info.etag)
        upstream = await self._not_imported(fqn, {f"{prefix}{name}.json" for name in found})
        others = {encode(run): summary for run, summary in upstream.items()}
        found |= {name: RunEntry(summary.last_ms or 0, name) for name, summary in others.items()}
        said = await reported.components(fqn)
        names = {encode(key.run): key for key in hot}
        own = {encode(key.run): first for key, first in begun.items()}
        own = {name: first for name, first in own.items() if name not in found and name not in said}
        for name, key in names.items():
            moment = max(hot[key], found[name].moment if name in found else 0)
            found[name] = RunEntry(moment, name)
        for name, info in said.items():
            there = found.get(name, RunEntry(info.modified_ms, name, info.etag))
            found[name] = there._replace(stamp=there.stamp and f"{there.stamp} reported")
        return RunNames(fqn, [*found.values()], names, others, elsewhere.silent, said, late, own)

    async def _summary(self, names: RunNames, component: str) -> RunSummary | None:
        """A run as it is now; None if it is gone."""
        if component in names.hot:
            return await self._snapshots.with_one(names.hot[component], _of_snapshot)
        manifest = await self._manifest(f"{keys.manifests_of(names.fqn)}{component}.json")
        if manifest is None:
            return names.upstream.get(component)
        late = names.late(manifest)
        return _of_manifest(manifest, late=late) if self._shown(manifest) else None

    async def _late(self, fqn: str, silent: Collection[str]) -> Callable[[Manifest], bool]:
        """Whether a node that does not answer holds lines of a run, as far as the store says."""
        return await self._held_in(fqn, silent) if silent else nothing_late

    def _hot_times(self, fqn: str) -> tuple[dict[RunKey, int], dict[RunKey, int]]:
        """Times of the oldest and newest ids of runs with unflushed lines in the journal.

        The oldest are without runs that were ever deleted.
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
        """Names of all pipelines that have runs, in order."""
        found = {key.fqn for key in (await self._hot()).keys}
        async for folder in self._store.folders(keys.RUNS):
            name = await self._pipeline(folder)
            if name is not None:
                found.add(name)
        return sorted(found)

    async def pipeline_page(
        self,
        wanted: TextTest | None,
        limit: int,
        after: str | None,
        *,
        reported: ReportedRuns,
    ) -> NamePage:
        """At most `limit` names of pipelines that have runs, in the order of their keys.

        Fewer if many folders of pipelines have none.
        """
        try:
            return await self._pipeline_page(wanted, limit, after, reported)
        except (StoreUnavailable, NodeNotReady):
            if after is not None:  # the next try goes on there
                return NamePage([], after, held=True)
            hot = await self._held(None)
            names = sorted({key.fqn for key in hot.keys})
            names = [name for name in names if wanted is None or wanted(name)]
            return NamePage(names[:limit], None, hot.silent, held=True)

    async def _pipeline_page(
        self,
        wanted: TextTest | None,
        limit: int,
        after: str | None,
        reported: ReportedRuns,
    ) -> NamePage:
        known = await self._hot()
        hot = {encode(key.fqn): key.fqn for key in known.keys}
        behind = _behind_name(after)
        found = set(hot)
        async for folder in self._store.folders(keys.RUNS):
            found.add(folder.removeprefix(keys.RUNS).strip("/"))
        said = set(await reported.pipelines())
        found |= said
        names: list[str] = []
        left = [c for c in sorted(found) if c > behind and may_match(c, wanted)]
        for number, component in enumerate(left):
            if len(names) == limit or number == _READ_PIPELINES:
                return NamePage(names, _AFTER_NAME + left[number - 1], known.silent)
            name = hot.get(component) or await self._pipeline(f"{keys.RUNS}{component}/")
            if name is None and component in said:
                name = await reported.pipeline(component)
            if name is not None and (wanted is None or wanted(name)):
                names.append(name)
        return NamePage(names, None, known.silent)

    async def exists(self, key: RunKey) -> bool:
        """Whether the run has lines."""

        async def look(snapshot: Snapshot) -> bool:
            return snapshot.exists

        return await self._snapshots.with_one(key, look)

    async def _not_imported(self, fqn: str, manifests: AbstractSet[str]) -> dict[str, RunSummary]:
        """Runs that OpenMetadata wrote and that have no manifest."""
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
        """The name of a pipeline that has a run which is not deleted."""
        component = folder.removeprefix(keys.RUNS).strip("/")
        async for info in self._store.list(f"{keys.RUNS}{component}/"):
            try:
                manifest = await self._manifest(info.key)
            except Damaged:  # nobody knows whether that run is deleted
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

    async def _hot(self, fqn: str | None = None) -> _Hot:
        """Runs, of a pipeline or of all, with undeleted lines in the journal of any node."""
        elsewhere = await self._elsewhere(fqn)
        own = self._own(self._progress.flushed_pos)
        theirs = [key for key, _ in [*elsewhere.runs, *self._inherited(fqn)]]
        return _Hot(list(dict.fromkeys([*own, *theirs])), elsewhere.silent)

    async def _held(self, fqn: str | None) -> _Hot:
        """As `_hot`, without the store: the newest lines first, also of flushed ones."""
        elsewhere = await self._elsewhere(fqn, held=True)
        newest = dict(elsewhere.runs)
        for key, ulid in self._own(0).items():
            if fqn in (None, key.fqn):
                newest[key] = max(ulid, newest.get(key, 0))
        return _Hot(sorted(newest, key=lambda key: newest[key], reverse=True), elsewhere.silent)

    def _own(self, start: int) -> dict[RunKey, int]:
        """Runs with undeleted lines in the journal from a position on, and their newest ids."""
        with self._pin() as pin:
            found = newest_of_runs(pin.batches(start=start))
        return {key: newest for key, newest in found.items() if newest > self._deleted(key)}

    def _inherited(self, fqn: str | None) -> list[tuple[RunKey, int]]:
        """Runs with undeleted lines of lost nodes that this node brings into chunks."""
        found = self._backlog.waiting_runs().items()
        own = [(key, ulid) for key, ulid in found if fqn in (None, key.fqn)]
        return [(key, ulid) for key, ulid in own if ulid > self._deleted(key)]

    async def _elsewhere(self, fqn: str | None, *, held: bool = False) -> RunsElsewhere:
        """Runs with undeleted lines at other nodes, and their newest ids."""
        found = await self._others.runs(fqn, held=held)
        left = [(key, ulid) for key, ulid in found.runs if ulid > self._deleted(key)]
        return RunsElsewhere(left, found.silent)


def _behind_name(after: str | None) -> str:
    """The component of keys behind which a page of names begins."""
    if after is not None and not after.startswith(_AFTER_NAME):
        raise InvalidCursor(f"not a place in a list of pipelines: {after[:80]!r}", field="after")
    return "" if after is None else after.removeprefix(_AFTER_NAME)


def _of_manifest(manifest: Manifest, *, late: bool) -> RunSummary:
    """`late`: a node that does not answer says in the store that it holds lines of the run."""
    return RunSummary(
        manifest.key.run,
        "open" if late and manifest.state == "closed" else manifest.state,
        manifest.lines,
        manifest.bytes,
        manifest.first_ms or None,
        manifest.last_ms or None,
        manifest.abandoned,
    )


async def _of_snapshot(snapshot: Snapshot) -> RunSummary | None:
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
