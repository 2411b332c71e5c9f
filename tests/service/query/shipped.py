"""A journal that is really drained: what a node's shipper, compactor and clean-up do to its lines.

Each step is done whole, as it is between two looks of a search: `flush` cuts all that is
synced into the next segment and confirms it, `merge` brings all segments into the table,
`remove` takes away those that the table has, as after a grace of nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from service.journal.journal import Journal
from service.journal.reader import JournalPin
from tailrace.logstore import keys
from tailrace.logstore.segments.detect import Carry
from tailrace.logstore.segments.writer import encode_segment
from tests.batches import Entry
from tests.service.journal.rig import NODE, Rig, put
from tests.service.query.world import World


@dataclass
class Shipped:
    """A node with a journal of its own over the world's store and table."""

    world: World
    node: str = NODE
    seq: int = 0
    mark: int = 0
    journal: Journal = field(init=False)
    _unflushed: list[Entry] = field(default_factory=list)
    _segments: list[Sequence[Entry]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.journal = Rig(node=self.node).open()

    async def append(self, entries: Sequence[Entry]) -> None:
        """Puts batches into the journal, synced."""
        for entry in entries:
            await put(self.journal, entry[2], entry[1], run=entry[0])
            self.world.know(entry)
        self._unflushed += entries

    async def flush(self) -> None:
        """The journal has no line of them any more, and its file is gone."""
        journal = self.journal
        cut = await journal.record_cut(self.seq + 1, journal.state.confirmed.end)
        with journal.pin() as pin:
            segment = encode_segment(
                pin.batches(start=cut.first, end=cut.end),
                node=pin.node,
                seq=cut.seq,
                ranges=[(cut.first, cut.end)],
                carry=Carry(),
            )
        await self.world.store.put(keys.segment(journal.state.node, cut.seq), segment.body)
        journal.confirm(cut)
        journal.roll()
        journal.release(cut.end)
        self._segments.append(self._unflushed)
        self.seq, self._unflushed = cut.seq, []

    async def merge(self) -> None:
        """All segments are in the table."""
        fresh = [entry for entries in self._segments[self.mark :] for entry in entries]
        self.mark = self.seq
        self.world.merge(fresh, {self.journal.state.node: self.mark})

    async def remove(self) -> None:
        """Segments that the table has are gone."""
        node = self.journal.state.node
        await self.world.store.delete([keys.segment(node, n + 1) for n in range(self.mark)])

    def pin(self) -> JournalPin:
        """The unflushed part of now."""
        return self.journal.pin()
