"""Records of deletions that nothing needs any more go; else there were one per run for ever.

A record keeps deleted lines away that are still on their way: in segments, and in the journal
of a node that is away. It goes when its run's newest deleted line is so old that the retention
would take it, wherever it came from, and older still by `compaction.away_days`, the longest
that a node may be away; when it is done in the table; and when the service has removed the
run's manifest, which says the same. Where anything is kept for ever, records are as well, and
those of whole pipelines always: they are few.

No store deletes under a condition, and somebody might delete the run anew at this very
moment. That is first in the run's manifest and then in the record, so the manifest is looked at
once more afterwards, and the record written again if need be.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from compactor.compactor import Compactor
from compactor.report import Report
from compactor.upkeep.now import now_ms
from logstore import keys, ulid
from logstore.batch import RunKey
from logstore.errors import Damaged, NotFound, PreconditionFailed
from logstore.runs.deletion import Deletion, encode_deletion
from logstore.runs.manifest import decode_manifest

_DAY_MS: Final = 86_400_000


async def forget(compactor: Compactor, report: Report) -> None:
    """Removes such records. Raises `StoreUnavailable`, `OutcomeUnknown`, `Damaged`."""
    oldest = _oldest_ms(compactor)
    if not oldest:
        return
    purged = (await asyncio.to_thread(compactor.table.snapshot)).purged_ms
    for stored in await compactor.deletions.all(compactor.store):
        deletion = stored.deletion
        if stored.modified_ms > purged or ulid.time_ms(deletion.t) >= oldest:
            continue
        if deletion.run is not None:
            key = RunKey(deletion.fqn, deletion.run)
            report.deletions_removed += await _remove(compactor, key, deletion)


def _oldest_ms(compactor: Compactor) -> int:
    """Lines older than that are nowhere, and do not come back; 0 if that is never so."""
    limits, runs = compactor.limits, compactor.runs.longest_days
    table = runs if limits.retention_days is None else limits.retention_days
    if not (runs and table):
        return 0
    return now_ms(compactor) - round((max(runs, table) + limits.away_days) * _DAY_MS)


async def _remove(compactor: Compactor, key: RunKey, deletion: Deletion) -> bool:
    store = compactor.store
    if await _generation(compactor, key) is not None:
        return False
    await store.delete([deletion.key])
    compactor.reached("deletion removed")
    anew = await _generation(compactor, key)
    if anew is None or anew <= deletion.t:
        return True
    version = compactor.fresh_id()
    body = encode_deletion(Deletion(key.fqn, key.run, anew, version))
    with suppress(PreconditionFailed):  # then who deleted it anew wrote it after we removed it
        await store.put(deletion.key, body, if_absent=True)
    return False


async def _generation(compactor: Compactor, key: RunKey) -> int | None:
    """The highest deleted ULID by the run's manifest; None if it has none.

    0 for one that cannot be read: `verify` tells of it.
    """
    try:
        return decode_manifest((await compactor.store.get(keys.run_manifest(key)))[1]).generation
    except NotFound:
        return None
    except Damaged:
        return 0
