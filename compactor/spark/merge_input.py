"""What a merge is given: plain values, so that planning one needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from logstore.runs.deletion import Deletion


@dataclass(frozen=True, slots=True)
class MergeInput:
    """One merge.

    `segments` are addresses of segments, `held` of table files that may hold the same
    records, `bounds` the lowest ULID of each bucket, `tasks` the task of each, from 0 on and
    rising, `low` and `high` the input's ULIDs. `sizes` are bytes of segments and held files, as
    far as they are known: what they are of is not looked for again.
    """

    segments: Sequence[str]
    held: Sequence[str]
    bounds: Sequence[int]
    tasks: Sequence[int]
    deletions: Sequence[Deletion]
    low: int
    high: int
    sizes: Mapping[str, int] = field(default_factory=dict)
