"""Encodes cuts as segments: one while the one before it is put.

Cuts are encoded in order, each behind the `Carry` of the one before it. A store takes a moment for
a segment, in which the processor has nothing else to do for it, so the next cut is begun as soon as
one is encoded. Beside the segment that is being put, one is in memory.

Only what is confirmed is behind `CutEncoder.carry`: readers of the lines that are not yet confirmed
begin there.
"""

from __future__ import annotations

import asyncio

from logstore.segments.carry import Carry
from service.journal.failures import translated
from service.journal.journal import Journal
from service.journal.state import Cut
from service.runtime.ongoing import Ongoing
from service.runtime.threads import Offload
from service.shipping.cut_work import CutWork, EncodedCut, SegmentEncoder


class CutEncoder:
    """Encodes the cuts of one journal, in order, by `encode`."""

    def __init__(
        self, journal: Journal, offload: Offload, encode: SegmentEncoder, ongoing: Ongoing
    ) -> None:
        self._journal = journal
        self._ongoing = ongoing
        self._offload = offload
        self._make = encode
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
        await self._make.close()

    async def _encode(self, cut: Cut, before: Carry) -> EncodedCut:
        with (
            translated("a segment could not be made"),
            self._journal.pin() as pin,
            self._ongoing.piece(),
        ):
            await self._offload(lambda: self._journal.check(pin, cut.first, cut.end))
            batches = pin.batches(start=cut.first, end=cut.end)
            return await self._make(CutWork(batches, cut.seq, cut.first, cut.end, before))
