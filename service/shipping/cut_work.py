"""What a segment is made of, and what comes of it, wherever that is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from logstore.segments.carry import Carry
from logstore.segments.writer import EncodedSegment, encode_segment
from service.journal.view import JournalBatches
from service.runtime.threads import Offload


@dataclass(frozen=True, slots=True)
class EncodedCut:
    """The segment of a cut, and what the runs ended with."""

    segment: EncodedSegment
    carry: Carry


@dataclass(frozen=True, slots=True)
class CutWork:
    """The batches of a cut, which are the positions from `first` to before `end`.

    `before` is what the runs had at the end of the cut before it. The files of the batches are
    to be pinned until the work is done.
    """

    batches: JournalBatches
    seq: int
    first: int
    end: int
    before: Carry

    @property
    def text_bytes(self) -> int:
        """Bytes of text."""
        return int(self.batches.rows["size"].sum(dtype=np.int64))

    def encoded(self, *, threads: bool = False) -> EncodedCut:
        """The segment, made here, in two threads if so.

        Raises `Damaged`, and what reading the journal raises.
        """
        carry = self.before.copy()
        segment = encode_segment(
            self.batches,
            node=self.batches.node,
            seq=self.seq,
            ranges=[(self.first, self.end)],
            carry=carry,
            threads=threads,
        )
        return EncodedCut(segment, carry)


class SegmentEncoder(Protocol):
    """Makes segments."""

    @property
    def failures(self) -> int:
        """How often the process that should have made one could not."""
        ...

    async def __call__(self, work: CutWork) -> EncodedCut:
        """The segment. Raises as `CutWork.encoded`."""
        ...

    async def close(self) -> None:
        """Lets go of what it holds. May be repeated, and it can still be used."""
        ...


class OffloadedEncoder:
    """Makes each segment by `offload`."""

    failures = 0

    def __init__(self, offload: Offload) -> None:
        self._offload = offload

    async def __call__(self, work: CutWork) -> EncodedCut:
        """As `SegmentEncoder`."""
        return await self._offload(work.encoded)

    async def close(self) -> None:
        """It holds nothing."""
