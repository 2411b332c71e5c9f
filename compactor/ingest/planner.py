"""Plans one pass, batch by batch, of the segments that existed when it began.

**A pass ends**: its first look lists all waiting segments, and later ones belong to the next pass.
Otherwise a client that writes steadily would make the pass ingest its segments one by one, each
with a commit, and the maintenance would never have its turn.

**Small segments wait for one another** (`gather`, where passes are repeated): ready segments are
left to a later pass as long as all of them are below the limits of what may wait (`lag.py`), and
none has waited for `compaction.gather_seconds`.

**Commits of other drivers do no harm.** A plan belongs to the snapshot that was opened after the
segments were listed, so it is right whatever was committed in between. A node is listed again
only if it belongs to this driver, all of its listed segments were ingested meanwhile, and there
are more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from compactor.assignment import Assignment
from compactor.context import Compactor
from compactor.ingest.lag import is_much
from compactor.ingest.plan import (
    Plan,
    StoredSegment,
    Waiting,
    choose,
    lag_of,
    nodes_of,
    tally,
    waiting_above,
)
from compactor.report import Report
from logstore.table.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class _Look:
    """A plan, its input, and nodes that have more segments but none that is listed."""

    plan: Plan
    listed: Mapping[str, Waiting]
    outrun: frozenset[str]

    @property
    def waiting(self) -> frozenset[str]:
        return self.plan.waiting | self.outrun


@dataclass(slots=True)
class Planner:
    """The planner of one pass. Listing begins at `newest`, the last snapshot seen.

    `left` says, at the end, that ready segments were left to a later pass.
    """

    compactor: Compactor
    assignment: Assignment
    report: Report
    gather: bool = False
    newest: Snapshot | None = None
    left: bool = False
    _stopped: dict[str, int] = field(default_factory=dict)
    _ends: Mapping[str, int] | None = None

    def stop(self, node: str, seq: int, why: str) -> None:
        """The node waits at the segment, which is an alarm."""
        self._stopped[node] = seq
        self.report.alarm(f"{node} waits at segment {seq}: {why}")

    def is_stopped(self, segment: StoredSegment) -> bool:
        """Whether the segment's node waits at it or before it."""
        stop = self._stopped.get(segment.node)
        return stop is not None and segment.seq >= stop

    async def next(self) -> Plan:
        """The next batch; without segments if there is none for this driver."""
        nodes = await nodes_of(self.compactor.store)
        look = await self._look(nodes)
        for alarm in look.plan.alarms:
            self.report.alarm(alarm)
        first = self._ends is None
        if first and self.gather and self._is_little(look.plan):
            self.left = True
            plan = Plan(look.plan.snapshot, (), ())
        else:
            plan = await self._of_mine(nodes, look)
        await self._measure(plan, look.listed)
        return plan

    async def _of_mine(self, nodes: Sequence[str], look: _Look) -> Plan:
        """The plan of the nodes that are this driver's."""
        assignment, waiting = self.assignment, look.waiting
        mine = await assignment.claim(nodes, waiting) if waiting else []
        self.report.held_elsewhere = len(waiting) - len(mine)
        for alarm in assignment.barred:
            self.report.alarm(alarm)
        if len(mine) < len(waiting) or not assignment.settled:
            # Planned again: another driver may have taken some of it in before these were ours.
            look = await self._look(mine)
        while not look.outrun.isdisjoint(mine):
            look = await self._look(mine)
        return look.plan

    def _is_little(self, plan: Plan) -> bool:
        """Whether the ready segments, if any, should wait for more."""
        limits = self.compactor.limits
        lag = lag_of(plan.segments, self.compactor.clock.now_ms())
        much = plan.more or is_much(lag, limits) or lag.seconds >= limits.gather_seconds
        return bool(plan.segments) and not much

    async def _measure(self, plan: Plan, listed: Mapping[str, Waiting]) -> None:
        """Records what waits for any driver; lists all of it at the first and last look only."""
        partly = any(of_node.more for of_node in listed.values())
        if self._ends is None or not plan.segments or not partly:
            now = self.compactor.clock.now_ms()
            found = await tally(self.compactor.store, listed, now)
            self.report.lag = found.lag
            self._ends = found.ends if self._ends is None else self._ends

    async def _look(self, nodes: Sequence[str]) -> _Look:
        compactor, limits = self.compactor, self.compactor.limits
        known = self.newest or await compactor.newest()
        marks = await asyncio.to_thread(known.marks, nodes)
        listed = await waiting_above(compactor.store, marks, batch_bytes=limits.batch_bytes)
        # The snapshot last: a segment that was removed meanwhile is below its marks.
        snapshot = self.newest = await compactor.newest()
        marks = await asyncio.to_thread(snapshot.marks, nodes)
        going = {node: self._going(node, of_node.segments) for node, of_node in listed.items()}
        before = compactor.clock.now_ms() - int(limits.gap_alarm_seconds * 1000)
        plan = choose(snapshot, going, batch_bytes=limits.batch_bytes, gap_before_ms=before)
        return _Look(plan, listed, frozenset(self._outrun(listed, marks)))

    def _outrun(self, listed: Mapping[str, Waiting], marks: Mapping[str, int]) -> Collection[str]:
        return [
            node
            for node, of_node in listed.items()
            if of_node.more
            and of_node.segments[-1].seq <= marks[node]
            and self._goes(node, marks[node] + 1)
        ]

    def _going(self, node: str, segments: Sequence[StoredSegment]) -> Sequence[StoredSegment]:
        return [one for one in segments if self._goes(node, one.seq)]

    def _goes(self, node: str, seq: int) -> bool:
        """Whether this pass would ingest the segment."""
        stop = self._stopped.get(node)
        began = self._ends is None or seq <= self._ends.get(node, 0)
        return began and (stop is None or seq < stop)
