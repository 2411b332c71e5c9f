"""Rewrites hours that are over: many overlapping files become few that are sorted over all.

    plan (statistics) ─► leases (`hour/…`) ─► plan one hour ─► rewrite (Spark) ─► replace
                                                   ▲                                │
                                                   └─ a file that it read is gone ──┘

**When.** An hour is over `compaction.settle_seconds` after its end, but not before the segments
that wait above the table's marks were uploaded, because they may have many lines of it. Segments
older than a day do not delay it: their node has stopped, or a backlog is being ingested, and their
lines come late.

**Plan** (`rewritings`), from the snapshot's statistics alone. A file that holds lines as they were
ingested is **fresh** (level 0), any other is **old**. Of an hour that is over, these files are
rewritten:

1. The fresh files, and the old ones whose range of keys (fqn, run_id, ulid) overlaps one of them,
if these old ones have **at most half as many bytes**. The first rewriting therefore covers the
whole hour. Late files wait until they are worth it, and old files that they do not overlap stay.
The new files have level 1, or the old files' highest. 2. Otherwise the files of one level that are
smaller than a quarter of a file, alone, once there are sixteen of them; the new files are one level
up. Late files that never become worth it, because they are small compared with their hour, cost
readers fifteen files and not thousands. 3. Otherwise the files that an older version laid out,
together. The new files have level 1, or the old files' highest. An upgrade would make all hours of
the table need that at once, so a pass rewrites for this reason alone about 1 GiB, the newest hours
first: they are read most, and the oldest ones expire before their turn.

Fewer than four files are not rewritten by the first rule, unless they have together at least a
quarter of a file. A large fresh file that overlaps no other counts as old.

**Bound**: the ingest writes a byte once. The job in which the byte leaves level 0 writes it again,
and by rule 1 at most half a byte of old files with it: 2.5 bytes in all, and 2 if nothing comes
late. Only in an hour that got late files some sixty times do late bytes cost one more, by rule 2.
That leaves half a byte per byte of the table for the log and its checkpoints, below 3. A new layout
costs one byte more for each byte in the table at that time: the name of a rewritten file says so,
whatever its content looks like.

**Commit** (`replace`). The files that are read belong to one snapshot; the new ones replace them in
one version, or are orphans. A rewriting takes long and other drivers commit often, so it need not
be the next version after its snapshot: files never change, and the new ones have the lines of those
they replace. The replacement is right on any later version that **still has all of them**, and is
made on the newest one. Lines that came meanwhile are in files of their own. Deletions that were
done meanwhile were done in the replaced files, so they are done in the new ones, too. If one of the
replaced files is gone (another rewriting, a purge, the retention), the new ones are useless, and
the rewriting must be planned again.

**Lost files** (`lost_files`, `misread_files`) are gone or differ from what was written. No program
of ours removes or changes such a file. An operator may put an intact copy back, so work that needs
the file waits and raises an alarm: a segment whose lines may be copies of those in the file, the
rewriting of its hour. All other work continues. A rewriting would give damaged lines new checksums.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Final, NamedTuple, TypeAlias

from compactor.assignment import HOURS, Assignment
from compactor.commit import make_while, place_all
from compactor.context import MOST_DELETIONS, Compactor, Hurry, never
from compactor.placement import staging_folder
from compactor.plan import nodes_of, waiting_above
from compactor.report import PassReport
from compactor.spark.engine import RewriteInput
from compactor.spark.session import in_thread
from tailrace.logstore.errors import Damaged, NotFound, PreconditionFailed, Unavailable
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.deletions import Deletion, StoredDeletion
from tailrace.logstore.table.file_check import check_footer, check_table_file
from tailrace.logstore.table.schema import NewFile, level_of
from tailrace.logstore.table.snapshot import TableFile, TableSnapshot
from tailrace.logstore.table.table import TableChange


async def replace(
    compactor: Compactor, snapshot: TableSnapshot, change: TableChange
) -> TableSnapshot:
    """Commits a change that only replaces files by files. Returns the new snapshot.

    A table of an earlier version gets the columns that it lacks first: the new files have them.
    Raises `PreconditionFailed` if one of `change.removed` is gone or the new files are too
    old, `OutcomeUnknown`, `StoreUnavailable`.
    """
    paths = {file.path for file in change.removed}

    async def has_all(newest: TableSnapshot) -> bool:
        return paths <= {file.path for file in newest.files}

    if change.files and snapshot.is_outdated:
        snapshot = await asyncio.to_thread(lambda: compactor.table.create().loaded())
        if not await has_all(snapshot):
            raise PreconditionFailed("files of the table were replaced while it got new columns")
    return await make_while(compactor, snapshot, change, has_all)


async def rewrite(
    compactor: Compactor,
    snapshot: TableSnapshot,
    files: Sequence[TableFile],
    deletions: Sequence[Deletion],
    report: PassReport,
    *,
    level: int | None = None,
) -> list[NewFile]:
    """Writes new files with the lines of `files`, each once, without lines of `deletions`.

    Reads and sorts the files and names the new ones, but commits nothing. `files` are of one hour
    and of `snapshot`; the new ones may be committed in their place, once, under any job's ULID.
    They have about `compaction.file_bytes` each, and none is written if no line is left. Their
    level is `level` (`tailrace.logstore.table.schema`), by default the lowest of `files`: removing
    lines does not count as a rewriting of the hour.

    Raises `Unavailable`, `OutcomeUnknown`, `Damaged`; files that were written are then orphans.
    Raises `UnsupportedVersion`, before anything is done, for a table of another shape.
    """
    clock, engine = compactor.clock, compactor.engine
    snapshot.check_writable()
    with report.timed("start", clock):
        await in_thread(engine.cores)
    job = compactor.fresh_id()
    folder = staging_folder(snapshot.uri, job)
    work = RewriteInput(
        files={file.uri: file.size for file in files},
        rows=sum(file.rows for file in files),
        parts=_parts(sum(file.size for file in files), compactor.limits.file_bytes),
        deletions=deletions,
    )
    with report.timed("rewrite", clock):
        rows = await in_thread(engine.rewrite, work, folder)
    compactor.reached("rewrite written")
    named = min(level_of(file.path) for file in files) if level is None else level
    with report.timed("place", clock):
        made = await place_all(compactor, job, rows, named)
    compactor.reached("rewrite placed")
    report.files_rewritten += len(files)
    report.bytes_rewritten += sum(file.size for file in made)
    return made


def _parts(size: int, target: int) -> int:
    """The number of files, each of two thirds to one and a half of `target` bytes."""
    return max(round(size / target), 1)


_WORTH: Final = 2  # fresh bytes for each old one that is written again with them
_FEWEST: Final = 4
_MANY: Final = 16
_LAYOUT_BYTES: Final = 1 << 30  # in a pass: a day of passes every five minutes rewrites 288 GiB
_LAST: Final = "\U0010ffff"  # above every fqn and run in the order of their UTF-8

Key: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Rewriting:
    """Files of one hour that become files of `level`."""

    files: tuple[TableFile, ...]
    level: int
    layout_only: bool = False

    @property
    def hour(self) -> str:
        """`YYYY-MM-DDTHH`, in UTC."""
        return hour_of(self.files[0])

    @property
    def size(self) -> int:
        """Bytes to be read."""
        return sum(file.size for file in self.files)


def rewritings(
    files: Iterable[TableFile],
    *,
    over_ms: int,
    after_ms: int,
    file_bytes: int,
    layout_bytes: int = _LAYOUT_BYTES,
) -> list[Rewriting]:
    """The rewritings of hours that ended after `after_ms`, up to `over_ms`.

    The oldest come first, then those for their layout only, the newest first: at least one, of
    about `layout_bytes` in all. The new files have about `file_bytes`.
    """
    hours: dict[int, list[TableFile]] = defaultdict(list)
    for file in files:
        if after_ms < file.end_ms <= over_ms:
            hours[file.end_ms].append(file)
    planned = (rewriting(hours[end], file_bytes=file_bytes) for end in sorted(hours))
    found = [one for one in planned if one is not None]
    outdated = [one for one in reversed(found) if one.layout_only]
    before = accumulate((one.size for one in outdated), initial=0)
    chosen = [one for one, size in zip(outdated, before, strict=False) if size < layout_bytes]
    return [one for one in found if not one.layout_only] + chosen


def rewriting(files: Sequence[TableFile], *, file_bytes: int) -> Rewriting | None:
    """The rewriting of an hour with these files, if it needs one."""
    levels: dict[int, list[TableFile]] = defaultdict(list)
    for file in files:
        levels[level_of(file.path)].append(file)
    fresh = _unsettled(levels.pop(0, []), files, file_bytes)
    return (
        _merged_in(fresh, levels, file_bytes)
        or _piled_up({0: fresh, **levels}, file_bytes)
        or _outdated(files)
    )


def hour_of(file: TableFile) -> str:
    """The file's hour, `YYYY-MM-DDTHH` in UTC."""
    return f"{file.date.isoformat()}T{file.hour:02}"


def key_range(file: TableFile) -> tuple[Key, Key]:
    """The lowest and the highest key that the file may have, by its bounds."""
    (fqn, last_fqn), (run, last_run), (low, high) = map(_known, (file.fqns, file.runs, file.ulids))
    if fqn != last_fqn:  # each fqn has its own runs
        return (fqn, "", ""), (last_fqn, _LAST, _LAST)
    if run != last_run:
        return (fqn, run, ""), (fqn, last_run, _LAST)
    return (fqn, run, low), (fqn, run, high)


def _known(bounds: tuple[str, str] | None) -> tuple[str, str]:
    return ("", _LAST) if bounds is None else bounds


def _unsettled(
    fresh: Sequence[TableFile], files: Sequence[TableFile], file_bytes: int
) -> list[TableFile]:
    """The fresh files that are small, or overlap another file of the hour."""
    return [
        one
        for one in fresh
        if one.size < file_bytes // 2
        or any(other is not one and _meet(one, other) for other in files)
    ]


def _merged_in(
    fresh: Sequence[TableFile], old: dict[int, list[TableFile]], file_bytes: int
) -> Rewriting | None:
    ranges = _joined([key_range(one) for one in fresh])
    met = [
        (level, one)
        for level, some in sorted(old.items())
        for one in some
        if _meets_one(key_range(one), ranges)
    ]
    size, more = sum(one.size for one in fresh), sum(one.size for _, one in met)
    count = len(fresh) + len(met)
    few = count < _FEWEST and size + more < file_bytes // 4
    if not fresh or count < 2 or few or more * _WORTH > size:
        return None
    return Rewriting((*fresh, *(one for _, one in met)), max([1, *(level for level, _ in met)]))


def _piled_up(levels: dict[int, list[TableFile]], file_bytes: int) -> Rewriting | None:
    for level, some in sorted(levels.items()):
        small = [one for one in some if one.size < file_bytes // 4]
        if len(small) >= _MANY:
            return Rewriting(tuple(small), level + 1)
    return None


def _outdated(files: Sequence[TableFile]) -> Rewriting | None:
    some = tuple(file for file in files if file.outdated)
    if not some:
        return None
    return Rewriting(some, max(1, *(level_of(file.path) for file in some)), layout_only=True)


def _meet(one: TableFile, other: TableFile) -> bool:
    (low, high), (low_too, high_too) = key_range(one), key_range(other)
    return low <= high_too and low_too <= high


def _joined(ranges: list[tuple[Key, Key]]) -> list[tuple[Key, Key]]:
    """The ranges in order, with overlapping ones joined."""
    joined: list[tuple[Key, Key]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], high)
        else:
            joined.append((low, high))
    return joined


def _meets_one(span: tuple[Key, Key], ranges: Sequence[tuple[Key, Key]]) -> bool:
    return any(low <= span[1] and span[0] <= high for low, high in ranges)


_AT_ONCE: Final = 16
_READ_AT_ONCE: Final = 2  # files; some row groups of each are in memory


class LostFile(NamedTuple):
    """A file that cannot be used, and the reason: the rest of a sentence after its name."""

    file: TableFile
    reason: str


async def lost_files(store: ObjectStore, files: Iterable[TableFile]) -> list[LostFile]:
    """Returns the files that are gone or damaged. Reads every page. Raises `StoreUnavailable`."""
    turns = asyncio.Semaphore(_READ_AT_ONCE)

    async def look(file: TableFile) -> LostFile | None:
        async with turns:
            try:
                await check_table_file(store, file)
            except NotFound:
                return LostFile(file, "is gone")
            except Damaged as error:
                return LostFile(file, f"is damaged ({error})")
            return None

    found = await asyncio.gather(*(look(file) for file in files))
    return [one for one in found if one is not None]


async def misread_files(store: ObjectStore, files: Iterable[TableFile]) -> list[LostFile]:
    """Returns files whose footer differs from the table's log: Spark would misread them.

    Files that are gone are not among them. Raises `StoreUnavailable`.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def look(file: TableFile) -> LostFile | None:
        async with turns:
            try:
                await check_footer(store, file)
            except NotFound:
                return None
            except Damaged as error:
                return LostFile(file, f"is damaged ({error})")
            return None

    found = await asyncio.gather(*(look(file) for file in files))
    return [one for one in found if one is not None]


def describe(lost: LostFile) -> str:
    """Describes the fault of the file, and what a person can do."""
    file = lost.file
    return (
        f"{file.path} of the table, with {file.rows} lines of the hour {hour_of(file)},"
        f" {lost.reason}: put an intact copy back, or give its lines up"
        " (docs/operate/verify.md, A file of the table that is gone or damaged)"
    )


log = logging.getLogger("tailrace.compactor")
_WAITED_FOR_MS: Final = 24 * 3_600_000
_TRIES: Final = 5
"""Where others rewrite the same hour all the time, it is left to the next pass."""


async def rewrite_hours(compactor: Compactor, report: PassReport, hurry: Hurry = never) -> None:
    """Rewrites the hours that need it and that no other driver works on.

    After each hour it calls `hurry`; if that returns True, the rest is left to the next pass.
    Raises `StoreUnavailable`, `OutcomeUnknown`, `Unavailable`, `Damaged`.
    """
    with report.timed("plan", compactor.clock):
        planned = await plan_hours(compactor)
    if not planned:
        return
    async with compactor.assigner.joined(HOURS) as assignment:
        report.works += assignment.works
        await _Hours(compactor, assignment, report, [one.hour for one in planned], hurry).run()
    report.hour_leases = dict(assignment.counted)


async def plan_hours(compactor: Compactor) -> list[Rewriting]:
    """The hours to be rewritten now, the oldest first. Raises `StoreUnavailable`."""
    snapshot = await compactor.newest()
    over_ms = await _over(compactor, snapshot)
    return await asyncio.to_thread(
        lambda: rewritings(
            snapshot.files,
            over_ms=over_ms,
            after_ms=snapshot.expired_ms,
            file_bytes=compactor.limits.file_bytes,
        )
    )


async def _over(compactor: Compactor, snapshot: TableSnapshot) -> int:
    """The time by which hours must have ended to be over."""
    now = compactor.clock.now_ms()
    marks = await asyncio.to_thread(snapshot.marks, await nodes_of(compactor.store))
    waiting = await waiting_above(compactor.store, marks, batch_bytes=0)
    uploads = [one.segments[0].modified_ms for one in waiting.values() if one.segments]
    young = [uploaded for uploaded in uploads if uploaded > now - _WAITED_FOR_MS]
    return min([now, *young]) - int(compactor.limits.settle_seconds * 1000)


@dataclass(slots=True)
class _Hours:
    """One pass over the hours that are `left`, oldest first."""

    compactor: Compactor
    assignment: Assignment
    report: PassReport
    left: list[str]
    hurry: Hurry
    deletions: Sequence[StoredDeletion] | None = None
    newest: TableSnapshot | None = None

    async def run(self) -> None:
        while self.left:
            mine = await self.assignment.claim(self.left, self.left)
            if not self.assignment.settled:
                self.newest = None  # another driver may have had the lease until now
            for alarm in self.assignment.barred:
                self.report.alarm(alarm)
            self.report.hours_held_elsewhere = len(self.left) - len(mine)
            if not mine:
                return
            await self._settle(mine[0])
            self.left.remove(mine[0])
            if self.left and await self.hurry():
                log.info("%d hours are left for the next pass: segments wait", len(self.left))
                return

    async def _settle(self, hour: str) -> None:
        """Rewrites the hour in its present state: another driver may have rewritten it before.

        Opening a version of a table with very many hours takes a while. Each hour is therefore
        planned on the snapshot that the previous one produced.
        """
        for _ in range(_TRIES):
            snapshot = await self._newest()
            planned = await asyncio.to_thread(self._planned, snapshot, hour)
            if planned is None:
                self.newest = snapshot
                return
            try:
                self.newest = await self._rewrite(snapshot, planned)
            except PreconditionFailed as error:
                log.info("planning hour %s again: %s", hour, error)
            else:
                return

    async def _newest(self) -> TableSnapshot:
        known, self.newest = self.newest, None
        if known is not None:
            return known
        return await self.compactor.newest()

    def _planned(self, snapshot: TableSnapshot, hour: str) -> Rewriting | None:
        files = [file for file in snapshot.files if hour_of(file) == hour]
        return rewriting(files, file_bytes=self.compactor.limits.file_bytes)

    async def _rewrite(self, snapshot: TableSnapshot, planned: Rewriting) -> TableSnapshot:
        compactor, files = self.compactor, planned.files
        deletions = await self._deletions(snapshot, files)
        if self._is_left(planned.hour, await misread_files(compactor.store, files)):
            return snapshot
        try:
            made = await rewrite(
                compactor, snapshot, files, deletions, self.report, level=planned.level
            )
        except Unavailable:
            if not self._is_left(planned.hour, await lost_files(compactor.store, files)):
                raise
            return snapshot
        self.assignment.check({planned.hour})
        same = sum(file.rows for file in made) == sum(file.rows for file in files)
        with self.report.timed("commit", compactor.clock):
            after = await replace(
                compactor, snapshot, TableChange(made, removed=files, same_lines=same)
            )
        compactor.reached("hour committed")
        self.report.hours_rewritten += 1
        return after

    def _is_left(self, hour: str, lost: Sequence[LostFile]) -> bool:
        """Whether the hour is left unchanged, which is an alarm for each of these files."""
        for one in lost:
            self.report.alarm(f"hour {hour} is not rewritten: {describe(one)}")
        return bool(lost)

    async def _deletions(
        self, snapshot: TableSnapshot, files: Collection[TableFile]
    ) -> list[Deletion]:
        """At most `MOST_DELETIONS` deletions of lines of the files: applying them is optional."""
        if self.deletions is None:
            self.deletions = await self.compactor.deletions.all(self.compactor.store)
        found = (one.deletion for one in self.deletions if one.modified_ms > snapshot.purged_ms)
        met = (one for one in found if _may_hold(files, one))
        return list(islice(met, MOST_DELETIONS))


def _may_hold(files: Collection[TableFile], gone: Deletion) -> bool:
    return any(file.may_hold(highest=gone.t, fqn=gone.fqn, run=gone.run) for file in files)
