"""Removes records of deletions that are done everywhere; there is one for each expired run.

A record excludes deleted lines that are still in segments, or in the journal of a node that is
away. It is removed when all of this holds:

- its newest deleted line is older than the retention by `compaction.away_days`, the longest that
  a node may be away, so that the line cannot come back from anywhere;
- the deletion is done in the table;
- the service has removed the run's manifest, which says the same, or a later record of the run
  says more.

If anything is kept for ever, records are too. Those of whole pipelines always stay: they are few.

No store deletes under a condition, and a run may be deleted again at any moment. The new
deletion has a record under a key of its own, so whenever the store removes this one, no later
deletion is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from compactor.context import Compactor, now_ms
from compactor.report import Report
from logstore import keys, ulid
from logstore.batch import RunKey
from logstore.errors import NotFound
from logstore.runs.deletions import Deletion, StoredDeletion

_DAY_MS: Final = 86_400_000
_AT_ONCE: Final = 16  # manifests
_DELETE_COUNT: Final = 500


async def remove_deletion_records(compactor: Compactor, report: Report) -> None:
    """Removes such records. Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`."""
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
    """Older lines are nowhere, and do not come back; 0 if there is no such time."""
    limits = compactor.limits
    days = compactor.runs.remembered_days(limits.retention_days, limits.away_days)
    return now_ms(compactor) - round(days * _DAY_MS) if days else 0


def _is_old(stored: StoredDeletion, purged_ms: int, oldest_ms: int) -> bool:
    """Whether it is of a run, done in the table, and its lines are nowhere else."""
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
