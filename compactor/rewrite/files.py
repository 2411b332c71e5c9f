"""Rewrites files of one hour: reads, sorts and names them. Commits nothing.

Other drivers may commit between reading and replacing. A rewriting takes long and others commit
often, so it need not be the next version after its snapshot: files never change, and the new
ones have the lines of those they replace. The replacement is right on any later version that
**still has all of them**, and is made on the newest one. Lines that came meanwhile are in files
of their own. Deletions that were done meanwhile were done in the replaced files, so they are done
in the new ones too. Once one of the files is gone (another rewriting, a purge, the retention),
the new ones are useless, and the rewriting must be planned again.
"""

from __future__ import annotations

from collections.abc import Sequence

from compactor.commit.change import make_while, place_all
from compactor.commit.placement import staging_folder
from compactor.context import Compactor
from compactor.report import Report
from compactor.spark.engine import RewriteInput
from compactor.spark.threads import in_thread
from logstore.runs.deletions import Deletion
from logstore.table.commit import Change
from logstore.table.layout import level_of
from logstore.table.snapshot import Snapshot, TableFile
from logstore.table.stats import NewFile


async def replace(compactor: Compactor, snapshot: Snapshot, change: Change) -> Snapshot:
    """Commits a change that only replaces files by files; gives the new snapshot.

    Raises `PreconditionFailed` if one of `change.removed` is gone or the new files are too
    old, `OutcomeUnknown`, `StoreUnavailable`.
    """
    paths = {file.path for file in change.removed}

    async def has_all(newest: Snapshot) -> bool:
        return paths <= {file.path for file in newest.files}

    return await make_while(compactor, snapshot, change, has_all)


async def rewrite(
    compactor: Compactor,
    snapshot: Snapshot,
    files: Sequence[TableFile],
    deletions: Sequence[Deletion],
    report: Report,
    *,
    level: int | None = None,
) -> list[NewFile]:
    """New files with the lines of `files`, each once, without those that `deletions` name.

    `files` are of one hour and of `snapshot`; the new ones may be committed in their place,
    once, under any job's ULID. They are about `compaction.file_bytes` each, none if no line
    is left, and of `level` (`logstore.table.layout`), else of the lowest of `files`:
    removing lines does not count as a rewriting of the hour.

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
    """How many files, each two thirds to one and a half of `target` bytes."""
    return max(round(size / target), 1)
