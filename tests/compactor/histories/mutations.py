"""Faults that the histories must see: `python -m tests.compactor.histories`.

Those that another layer makes good again are broken together with it, as in the torture's
list. Not in it is a batch that is committed though hours were noted as expired: what comes
late of such an hour goes with the next pass, so no table tells.
`tests/compactor/ingest/test_rebase.py` holds that it is planned anew.
"""

from __future__ import annotations

from typing import Final

from tests.proving import Mutation

_MARK: Final = Mutation(
    "nor at the commit",
    "tailrace/logstore/table/table.py",
    "if mark != advance.first - 1 or advance.last < advance.first:",
    "if advance.last < advance.first:",
)
_THERE: Final = Mutation(
    "nor at the commit",
    "tailrace/logstore/table/table.py",
    "        if file.path not in there:",
    "        if there is None:",
)

MUTATIONS: Final = (
    # What is removed, and when.
    Mutation(
        "a segment above the mark is removed",
        "compactor/cleanup.py",
        "if s.seq <= mark]",
        "if s.seq <= mark + 1]",
    ),
    Mutation(
        "segments are removed that are in no text",
        "compactor/cleanup.py",
        "min(settled[node], watermark.seq)",
        "settled[node]",
    ),
    Mutation(
        "segments are removed before their grace is over",
        "compactor/cleanup.py",
        "since = now_ms(compactor) - int(compactor.limits.grace_seconds * 1000)",
        "since = now_ms(compactor)",
    ),
    Mutation(
        "`low` is not raised before a segment is removed",
        "compactor/cleanup.py",
        "await _raise_low(compactor, node, segments[-1].seq + 1)",
        "await _raise_low(compactor, node, segments[-1].seq)",
    ),
    Mutation(
        "the marker of a removed segment stays",
        "compactor/cleanup.py",
        "for one in segments if one.quarantined]",
        "for one in segments if not segments]",
    ),
    Mutation(
        "a segment that is quarantined is not kept",
        "compactor/cleanup.py",
        "if s.quarantined and s.modified_ms > before)",
        "if s.quarantined and s.modified_ms > before + 10**12)",
    ),
    Mutation(
        "orphans are never removed",
        "compactor/cleanup.py",
        'gone = [f"{keys.TABLE}/{path}" for path in paths]\n    oldest',
        "gone = list[str]()\n    oldest",
    ),
    Mutation(
        "a group is evicted before its time",
        "compactor/cleanup.py",
        "if group.state is State.EVICTED or group.since_ms > oldest_ms:",
        "if group.state is State.EVICTED:",
    ),
    Mutation(
        "the first that a group needs is removed",
        "compactor/cleanup.py",
        "group.holds(node, segment.seq, candidates.quarantined)",
        "group.holds(node, segment.seq - 1, candidates.quarantined)",
    ),
    # Deletions.
    Mutation(
        "a deletion is forgotten that is not done",
        "compactor/cleanup.py",
        "done = stored.modified_ms <= purged_ms",
        "done = True",
    ),
    Mutation(
        "a deletion is forgotten while its lines may come",
        "compactor/cleanup.py",
        "and done and ulid.time_ms(stored.deletion.t) < oldest_ms",
        "and done",
    ),
    Mutation(
        "the newest record of a run is forgotten while it has a manifest",
        "compactor/cleanup.py",
        "zip(some, there, strict=True) if not known]",
        "zip(some, there, strict=True)]",
    ),
    Mutation(
        "`<` for `<=` where files are looked at",
        "compactor/purge.py",
        "pc.less_equal(group",
        "pc.less(group",
    ),
    Mutation(
        "deletions are noted as done that nobody has listed",
        "compactor/purge.py",
        "until = min(before_ms, left[-1].modified_ms)",
        "until = before_ms + 2 * MARGIN_MS",
    ),
    Mutation(
        "a deletion is noted as done in files that expire soon",
        "compactor/purge.py",
        "self._until_ms = min(self._until_ms, one.modified_ms - 1)",
        "self._until_ms = min(self._until_ms, one.modified_ms)",
    ),
    Mutation(
        "a merge knows no deletions",
        "compactor/ingest.py",
        "deletions=ranges.relevant_deletions(await self.compactor.deletions.above(store, low)),",
        "deletions=[],",
    ),
    Mutation(
        "`<` for `<=` in what a deletion may take of a batch",
        "compactor/plan.py",
        "lowest.get((one.fqn, one.run), _ABOVE_ALL) <= ulid.encode(one.t)",
        "lowest.get((one.fqn, one.run), _ABOVE_ALL) < ulid.encode(one.t)",
    ),
    # The table.
    Mutation(
        "hours expire that are not over",
        "compactor/cleanup.py",
        "if file.end_ms <= until)",
        "if file.start_ms <= until)",
    ),
    Mutation(
        "a batch is not compared with the table",
        "compactor/ingest.py",
        "held = {file.uri: file.size for file in snapshot.files if ranges.may_overlap(file)}",
        "held: dict[str, int] = {}",
    ),
    Mutation(
        "a file is met one line too late",
        "compactor/plan.py",
        "and low <= file.ulids[1])",
        "and low < file.ulids[1])",
    ),
    Mutation(
        "a batch is committed though what came has its lines",
        "compactor/ingest.py",
        "if not came or not merged.files:",
        "if came is not None:",
    ),
    Mutation(
        "a batch is committed though deletions were noted as done",
        "compactor/ingest.py",
        "and newest.purged_ms == planned.purged_ms",
        "and newest.purged_ms >= planned.purged_ms",
    ),
    Mutation(
        "a batch is committed though its nodes were ingested",
        "compactor/ingest.py",
        "all(newest.mark(one.node) == one.first - 1 for one in advances)",
        "bool(advances)",
        also=(_MARK,),
    ),
    Mutation(
        "files are replaced that are gone",
        "compactor/rewrite.py",
        "return paths <= {file.path for file in newest.files}",
        "return bool(paths)",
        also=(_THERE,),
    ),
    Mutation(
        "an own commit whose answer was lost is taken for another's",
        "tailrace/logstore/table/table.py",
        "mine = job in table.log.jobs(JOB, before, newest.version)",
        "mine = before > newest.version",
    ),
    Mutation(
        "another's commit is taken for one's own",
        "tailrace/logstore/table/table.py",
        "mine = job in table.log.jobs(JOB, before, newest.version)",
        "mine = before < newest.version",
    ),
)
