"""Maintenance: removes consumed segments, expired hours, orphans, and records of done deletions.

**Consumer groups** (`settle`, `free`). A segment that table and run logs have stays as long as a
group needs it: it was not handed out, is leased, or has failed and was not retried. A group that
keeps it for `evict_after_hours` is evicted, and a failed segment that old is given up, so that one
dead consumer cannot fill the store. Time counts from the latest of three moments: the segment was
stored, the group was created or reset, or the segment failed. A group that is only behind, while
nothing could be deleted without it either, is left alone. The group of a log pipeline is evicted if
it alone keeps more than `segments.max_bytes`, or than its file says, however old that is: a
pipeline that is paused over a holiday loses nothing.

**Records of deletions** (`remove_deletion_records`). Each expired run has one. A record excludes
deleted lines that are still in segments, or in the journal of a node that is away. It is removed
when all of this holds:

- its newest deleted line is older than the retention by `compaction.away_days`, the longest that a
  node may be away, so that the line cannot come back from anywhere;
- the deletion is done in the table;
- the service has removed the run's manifest, which says the same, or a later record of the run says
  more.

If anything is kept for ever, records are, too. The few records of whole pipelines always stay. No
store deletes under a condition, and a run may be deleted again at any moment. The new deletion has
a record under its own key, so whenever the store removes the old one, no later deletion is lost.

**Retention** (`expire`). It removes hours of the table that are too old, or beyond its size limit.
The commit only has remove actions, planned from the snapshot's statistics: it reads no file and
starts no Spark. The files themselves stay until the vacuum, for running queries. By age, an hour is
removed when it ended `compaction.retention_days` ago; if that is not set, when no run of any
pipeline is kept that long. (Pipelines whose runs are kept for less lose them by deletions,
`purge.py`.) By size, the oldest hours, but never the newest, are removed until the rest is within
`compaction.retention_bytes`. The table records up to when its hours are gone. Late lines of such an
hour are removed by the next pass after their ingest, and a comparison of segments with the table
does not miss them.

**Clean-up** (`clean_up`). A segment is removed when the table has held it for the grace, which is
longer than any query, its lines are in their runs' logs, and no consumer group needs it. `low` in
the node's watermark is raised first, so that a late reader sees that it is late; groups are checked
again after that. Segments are removed lowest first, many in a request. All are below `low`, so a
segment that a crash leaves between removed ones looks like a gap to no reader, and is removed next
time. A quarantined segment stays, because it may be repaired, until the retention would remove
every line that it can hold.

Files of the table are removed when they are 24 h old and no version of the last 24 h has them; no
job commits files half as old. Uploads below the store that began 24 h ago and were not completed
are aborted, those of killed Spark jobs and all others. Files that a killed commit left in the
folder of the table's log are removed.

All ages are by the earlier of this machine's clock and the store's (`compactor/context.py`).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from compactor.commit import make
from compactor.context import Compactor, now_ms
from compactor.placement import STAGING
from compactor.plan import ListedSegment, nodes_of, segments_of
from compactor.report import PassReport
from tailrace.coordination.groups import (
    ConsumerGroup,
    State,
    change_group,
    drop_failed,
    evict,
    read_groups,
)
from tailrace.logstore import keys, ulid
from tailrace.logstore.batch import RunKey
from tailrace.logstore.errors import Damaged, InvalidInput, NotFound, PreconditionFailed
from tailrace.logstore.runs.deletions import Deletion, StoredDeletion
from tailrace.logstore.runs.report import raise_watermark, read_watermark
from tailrace.logstore.segments.file_format import release
from tailrace.logstore.state import advice
from tailrace.logstore.table.snapshot import TableFile, TableSnapshot
from tailrace.logstore.table.table import TableChange

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Candidates:
    """Segments of a node that could be removed, lowest first, and its quarantined ones."""

    segments: Sequence[ListedSegment]
    quarantined: frozenset[int]


async def settle(compactor: Compactor, candidates: Mapping[str, Candidates]) -> int:
    """Evicts groups that are late. Returns their number.

    Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`.
    """
    now = compactor.clock.now_ms()
    oldest = now - round(compactor.evict_after_hours * _HOUR_MS)

    def settled(group: ConsumerGroup) -> ConsumerGroup:
        if group.of_pipeline:
            return _within(group, candidates, compactor.pipeline_bytes, now)
        return _settled(group, candidates, oldest, now)

    evicted = 0
    for group in (await read_groups(compactor.store)).groups:
        if settled(group) == group:
            continue
        after = await change_group(
            compactor.store, group.name, settled, fresh_id=compactor.fresh_id
        )
        compactor.reached("group settled")
        evicted += after is not None and after.evictions > group.evictions
    return evicted


async def free(
    compactor: Compactor, candidates: Mapping[str, Candidates], report: PassReport
) -> Mapping[str, Sequence[ListedSegment]]:
    """Returns for each node the segments that no group needs, if no lower one is needed.

    A group that cannot be read may need all of them, which is an alarm. Raises `StoreUnavailable`.
    """
    groups, unreadable = await read_groups(compactor.store)
    for key, why in unreadable.items():
        report.alarm(f"no segment is removed, because a group may need it: {why}. {advice(key)}")
    if unreadable:
        return {}
    return {node: _free(groups, node, of_node) for node, of_node in candidates.items()}


def _free(
    groups: Sequence[ConsumerGroup], node: str, candidates: Candidates
) -> list[ListedSegment]:
    found: list[ListedSegment] = []
    for segment in candidates.segments:
        if any(group.holds(node, segment.seq, candidates.quarantined) for group in groups):
            return found
        found.append(segment)
    return found


def _settled(
    group: ConsumerGroup, candidates: Mapping[str, Candidates], oldest_ms: int, now_ms: int
) -> ConsumerGroup:
    """Returns the group without old failed segments, evicted if it is late."""
    if group.state is State.EVICTED or group.since_ms > oldest_ms:
        return group
    for node, of_node in candidates.items():
        for segment in of_node.segments:
            if segment.modified_ms > oldest_ms or not group.holds(
                node, segment.seq, of_node.quarantined
            ):
                continue
            failed = group.cursor(node).failed.get(segment.seq)
            if failed is not None:
                if failed.failed_ms <= oldest_ms:
                    group = drop_failed(group, node, segment.seq)
            elif _undecided(group, node, segment.seq):
                return evict(group, now_ms, f"it kept segment {segment.seq} of {node} for too long")
    return group


def _within(
    group: ConsumerGroup, candidates: Mapping[str, Candidates], most_bytes: int, now_ms: int
) -> ConsumerGroup:
    """Returns the group of a pipeline, evicted if it keeps too much."""
    kept = sum(
        segment.size
        for node, of_node in candidates.items()
        for segment in of_node.segments
        if group.holds(node, segment.seq, of_node.quarantined)
    )
    name = "segments_max_bytes of its file" if group.max_bytes else "segments.max_bytes"
    most_bytes = group.max_bytes or most_bytes
    if kept <= most_bytes:
        return group
    return evict(group, now_ms, f"it kept {kept} bytes of segments, and {name} is {most_bytes}")


def _undecided(group: ConsumerGroup, node: str, seq: int) -> bool:
    """Whether the group needs the segment itself, not only a failed one below it."""
    cursor = group.cursor(node)
    return group.state is State.STARTING or seq in cursor.pending or seq > cursor.seq


_DAY_MS: Final = 86_400_000
_AT_ONCE: Final = 16  # manifests
_DELETE_COUNT: Final = 500


async def remove_deletion_records(compactor: Compactor, report: PassReport) -> None:
    """Removes records that are done. Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`."""
    oldest = _oldest_ms(compactor)
    if not oldest:
        return
    purged = (await compactor.newest()).purged_ms
    stored = await compactor.deletions.all(compactor.store)
    highest = _highest(one.deletion for one in stored)
    old = [one for one in stored if _is_old(one, purged, oldest)]
    gone = [one.key for one in old if one.deletion.t < highest[_run(one.deletion)]]
    last = [one for one in old if one.deletion.t == highest[_run(one.deletion)]]
    for start in range(0, len(last), _AT_ONCE):
        gone += await _without_manifest(compactor, last[start : start + _AT_ONCE])
    for start in range(0, len(gone), _DELETE_COUNT):
        some = gone[start : start + _DELETE_COUNT]
        await compactor.store.delete(some)
        report.deletions_removed += len(some)
        compactor.reached("deletion removed")


def _oldest_ms(compactor: Compactor) -> int:
    """The time before which no lines exist or can come back; 0 if no such time exists."""
    limits = compactor.limits
    days = compactor.runs.remembered_days(limits.retention_days, limits.away_days)
    return now_ms(compactor) - round(days * _DAY_MS) if days else 0


def _is_old(stored: StoredDeletion, purged_ms: int, oldest_ms: int) -> bool:
    """Whether the record is of a run, done in the table, and no other place has its lines."""
    done = stored.modified_ms <= purged_ms
    return stored.deletion.run is not None and done and ulid.time_ms(stored.deletion.t) < oldest_ms


def _run(deletion: Deletion) -> tuple[str, str | None]:
    return deletion.fqn, deletion.run


def _highest(deletions: Iterable[Deletion]) -> dict[tuple[str, str | None], int]:
    """The highest deleted ULID of each run."""
    found: dict[tuple[str, str | None], int] = {}
    for one in deletions:
        found[_run(one)] = max(found.get(_run(one), 0), one.t)
    return found


async def _without_manifest(compactor: Compactor, some: Sequence[StoredDeletion]) -> list[str]:
    """Keys of records whose run has no manifest."""
    there = await asyncio.gather(*(_has_manifest(compactor, one.deletion) for one in some))
    return [one.key for one, known in zip(some, there, strict=True) if not known]


async def _has_manifest(compactor: Compactor, deletion: Deletion) -> bool:
    run = RunKey(deletion.fqn, deletion.run or "")
    try:
        await compactor.store.head(keys.run_manifest(run))
    except NotFound:
        return False
    return True


log = logging.getLogger("tailrace.compactor")
_TRIES: Final = 5
"""Where others commit all the time, the rest is left to the next pass."""


@dataclass(frozen=True, slots=True)
class ExpiredHours:
    """`files` are removed; the table then has no hour that ended by `until_ms`."""

    until_ms: int
    files: tuple[TableFile, ...]

    @property
    def hours(self) -> int:
        """The number of removed hours."""
        return len({file.end_ms for file in self.files})


async def expire(compactor: Compactor, report: PassReport) -> None:
    """Removes hours that are beyond the retention. Raises `StoreUnavailable`, `OutcomeUnknown`."""
    with report.timed("expire", compactor.clock):
        for _ in range(_TRIES):
            snapshot = await compactor.newest()
            expiry = await asyncio.to_thread(expiring, compactor, snapshot)
            if not expiry.files:
                return
            change = TableChange(removed=expiry.files, expired_ms=expiry.until_ms)
            try:
                await make(compactor, snapshot, change)
            except PreconditionFailed as error:
                log.info("planning the expiry again: %s", error)
                continue
            compactor.reached("expired")
            report.hours_expired += expiry.hours
            report.rows_expired += sum(file.rows for file in expiry.files)
            report.bytes_expired += sum(file.size for file in expiry.files)
            return


def expiring(compactor: Compactor, snapshot: TableSnapshot) -> ExpiredHours:
    """The files that the retention removes from the snapshot now. Raises `StoreUnavailable`."""
    by_size = _beyond(snapshot.files, compactor.limits.retention_bytes)
    until = max(snapshot.expired_ms, oldest_ms(compactor), by_size)
    gone = tuple(file for file in snapshot.files if file.end_ms <= until)
    ends = (file.end_ms for file in gone)
    return ExpiredHours(max(snapshot.expired_ms, max(ends, default=0)), gone)


def oldest_ms(compactor: Compactor) -> int:
    """The time by which an hour must have ended to be too old; 0 if none ever is."""
    days = compactor.limits.retention_days
    days = compactor.runs.longest_days if days is None else days
    return now_ms(compactor) - round(days * _DAY_MS) if days else 0


def _beyond(files: Sequence[TableFile], most: int | None) -> int:
    """The end of the newest hour beyond the size limit; 0 without such an hour."""
    if most is None:
        return 0
    sizes = Counter[int]()
    for file in files:
        sizes[file.end_ms] += file.size
    newest, total = max(sizes, default=0), 0
    for end in sorted(sizes, reverse=True):
        total += sizes[end]
        if total > most and end != newest:
            return end
    return 0


ORPHAN_HOURS = 24
_AHEAD_MS = 24 * _HOUR_MS  # far more than a line's ULID may be ahead of its segment's upload
_STAGING = f"{keys.TABLE}/{STAGING}/"
_LOG = f"{keys.TABLE}/_delta_log/"
# Files that delta-rs writes and then links or renames, in a folder: `….json#1`, `….json.tmp`.
_UNFINISHED = re.compile(r"(#[0-9]+|\.tmp)$")


async def clean_up(compactor: Compactor, report: PassReport, *, erase: bool = False) -> None:
    """Does the whole clean-up. Raises `StoreUnavailable`, `Damaged`.

    With `erase` it removes files at once that a commit has taken out of the table. Files of no
    version stay as long as without it, because their job may still run.
    """
    with report.timed("cleanup", compactor.clock):
        report.segments_removed += await remove_segments(compactor, report)
        report.orphans_removed += await remove_orphans(compactor)
        if erase:
            report.orphans_removed += await remove_replaced(compactor)
        await remove_deletion_records(compactor, report)
        oldest = now_ms(compactor) - ORPHAN_HOURS * _HOUR_MS
        report.writes_swept += await compactor.store.sweep(oldest)


async def remove_segments(compactor: Compactor, report: PassReport) -> int:
    """Removes segments that table, run logs and consumers have. Returns their number.

    If a node's watermark cannot be read, none of its segments is removed, which is an alarm.
    """
    since = now_ms(compactor) - int(compactor.limits.grace_seconds * 1000)
    nodes = await nodes_of(compactor.store)
    settled = await asyncio.to_thread(compactor.table.marks_at, since, nodes)
    candidates = {}
    for node in nodes:
        try:
            watermark = await read_watermark(compactor.store, node)
        except Damaged as error:
            report.alarm(f"no segment of {node} is removed: {error}")
            continue
        mark = min(settled[node], watermark.seq)
        found = await _consumed(compactor, node, mark)
        if found.segments:
            candidates[node] = found
    if not candidates:
        return 0
    await settle(compactor, candidates)
    for node, segments in (await free(compactor, candidates, report)).items():
        if segments:
            await _raise_low(compactor, node, segments[-1].seq + 1)
    # Checked again: a group that begins now exists before it reads `low`.
    removable = [
        segment for some in (await free(compactor, candidates, report)).values() for segment in some
    ]
    for start in range(0, len(removable), _DELETE_COUNT):
        await _remove(compactor, removable[start : start + _DELETE_COUNT])
    return len(removable)


async def _remove(compactor: Compactor, segments: Sequence[ListedSegment]) -> None:
    """Removes many in a request; segments that it leaves are below `low`."""
    # Quarantine markers first: without its marker a segment is removed like any other.
    await release(compactor.store, [(one.node, one.seq) for one in segments if one.quarantined])
    await compactor.store.delete([one.key for one in segments])
    compactor.reached("segment removed")


async def _consumed(compactor: Compactor, node: str, mark: int) -> Candidates:
    segments = [s for s in await segments_of(compactor.store, node) if s.seq <= mark]
    before = oldest_ms(compactor) - _AHEAD_MS
    kept = frozenset(s.seq for s in segments if s.quarantined and s.modified_ms > before)
    return Candidates([s for s in segments if s.seq not in kept], kept)


async def _raise_low(compactor: Compactor, node: str, low: int) -> None:
    await raise_watermark(compactor.store, node, fresh_id=compactor.fresh_id, low=low)
    compactor.reached("low raised")


async def remove_replaced(compactor: Compactor) -> int:
    """Removes files of older versions that the newest does not have. Returns their number."""
    paths = await asyncio.to_thread(compactor.table.replaced)
    gone = [f"{keys.TABLE}/{path}" for path in paths]
    await compactor.store.delete([*map(keys.skip_index, paths), *gone])
    return len(gone)


async def remove_orphans(compactor: Compactor, hours: int = ORPHAN_HOURS) -> int:
    """Removes files of no version and of long dead jobs. Returns their number.

    `hours` below `ORPHAN_HOURS` are for callers that know that no process writes or reads.
    """
    now = now_ms(compactor)
    ahead = round((compactor.clock.now_ms() - now) / _HOUR_MS)  # delta-rs only uses our clock
    paths = await asyncio.to_thread(compactor.table.orphans, hours + ahead)
    gone = [f"{keys.TABLE}/{path}" for path in paths]
    oldest = now - hours * _HOUR_MS
    async for job in compactor.store.folders(_STAGING):
        if _time_ms(job) < oldest:
            gone += [info.key async for info in compactor.store.list(f"{_STAGING}{job}/")]
            gone += await compactor.placement.markers(job)
    async for info in compactor.store.list(_LOG):
        if info.modified_ms < oldest and _UNFINISHED.search(info.key):
            gone.append(info.key)
    # Indexes first: a file without its index can still be read.
    await compactor.store.delete([*map(keys.skip_index, paths), *gone])
    return len(gone)


def _time_ms(job: str) -> int:
    """The time when the job began; 0 for a folder that no job made."""
    try:
        return ulid.time_ms(ulid.decode(job))
    except InvalidInput:
        return 0
