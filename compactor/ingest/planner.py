"""What one pass ingests next, within what was there when it began.

**A pass ends**: its first look lists all that waits, and what comes later is the next pass's. Else
a client that writes steadily would have the pass take its segments one by one, each with a
commit, and whatever else a pass does would never have its turn.

**Small segments wait for one another** (`gather`, where passes are repeated): what is ready is left
to a later pass as long as all of it is little by the limits of what may wait (`lag.py`) and none
of it has waited for `compaction.gather_seconds`.

**Other drivers' commits disturb nobody.** A plan is of the snapshot that was opened after segments
were listed, so it is right whatever was committed in between. Only where one of this driver's
own nodes went so far meanwhile that nothing of what was listed is left of it, and there is
more, it is listed again.
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
    """A plan, what it was made of, and nodes of which there is more, but nothing was listed."""

    plan: Plan
    listed: Mapping[str, Waiting]
    outrun: frozenset[str]

    @property
    def waiting(self) -> frozenset[str]:
        return self.plan.waiting | self.outrun


@dataclass(slots=True)
class Planner:
    """Of one pass. `newest` is the last snapshot seen: where listing begins.

    `left` says, at the end, that what is ready was left to a later pass.
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
        """Whether its node waits at it or before it."""
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
        """Whether what is ready had better wait for more. Nothing is not little."""
        limits = self.compactor.limits
        lag = lag_of(plan.segments, self.compactor.clock.now_ms())
        much = plan.more or is_much(lag, limits) or lag.seconds >= limits.gather_seconds
        return bool(plan.segments) and not much

    async def _measure(self, plan: Plan, listed: Mapping[str, Waiting]) -> None:
        """Notes what waits for whomsoever; all of it is listed at the first and last look only."""
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
        """Whether this pass would take the segment in."""
        stop = self._stopped.get(node)
        began = self._ends is None or seq <= self._ends.get(node, 0)
        return began and (stop is None or seq < stop)
