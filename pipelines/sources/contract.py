"""What pipelines need of a source of segments, whatever is behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from coordination.groups import Start
from logstore.batch import RunKey
from pipelines.deletions import Deleted
from pipelines.events import Origin


@dataclass(frozen=True, slots=True)
class Segment:
    """A decoded segment: its events, and the highest time of a ULID in it, in milliseconds.

    `fetched` is how many bytes were transferred for it.
    """

    events: pa.Table
    high_ms: int
    fetched: int = 0


Fetched: TypeAlias = Callable[[], Segment]
"""A segment that was fetched: called, it is decoded, which blocks. Raises `Damaged`."""


class Held(NamedTuple):
    """What a segment holds: the lowest and highest ULID, empty without rows, and its runs."""

    low: str
    high: str
    runs: frozenset[RunKey]


@dataclass(slots=True)
class Node:
    """What is known of a node's segments: the numbers that are there, and the low watermark."""

    low: int
    sizes: dict[int, int] = field(default_factory=dict)
    quarantined: set[int] = field(default_factory=set)

    def following(self, seq: int) -> tuple[int, int]:
        """The next segment from `seq` on that is to be read, and how many were lost before it.

        It may not be there yet.
        """
        lost = 0
        while seq in self.quarantined or (seq not in self.sizes and seq < self.low):
            lost += seq not in self.quarantined
            seq += 1
        return seq, lost


class Segments(Protocol):
    """A source of segments. All methods may raise `StoreUnavailable`: then they are tried again."""

    unreadable: Mapping[tuple[str, str | None], str]
    """Of whose lines nobody knows whether they are deleted, and why; as of the last `deletions`."""

    async def nodes(self, known: Mapping[str, Node]) -> dict[str, Node]:
        """Every node with the segments that are there; `known` is what an earlier call gave.

        Without `known` it looks at all, and sees which were removed.
        """
        ...

    async def deletions(self) -> Deleted:
        """What is deleted by now."""
        ...

    async def fetch(self, origin: Origin) -> Fetched:
        """A segment as it is transferred. Raises `NotFound`, `Damaged`."""
        ...

    async def held(self, origin: Origin) -> Held:
        """What is in a segment, without its events. Raises `NotFound`, `Damaged`."""
        ...

    async def keep(self, pipeline: str, start: Start) -> None:
        """Keeps segments for a pipeline from now on, before it looks where they begin.

        Called again and again; only the first call of a pipeline uses `start`. Raises
        `GroupEvicted` once what the pipeline had not read may be gone.
        """
        ...

    async def release(self, pipeline: str, needed: Mapping[str, int]) -> None:
        """Says which is the lowest segment of each node that a pipeline still needs."""
        ...

    async def close(self) -> None:
        """Gives connections back."""
        ...
