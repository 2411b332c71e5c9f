"""What a store must keep of segments, of what texts have, and of groups: looked at after each step.

The model's part of texts: which segment of a node is in them, as the service said it. Only
the compactor raises `low`, before it removes a segment, and it changes nothing else of a mark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tailrace.coordination.groups import ConsumerGroup, State, read_groups
from tailrace.logstore import keys
from tailrace.logstore.objects.store import ObjectStore
from tailrace.logstore.runs.report import Watermark, read_watermark
from tests.compactor.histories.dated import HOUR_MS, MovedClock
from tests.compactor.histories.lossy import Versions

EVICTED_AFTER_MS: Final = 24 * HOUR_MS
Segment = tuple[str, int]
Run = Callable[[Coroutine[Any, Any, Any]], Any]


@dataclass
class Kept:
    """Remembers what was there at the last look: what is gone since then had to be allowed to."""

    store: ObjectStore
    clock: MovedClock
    versions: Versions
    run: Run
    grace_ms: float
    texts: dict[str, int] = field(default_factory=dict)
    _gone: set[Segment] = field(default_factory=set)
    _lows: dict[str, int] = field(default_factory=dict)
    _groups: dict[str, ConsumerGroup] = field(default_factory=dict)

    def check(
        self, every: Mapping[str, int], left: Collection[Segment], aside: Collection[Segment]
    ) -> None:
        """Raises `AssertionError`. `every` has the last segment of each node.

        `left` is what is there of them, `aside` what of that is empty for every group.

        What changes between a removal and the look makes more allowed, never less.
        """
        for node in every:
            self._check_mark(node, self.run(read_watermark(self.store, node)))
        groups = self.run(read_groups(self.store)).groups
        self._check_groups({group.name: group for group in groups})
        empty = {n: {seq for of_node, seq in aside if of_node == n} for n in every}
        for node, seq in sorted(set(left) - set(aside)):
            blocked_by = [
                group.name
                for group in groups
                if group.state is State.ACTIVE and group.holds(node, seq, empty[node])
            ]
            late = seq < self._lows.get(node, 0)
            assert not (late and blocked_by), f"low of {node} passed {seq}, which {blocked_by} need"
        gone = {(n, seq) for n, last in every.items() for seq in range(1, last + 1)} - set(left)
        settled = self._settled_marks(every)
        for node, seq in sorted(gone - self._gone):
            where = f"segment {seq} of {node} is gone"
            assert seq <= self.texts.get(node, 0), f"{where}, and in no text"
            assert seq < self._lows[node], f"{where}, and low is {self._lows[node]}"
            assert seq <= settled[node], f"{where} before its grace is over"
        self._gone = gone

    def _check_mark(self, node: str, mark: Watermark) -> None:
        assert mark.seq == self.texts.get(node, 0), f"somebody moved the watermark of {node}"
        assert mark.low >= self._lows.get(node, 0), f"low of {node} fell"
        assert mark.low <= mark.seq + 1, f"low of {node} is {mark.low}, its texts have {mark.seq}"
        self._lows[node] = mark.low

    def _check_groups(self, groups: Mapping[str, ConsumerGroup]) -> None:
        for name, before in self._groups.items():
            now = groups[name]
            if now.evictions > before.evictions and now.state is State.EVICTED:
                waited = self.clock.ms - before.since_ms
                assert waited >= EVICTED_AFTER_MS, f"{name} is evicted after {waited} ms"
        self._groups = dict(groups)

    def _settled_marks(self, nodes: Collection[str]) -> Mapping[str, int]:
        """Of the version that was the newest one grace ago."""
        then = self.clock.ms - self.grace_ms
        version = sum(1 for made in self.versions.made if made <= then) - 1
        snapshot = self.versions.at(version)
        return {node: snapshot.mark(node) for node in nodes}


def check_markers(there: Collection[str], left: Collection[Segment]) -> None:
    """Raises `AssertionError` for a marker of a segment that is gone."""
    for key in there:
        _, _, node, seq = key.split("/")
        assert (node, int(seq)) in left, f"{key} marks nothing, of {keys.segment(node, int(seq))}"
