"""Clean-up: removes consumed segments, orphans, and what crashed jobs left.

A segment is removed when the table has held it for the grace, which is longer than any query,
its lines are in their runs' logs, and no consumer group needs it (`consumers.py`). `low` in the
node's watermark is raised first, so that a late reader sees that it is late; groups are checked
again after that. Segments are removed lowest first, many in a request. All are below `low`, so
one that a crash leaves between others looks like a gap to nobody, and is removed next time. A
quarantined segment stays, because it may be repaired, until the retention would remove every
line that it can hold.

Files of the table are removed when they are 24 h old and no version of the last 24 h has them; no
job commits files half as old. Uploads below the store that began 24 h ago and were not completed
are aborted, those of killed Spark jobs and all others. Files that a killed commit left beside the
table's log are removed.

All ages are by the earlier of this machine's clock and the store's (`compactor/context.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from compactor.commit.placement import STAGING
from compactor.context import Compactor, now_ms
from compactor.ingest.plan import StoredSegment, nodes_of, segments_of
from compactor.maintenance.consumers import Candidates, free, settle
from compactor.maintenance.deletion_records import remove_deletion_records
from compactor.maintenance.retention import oldest_ms
from compactor.report import Report
from logstore import keys, ulid
from logstore.errors import Damaged, InvalidInput
from logstore.runs.watermark import raise_watermark, read_watermark
from logstore.segments.quarantine import release

ORPHAN_HOURS = 24
_DELETE_COUNT = 500  # segments in a request, with at most as many markers before
_HOUR_MS = 3_600_000
_AHEAD_MS = 24 * _HOUR_MS  # far more than a line's ULID may be ahead of its segment's upload
_STAGING = f"{keys.TABLE}/{STAGING}/"
_LOG = f"{keys.TABLE}/_delta_log/"
# What delta-rs writes and then links or renames, in a folder: `….json#1`, `….json.tmp`.
_UNFINISHED = re.compile(r"(#[0-9]+|\.tmp)$")


async def clean_up(compactor: Compactor, report: Report, *, erase: bool = False) -> None:
    """Does the whole clean-up; with `erase` without patience. Raises `StoreUnavailable`, `Damaged`.

    Then files go at once that a commit has taken out of the table. Those of no version stay as
    long as ever, because their job may still run.
    """
    with report.timed("cleanup", compactor.clock):
        report.segments_removed += await remove_segments(compactor, report)
        report.orphans_removed += await remove_orphans(compactor)
        if erase:
            report.orphans_removed += await remove_replaced(compactor)
        await remove_deletion_records(compactor, report)
        oldest = now_ms(compactor) - ORPHAN_HOURS * _HOUR_MS
        report.writes_swept += await compactor.store.sweep(oldest)


async def remove_segments(compactor: Compactor, report: Report) -> int:
    """Removes segments that table, run logs and consumers have, and gives their number.

    Of a node whose watermark cannot be read none is removed, which is an alarm.
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
    # Looked at again: a group that begins now is there before it looks at `low`.
    removable = [
        segment for some in (await free(compactor, candidates, report)).values() for segment in some
    ]
    for start in range(0, len(removable), _DELETE_COUNT):
        await _remove(compactor, removable[start : start + _DELETE_COUNT])
    return len(removable)


async def _remove(compactor: Compactor, segments: Sequence[StoredSegment]) -> None:
    """Removes many in a request; any that are left are below `low`."""
    # Markers first: without one a segment is like any other.
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
    """Removes files that were in a version and are not in the newest, and gives their number."""
    paths = await asyncio.to_thread(compactor.table.replaced)
    gone = [f"{keys.TABLE}/{path}" for path in paths]
    await compactor.store.delete([*map(keys.skip_index, paths), *gone])
    return len(gone)


async def remove_orphans(compactor: Compactor, hours: int = ORPHAN_HOURS) -> int:
    """Removes files of no version and of long dead jobs, and gives their number.

    `hours` below `ORPHAN_HOURS` are for callers that know that nobody writes or reads.
    """
    now = now_ms(compactor)
    ahead = round((compactor.clock.now_ms() - now) / _HOUR_MS)  # delta-rs has our clock only
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
    # Indexes first: a file without its own is read all the same.
    await compactor.store.delete([*map(keys.skip_index, paths), *gone])
    return len(gone)


def _time_ms(job: str) -> int:
    """When the job began; 0 for a folder that no job made."""
    try:
        return ulid.time_ms(ulid.decode(job))
    except InvalidInput:
        return 0
