"""Encodes cuts as segments: one while the one before it is put.

Cuts are encoded in order, each behind the `Carry` of the one before it. A store takes a moment for
a segment, in which the processor has nothing else to do for it, so the next cut is begun as soon as
one is encoded. Beside the segment that is being put, one is in memory.

Only what is confirmed is behind `CutEncoder.carry`: readers of the lines that are not yet confirmed
begin there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from logstore.segments.carry import Carry
from logstore.segments.writer import EncodedSegment, encode_segment
from service.journal.failures import translated
from service.journal.journal import Journal
from service.journal.state import Cut
from service.runtime.threads import Offload


@dataclass(frozen=True, slots=True)
class EncodedCut:
    """The segment of a cut, and what the runs ended with."""

    segment: EncodedSegment
    carry: Carry


class CutEncoder:
    """Encodes the cuts of one journal, in order."""

    def __init__(self, journal: Journal, offload: Offload) -> None:
        self._journal = journal
        self._offload = offload
        self._ahead: asyncio.Task[EncodedCut] | None = None
        self.carry = Carry()
        """What the runs had at the end of the last confirmed segment; not to be changed."""

    async def encoded(self, cut: Cut) -> EncodedCut:
        """The oldest unconfirmed cut as a segment.

        Raises `NodeNotReady` if no descriptor is free to read it.
        """
        ahead, self._ahead = self._ahead, None
        return await (self._encode(cut, self.carry) if ahead is None else ahead)

    def begin(self, cut: Cut, carry: Carry) -> None:
        """Begins with the cut that will be asked for next, unless it is begun already."""
        if self._ahead is None:
            work = self._encode(cut, carry)
            self._ahead = asyncio.get_running_loop().create_task(work, name="encode ahead")

    async def close(self) -> None:
        """Ends what was begun: while a thread reads the journal, its pin is held."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await asyncio.wait({ahead})
            if not ahead.cancelled():
                ahead.exception()  # nobody waits for it any more

    async def _encode(self, cut: Cut, before: Carry) -> EncodedCut:
        with translated("a segment could not be made"), self._journal.pin() as pin:
            await self._offload(lambda: self._journal.check(pin, cut.first, cut.end))
            batches = pin.batches(start=cut.first, end=cut.end)

            def encode() -> EncodedCut:
                carry, ranges = before.copy(), [(cut.first, cut.end)]
                segment = encode_segment(
                    batches, node=pin.node, seq=cut.seq, ranges=ranges, carry=carry
                )
                return EncodedCut(segment, carry)

            return await self._offload(encode)
