"""Tracks lines of runs that are not in chunks yet, here and on other nodes, and known deletions.

`Backlog` has the segments whose lines are not all in chunks yet, and may no longer be in the
journal. Segments of this node are added when they are confirmed, and removed with the watermark.
Inherited segments are those of a parent incarnation, found in the store at the start, and those of
lost nodes. The new lines of a run are read, and become chunks, in this order: inherited segments,
segments of this node that the journal has released, the journal.

`RunLogPeers` is the interface to other nodes; `service/peers/membership.py` implements it. Of lines
on other nodes, rows come at once, and texts only if they are small. A read of another text raises
`Unfetched`, and is repeated once the text has been fetched.

`HeldLines` has the lines of this node that are in no chunk yet, for other nodes. `ActiveMarkers`
names their runs in the store. `Deletions` has the deletions that this node knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from service.run_log.chunks import NewBatches, above, in_range
from service.run_log.contracts import FlushProgress, UnflushedPin
from service.runtime.health import MOST_MS, ClockSkew, Heartbeat
from service.runtime.process import Offload
from service.shipping.missing import MissingSegments
from tailrace.logstore import keys
from tailrace.logstore import ulid as ulids
from tailrace.logstore.batch import Indexes, RunKey, lowest_and_highest
from tailrace.logstore.cas import Document, swap
from tailrace.logstore.clock import Clock
from tailrace.logstore.errors import Conflict, Damaged, NotFound, TailraceError, UnsupportedVersion
from tailrace.logstore.keys import encode
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.position import Position
from tailrace.logstore.runs.deletions import (
    ALL_LINES,
    Deletion,
    StoredDeletions,
    decode_deletion,
    encode_deletion,
    moment_of,
    owner_of,
    undo_flip,
)
from tailrace.logstore.runs.manifest import Manifest
from tailrace.logstore.runs.report import read_watermark
from tailrace.logstore.segments.file_format import SegmentRun
from tailrace.logstore.segments.reader import SegmentBatches, fetch_segment, read_footer


@dataclass(slots=True)
class ConfirmedSegment:
    """A confirmed segment; `runs` is known once its footer was read, empty if it is unreadable.

    `high` is its highest ULID, 0 as long as that is not known. `waiting` are the runs of an
    inherited segment that were not flushed since it was inherited.
    """

    node: str
    seq: int
    first: int
    end: int
    runs: dict[RunKey, SegmentRun] | None = None
    high: int = 0
    waiting: set[RunKey] = field(default_factory=set)


class Backlog:
    """Segments of this node, of its parents, and of lost nodes that it looks after."""

    def __init__(self, store: ObjectStore, node: str, offload: Offload) -> None:
        self._store = store
        self._node = node
        self._offload = offload
        self.inherited: list[ConfirmedSegment] = []
        self.own: list[ConfirmedSegment] = []
        self.unreadable = 0
        self.gaps: dict[str, int] = {}

    async def find(self, node: str, *, most: int | None = None) -> list[ConfirmedSegment]:
        """Returns segments of `node` above its watermark, in order, at most `most`.

        For another node it returns only segments before a gap: later ones wait, and are reported.
        """
        mark = await read_watermark(self._store, node)
        found: list[ConfirmedSegment] = []
        after = keys.segment(node, mark.seq)
        pos, gap = mark.pos, None
        async for info in self._store.list(keys.segments_of(node), after=after):
            parsed = keys.parse_segment(info.key)
            if parsed is None:
                continue
            if node != self._node and parsed[1] != mark.seq + len(found) + 1:
                gap = mark.seq + len(found) + 1
                break
            segment = ConfirmedSegment(node, parsed[1], pos, pos)
            await self._describe(segment)
            pos = segment.end
            found.append(segment)
            if len(found) == most:
                break
        # Updated only now: a known gap stays known while another task reads again.
        if gap is None:
            self.gaps.pop(node, None)
        else:
            self.gaps[node] = gap
        return found

    def lacks(self, node: str) -> bool:
        """Returns true if one of the node's segments is missing, and this node looks after it."""
        return node in self.gaps

    async def inherit(self, segments: Sequence[ConfirmedSegment]) -> None:
        """Adds segments of another node, whose runs this node flushes from now on.

        Raises `StoreUnavailable`, `UnsupportedVersion`.
        """
        for segment in segments:
            segment.waiting = {run.key for run in await self.runs_of(segment)}
        self.inherited += segments

    def disown(self, node: str) -> None:
        """Drops the segments of a node that another node looks after."""
        self.inherited = [segment for segment in self.inherited if segment.node != node]

    def done(self) -> list[ConfirmedSegment]:
        """Returns for each inherited node the last segment before one with a run that waits."""
        last: dict[str, ConfirmedSegment] = {}
        blocked: set[str] = set()
        for segment in self.inherited:
            if segment.waiting:
                blocked.add(segment.node)
            elif segment.node not in blocked:
                last[segment.node] = segment
        return list(last.values())

    def drop(self, through: ConfirmedSegment) -> None:
        """Removes an inherited segment and earlier ones of its node: the watermark is past them."""
        self.inherited = [
            s for s in self.inherited if s.node != through.node or s.seq > through.seq
        ]

    def waiting_runs(self) -> dict[RunKey, int]:
        """Returns runs with lines of other nodes here in no chunk; no id of theirs is higher."""
        found: dict[RunKey, int] = {}
        for segment in self.inherited:
            for key in segment.waiting:
                found[key] = max(found.get(key, 0), segment.high)
        return found

    def now(self) -> list[ConfirmedSegment]:
        """Returns the present segments; call it before the manifest is read."""
        return [*self.inherited, *self.own]

    async def sources(
        self,
        key: RunKey,
        pin: UnflushedPin,
        segments: Sequence[ConfirmedSegment],
        manifest: Manifest,
        low: int,
        end: int,
    ) -> list[NewBatches]:
        """Returns the sources of the run's new lines, in order; of this node from `low` to `end`.

        `low` and `segments` were taken before the manifest was read, so the manifest has all lines
        that were flushed by then.
        """
        found: list[NewBatches] = []
        for segment in segments:
            own = segment.node == self._node
            limit = min(segment.end, end, pin.first_pos) if own else segment.end
            start = max(segment.first, manifest.dealt_with(segment.node), low if own else 0)
            if start < limit:
                found += await self._open(segment, key, limit)
        start = max(manifest.dealt_with(self._node), pin.first_pos, low)
        found.append(NewBatches(pin.batches(run=key, start=start, end=end), min(end, pin.end_pos)))
        return found

    async def runs_of(self, segment: ConfirmedSegment) -> Sequence[SegmentRun]:
        """Returns the runs that have lines in the segment."""
        if segment.runs is None:
            await self._describe(segment)
        return list((segment.runs or {}).values())

    async def _open(self, segment: ConfirmedSegment, key: RunKey, limit: int) -> list[NewBatches]:
        if all(run.key != key for run in await self.runs_of(segment)):
            return []
        try:
            where = keys.segment(segment.node, segment.seq)
            file = await fetch_segment(self._store, where, run=key)
            batches = await self._offload(lambda: SegmentBatches(file, key))
        except NotFound:
            return []  # consumed by all and deleted: its lines are in the chunks
        return [NewBatches(batches, limit)]

    async def _describe(self, segment: ConfirmedSegment) -> None:
        try:
            footer = await read_footer(self._store, keys.segment(segment.node, segment.seq))
        except UnsupportedVersion:
            raise
        except (NotFound, Damaged) as error:
            # The compactor quarantines a segment that fails its checks; its place is empty for
            # every reader until `verify --repair` restores it.
            self.unreadable += isinstance(error, Damaged)
            segment.runs = {}
            return
        segment.runs = {run.key: run for run in footer.runs}
        segment.high = ulids.decode(footer.high) if footer.high else 0
        if footer.ranges:
            segment.first, segment.end = footer.ranges[0][0], footer.ranges[-1][1]


# --- Other nodes --------------------------------------------------------------------------------


class Unfetched(Exception):
    """A text of another node is not here yet; `fetch` brings it, or raises `Moved`."""

    def __init__(self, fetch: Callable[[], Awaitable[None]]) -> None:
        super().__init__("a text of another node is not here yet")
        self.fetch = fetch


@dataclass(frozen=True, slots=True)
class Fork:
    """A node that continues a copy of another's folder: from `base` on its lines are its own.

    `files` are the journal files that held such lines when it forked: (file, first pos, end pos).
    `shared` are those of them that the original has as well. `missing` are segments of its
    parents that the store lacked then.
    """

    node: str
    parents: tuple[str, ...]
    base: int
    files: tuple[tuple[str, int, int], ...]
    shared: tuple[str, ...] = ()
    missing: tuple[MissingSegments, ...] = ()


async def _no_forks(_: Collection[str]) -> Sequence[Fork]:
    return ()


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The lines of a run on other nodes; `silent` nodes did not answer.

    `positions` returns the place of a line of a node, for cursors. `forks` are nodes of the
    register. `left` returns which of the other nodes are forks; it raises `StoreUnavailable`.
    """

    sources: Sequence[NewBatches] = ()
    silent: tuple[str, ...] = ()
    forks: Sequence[Fork] = ()
    positions: Callable[[str, int], Position | None] = field(default=lambda _, __: None)
    left: Callable[[Collection[str]], Awaitable[Sequence[Fork]]] = field(default=_no_forks)
    alone: bool = True
    """True if no other node exists, and none can join without a restart of this one."""
    flushed: Mapping[str, int] = field(default_factory=dict)
    """For lines held without the store: each node's lines below this position are in chunks."""


NOWHERE = Elsewhere()


class RunsElsewhere(NamedTuple):
    """Runs with lines beyond the chunks at other nodes, their newest ids, and the silent nodes."""

    runs: Sequence[tuple[RunKey, int]] = ()
    silent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Acknowledgements:
    """Nodes that were not notified, and whether a notified node is still working.

    `let_go` are nodes that an operator decommissioned: nobody asks them, and they are lost. `idle`
    are nodes that answered a close and do not close the run themselves.
    """

    silent: tuple[str, ...] = ()
    working: bool = False
    let_go: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()


class RunLogPeers(Protocol):
    """Asks and notifies the other nodes.

    A notification raises `Unavailable` without the register.
    """

    def __bool__(self) -> bool:
        """Returns true if other nodes may exist."""
        ...

    async def lines(self, key: RunKey, *, held: bool = False) -> Elsewhere:
        """Returns lines of the run beyond the chunks. Call it before the manifest is read.

        `held`: the store is not asked, and nodes that answer return what their journals hold.
        """
        ...

    async def runs(self, fqn: str | None, *, held: bool = False) -> RunsElsewhere:
        """Returns runs with lines beyond the chunks, of a pipeline or of all.

        `held` as in `lines`.
        """
        ...

    async def highest(self, fqn: str, run: str | None) -> tuple[int, tuple[str, ...]]:
        """Returns the highest ULID that they know of a run or a pipeline's runs.

        The silent nodes.
        """
        ...

    async def deleted(self, fqn: str, run: str | None, t: int) -> Acknowledgements:
        """Notifies them of a deletion."""
        ...

    async def close(self, key: RunKey) -> Acknowledgements:
        """Asks them to close the run for their own lines."""
        ...

    async def ended(self, key: RunKey) -> None:
        """Notifies them that the run is closed, so that live streams end."""
        ...


class NoOtherNodes:
    """The peers of a node that is alone."""

    def __bool__(self) -> bool:
        return False

    async def lines(self, key: RunKey, *, held: bool = False) -> Elsewhere:  # noqa: ARG002
        return NOWHERE

    async def runs(self, fqn: str | None, *, held: bool = False) -> RunsElsewhere:  # noqa: ARG002
        return RunsElsewhere()

    async def highest(self, fqn: str, run: str | None) -> tuple[int, tuple[str, ...]]:  # noqa: ARG002
        return 0, ()

    async def deleted(self, fqn: str, run: str | None, t: int) -> Acknowledgements:  # noqa: ARG002
        return Acknowledgements()

    async def close(self, key: RunKey) -> Acknowledgements:  # noqa: ARG002
        return Acknowledgements()

    async def ended(self, key: RunKey) -> None:
        """Does nothing: no node is to be notified."""


# --- Lines of this node for other nodes ---------------------------------------------------------


_GATHER_SECONDS = 0.004


class HeldSource(NamedTuple):
    """A source, its rows of the run, and the journal files of the rows, with first positions.

    `flushed`: its lines of the run below this position are in chunks, or left out for good; 0 if it
    is unknown.
    """

    source: NewBatches
    indexes: Indexes
    files: Sequence[tuple[str, int]]
    flushed: int = 0


class ChangedRuns(NamedTuple):
    """The numbers of the runs that have new lines, and one past the last examined line.

    `taken` counts how often lines of lost nodes were taken over here.
    """

    runs: list[int]
    end: int
    taken: int


class HeldLines:
    """The lines that one node holds: its own are below its journal's pin, others in its backlog."""

    def __init__(
        self, node: str, pin: Callable[[], UnflushedPin], backlog: Backlog, progress: FlushProgress
    ) -> None:
        self._node = node
        self._pin = pin
        self._backlog = backlog
        self._progress = progress
        self._waiting: dict[RunKey, set[asyncio.Future[None]]] = {}
        self.stopped = False
        self._taken = 0

    def arrived(self, key: RunKey) -> None:
        """Notes that lines of the run were synced."""
        for waiting in self._waiting.get(key, ()):
            if not waiting.done():
                waiting.set_result(None)

    def inherited(self) -> None:
        """Notes that this node took over a lost node's lines; their runs are not known yet."""
        self._taken += 1
        for key in list(self._waiting):
            self.arrived(key)

    async def changed_since(
        self, since: Sequence[tuple[RunKey, int]], seconds: float, taken: int | None = None
    ) -> ChangedRuns:
        """Returns the runs with lines at or above a position each, as soon as any exist.

        It returns all runs if lines of lost nodes were taken over since the answer with `taken`,
        and None after `seconds`. The positions are those of an earlier answer's `end`, or -1.
        Raises `Conflict` once the node has stopped.
        """
        found = self._since(since, taken)
        if found.runs:
            return found
        waiting = asyncio.get_running_loop().create_future()
        for key, _ in since:
            self._waiting.setdefault(key, set()).add(waiting)
        try:
            async with asyncio.timeout(seconds):
                await waiting
            await asyncio.sleep(_GATHER_SECONDS)
        except TimeoutError:
            pass
        finally:
            for key, _ in since:
                others = self._waiting[key]
                others.discard(waiting)
                if not others:
                    del self._waiting[key]
        return self._since(since, taken)

    def stop(self) -> None:
        """Ends all waiting, which would delay a stop of the node."""
        self.stopped = True
        for key in list(self._waiting):
            self.arrived(key)

    def _since(self, since: Sequence[tuple[RunKey, int]], taken: int | None) -> ChangedRuns:
        if self.stopped:
            raise Conflict("the node has stopped", hint="Its lines are in the store.")
        with self._pin() as pin:
            runs = [
                number
                for number, (key, start) in enumerate(since)
                if taken not in (None, self._taken)
                or 0 <= start < pin.first_pos
                or len(pin.batches(run=key, start=max(start, 0)).rows)
            ]
            return ChangedRuns(runs, pin.end_pos, self._taken)

    def runs(self, fqn: str | None) -> list[tuple[RunKey, int]]:
        """Returns runs with lines in no chunk yet, of a pipeline or of all; their newest ids.

        It includes runs of which only deleted lines are left.
        """
        inherited = self._backlog.waiting_runs().items()
        found = {key: high for key, high in inherited if fqn in (None, key.fqn)}
        with self._pin() as pin:
            batches = pin.batches(start=self._progress.flushed_pos)
            rows = batches.rows
            for number in np.unique(rows["run"]).tolist():
                key = batches.runs[number]
                if fqn in (None, key.fqn):
                    high = lowest_and_highest(rows[rows["run"] == number])[1]
                    found[key] = max(found.get(key, 0), high)
        return list(found.items())

    @asynccontextmanager
    async def of(
        self, key: RunKey, *, journal_only: bool = False
    ) -> AsyncIterator[list[HeldSource]]:
        """Yields all batches of the run that some manifest may lack, valid while the block runs.

        `journal_only`: those in the journal, without the store. Otherwise it raises `NodeNotReady`,
        `StoreUnavailable`.
        """
        if journal_only:
            with self._pin() as pin:
                source = NewBatches(pin.batches(run=key), pin.end_pos)
                indexes = in_range(source, key, 0)
                flushed = self._progress.first_unflushed(key)
                held = HeldSource(source, indexes, self._files(pin, source, indexes), flushed)
                yield [held] if len(indexes) else []
            return
        await self._progress.until_started()
        with self._pin() as pin:
            segments, low = self._backlog.now(), self._progress.first_unflushed(key)
            manifest = Manifest(key)
            sources = await self._backlog.sources(key, pin, segments, manifest, low, pin.end_pos)
            found = []
            for source in sources:
                indexes = in_range(source, key, 0)
                if len(indexes):
                    found.append(HeldSource(source, indexes, self._files(pin, source, indexes)))
            yield found

    def _files(
        self, pin: UnflushedPin, source: NewBatches, indexes: Indexes
    ) -> list[tuple[str, int]]:
        if source.node != self._node or not len(indexes):
            return []
        files: dict[str, int] = {}
        for pos in source.batches.rows["pos"][indexes[[0, -1]]].tolist():
            place = pin.position(pos)
            files.setdefault(place.file, pos)
        if len(files) > 1:  # the files between the first and the last
            files.clear()
            for pos in source.batches.rows["pos"][indexes].tolist():
                files.setdefault(pin.position(pos).file, pos)
        return list(files.items())


# --- Active markers -----------------------------------------------------------------------------


_INTERVAL_SECONDS = 5.0
_PUTS = 50
_PARALLEL = 4
_DELETES = 500


@dataclass(slots=True)
class _Run:
    """One past its last position here and its time; whether its object may or does exist."""

    end: int
    at: float
    maybe: bool = False
    there: bool = False


class ActiveMarkers:
    """Objects that say which runs have lines on this node that are not in chunks yet.

    `{prefix}/.active/{fqn}/{run}/{node}` is empty and has OpenMetadata's user metadata: `server-id`
    (the node), `timestamp` (milliseconds since the epoch), `pipeline` (the fqn as in keys, because
    metadata is ASCII). The markers are for people, and for sweepers of other nodes. They are
    written after the acknowledgement and do not delay it:

        appended ──► noted in memory ──every few seconds──► put, once per run
        flushed or closed, and no new line for a while ──► deleted, many at a time

    So a busy run costs one put, and not one per append or per flush. One round makes at most
    `_PUTS` puts; the others wait. The next start finds the markers of a killed process.

    `held` returns true if chunks lack lines of a run below a position.
    """

    def __init__(
        self,
        node: str,
        store: ObjectStore,
        clock: Clock,
        *,
        prefix: str,
        linger_seconds: float,
        held: Callable[[RunKey, int], bool],
    ) -> None:
        self._node = node
        self._store = store
        self._clock = clock
        self._prefix = prefix
        self._linger = linger_seconds
        self._held = held
        self._runs: dict[RunKey, _Run] = {}
        self._stale: list[str] = []
        self._stopping = False
        self.heartbeat = Heartbeat(clock)
        self.puts = 0
        self.last_error: str | None = None

    def __len__(self) -> int:
        return len(self._runs)

    def appended(self, key: RunKey, end: int) -> None:
        """Notes that lines of the run, below position `end`, are synced here."""
        run = self._runs.get(key)
        if run is None:
            self._runs[key] = _Run(end, self._clock.monotonic())
        else:
            run.end, run.at = end, self._clock.monotonic()

    def closed(self, key: RunKey) -> None:
        """Records that the run was closed or deleted: the next round removes its object."""
        run = self._runs.get(key)
        if run is not None:
            run.at = float("-inf")

    async def find(self, nodes: Iterable[str]) -> None:
        """Finds markers that earlier lives of these nodes left. Raises `StoreUnavailable`.

        Runs with such markers that get lines meanwhile keep their marker.
        """
        names = {encode(node) for node in nodes}
        prefix = keys.all_active(self._prefix)
        self._stale = [
            info.key
            async for info in self._store.list(prefix)
            if info.key.rpartition("/")[2] in names
        ]

    async def run(self) -> None:
        """Updates the markers in the store every interval, until stopped."""
        while not self._stopping:
            self.heartbeat.turn()
            await self._clock.sleep(_INTERVAL_SECONDS)
            try:
                await self.round()
                self.last_error = None
            except TailraceError as error:
                self.last_error = str(error)

    def stop(self) -> None:
        """Ends `run`."""
        self._stopping = True

    async def round(self) -> None:
        """Puts new markers, deletes old ones. Raises `StoreUnavailable`, `OutcomeUnknown`."""
        await self._delete(self._over(self._linger))
        new = [k for k, run in self._runs.items() if not run.there and self._held(k, run.end)]
        waiting = iter(new[:_PUTS])
        failures: list[TailraceError] = []

        async def work() -> None:
            for key in waiting:
                if not failures:
                    await self._put(key, failures)

        await asyncio.gather(*[work() for _ in range(_PARALLEL)])
        if failures:
            raise failures[0]
        self.heartbeat.success()

    async def clear(self) -> None:
        """Deletes the markers of all runs whose lines are in chunks. Raises as `round`."""
        await self._delete(self._over(0.0))

    def _over(self, linger: float) -> list[RunKey]:
        before = self._clock.monotonic() - linger
        return [k for k, r in self._runs.items() if r.at <= before and not self._held(k, r.end)]

    async def _delete(self, over: list[RunKey]) -> None:
        kept = {self._key(key) for key in self._runs.keys() - set(over)}
        names = [self._key(key) for key in over if self._runs[key].maybe]
        names += [name for name in self._stale if name not in kept]
        for start in range(0, len(names), _DELETES):
            await self._store.delete(names[start : start + _DELETES])
        self._stale = []
        for key in over:
            run = self._runs.get(key)
            if run is not None and self._held(key, run.end):
                run.maybe = run.there = False  # a line came during the deletion
            elif run is not None:
                del self._runs[key]

    async def _put(self, key: RunKey, failures: list[TailraceError]) -> None:
        run = self._runs.get(key)
        if run is None:
            return
        metadata = {
            "server-id": encode(self._node),
            "timestamp": str(self._clock.now_ms()),
            "pipeline": encode(key.fqn),
        }
        run.maybe = True
        try:
            await self._store.put(self._key(key), b"", metadata=metadata)
        except TailraceError as error:
            failures.append(error)
        else:
            run.there = True
            self.puts += 1

    def _key(self, key: RunKey) -> str:
        return keys.active(self._prefix, key, self._node)


# --- Deletions ----------------------------------------------------------------------------------


log = logging.getLogger(__name__)

_UNSURE_MS = 3_000  # error of the clock of a node of an earlier version, which did not allow for it


class Deletions:
    """The known horizons, in memory: the highest deleted ULID of a run, or of a pipeline's runs.

    They are loaded from the store at the start. Loading means listing, see
    `tailrace.logstore.runs.deletions`. If one bit of a record has changed, the node uses the record
    as it was; the damage is a problem of the node (`service/runtime/health.py`). The T of any other
    damaged record, and of one of a newer version, is unknown. The node then continues with the
    deletions that it knows, and `hiding` covers everything that the record may delete: no search
    shows such lines, and each search that would says that they are missing.

    If some node did not answer when a deletion was made, the deletion also covers all ids of the
    next minutes. That node may acknowledge lines with such ids, and show them, until it is notified
    of the deletion: `TakenBack` then counts them.

    `skew` is that of this node's clock to the store's.
    """

    def __init__(self, store: ObjectStore, skew: ClockSkew) -> None:
        self._store = store
        self._skew = skew
        self._moments: dict[tuple[str, str | None], tuple[int, int]] = {}
        self._runs: dict[RunKey, int] = {}
        self._pipelines: dict[str, int] = {}
        self._stored = StoredDeletions(damaged=undo_flip)
        self._owners: dict[str, tuple[str, str | None] | None] = {}
        self.on_heard: Callable[[str, str | None, int], None] = lambda *_: None
        """Called with a deletion of another node when this one hears of it."""
        self.on_raised: Callable[[str, str | None], None] = lambda *_: None
        """Called with a run, or a pipeline, of which more lines are deleted than before."""

    def horizon(self, key: RunKey) -> int:
        """Returns the ULID up to which lines of the run do not exist; 0 if nothing was deleted."""
        return max(self._runs.get(key, 0), self._pipelines.get(key.fqn, 0))

    def highest(self, fqn: str, run: str | None) -> int:
        """Returns the highest horizon of a run, or of a pipeline and its runs."""
        if run is not None:
            return self.horizon(RunKey(fqn, run))
        of_runs = [t for key, t in self._runs.items() if key.fqn == fqn]
        return max([self._pipelines.get(fqn, 0), *of_runs])

    def age_ms(self, key: RunKey, now_ms: int) -> int:
        """Returns the age of the run's last deletion; never less than the true age."""
        of_pipeline = self._pipelines.get(key.fqn, 0)
        if of_pipeline == self.horizon(key):
            return self.age_of(key.fqn, None, of_pipeline, now_ms)
        return self.age_of(*key, self._runs[key], now_ms)

    def age_of(self, fqn: str, run: str | None, t: int, now_ms: int) -> int:
        """Returns the age of a deletion; as `age_ms`."""
        known_t, moment_ms = self._moments.get((fqn, run), (0, 0))
        if known_t != t:
            moment_ms = self._moment_of(t)
        return max(now_ms - moment_ms, 0)

    def store_ms(self, now_ms: int) -> int:
        """Returns the store's time at this node's time; rather too early than too late."""
        return now_ms - self._skew.bounds_ms[1]

    def _moment_of(self, t: int) -> int:
        """Returns the time of a deletion by this node's clock; rather too early than too late."""
        moment_ms = moment_of(t)
        if moment_ms is None:  # a record of an earlier version
            return ulids.time_ms(t)
        least_ms, most_ms = self._skew.bounds_ms
        return moment_ms + least_ms - (_UNSURE_MS if least_ms < most_ms else 0)

    def note(
        self, fqn: str, run: str | None, t: int, *, own: bool = False, moment_ms: int | None = None
    ) -> None:
        """Raises a horizon at once, in memory; `own`: the deletion is made here.

        `moment_ms` is the time of the deletion by this node's clock, if the caller knows it. If it
        is another node's deletion, the message may have waited while this node was suspended.
        """
        if moment_ms is not None and t >= self._moments.get((fqn, run), (0, 0))[0]:
            earliest_ms = moment_ms if own else min(moment_ms, self._moment_of(t))
            self._moments[fqn, run] = (t, earliest_ms)
        if run is None:
            known = self._pipelines.get(fqn, 0)
            self._pipelines[fqn] = max(known, t)
        else:
            key = RunKey(fqn, run)
            known = self.horizon(key)
            self._runs[key] = max(self._runs.get(key, 0), t)
        if t > known:
            self.on_raised(fqn, run)
            if not own:
                self.on_heard(fqn, run, t)

    def all(self) -> list[tuple[str, str | None, int]]:
        """Returns every known deletion, as (fqn, run or None, T)."""
        runs: list[tuple[str, str | None, int]] = [(*key, t) for key, t in self._runs.items()]
        return runs + [(fqn, None, t) for fqn, t in self._pipelines.items()]

    def unreadable(self) -> dict[str, tuple[str, str | None, int]]:
        """Returns what each unreadable record may delete, by its key: everything of its owner.

        Raises the record's `Damaged` if its owner is unknown.
        """
        found = {}
        for key, error in self._stored.unreadable.items():
            owner = self._owners.get(key)
            if owner is None:
                raise error
            found[key] = (*owner, ALL_LINES)
        return found

    def hiding(self) -> list[tuple[str, str | None, int]]:
        """Returns every deletion, and possible deletions. Raises as `unreadable`."""
        return [*self.all(), *self.unreadable().values()]

    async def load(self) -> None:
        """Reads the store's deletions. Raises `StoreUnavailable`."""
        await self._note_below(keys.DELETED)

    async def refresh(self, key: RunKey) -> None:
        """Reads the store's deletions of one run. Raises `StoreUnavailable`, `Damaged`."""
        of_run, of_pipeline = keys.deletions_of(key), keys.deleted_pipeline(key.fqn)
        await self._note_below(of_run)
        pipeline = await self._stored.read(self._store, of_pipeline)
        if pipeline is not None:
            self._note(pipeline)
        for name, error in self._stored.unreadable.items():
            if name == of_pipeline or name.startswith(of_run):
                raise error

    async def _note_below(self, prefix: str) -> None:
        async for one in self._stored.each(self._store, prefix):
            self._note(one.deletion)
        unread = self._stored.unreadable
        self._owners = {key: owner for key, owner in self._owners.items() if key in unread}
        for key in [key for key in unread if self._owners.get(key) is None]:
            self._owners[key] = await owner_of(self._store, key)

    def _note(self, deletion: Deletion) -> None:
        self.note(deletion.fqn, deletion.run, deletion.t)

    async def record(self, deletion: Deletion) -> None:
        """Makes sure that the store's entry is at least `deletion.t`.

        Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
        """

        async def change(found: Deletion | None) -> Deletion | None:
            return None if found is not None and found.t >= deletion.t else deletion

        await swap(Document(self._store, deletion.key, _decode_or_none, _encode), change)


def _decode_or_none(body: bytes) -> Deletion | None:
    """Returns None for a damaged record. The new one replaces it, as its T is above now."""
    try:
        return decode_deletion(body)
    except UnsupportedVersion:
        raise
    except Damaged as error:
        return undo_flip("", body, error)


def _encode(deletion: Deletion | None) -> bytes:
    assert deletion is not None
    return encode_deletion(deletion)


class TakenBack:
    """Counts lines that this node acknowledged after a deletion before it was notified of it."""

    def __init__(self, pin: Callable[[], UnflushedPin]) -> None:
        self._pin = pin
        self.lines = 0

    def heard(self, fqn: str, run: str | None, t: int) -> None:
        """Counts the lines in the journal that a deletion removes although they came after it.

        Their ids show it: they are of the minutes by which its T is ahead of the deletion.
        """
        moment_ms = moment_of(t)
        if moment_ms is None or ulids.time_ms(t) - moment_ms <= 2 * MOST_MS:
            return  # all nodes answered: the deletion knew all that it deletes
        since = ulids.highest_at(moment_ms)
        with self._pin() as pin:
            batches = pin.batches() if run is None else pin.batches(run=RunKey(fqn, run))
            rows = batches.rows
            of_it = [n for n, key in enumerate(batches.runs) if key.fqn == fqn]
            later = above(rows, since) & ~above(rows, t) & np.isin(rows["run"], of_it)
            lines = int(rows["records"][later].sum())
        if lines:
            self.lines += lines
            log.warning(
                "a deletion at another node, reported late, removes %d lines of %s that this"
                " node had acknowledged meanwhile",
                lines,
                f"the pipeline {fqn!r}" if run is None else f"the run {run!r} of {fqn!r}",
            )
