"""What a store's table must hold, in plain Python: sets of records, and nothing clever.

A record is (fqn, run, ulid, message). The table has the records of all segments up to each
node's mark, each once, but for what is deleted or beyond the retention: that may still be
there for a while, and is gone where the table says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tailrace.logstore import ulid
from tailrace.logstore.runs.deletions import Deletion
from tests.compactor.histories.dated import HOUR_MS
from tests.compactor.lake import Record
from tests.compactor.plain_engine import is_deleted


@dataclass(frozen=True)
class Said:
    """What a version of the table says of itself."""

    marks: Mapping[str, int]
    purged_ms: int
    expired_ms: int


@dataclass
class Model:
    """Segments in the order of their numbers, from 1, and deletions with when they were stored.

    A segment that cannot be read has no records, and is kept by when it was stored; at one that
    is `newer` its node waits. `deletions` are those of which the store has a record, `ever`
    has those that were forgotten, too, by the highest ULID that is gone. `again` says when a record
    was last written, as it was before or not: that is all that the store can say of it, so what
    is done up to a time before that may leave it out.
    """

    segments: dict[str, list[set[Record]]] = field(default_factory=dict)
    newer: dict[str, int] = field(default_factory=dict)
    unreadable: dict[tuple[str, int], int] = field(default_factory=dict)
    deletions: dict[str, tuple[Deletion, int]] = field(default_factory=dict)
    ever: dict[tuple[str, str | None], int] = field(default_factory=dict)
    again: dict[str, int] = field(default_factory=dict)

    def readable(self) -> dict[str, int]:
        """The last segment of each node that can be ingested."""
        return {n: self.newer.get(n, len(some) + 1) - 1 for n, some in self.segments.items()}

    def taken_in(self, marks: Mapping[str, int]) -> set[Record]:
        """All records of the segments up to the marks."""
        some = (part for node, parts in self.segments.items() for part in parts[: marks[node]])
        return set().union(*some)

    def must_be_gone(self, record: Record, said: Said) -> bool:
        """Whether no file of a version that says so may hold it."""
        done = [
            deletion
            for key, (deletion, stored_ms) in self.deletions.items()
            if max(stored_ms, self.again.get(key, 0)) <= said.purged_ms
        ]
        return is_deleted(record[:3], done)

    def may_be_gone(self, record: Record, said: Said) -> bool:
        """Whether nobody misses it: deleted, or beyond the retention."""
        ever = [Deletion(*name, t) for name, t in self.ever.items()]
        if is_deleted(record[:3], [*ever, *(deletion for deletion, _ in self.deletions.values())]):
            return True
        return end_of_hour(record) <= said.expired_ms

    def check(self, found: Sequence[Record], said: Said) -> None:
        """Raises `AssertionError` unless a version that says so may hold just that."""
        twice = [record for record, count in Counter(r[:3] for r in found).items() if count > 1]
        assert not twice, f"there twice: {_some(twice)}"
        beyond = {n: m for n, m in said.marks.items() if m > self.readable().get(n, 0)}
        assert not beyond, f"beyond a segment of a newer version: {beyond}"
        taken_in = self.taken_in(said.marks)
        strange = set(found) - taken_in
        assert not strange, f"from no segment up to {said.marks}: {_some(strange)}"
        lost = {r for r in taken_in - set(found) if not self.may_be_gone(r, said)}
        assert not lost, f"lost: {_some(lost)}"
        left = [record for record in found if self.must_be_gone(record, said)]
        assert not left, f"deleted, purged by {said.purged_ms}, and there: {_some(left)}"

    def settled(self, said: Said) -> set[Record]:
        """What is there in the end, when nothing is left to do."""
        return {r for r in self.taken_in(self.readable()) if not self.may_be_gone(r, said)}


@lru_cache(maxsize=100_000)
def end_of_hour(record: Record) -> int:
    """When the record's hour is over."""
    return (ulid.time_ms(ulid.decode(record[2])) // HOUR_MS + 1) * HOUR_MS


def _some(items: Iterable[object]) -> str:
    listed = sorted(map(str, items))
    return f"{len(listed)}, as {listed[:3]}"
