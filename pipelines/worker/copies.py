"""Late events that are copies: a client sent a batch to two nodes, and one of them was read before.

Two copies that wait at the same time are one event (`events`). Where one was given out already,
the other comes with a key that is not above the frontier, as an event that is late does. The
segments of the other nodes that were read tell the two apart: they have the record, or they have
not. Only segments whose ULIDs and runs may have it are read, so this costs something only where
events are late and runs were written through several nodes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from coordination.pipelines.checkpoint import Reading
from logstore.batch import RunKey
from logstore.errors import Damaged, NotFound
from logstore.segments.record_keys import KEY_COLUMNS, keys_of
from pipelines.events import Origin, runs_of
from pipelines.sources.contract import Held
from pipelines.sources.segments import SegmentSource

_KNOWN: Final = 20_000


class Copies:
    """Looks for copies in the segments of a source."""

    def __init__(self, source: SegmentSource) -> None:
        self._source = source
        self._held: OrderedDict[Origin, Held | None] = OrderedDict()

    async def among(
        self, events: pa.Table, origin: Origin, nodes: Mapping[str, Reading]
    ) -> pa.Array | None:
        """Which of the events are in segments of other nodes that were read; None: none.

        `nodes` says how far each was read. Raises `StoreUnavailable`.
        """
        others = [
            Origin(name, seq)
            for name, reading in nodes.items()
            if name != origin.node and name in self._source.nodes
            for seq in self._source.nodes[name].sizes
            if seq < reading.next
        ]
        return await self.of(events, others)

    async def of(self, events: pa.Table, others: Iterable[Origin]) -> pa.Array | None:
        """Which of the events are in these segments; None: none. Raises `StoreUnavailable`."""
        if events.num_rows == 0:
            return None
        runs = runs_of(events)
        low, high = pc.min(events["ulid"]).as_py(), pc.max(events["ulid"]).as_py()
        wanted = events.select(KEY_COLUMNS).combine_chunks()
        found = [
            await self._matching(other, wanted)
            for other in others
            if await self._may_hold(other, low, high, runs)
        ]
        if not any(table.num_rows for table in found):
            return None
        return pa.array(_is_in(wanted, pa.concat_tables(found)))

    async def _may_hold(self, other: Origin, low: str, high: str, runs: frozenset[RunKey]) -> bool:
        held = await self._of(other)
        return held is not None and held.low <= high and low <= held.high and bool(runs & held.runs)

    async def _of(self, origin: Origin) -> Held | None:
        """What the segment holds; None if it cannot be read, or is gone."""
        if origin not in self._held:
            try:
                self._held[origin] = await self._source.held(origin)
            except (NotFound, Damaged):
                self._held[origin] = None
            while len(self._held) > _KNOWN:
                self._held.popitem(last=False)
        return self._held[origin]

    async def _matching(self, other: Origin, wanted: pa.Table) -> pa.Table:
        """The keys of the segment that have one of the wanted ULIDs."""
        try:
            segment = await self._source.read(*other)
        except (NotFound, Damaged):
            return wanted.slice(0, 0)
        keys = segment.events.select(KEY_COLUMNS)
        return keys.filter(pc.is_in(keys["ulid"], wanted["ulid"].combine_chunks()))


def _is_in(events: pa.Table, keys: pa.Table) -> list[bool]:
    known = {*keys_of(keys)}
    return [one in known for one in keys_of(events)]
